"""The committed offsets of a group, from what was told and what the log shows."""

from collections.abc import Sequence
from dataclasses import replace

from kstreams_assets.kafka.coordinator_log import GroupCommit
from kstreams_assets.kafka.raw_batch import RawRecord, parse_with_bytes
from kstreams_assets.kafka.raw_log import LoadedBatch
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.recovery.group_commits import GroupBatch, GroupLog, batches_of_group
from tests.kafka.batch_bytes import batch_bytes
from tests.recovery.logs import INPUT, OFFSETS, REPARTITION, Log, Tx, told

ONE, TWO = Tx(1), Tx(2)


def _offsets(log: GroupLog, **known: int) -> dict[str, int]:
    names = {INPUT: "input", REPARTITION: "repartition"}
    return {names[p]: c.offset for p, c in log.offsets(told(**known)).items()}


def test_commits_of_committed_transactions_below_the_end_count() -> None:
    log = Log(OFFSETS)
    log.offsets(ONE, {INPUT: 10}, "time")
    log.commit(ONE)
    log.offsets(TWO, {REPARTITION: 5})
    decided = log.end
    log.commit(TWO)
    assert log.group_log().offsets({}) == {
        REPARTITION: CommittedOffset(5, "m"),
        INPUT: CommittedOffset(10, "time"),
    }
    early = log.group_log(end=decided)
    assert _offsets(early) == {"input": 10}
    assert [s.producer_id for s in early.committed] == [1]
    assert [s.producer_id for s in early.undecided] == [2]


def test_aborted_commits_do_not_count() -> None:
    log = Log(OFFSETS)
    log.offsets(ONE, {INPUT: 10})
    log.abort(ONE)
    assert _offsets(log.group_log(), input=3) == {"input": 3}
    assert log.group_log().committed == log.group_log().undecided == ()


def test_a_hidden_one_behind_an_open_one() -> None:
    log = Log(OFFSETS)
    log.offsets(ONE, {INPUT: 10})
    log.offsets(TWO, {REPARTITION: 5})
    log.commit(TWO)
    group = log.group_log()
    assert _offsets(group) == {"repartition": 5}
    assert [s.producer_id for s in group.undecided] == [1]


def test_the_higher_record_offset_wins_even_if_its_marker_came_earlier() -> None:
    log = Log(OFFSETS)
    log.offsets(ONE, {INPUT: 10})
    log.offsets(TWO, {INPUT: 20})
    log.commit(TWO)
    applied = log.end
    log.commit(ONE)
    assert _offsets(log.group_log(applied=applied), input=20) == {"input": 20}


def test_what_was_told_stays_where_the_log_shows_nothing_newer() -> None:
    log = Log(OFFSETS)
    log.offsets(ONE, {INPUT: 10})
    log.commit(ONE)
    log.offsets(TWO, {REPARTITION: 5})
    log.commit(TWO)
    applied = log.end
    newer = Tx(1, 1)
    log.offsets(newer, {INPUT: 30})
    log.commit(newer)
    group = log.group_log(applied=applied)
    assert _offsets(group, input=10, repartition=5) == {"input": 30, "repartition": 5}


def test_an_older_commit_in_a_long_transaction_does_not_beat_what_was_told() -> None:
    log, three = Log(OFFSETS), Tx(3)
    log.offsets(ONE, {INPUT: 10})
    log.offsets(TWO, {INPUT: 20})
    log.commit(TWO)
    log.offsets(three, {REPARTITION: 1})
    log.offsets(ONE, {REPARTITION: 2})
    log.commit(ONE)
    applied = log.end
    log.commit(three)
    group = log.group_log(applied=applied)
    assert _offsets(group, input=20, repartition=2) == {"input": 20, "repartition": 2}


def test_a_tombstone_takes_the_offset_away() -> None:
    log = Log(OFFSETS)
    log.offsets(ONE, {INPUT: None})
    log.commit(ONE)
    assert _offsets(log.group_log(), input=7, repartition=2) == {"repartition": 2}


def test_only_what_can_matter_is_decoded() -> None:
    log, late = Log(OFFSETS), Tx(1, 1)
    log.offsets(ONE, {INPUT: 10})
    log.commit(ONE)
    applied = log.end
    log.offsets(late, {INPUT: 20})
    log.commit(late)
    decoded: list[int] = []

    def watched(batch: GroupBatch) -> GroupBatch:
        def read() -> Sequence[GroupCommit]:
            decoded.append(batch.header.base_offset)
            return batch.read()

        return replace(batch, read=read)

    group = log.group_log(applied=applied)
    group = replace(group, batches=[watched(batch) for batch in group.batches])
    assert _offsets(group, input=10) == {"input": 20}
    assert decoded == [2]


def test_commits_outside_of_transactions_are_seen() -> None:
    log = Log(OFFSETS)
    log.offsets(ONE, {INPUT: 10})
    assert not log.group_log().has_commit_outside_transaction()
    log.offsets(None, {INPUT: 11})
    assert log.group_log().has_commit_outside_transaction()
    assert not log.group_log(end=1).has_commit_outside_transaction()


def test_tombstones_outside_of_transactions_are_no_evidence() -> None:
    """The coordinator writes them when offsets expire, or when their topic is deleted."""
    log = Log(OFFSETS)
    log.offsets(ONE, {INPUT: 10})
    log.commit(ONE)
    applied = log.end
    log.offsets(None, {INPUT: None, REPARTITION: None})
    assert not log.group_log().has_commit_outside_transaction()
    assert _offsets(log.group_log(applied=applied), input=10, repartition=3) == {}
    assert _offsets(log.group_log(applied=log.end), repartition=3) == {"repartition": 3}
    log.offsets(TWO, {INPUT: 12})
    log.commit(TWO)
    assert _offsets(log.group_log(applied=applied), input=10) == {"input": 12}
    log.offsets(None, {INPUT: 13, REPARTITION: None})
    assert log.group_log().has_commit_outside_transaction()


def test_batches_of_other_groups_are_left_out_and_all_markers_stay() -> None:
    transactional, control = 0x10, 0x30
    ours, others, plain = _commit("app"), _commit("app-2"), _commit("app")
    batches = [
        _loaded([ours], 0, transactional),
        _loaded([others], 1, transactional),
        _loaded([_record(b"\x00\x00\x00\x01")], 2, control),
        _loaded([plain], 3, 0),
        _loaded([_record(b"\x00\x02\x00\x03app")], 4, 0),
    ]
    found = batches_of_group(batches, "app")
    assert [batch.header.base_offset for batch in found] == [0, 2, 3]
    (commit,) = found[0].read()
    assert (commit.topic, commit.partition, commit.offset) == ("orders", 0, 42)
    assert found[1].read() == ()


def _commit(group: str):
    key = b"\x00\x01" + b"".join(len(s).to_bytes(2, "big") + s.encode() for s in (group, "orders"))
    value = b"\x00\x03" + (42).to_bytes(8, "big") + b"\xff" * 4 + b"\x00\x00" + b"\x00" * 8
    return _record(key + b"\x00" * 4, value)


def _record(key: bytes, value: bytes = b""):
    return RawRecord(0, 0, 0, key, value, ())


def _loaded(records, base: int, attributes: int) -> LoadedBatch:
    moved = [record._replace(offset=base) for record in records]
    data = memoryview(batch_bytes(moved, base_offset=base, attributes=attributes))
    ((header, view),) = parse_with_bytes(data, partition="x")
    return LoadedBatch(header, view, TopicPartitionId("__consumer_offsets", 7))
