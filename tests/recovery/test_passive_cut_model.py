"""The algorithm of passive cuts on small observations, without a broker."""

from collections.abc import Mapping

from kstreams_assets.kafka.coordinator_log import GroupCommit
from kstreams_assets.kafka.raw_batch import RawBatch
from kstreams_assets.offsets import CommittedOffset, OffsetRange, TopicPartitionId
from kstreams_assets.recovery.group_commits import GroupBatch
from kstreams_assets.recovery.levels import Level
from kstreams_assets.recovery.passive_commits import (
    Ambiguous,
    Boundary,
    CutEvidence,
    CutInProgress,
    EndsSample,
    ThreadCommit,
    commits_of_threads,
    unproven,
)

GROUP = "app"
IN, IN1 = TopicPartitionId("in", 0), TopicPartitionId("in", 1)
R = TopicPartitionId("r", 0)
LOG = TopicPartitionId("changelog", 0)
READERS = Level(frozenset({"r"}), frozenset(), {"changelog": frozenset({"r"})})
WRITERS = Level(frozenset({"in"}), frozenset({"r"}), {})
ASSIGNMENT = {"a": frozenset({IN, R}), "b": frozenset({IN1})}


def batch(base: int, count: int, producer: int, *, transactional: bool = False) -> RawBatch:
    return RawBatch(base, base + count - 1, count, producer, 0, transactional, False, None, 0)


def commit(p: TopicPartitionId, offset: int | None, record: int) -> GroupCommit:
    return GroupCommit(GROUP, p.topic, p.partition, offset, "", record)


def group_batch(*commits: GroupCommit, transactional: bool = False) -> GroupBatch:
    base = min(one.record_offset for one in commits)
    header = batch(base, len(commits), -1, transactional=transactional)
    return GroupBatch(header, lambda: commits)


def thread_commit(thread: str, record: int, **offsets: int) -> ThreadCommit:
    names = {"in0": IN, "in1": IN1, "r": R}
    of = {names[name]: commit(names[name], value, record) for name, value in offsets.items()}
    return ThreadCommit(thread, record, record, of)


def sample(group_end: int, r: int, log: int, inputs: int = 1000) -> EndsSample:
    return EndsSample({IN: inputs, IN1: inputs, R: r, LOG: log}, group_end)


def progress() -> CutInProgress:
    return CutInProgress([READERS, WRITERS], ASSIGNMENT, {R: CommittedOffset(3, "")}, 10)


def test_a_batch_of_two_threads_is_split() -> None:
    found = commits_of_threads(
        [group_batch(commit(IN, 5, 20), commit(IN1, 7, 21), commit(R, 4, 22))], ASSIGNMENT
    )
    assert not isinstance(found, Ambiguous)
    assert [(one.thread, one.first, one.last) for one in found] == [("b", 21, 21), ("a", 20, 22)]


def test_two_requests_of_one_thread_in_a_batch_are_two() -> None:
    found = commits_of_threads([group_batch(commit(IN, 5, 20), commit(IN, 6, 21))], ASSIGNMENT)
    assert not isinstance(found, Ambiguous)
    assert [one.last for one in found] == [20, 21]


def test_commits_in_transactions_and_of_strangers_are_ambiguous() -> None:
    transactional = group_batch(commit(IN, 5, 20), transactional=True)
    assert isinstance(commits_of_threads([transactional], ASSIGNMENT), Ambiguous)
    stranger = group_batch(commit(TopicPartitionId("in", 9), 5, 20))
    assert isinstance(commits_of_threads([stranger], ASSIGNMENT), Ambiguous)


def test_the_sample_after_the_one_that_shows_a_commit_counts() -> None:
    """Ends of the showing sample may be older than the flush; those before it always are."""
    one = progress()
    assert one.observe(sample(10, 50, 5), (), 0.0) == []
    assert not one.needs_sample
    assert one.observe(sample(11, 51, 6), [thread_commit("a", 10, in0=8, r=40)], 0.1) == []
    assert one.needs_sample
    (offered,) = one.observe(sample(11, 60, 7), (), 0.2)
    assert not one.needs_sample
    assert (offered.before[LOG], offered.after[LOG]) == (5, 7)
    assert offered.committed == {R: CommittedOffset(40, "")}


