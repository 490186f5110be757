"""The proof of cuts from a journal on small observations, without a broker."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from kstreams_assets.kafka.journal import CommitBoundary
from kstreams_assets.kafka.raw_batch import RawBatch
from kstreams_assets.offsets import CommittedOffset, OffsetRange, TopicPartitionId
from kstreams_assets.recovery.journal_cut import Journal, JournalCut, LevelStart
from kstreams_assets.recovery.levels import Level
from kstreams_assets.recovery.passive_commits import CutEvidence, PassiveCut
from kstreams_assets.recovery.scene import NotTaken

IN, IN1 = TopicPartitionId("in", 0), TopicPartitionId("in", 1)
R, OUT = TopicPartitionId("r", 0), TopicPartitionId("out", 0)
LOG = TopicPartitionId("changelog", 0)
READERS = Level(frozenset({"r"}), frozenset(), {"changelog": frozenset({"r"})})
WRITERS = Level(frozenset({"in"}), frozenset({"r", "out"}), {})
MEMBERS = {"a": frozenset({IN, R}), "b": frozenset({IN1})}
START = LevelStart({R: 10, LOG: 5, OUT: 7}, {R: 11, LOG: 6, OUT: 8}, {IN: 100, IN1: 200, R: 3})
BASE = {IN: 100, IN1: 200, R: 3}

Ends = Mapping[TopicPartitionId, int]


def boundary(
    run: str, number: int, committed: Ends, written: Ends, *, at: int = 50, regular: bool = True
) -> CommitBoundary:
    return CommitBoundary(f"thread of {run}", run, number, 0, regular, committed, written, at)


def batch(base: int, end: int, producer: int, *, transactional: bool = False) -> RawBatch:
    return RawBatch(base, end - 1, end - base, producer, 0, transactional, False, None, 0)


def journal(*boundaries: CommitBoundary) -> Journal:
    found = Journal(before=20)
    found.add(boundaries)
    return found


def reason(found: object) -> str:
    assert isinstance(found, NotTaken)
    return found.reason


def test_a_boundary_counts_once_it_is_known_to_be_later_than_the_start() -> None:
    stale = boundary("x", 4, {IN: 100}, {R: 11})
    written = boundary("x", 5, {IN: 100}, {R: 12})
    read = boundary("y", 9, {IN1: 201}, {R: 3})
    found = journal(stale, written, read).first_after(START, MEMBERS)
    assert found == {"a": written, "b": read}


@pytest.mark.parametrize(
    ("boundaries", "committed", "behind"),
    [
        ([boundary("x", 5, {IN: 100, R: 3}, {}), boundary("y", 1, {IN1: 200}, {})], BASE, []),
        ([boundary("x", 5, {IN: 100}, {}), boundary("y", 1, {IN1: 210}, {})], BASE, []),
        ([boundary("x", 5, {IN: 99}, {}), boundary("y", 1, {IN1: 200}, {})], BASE, ["a"]),
        ([boundary("x", 5, {IN: 100}, {})], BASE, ["b"]),
        ([boundary("x", 5, {IN: 100}, {})], {IN: 100}, []),
        ([], BASE, ["a", "b"]),
        ([], {}, []),
    ],
    ids=["all", "later", "older", "no boundary", "nothing committed", "empty", "new group"],
)
def test_members_whose_commits_are_missing_run_without_the_companion(
    boundaries: list[CommitBoundary], committed: Ends, behind: list[str]
) -> None:
    assert journal(*boundaries).behind(MEMBERS, committed) == behind


@pytest.mark.parametrize(
    ("request_of_boundary", "is_later"), [("asked", True), ("another", False), ("", False)]
)
def test_a_boundary_without_new_work_counts_if_it_names_the_request(
    request_of_boundary: str, is_later: bool
) -> None:
    asked = START._replace(request="asked")
    one = replace(boundary("r", 3, {IN: 100}, {R: 10}), request=request_of_boundary)
    assert asked.precedes(one) is is_later
    assert not START.precedes(one)


def test_after_a_reset_the_newest_boundary_counts() -> None:
    earlier, newest = boundary("x", 5, {IN: 500}, {}, at=30), boundary("z", 1, {IN: 90}, {}, at=40)
    assert journal(newest, earlier).behind({"a": frozenset({IN})}, {IN: 100}) == ["a"]


def test_the_interval_of_commits_is_learned_without_gaps() -> None:
    """A dropped boundary doubles no interval, and one quiet thread does not decide."""
    times = {"x": {1: 0, 2: 1000, 3: 2000, 5: 9000, 6: 10_000}, "y": {1: 0, 2: 60_000}}
    found = journal(
        *(
            replace(boundary(run, number, {}, {}), timestamp_ms=at_ms)
            for run, of_run in times.items()
            for number, at_ms in of_run.items()
        )
    )
    assert found.interval_s() == 1.0
    assert journal().interval_s() is None


def test_a_boundary_of_the_time_before_the_cut_never_counts() -> None:
    """Its end is that of a former incarnation of the topic."""
    assert journal(boundary("x", 4, {IN: 999}, {R: 99}, at=19)).first_after(START, MEMBERS) == {}


@pytest.mark.parametrize(
    ("boundaries", "text"),
    [
        ([boundary("x", 5, {IN: 101, IN1: 201}, {})], "not assigned to one member"),
        ([boundary("x", 5, {TopicPartitionId("in", 9): 1}, {})], "not assigned to one member"),
        ([boundary("x", 5, {IN: 101}, {}), boundary("y", 5, {IN: 102}, {})], "both commit"),
    ],
)
def test_a_thread_that_is_not_one_member_gives_no_cut(
    boundaries: list[CommitBoundary], text: str
) -> None:
    assert text in reason(journal(*boundaries).first_after(START, MEMBERS))


def test_offsets_that_a_commit_leaves_out_are_those_of_earlier_ones() -> None:
    last = boundary("x", 7, {IN: 130}, {})
    found = journal(
        boundary("x", 5, {IN: 90, R: 2}, {}, at=19),
        boundary("x", 6, {R: 8}, {}),
        last,
    )
    assert found.offsets_at(last, BASE) == {IN: 130, IN1: 200, R: 8}


def test_an_older_commit_does_not_hide_what_another_thread_committed_since() -> None:
    last = boundary("x", 2, {IN: 130}, {})
    assert journal(boundary("x", 1, {R: 1}, {}), last).offsets_at(last, BASE) == {
        **BASE,
        IN: 130,
    }


@pytest.mark.parametrize(
    ("boundaries", "text"),
    [
        ([boundary("x", 5, {}, {}, at=19)], "does not contain commit 6 of thread of x"),
        ([boundary("x", 6, {}, {})], "does not contain commit 5 of thread of x"),
        ([boundary("x", 6, {}, {}, regular=False)], "lost tasks"),
        ([boundary("x", 6, {IN: 131}, {}, at=19), boundary("x", 6, {IN: 131}, {})], ""),
        ([boundary("x", 6, {IN: 131}, {}), boundary("x", 5, {}, {}, at=1)], "went back to 130"),
    ],
)
def test_a_gap_a_rebalance_and_a_reset_give_no_cut(
    boundaries: list[CommitBoundary], text: str
) -> None:
    last = boundary("x", 7, {IN: 130}, {})
    found = journal(*boundaries, last).offsets_at(last, BASE)
    if text:
        assert text in reason(found)
    else:  # of two equal numbers the first counts, which is older than the cut
        assert not isinstance(found, NotTaken)


def cut(
    batches: Mapping[TopicPartitionId, list[RawBatch]],
    *,
    reader: Ends | None = None,
    a: Ends | None = None,
    b: Ends | None = None,
    read_to: int = 12,
) -> PassiveCut | NotTaken:
    """Thread a has read r up to `read_to`; a and b have written r up to 12 and 20."""
    evidence = CutEvidence([READERS, WRITERS], MEMBERS, (), {}, frozenset({"r", "changelog"}))
    found = JournalCut(evidence)
    of_reader = boundary("x", 5, {R: read_to}, {LOG: 9} if reader is None else reader)
    assert not isinstance(found.choose(0, "a", of_reader, START, {R: read_to}), NotTaken)
    problem = found.prove(0, {LOG: [batch(8, 9, 1)], R: batches.get(R, []), **batches})
    if problem is not None:
        return problem
    of_a = boundary("x", 6, {IN: 150}, {R: 12} if a is None else a)
    of_b = boundary("y", 6, {IN1: 250}, {R: 20} if b is None else b)
    for member, one, p in (("a", of_a, IN), ("b", of_b, IN1)):
        assert not isinstance(found.choose(1, member, one, START, one.committed), NotTaken)
        assert p in one.committed
    problem = found.prove(1, batches)
    if problem is not None:
        return problem
    offsets = {R: read_to, IN: 150, IN1: 250}
    return found.cut({p: CommittedOffset(offset, "m") for p, offset in offsets.items()})


BATCHES = [batch(10, 12, 1), batch(12, 15, 2), batch(15, 17, 1), batch(17, 20, 2)]


def test_batches_of_a_thread_above_its_own_end_are_excluded() -> None:
    found = cut({R: BATCHES})
    assert not isinstance(found, NotTaken), found.reason
    assert (found.ends[R], found.ends[LOG], found.ends[OUT]) == (20, 9, 7)
    assert found.excluded[R] == (OffsetRange(15, 17),)
    assert found.committed[R] == CommittedOffset(12, "m")
    assert found.repeats_at_most == 0


def test_all_ranges_that_the_proof_needs_are_asked_for() -> None:
    evidence = CutEvidence([READERS, WRITERS], MEMBERS, (), {}, frozenset({"r", "changelog"}))
    found = JournalCut(evidence)
    for member, run, end in (("a", "x", 12), ("b", "y", 20)):
        one = boundary(run, 6, {}, {R: end})
        assert not isinstance(found.choose(1, member, one, START, {}), NotTaken)
    assert found.ranges(1) == {R: OffsetRange(11, 20)}


@pytest.mark.parametrize(
    ("batches", "text"),
    [
        ([batch(10, 12, 1), batch(12, 17, 2)], "no longer contains offset 19"),
        ([batch(10, 12, 1), batch(12, 21, 2)], "is not the end of a batch"),
        ([batch(10, 12, 1), batch(12, 20, -1)], "without idempotence"),
        ([batch(10, 12, 1), batch(12, 20, 2, transactional=True)], "in transactions"),
        ([batch(10, 12, 3), *BATCHES[1:]], "two producers"),
        ([batch(10, 12, 1), batch(12, 20, 1)], "same producer"),
        ([batch(10, 12, 1), batch(12, 15, 2), batch(15, 17, 77), batch(17, 20, 2)], "producer 77"),
    ],
)
def test_a_batch_that_contradicts_gives_no_cut(batches: list[RawBatch], text: str) -> None:
    assert text in reason(cut({R: batches}))


@pytest.mark.parametrize(
    ("last", "text"),
    [
        (batch(8, 9, -1), "without idempotence"),
        (batch(8, 9, 1, transactional=True), "in transactions"),
    ],
)
def test_the_only_writer_of_a_partition_is_checked_too(last: RawBatch, text: str) -> None:
    assert text in reason(cut({R: BATCHES, LOG: [last]}))


def test_a_start_within_a_batch_gives_no_cut() -> None:
    """No leader has such a high watermark; then the start shows nothing."""
    batches = {R: [batch(8, 12, 1), batch(12, 20, 2)], OUT: [batch(7, 9, 1)]}
    assert "divides a batch of r-0" in reason(cut(batches, a={OUT: 9}, read_to=9))


def test_a_thread_that_writes_what_its_tasks_do_not_write_gives_no_cut() -> None:
    members = {"a": frozenset({IN}), "b": frozenset({IN1}), "c": frozenset({R})}
    found = JournalCut(CutEvidence([READERS, WRITERS], members, (), {}, frozenset({"r"})))
    out = {OUT: [batch(7, 9, 1), batch(9, 10, 3), batch(10, 11, 2)], LOG: [batch(8, 9, 3)]}
    of = {
        "c": (0, boundary("z", 6, {R: 4}, {LOG: 9})),
        "a": (1, boundary("x", 6, {IN: 150}, {OUT: 9})),
        "b": (1, boundary("y", 6, {IN1: 250}, {OUT: 11})),
    }
    for member, (level, one) in of.items():
        assert not isinstance(found.choose(level, member, one, START, one.committed), NotTaken)
    assert found.prove(0, out) is None
    assert found.prove(1, out) is None
    committed = {
        p: CommittedOffset(o, "") for _, one in of.values() for p, o in one.committed.items()
    }
    assert "producer 3 wrote out-0" in reason(found.cut(committed))


def test_a_written_partition_without_a_task_gives_no_cut() -> None:
    other = TopicPartitionId("changelog", 1)
    start = LevelStart({**START.ends, other: 4}, {**START.later_ends, other: 4}, START.committed)
    found = JournalCut(CutEvidence([READERS], {"a": frozenset({R})}, (), {}, frozenset()))
    one = boundary("x", 5, {R: 12}, {LOG: 9})
    assert not isinstance(found.choose(0, "a", one, start, one.committed), NotTaken)
    assert found.prove(0, {LOG: [batch(8, 9, 1)]}) is None
    assert "two levels write changelog-0" in reason(found.prove(0, {LOG: [batch(8, 9, 1)]}))
    assert "no member of the group writes" in reason(found.cut({R: CommittedOffset(12, "")}))


def test_a_thread_that_was_started_again_during_the_cut_gives_no_cut() -> None:
    found = JournalCut(CutEvidence([READERS, WRITERS], MEMBERS, (), {}, frozenset()))
    first, again = boundary("x", 5, {R: 12}, {}), boundary("z", 1, {IN: 150}, {})
    assert not isinstance(found.choose(0, "a", first, START, first.committed), NotTaken)
    assert "started during the cut" in reason(found.choose(1, "a", again, START, {}))


def test_what_the_readers_read_must_be_in_the_cut() -> None:
    all_in = [batch(10, 12, 1), batch(12, 20, 2)]
    for batches, read_to in ((BATCHES, 16), (all_in, 21)):
        assert "beyond what its writers" in reason(cut({R: batches}, read_to=read_to))


def test_an_end_that_shortens_the_log_counts_too() -> None:
    batches = [batch(10, 12, 2), batch(12, 20, 1)]
    found = cut({R: batches}, a={R: 20}, b={R: 12})
    assert not isinstance(found, NotTaken), found.reason
    assert (found.ends[R], found.excluded[R]) == (20, ())
    tail = [batch(10, 12, 1), batch(12, 15, 2), batch(15, 18, 1), batch(18, 20, 2)]
    assert "beyond what its writers" in reason(cut({R: tail}, a={R: 12}, read_to=18))


def test_an_output_may_contain_records_of_other_applications() -> None:
    out = [batch(8, 9, 1), batch(9, 10, 99), batch(10, 11, 2)]
    batches = {R: BATCHES, OUT: out}
    found = cut(batches, a={R: 12, OUT: 9}, b={R: 20, OUT: 11})
    assert not isinstance(found, NotTaken), found.reason
    assert found.ends[OUT] == 11


def test_a_thread_whose_producer_is_unknown_gives_no_cut_if_it_matters() -> None:
    """Thread b has written nothing since the start: any batch may be its."""
    unknown = [batch(10, 12, 1), batch(12, 15, 88), batch(15, 17, 1)]
    for topic in (R, OUT):
        batches = {R: BATCHES[:1], topic: unknown}
        found = cut(batches, a={R: 12, topic: 17}, b={})
        assert "88" in reason(found)


def test_a_thread_that_has_written_nothing_needs_no_producer_if_all_batches_are_known() -> None:
    found = cut({R: [batch(10, 12, 1), batch(12, 15, 1)]}, a={R: 15}, b={})
    assert not isinstance(found, NotTaken), found.reason
    assert found.ends[R] == 15
