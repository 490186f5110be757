"""One partition's log taken apart into transactions."""

from kstreams_assets.offsets import OffsetRange
from kstreams_assets.recovery.segments import Marker, tail_of
from tests.recovery.logs import CHANGELOG, Log, Tx


def _tail(log: Log, below: int | None = None):
    return tail_of(CHANGELOG, log.batches, below=log.end if below is None else below)


def test_a_marker_closes_the_data_of_its_producer_however_far_back() -> None:
    log, first, other = Log(CHANGELOG), Tx(1, 4), Tx(2, 9)
    log.data(first, 2)
    log.data(other)
    log.commit(other, at_ms=5)
    log.data(first)
    log.abort(first, at_ms=8)
    one, two = _tail(log).segments
    assert (one.producer_id, one.epoch) == (1, 4)
    assert one.ranges == (OffsetRange(0, 2), OffsetRange(4, 5))
    assert (one.start, one.end) == (0, 5)
    assert one.marker == Marker(1, 5, 5, committed=False, timestamp_ms=8)
    assert two.marker == Marker(2, 10, 3, committed=True, timestamp_ms=5)


def test_each_marker_ends_one_transaction_of_a_producer_that_keeps_its_epoch() -> None:
    log, tx = Log(CHANGELOG), Tx(1, 0, older=True)
    for at_ms in (10, 20):
        log.data(tx)
        log.commit(tx, at_ms)
    log.data(tx)
    markers = [segment.marker for segment in _tail(log).segments]
    assert [marker and marker.timestamp_ms for marker in markers] == [10, 20, None]


def test_data_beyond_the_end_is_left_out_but_its_markers_are_not() -> None:
    log, before, beyond = Log(CHANGELOG), Tx(1), Tx(2)
    log.data(before)
    log.data(beyond)
    log.commit(before)
    log.commit(beyond)
    tail = _tail(log, below=1)
    assert [(s.producer_id, s.marker and s.marker.offset) for s in tail.segments] == [(1, 2)]
    assert [marker.producer_id for marker in tail.markers] == [1, 2]


def test_a_marker_without_data_is_kept() -> None:
    log = Log(CHANGELOG)
    log.commit(Tx(1))
    assert _tail(log).segments == ()
    assert [marker.offset for marker in _tail(log).markers] == [0]


def test_a_marker_closes_all_open_data_of_its_producer_whatever_its_epochs() -> None:
    """A broker that is killed can lose the markers of a transaction that is committed."""
    log = Log(CHANGELOG)
    log.data(Tx(1, 3))
    log.data(Tx(1, 4))
    log.commit(Tx(1, 4))
    log.data(Tx(1, 5))
    ends = [(s.epoch, s.marker and s.marker.offset) for s in _tail(log).segments]
    assert ends == [(3, 2), (4, 2), (5, None)]


def test_a_marker_that_compaction_emptied_proves_nothing() -> None:
    log = Log(CHANGELOG)
    log.data(Tx(1))
    log.commit(Tx(1))
    log.batches[-1] = log.batches[-1]._replace(control_type=None, record_count=0)
    (segment,) = _tail(log).segments
    assert segment.marker is None
    assert _tail(log).markers == ()


def test_plain_records_are_told_apart() -> None:
    log = Log(CHANGELOG)
    log.plain(2)
    log.plain()
    log.data(Tx(1))
    log.plain()
    assert _tail(log).plain == (OffsetRange(0, 3), OffsetRange(4, 5))
