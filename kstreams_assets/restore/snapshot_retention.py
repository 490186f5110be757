"""Whether a KTable snapshot keeps all that its store keeps, as far as topic configs tell. Pure."""

from collections.abc import Mapping
from typing import Final

from kstreams_assets.ktables.snapshot import TableStore
from kstreams_assets.ktables.store_format import StoreKind
from kstreams_assets.restore.plan import Refusal
from kstreams_assets.restore.snapshot_state import RAW_REMEDY

ADDITIONAL_MS: Final = 86_400_000
"""What Kafka Streams adds to a store's retention in its changelog's configs: 24 h.

The default of `windowstore.changelog.additional.retention.ms`; versioned stores always.
"""

_CONFIG_OF: Final[Mapping[StoreKind, str]] = {
    StoreKind.WINDOW: "retention.ms",
    StoreKind.JOIN_WINDOW: "retention.ms",
    StoreKind.SESSION: "retention.ms",
    StoreKind.VERSIONED: "min.compaction.lag.ms",
}
_LAG: Final = _CONFIG_OF[StoreKind.VERSIONED]


def retention_refusal(store: TableStore, configs: Mapping[str, str]) -> Refusal | None:
    """Why a restore would lose rows: the declared retention is shorter than the store's own.

    `configs` are those that were set on the changelog. Kafka Streams sets the retention of a store
    plus a day there (`WindowedChangelogTopicConfig`, `VersionedChangelogTopicConfig`); a topic
    without such a config tells nothing.
    """
    if store.format.undeclared and may_be_versioned(store, configs):
        return _kind_refusal(store, configs[_LAG])
    declared_ms, name = store.format.retention_ms, _CONFIG_OF.get(store.format.kind)
    if declared_ms is None or name is None or name not in configs:
        return None
    kept_ms = int(configs[name]) - ADDITIONAL_MS
    if kept_ms <= declared_ms:
        return None
    return Refusal(
        f"store {store.store}",
        f"Its declared retention_ms is {declared_ms}, but {name}={configs[name]} of {store.topic}"
        f" says that the store keeps {kept_ms}: rows that it still has would be lost.",
        f"Declare retention_ms: {kept_ms} (or none) for the store and make its snapshots again,"
        f" {RAW_REMEDY}.",
    )


def may_be_versioned(store: TableStore, configs: Mapping[str, str]) -> bool:
    """Whether a store that is read as key and value has the changelog of a versioned one.

    Kafka Streams sets `min.compaction.lag.ms` for versioned stores only, but anybody may.
    """
    return store.format.kind is StoreKind.KEY_VALUE and int(configs.get(_LAG, 0)) > 0


def _kind_refusal(store: TableStore, lag_ms: str) -> Refusal:
    return Refusal(
        f"store {store.store}",
        f"Its kind is not declared, and {_LAG}={lag_ms} of {store.topic} is what Kafka Streams sets"
        " for versioned stores: a snapshot of the newest values alone would lose their history.",
        f"Declare the kind of the store (versioned, or key_value if it is none), {RAW_REMEDY}.",
    )
