"""Which columns of backups the columns of a KTable come from, as Dagster's column lineage."""

from collections.abc import Iterable, Mapping

import dagster as dg

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.ktables.columns import KEY_PARTS, decoded_columns
from kstreams_assets.ktables.snapshot import TableStore
from kstreams_assets.ktables.store_format import StoreKind
from kstreams_assets.naming import backup_key, topic_key
from kstreams_assets.settings import ApplicationSettings

_AS_THEY_ARE = ("partition", "offset", "timestamp_ms", "headers", "key", "value")


def column_lineage(store: TableStore, settings: ApplicationSettings) -> dg.TableColumnLineage:
    """Where each column comes from: the topic's backup, and what the user declares beyond it.

    Declared sources are columns `value.<field>` of the backup of another topic, or of the topic
    itself where that has no backup.

    Raises:
        ConfigurationError: A declared source names no topic of the application.
    """
    log = backup_key(settings.application_id, store.topic)
    columns = {name: [(log, name)] for name in _AS_THEY_ARE}
    part_of = "timestamp_ms" if store.format.kind is StoreKind.VERSIONED else "key"
    columns |= {name: [(log, part_of)] for name, _, _ in KEY_PARTS.get(store.format.kind, ())}
    for side in ("key", "value"):
        columns |= {name: [(log, side)] for name, _ in decoded_columns(store.format, side)}
    columns["decode_error"] = [(log, "key"), (log, "value")]
    for target, sources in store.format.lineage:
        name = f"decoded_value.{target}" if target else "decoded_value"
        here = columns.setdefault(name, [(log, "value")])
        here += [_source(source, store, settings) for source in sources]
    return dg.TableColumnLineage(
        {
            name: [dg.TableColumnDep(asset_key=key, column_name=column) for key, column in deps]
            for name, deps in columns.items()
        }
    )


def _source(
    source: str, store: TableStore, settings: ApplicationSettings
) -> tuple[dg.AssetKey, str]:
    topic, field = split_source(source, store, settings)
    column = f"value.{field}" if field else "value"
    if topic in {backed_up.name for backed_up in settings.topics}:
        return backup_key(settings.application_id, topic), column
    return topic_key(topic), column


def split_source(source: str, store: TableStore, settings: ApplicationSettings) -> tuple[str, str]:
    """Topic and field of a declared source `topic.field`; topics may have dots in their names.

    Raises:
        ConfigurationError: No topic of the application has such a name.
    """
    names = [topic.name for topic in settings.application.topics]
    fitting = [name for name in names if source == name or source.startswith(f"{name}.")]
    if not fitting:
        raise ConfigurationError(
            f"The lineage of store {store.store!r} names {source!r}, and no topic of"
            f" {settings.application_id} has such a name.",
            remedy=f"Give topic.field; the topics are {', '.join(names)}.",
        )
    topic = max(fitting, key=len)
    return topic, source[len(topic) + 1 :]


def declared_fields(
    stores: Iterable[TableStore], settings: ApplicationSettings
) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """The fields of each topic's values of which stores are declared to be computed: topic -> field
    -> columns `store.field`.

    Raises:
        ConfigurationError: A declared source names no topic of the application.
    """
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for store in stores:
        for target, sources in store.format.lineage:
            column = f"{store.store}.{target}" if target else store.store
            for source in sources:
                topic, field = split_source(source, store, settings)
                if field:
                    fields = found.setdefault(topic, {})
                    fields[field] = (*fields.get(field, ()), column)
    return found
