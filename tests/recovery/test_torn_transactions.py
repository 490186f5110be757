"""Transactions that may have been decided in one partition before the first look."""

from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.cut import Blocker, Cut, Need, Sample, decide
from kstreams_assets.recovery.identity import EndedTransaction, ProducerEpoch
from tests.recovery.logs import CHANGELOG, INPUT, OFFSETS, OUTPUT, REPARTITION, Log, Logs, Tx, older

ONE = Tx(1, 4)
OLD = older(1)


def _blocker(sample: Sample) -> Blocker:
    decision = decide(sample)
    assert isinstance(decision, Blocker), decision
    return decision


def _is_decided(sample: Sample) -> bool:
    return isinstance(decide(sample), Cut)


def _torn(tx: Tx) -> Logs:
    """One punctuation: stable in the changelog at the first look, its marker in the output late."""
    logs = Logs()
    logs.changelog.data(tx, 2)
    logs.changelog.commit(tx, 12)
    logs.output.data(tx, 2)
    return logs


def _sample(
    logs: Logs,
    history: list[EndedTransaction] | None = None,
    ongoing: frozenset[ProducerEpoch] | None = None,
    ends: dict[TopicPartitionId, int] | None = None,
    first_end: int = 2,
) -> Sample:
    """The first look found the changelog stable, and two records in the output."""
    looked = {CHANGELOG: logs.changelog.end, OUTPUT: 0}
    first_ends = {**looked, OUTPUT: first_end}
    return logs.sample(
        stable=looked, first_ends=first_ends, history=history, ongoing=ongoing, ends=ends,
        producers=frozenset({1}),
    )  # fmt: skip


def test_one_that_wrote_nothing_since_is_asked_about() -> None:
    blocker = _blocker(_sample(_torn(ONE)))
    assert blocker.need is Need.ONGOING
    assert blocker.partitions == (OUTPUT,)
    assert blocker.producers == {ProducerEpoch(1, 4)}


def test_one_that_is_open_was_not_decided_anywhere() -> None:
    logs = _torn(ONE)
    assert _is_decided(_sample(logs, ongoing=frozenset({ProducerEpoch(1, 4)})))


def test_one_that_has_ended_is_refused() -> None:
    for others in ((), (ProducerEpoch(1, 5),), (ProducerEpoch(2, 4),)):
        blocker = _blocker(_sample(_torn(ONE), ongoing=frozenset(others)))
        assert blocker.need is Need.ANOTHER_TRY
        assert f"{OUTPUT} may have ended in other partitions long before" in blocker.reason


def test_one_that_wrote_since_the_first_look_was_open_then() -> None:
    assert _is_decided(_sample(_torn(ONE), first_end=1))
    logs = _torn(ONE)
    logs.offsets.offsets(Tx(1, 3), {INPUT: 2})
    logs.offsets.commit(Tx(1, 3))  # each transaction of this producer has its own epoch
    logs.repartition.data(ONE)
    assert _is_decided(_sample(logs))


def test_what_was_written_since_may_be_of_the_next_one_with_the_same_epoch() -> None:
    logs = _torn(ONE)
    logs.repartition.data(ONE)
    blocker = _blocker(_sample(logs))
    assert (blocker.need, blocker.producers) == (Need.ONGOING, {ProducerEpoch(1, 4)})


def test_a_marker_beyond_the_early_end_proves_nothing() -> None:
    logs = _torn(ONE)
    logs.output.commit(ONE)
    assert _blocker(_sample(logs)).need is Need.ONGOING


def test_an_aborted_one_is_taken_nowhere() -> None:
    for log in ("output", "offsets"):
        logs = _torn(ONE)
        if log == "offsets":
            logs.offsets.offsets(ONE, {INPUT: 3})
        aborted: Log = getattr(logs, log)
        aborted.abort(ONE)
        assert _is_decided(_sample(logs))


def test_one_with_pending_offsets_was_open_when_offsets_were_told() -> None:
    logs = _torn(ONE)
    logs.offsets.offsets(ONE, {INPUT: 3})
    assert _is_decided(_sample(logs))


def test_one_that_is_taken_is_whole() -> None:
    logs = _torn(ONE)
    logs.output.commit(ONE)
    logs.offsets.offsets(Tx(1, 5), {INPUT: 3})
    logs.offsets.commit(Tx(1, 5))
    cut = decide(_sample(logs))
    assert isinstance(cut, Cut)
    assert cut.ends == {CHANGELOG: 3, REPARTITION: 0, OUTPUT: 2}


class TestOlderClients:
    """Where an open transaction may be a later one of the same epoch."""

    def test_their_markers_show_it(self) -> None:
        logs = _torn(OLD)
        ends = {OUTPUT: logs.output.end}
        ongoing = frozenset({ProducerEpoch(1, 0)})
        assert _is_decided(_sample(logs, ongoing=ongoing, ends=ends))
        logs.output.commit(OLD, 13)  # found by reading on
        assert _blocker(_sample(logs, ongoing=ongoing, ends=ends)).need is Need.HISTORY

    def test_one_that_lacks_a_partition_is_refused(self) -> None:
        logs = _torn(OLD)
        logs.output.commit(OLD, 13)
        history = [OLD.ended(CHANGELOG, OUTPUT, prepared_ms=10, completed_ms=20)]
        blocker = _blocker(_sample(logs, history))
        assert blocker.need is Need.ANOTHER_TRY
        assert "may have ended in other partitions" in blocker.reason

    def test_one_that_is_seen_in_all_is_whole(self) -> None:
        logs = _torn(OLD)
        logs.output.commit(OLD, 13)
        unwatched = TopicPartitionId("other", 0)
        history = [OLD.ended(unwatched, OUTPUT, prepared_ms=10, completed_ms=20)]
        assert _is_decided(_sample(logs, history))

    def test_offsets_beyond_the_end_are_later(self) -> None:
        logs = _torn(OLD)
        logs.output.commit(OLD, 13)
        logs.offsets.commit(Tx(99), 9)
        partitions = (CHANGELOG, OFFSETS, OUTPUT)
        later, earlier = (
            [OLD.ended(*partitions, prepared_ms=at, completed_ms=20)] for at in (10, 9)
        )
        assert _is_decided(_sample(logs, later))
        assert _blocker(_sample(logs, earlier)).need is Need.ANOTHER_TRY