def test_writers_wait_for_a_commit_after_the_readers_one() -> None:
    one = progress()
    one.observe(sample(10, 50, 5), (), 0.0)
    one.observe(sample(11, 50, 5), [thread_commit("b", 10, in1=9)], 0.1)  # too early for b
    one.observe(sample(12, 50, 5), [thread_commit("a", 11, in0=8, r=40)], 0.2)
    (reader,) = one.observe(sample(12, 50, 5), (), 0.3)
    one.accept(reader)
    assert (one.level, one.waiting) == (1, {"a", "b"})
    one.observe(
        sample(14, 55, 5), [thread_commit("a", 12, in0=12), thread_commit("b", 13, in1=13)], 0.4
    )
    for offered in one.observe(sample(14, 56, 5), (), 0.5):
        one.accept(offered)
    assert one.is_complete
    assert [(b.thread, b.level) for b in one.boundaries] == [("a", 0), ("a", 1), ("b", 1)]


def test_commits_before_the_start_are_known_but_not_used() -> None:
    one = CutInProgress([READERS, WRITERS], ASSIGNMENT, {}, 12)
    one.observe(sample(10, 50, 5), (), 0.0)
    one.observe(sample(11, 50, 5), [thread_commit("a", 10, r=40)], 0.1)
    assert one.observe(sample(11, 50, 5), (), 0.2) == []
    assert one.committed[R].offset == 40


def test_a_thread_without_work_counts_once_it_has_rested() -> None:
    one = progress()
    one.rest_s = 1.0
    for at in (0.0, 0.5, 1.0):
        assert one.observe(sample(10, 3, 5), (), at) == []
    (offered,) = one.observe(sample(10, 3, 5), (), 1.7)
    assert (offered.thread, offered.before, offered.last) == ("a", offered.after, 9)


def test_a_thread_that_writes_its_changelog_does_not_rest() -> None:
    one = progress()
    one.rest_s = 1.0
    for n, at in enumerate((0.0, 0.5, 1.0, 1.7, 2.4)):
        assert one.observe(sample(10, 3, 5 + n), (), at) == []


def boundary(thread: str, level: int, before: Mapping[TopicPartitionId, int], r: int) -> Boundary:
    after = {**before, R: r}
    return Boundary(
        thread, level, 0, {R: CommittedOffset(3, "")} if level == 0 else {}, before, after
    )


def evidence(producers: Mapping[str, int]) -> CutEvidence:
    ends = {IN: 9, IN1: 9, R: 10, LOG: 5}
    return CutEvidence(
        [READERS, WRITERS],
        ASSIGNMENT,
        [boundary("a", 0, ends, 10), boundary("a", 1, ends, 12), boundary("b", 1, ends, 20)],
        producers,
        frozenset({"r", "changelog"}),
    )


BATCHES = {R: [batch(10, 2, 1), batch(12, 3, 2), batch(15, 2, 1), batch(17, 3, 2)]}


def test_batches_of_a_producer_above_its_own_bound_are_excluded() -> None:
    cut = evidence({"a": 1, "b": 2}).cut(BATCHES)
    assert not isinstance(cut, Ambiguous)
    assert (cut.ends[R], cut.ends[LOG]) == (20, 5)
    assert cut.excluded[R] == (OffsetRange(15, 17),)
    assert cut.repeats_at_most == 2 + 3 + 3


def test_records_of_an_unknown_thread_are_kept_up_to_the_widest_bound() -> None:
    cut = evidence({"a": 1}).cut(BATCHES)
    assert not isinstance(cut, Ambiguous)
    assert cut.excluded[R] == (OffsetRange(15, 17),)


def test_a_producer_of_no_member_is_ambiguous() -> None:
    found = evidence({"a": 1, "b": 2}).cut({R: [batch(10, 2, 77)]})
    assert isinstance(found, Ambiguous)
    assert "producer 77" in found.reason


def test_transactions_and_plain_producers_are_ambiguous() -> None:
    for one in (batch(10, 2, 1, transactional=True), batch(10, 2, -1)):
        assert isinstance(evidence({"a": 1, "b": 2}).cut({R: [one]}), Ambiguous)


def test_a_range_excluded_at_the_end_shortens_the_log() -> None:
    cut = evidence({"a": 1, "b": 2}).cut({R: [batch(10, 2, 2), batch(12, 8, 1)]})
    assert not isinstance(cut, Ambiguous)
    assert (cut.ends[R], cut.excluded[R]) == (12, ())


def test_only_records_of_the_thread_count_against_a_proof() -> None:
    ends = {IN: 9, IN1: 9, R: 10, LOG: 5}
    one = boundary("b", 1, ends, 20)
    for producers, count in (({"a": 1, "b": 2}, 6), ({"a": 2, "b": 3}, 0), ({"a": 1}, 6), ({}, 10)):
        assert unproven(one, WRITERS, {IN1}, producers, BATCHES) == count, producers
