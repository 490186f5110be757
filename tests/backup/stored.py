"""Rows of the ledger made by hand, as far as restores go by them."""

from kstreams_assets.model.chains import StoredSpan
from kstreams_assets.offsets import TopicPartitionId
from tests.backup.samples import window


def stored_span(
    start: int,
    end: int,
    *,
    index: int = 0,
    topic: str = "t",
    partition: int = 0,
    topic_id: str = "life-1",
    read_start: int | None = None,
    continues: bool = True,
    complete: bool = True,
    log_start: int = 0,
    first_hole: int | None = None,
    recorded_at_ms: int | None = None,
    ledger_version: int | None = None,
    closed_at_ms: int | None = None,
) -> StoredSpan:
    """A span of the window of this number; read 5 ms after the window's end.

    The ledger has a version for each ms: points taken later than the span was read know that.
    """
    of = window(index)
    recorded_at_ms = of.end_ms + 5 if recorded_at_ms is None else recorded_at_ms
    return StoredSpan(
        window=of,
        partition=TopicPartitionId(topic, partition),
        topic_id=topic_id,
        start=start,
        end=end,
        read_start=start if read_start is None else read_start,
        continues=continues,
        complete=complete,
        log_start=log_start,
        first_hole=first_hole,
        recorded_at_ms=recorded_at_ms,
        ledger_version=recorded_at_ms - 1 if ledger_version is None else ledger_version,
        closed_at_ms=closed_at_ms,
    )
