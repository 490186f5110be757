"""Buffers of stream-table joins with a grace period, which Kafka Streams misreads. Pure.

Seen with Kafka Streams 4.3.1: the changelog keys of such a buffer begin with the time
(`TimeFirstWindowKeySchema`), but `RocksDBTimeOrderedKeyValueBytesStore.getWriteBatches` restores
them as window keys, whose time is at the end. So rows are put where nobody looks for them, and
letters of the key are taken for the stream time.
"""

from collections.abc import Collection, Iterable, Mapping

from kstreams_assets.app.model import Store
from kstreams_assets.ktables.declared import format_of
from kstreams_assets.ktables.store_format import StoreFormat, StoreKind


def misread_buffers(
    stores: Iterable[Store], formats: Mapping[str, StoreFormat], restored: Collection[str]
) -> Iterable[str]:
    """Notes on the join buffers whose changelogs are among the `restored` source topics."""
    for store in stores:
        if store.changelog not in restored:
            continue
        if format_of(store.name, formats).kind is StoreKind.JOIN_BUFFER:
            yield (
                f"Store {store.name} buffers a stream-table join with a grace period. Its log is"
                " restored as it was, but Kafka Streams (4.3.1) misreads such a log whenever it"
                " reads it back, also on the source after a lost state directory: records that"
                " waited at the point are never joined, later ones are joined without waiting."
                f" With {store.changelog} excluded, later ones wait as they should; what waited"
                " must then be sent again, before anything new: the store's KTable has it."
            )
