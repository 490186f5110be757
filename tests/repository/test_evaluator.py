"""Which recovery points the backups could restore, and how exactly."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kstreams_assets.app.model import TopicRole, TopicRoles
from kstreams_assets.model.chains import DELETE_RETENTION_MS, StoredSpan, chains_of
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.point import Guarantee, Method, PartitionCut, RecoveryPoint
from kstreams_assets.model.restorability import PointStatus, Restorability
from kstreams_assets.model.spans import Window
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.evaluator import RestorabilityEvaluator
from tests.backup.samples import point, window
from tests.backup.stored import stored_span
from tests.timing import processor_time

INPUT = TopicRoles({TopicRole.INPUT})
OUTPUT = TopicRoles({TopicRole.OUTPUT})
CHANGELOG = TopicRoles({TopicRole.CHANGELOG})
REPARTITION = TopicRoles({TopicRole.REPARTITION})
SOURCE_CHANGELOG = TopicRoles(INPUT | CHANGELOG)


def cut(
    end: int,
    roles: TopicRoles = CHANGELOG,
    *,
    topic: str = "t",
    partition: int = 0,
    topic_id: str = "life-1",
    log_start: int = 0,
    saved_from: int | None = None,
) -> PartitionCut:
    return PartitionCut(
        topic, partition, topic_id, log_start, end, roles=roles, saved_from=saved_from
    )


def exact(
    *cuts: PartitionCut, at_ms: int = 5, sealed: bool = False, committed: int | None = None
) -> RecoveryPoint:
    """An exact point in the window of number 0 by default; `committed` for every partition."""
    offsets = [GroupOffset(c.topic, c.partition, committed or 0, "") for c in cuts]
    taken = point(at_ms, *cuts, group_offsets=offsets if committed is not None else ())
    return replace(
        taken,
        method=Method.TRANSACTIONS,
        guarantee=Guarantee.EXACT,
        sealed=sealed,
        unsealed_because="" if sealed else "too large",
        ledger_version=at_ms,
    )


def judged(
    taken: RecoveryPoint,
    *spans: StoredSpan,
    backed_up: Sequence[str] = ("t",),
    closed: Sequence[Window] = tuple(window(index) for index in range(9)),
) -> PointStatus:
    evaluator = RestorabilityEvaluator(
        chains_of(spans), roles={}, backed_up=set(backed_up), closed=closed
    )
    (status,) = evaluator.evaluate([taken])
    assert status.covered == (status.restorability is not Restorability.NOTHING)
    return status


FIRST = stored_span(0, 100, continues=False)
THINNED = replace(FIRST, first_hole=40)


class TestCovered:
    """Spans hold everything below the ends, from the begin of the life on."""

    @pytest.mark.parametrize("roles", [INPUT, OUTPUT, CHANGELOG])
    def test_up_to_the_end(self, roles: TopicRoles) -> None:
        assert judged(exact(cut(100, roles)), FIRST).restorability is Restorability.EXACT
        beyond = judged(exact(cut(101, roles)), FIRST)
        assert beyond.restorability is Restorability.NOTHING
        assert "t-0: offsets 100 to 100" in beyond.reason

    def test_nothing_was_backed_up_yet(self) -> None:
        status = judged(exact(cut(7), at_ms=25))
        assert "t-0: offsets 0 to 6 are not backed up: back up window w0002." in status.reason

    def test_the_window_of_the_point_is_still_open(self) -> None:
        status = judged(exact(cut(120), at_ms=95), FIRST)
        assert "offsets 100 to 119 are not backed up: the window of the point is still open" in (
            status.reason
        )

    def test_windows_since_the_last_backup(self) -> None:
        status = judged(exact(cut(120), at_ms=15), FIRST)
        assert status.reason.endswith("back up window w0001.")
        status = judged(exact(cut(120), at_ms=35), FIRST)
        assert status.reason.endswith("back up windows after w0000 up to w0003.")

    def test_a_missing_window_spoils_the_points_above_it_until_it_is_there(self) -> None:
        third = stored_span(150, 200, index=2)
        above = exact(cut(180), at_ms=25)
        status = judged(above, FIRST, third)
        assert status.reason == (
            "Not covered: t-0: offsets 100 to 149 are not backed up: back up the windows between"
            " w0000 and w0002."
        )
        assert judged(exact(cut(90)), FIRST, third).covered
        assert judged(above, FIRST, third, stored_span(100, 150, index=1)).covered

    def test_the_begin_of_the_life_was_not_backed_up(self) -> None:
        status = judged(exact(cut(120), at_ms=15), stored_span(100, 150, index=1))
        assert "offsets 0 to 99 are not backed up: back up the windows before w0001" in (
            status.reason
        )

    def test_an_empty_partition_needs_nothing(self) -> None:
        assert judged(exact(cut(50, log_start=50))).restorability is Restorability.EXACT

    def test_another_life_of_the_topic_does_not_count(self) -> None:
        anew = stored_span(0, 500, index=1, topic_id="life-2", continues=False)
        status = judged(exact(cut(120), at_ms=15), FIRST, anew)
        assert "offsets 100 to 119 were lost with the topic" in status.reason

    def test_many_partitions_are_a_short_text(self) -> None:
        status = judged(exact(*[cut(7, partition=n) for n in range(10)]))
        assert "t-2: " in status.reason
        assert status.reason.endswith("; and 7 more partitions.")

    def test_topics_that_are_not_backed_up_are_not_judged(self) -> None:
        status = judged(exact(cut(100), cut(9, OUTPUT, topic="out")), FIRST)
        assert status.restorability is Restorability.EXACT
        assert "Not backed up, so not evaluated: out." in status.reason


class TestLoss:
    """Records that Kafka had lost before they were read."""

    LATE = stored_span(100, 200, index=1, read_start=130)

    def test_of_a_changelog(self) -> None:
        status = judged(exact(cut(150), at_ms=15), FIRST, self.LATE)
        assert status.restorability is Restorability.NOTHING
        assert "offsets 100 to 129 could no longer be read" in status.reason

    def test_a_point_is_owed_only_what_the_log_held_when_it_was_cut(self) -> None:
        taken = exact(cut(150, log_start=130), at_ms=15)
        assert judged(taken, FIRST, self.LATE).restorability is Restorability.EXACT

    def test_of_an_input_below_the_committed_offset(self) -> None:
        status = judged(exact(cut(150, INPUT), at_ms=15, committed=130), FIRST, self.LATE)
        assert status.restorability is Restorability.EXACT
        assert "Lost, but not needed to continue: t-0 from offset 100 on." in status.reason

    def test_of_an_input_that_was_not_processed(self) -> None:
        status = judged(exact(cut(150, INPUT), at_ms=15, committed=129), FIRST, self.LATE)
        assert status.restorability is Restorability.NOTHING
        assert not judged(exact(cut(150, INPUT), at_ms=15), FIRST, self.LATE).covered

    def test_of_an_output(self) -> None:
        assert judged(exact(cut(150, OUTPUT), at_ms=15), FIRST, self.LATE).covered

    def test_a_missing_window_of_an_input_counts_below_the_committed_offset_too(self) -> None:
        third = stored_span(200, 300, index=2)
        assert not judged(exact(cut(250, INPUT), at_ms=25, committed=240), FIRST, third).covered

    def test_records_that_the_backup_lacks_for_no_known_cause(self) -> None:
        assert not judged(exact(cut(50)), replace(FIRST, complete=False)).covered


class TestProof:
    """An exact point stays exact when sealed, or when nothing was missing below its ends."""

    def test_unsealed_and_contiguous_up_to_the_end(self) -> None:
        status = judged(exact(cut(40)), THINNED)
        assert status.restorability is Restorability.EXACT
        assert "contiguous" in status.reason

    def test_a_hole_below_the_end(self) -> None:
        status = judged(exact(cut(41)), THINNED)
        assert (status.covered, status.restorability) == (True, Restorability.UNPROVEN)
        assert "t-0: compaction may have removed" in status.reason
        assert "no longer had offset 40. Not sealed: too large." in status.reason

    def test_sealed(self) -> None:
        status = judged(exact(cut(41, saved_from=0), sealed=True), THINNED)
        assert (status.restorability, status.reason) == (Restorability.EXACT, "Sealed.")

    def test_the_saved_tail_completes_the_spans(self) -> None:
        taken = exact(cut(170, saved_from=100), at_ms=16, sealed=True)
        assert judged(taken, FIRST).restorability is Restorability.EXACT
        assert not judged(replace(taken, partitions=(cut(170, saved_from=101),)), FIRST).covered

    def test_spans_read_before_the_cut_do_no_harm(self) -> None:
        second = stored_span(100, 200, index=1)
        assert (
            judged(exact(cut(150), at_ms=16), THINNED, second).restorability is Restorability.EXACT
        )
        late = replace(THINNED, ledger_version=16)
        assert (
            judged(exact(cut(150), at_ms=16), late, second).restorability is Restorability.UNPROVEN
        )

    def test_clocks_do_not_decide_what_was_read_before_the_cut(self) -> None:
        second = stored_span(100, 200, index=1)
        taken = exact(cut(150), at_ms=16)
        set_back = replace(THINNED, recorded_at_ms=1, ledger_version=16)
        assert judged(taken, set_back, second).restorability is Restorability.UNPROVEN
        ahead = replace(THINNED, recorded_at_ms=10**15)
        assert judged(taken, ahead, second).restorability is Restorability.EXACT

    def test_an_order_that_is_not_known_proves_nothing(self) -> None:
        second = stored_span(100, 200, index=1)
        taken = exact(cut(150), at_ms=16)
        of_old = replace(THINNED, ledger_version=None)
        assert judged(taken, of_old, second).restorability is Restorability.UNPROVEN
        old_point = replace(taken, ledger_version=None)
        assert judged(old_point, THINNED, second).restorability is Restorability.UNPROVEN

    def test_holes_of_inputs_and_outputs_say_nothing(self) -> None:
        for roles in (INPUT, OUTPUT):
            assert judged(exact(cut(100, roles)), THINNED).restorability is Restorability.EXACT

    def test_a_source_topic_that_serves_as_changelog_is_never_sealed(self) -> None:
        taken = exact(cut(41, SOURCE_CHANGELOG), committed=41, sealed=True)
        assert judged(taken, THINNED).restorability is Restorability.UNPROVEN
        assert judged(taken, FIRST).restorability is Restorability.EXACT

    def test_at_least_once_is_not_made_more_of(self) -> None:
        taken = replace(exact(cut(40)), guarantee=Guarantee.AT_LEAST_ONCE, reason="Live.")
        status = judged(taken, THINNED)
        assert (status.restorability, status.reason) == (Restorability.AT_LEAST_ONCE, "Live.")
        sealed = replace(taken, sealed=True, partitions=(cut(90, saved_from=0),))
        assert judged(sealed, THINNED).restorability is Restorability.AT_LEAST_ONCE

    def test_at_least_once_could_lose_keys_to_the_same_hole(self) -> None:
        taken = replace(exact(cut(41)), guarantee=Guarantee.AT_LEAST_ONCE)
        assert judged(taken, THINNED).restorability is Restorability.UNPROVEN


class TestDeletions:
    """A deletion that compaction removed has no successor: the key lives on in an earlier span."""

    EARLIER = stored_span(0, 100, continues=False, recorded_at_ms=15)
    LATE = stored_span(100, 200, index=1, first_hole=140, recorded_at_ms=15 + DELETE_RETENTION_MS)

    def test_a_hole_read_long_after_the_span_before_it(self) -> None:
        for taken in (
            exact(cut(250, saved_from=200), at_ms=DELETE_RETENTION_MS + 30, sealed=True),
            exact(cut(200), at_ms=DELETE_RETENTION_MS + 30),
        ):
            status = judged(taken, self.EARLIER, self.LATE)
            assert status.restorability is Restorability.UNPROVEN
            assert "t-0: compaction may have removed deletions before they" in status.reason
            assert "window w0001" in status.reason
            assert "offset 140" in status.reason

    def test_not_below_the_hole(self) -> None:
        taken = exact(cut(140, saved_from=130), at_ms=DELETE_RETENTION_MS + 30, sealed=True)
        assert judged(taken, self.EARLIER, self.LATE).restorability is Restorability.EXACT

    def test_not_where_the_point_saved_all_of_it(self) -> None:
        taken = exact(cut(200, saved_from=100), at_ms=16, sealed=True)
        assert judged(taken, self.EARLIER, self.LATE).restorability is Restorability.EXACT

    def test_not_within_the_time_for_which_deletions_are_kept(self) -> None:
        soon = replace(self.LATE, recorded_at_ms=14 + DELETE_RETENTION_MS // 2)
        taken = exact(cut(250, saved_from=200), at_ms=DELETE_RETENTION_MS + 30, sealed=True)
        assert judged(taken, self.EARLIER, soon).restorability is Restorability.EXACT

    def test_the_topic_s_own_retention_counts(self) -> None:
        taken = exact(cut(250, saved_from=200), at_ms=DELETE_RETENTION_MS + 30, sealed=True)
        for retention_ms, restorability in (
            (2 * DELETE_RETENTION_MS + 1, Restorability.EXACT),
            (2 * DELETE_RETENTION_MS, Restorability.UNPROVEN),
        ):
            evaluator = RestorabilityEvaluator(
                chains_of([self.EARLIER, self.LATE]),
                roles={},
                backed_up={"t"},
                closed=[window(index) for index in range(9)],
                delete_retention_ms={"t": retention_ms},
            )
            assert evaluator.evaluate([taken])[0].restorability is restorability


class TestInFlight:
    """Records of repartition topics are saved with the point, whatever is backed up."""

    def test_saved_with_the_point(self) -> None:
        taken = exact(cut(100, REPARTITION, saved_from=60), committed=60)
        assert judged(taken, backed_up=()).restorability is Restorability.EXACT
        later = exact(cut(100, REPARTITION, saved_from=61), committed=60)
        assert not judged(later, backed_up=()).covered

    def test_not_saved(self) -> None:
        taken = exact(cut(100, REPARTITION), committed=60)
        status = judged(taken)
        assert not status.covered
        assert "offsets 60 to 99 were in flight and were not saved" in status.reason

    def test_held_by_a_span_instead(self) -> None:
        taken = exact(cut(100, REPARTITION), committed=60)
        assert judged(taken, replace(FIRST, read_start=60)).covered
        assert not judged(taken, replace(FIRST, read_start=61)).covered

    def test_all_processed(self) -> None:
        assert judged(exact(cut(100, REPARTITION), committed=100)).covered

    def test_of_points_that_do_not_tell_roles(self) -> None:
        evaluator = RestorabilityEvaluator({}, roles={"t": REPARTITION}, backed_up={"t"}, closed=[])
        (status,) = evaluator.evaluate([exact(cut(100, TopicRoles()), committed=100)])
        assert status.covered


@dataclass
class _Changelog:
    """A compacted log, its backups and recovery points; time goes on with every action."""

    keys: list[int] = field(default_factory=list)
    removed: set[int] = field(default_factory=set)
    now: int = 0
    edges: list[int] = field(default_factory=lambda: [0])
    spans: dict[int, StoredSpan] = field(default_factory=dict)
    stored: dict[int, set[int]] = field(default_factory=dict)
    points: list[tuple[RecoveryPoint, set[int]]] = field(default_factory=list)

    def compact(self, chosen: int) -> None:
        """Remove some of the records that have a successor."""
        for offset, key in enumerate(self.keys):
            if key in self.keys[offset + 1 :] and (chosen >> offset) & 1:
                self.removed.add(offset)

    def take(self, *, sealing: bool) -> None:
        """A recovery point; a sealed one saves what no backup holds."""
        end = len(self.keys)
        begin, saved_from, saved = 0, None, set[int]()
        if sealing:
            chains = chains_of(self.spans.values())
            if chains:
                begin = min(chains["t", 0, "life-1"].unbroken_end or 0, end)
            saved_from = begin
            saved = {o for o in range(begin, end) if o not in self.removed}
        taken = exact(cut(end, saved_from=saved_from), at_ms=self.now, sealed=sealing)
        self.points.append((taken, saved))

    def back_up(self, index: int) -> None:
        """Back up a window, once."""
        if index in self.spans or index + 1 >= len(self.edges):
            return
        start, end = self.edges[index : index + 2]
        here = [o for o in range(start, end) if o not in self.removed]
        hole = next((o for o in range(start, end) if o in self.removed), None)
        self.stored[index] = set(here)
        self.spans[index] = stored_span(
            start,
            end,
            index=index,
            continues=index > 0,
            first_hole=hole,
            recorded_at_ms=self.now,
        )

    def state(self, offsets: set[int], end: int) -> dict[int, int]:
        """Newest offset of each key below an end."""
        return {self.keys[offset]: offset for offset in sorted(offsets) if offset < end}


_ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 2)),
        st.tuples(st.just("compact"), st.integers(0, 2**12)),
        st.tuples(st.just("point"), st.booleans()),
        st.tuples(st.just("close"), st.just(0)),
        st.tuples(st.just("back up"), st.integers(0, 4)),
    ),
    max_size=30,
)


@settings(max_examples=400)
@given(_ACTIONS)
def test_what_is_called_exact_has_the_state_of_the_cut(
    actions: Sequence[tuple[str, int]],
) -> None:
    """Rebuilt from spans and saved tails, however compaction fell between cuts and reads."""
    log = _Changelog()
    for action, value in actions:
        log.now += 1
        if action == "append":
            log.keys.append(value)
        elif action == "compact":
            log.compact(value)
        elif action == "point":
            log.take(sealing=bool(value))
        elif action == "close":
            log.edges.append(len(log.keys))
        else:
            log.back_up(value)
    for taken, saved in log.points:
        status = judged(taken, *log.spans.values())
        (position,) = taken.partitions
        if status.restorability is not Restorability.EXACT:
            continue
        tail = position.end if position.saved_from is None else position.saved_from
        content = {o for index in log.stored for o in log.stored[index] if o < tail} | saved
        whole = log.state(set(range(len(log.keys))), position.end)
        assert log.state(content, position.end) == whole, status


class TestTopicsThatThePointLacks:
    """What it has may be exact: without the others no restore of it is."""

    A = cut(100)
    HERE = exact(A, sealed=True)

    def _status(
        self,
        taken: RecoveryPoint,
        *,
        roles: dict[str, TopicRoles] | None = None,
        backed_up: Sequence[str] = ("t", "u"),
        not_mine: frozenset[str] = frozenset(),
    ) -> PointStatus:
        evaluator = RestorabilityEvaluator(
            chains_of([FIRST]),
            roles={"t": CHANGELOG} | (roles or {}),
            backed_up=set(backed_up),
            closed=[window(index) for index in range(9)],
            not_mine=not_mine,
        )
        return evaluator.evaluate([taken])[0]

    @pytest.mark.parametrize("roles", [CHANGELOG, INPUT, REPARTITION, SOURCE_CHANGELOG])
    def test_a_declared_topic_was_absent(self, roles: TopicRoles) -> None:
        status = self._status(replace(self.HERE, absent_topics=("u",)), roles={"u": roles})
        assert (status.restorability, status.covered) == (Restorability.NOTHING, False)
        assert "topic u is declared, but was not visible" in status.reason
        assert "remove it from the YAML" in status.reason

    def test_an_absent_output_is_not_needed(self) -> None:
        taken = replace(self.HERE, absent_topics=("u",))
        assert self._status(taken, roles={"u": OUTPUT}).restorability is Restorability.EXACT

    def test_an_absent_topic_that_is_no_longer_declared_is_not_needed(self) -> None:
        capped = replace(
            self.HERE,
            absent_topics=("u",),
            guarantee=Guarantee.AT_LEAST_ONCE,
            cut_guarantee=Guarantee.EXACT,
        )
        assert self._status(capped).restorability is Restorability.EXACT
        assert self._status(capped, roles={"u": CHANGELOG}).restorability is Restorability.NOTHING

    def test_an_absent_topic_that_is_not_backed_up_counts_too(self) -> None:
        taken = replace(self.HERE, absent_topics=("u",))
        status = self._status(taken, roles={"u": CHANGELOG}, backed_up=["t"])
        assert status.restorability is Restorability.NOTHING
        assert (
            judged(taken, FIRST).restorability is Restorability.NOTHING
        )  # of which nothing is known

    def test_a_topic_that_nobody_had_declared(self) -> None:
        taken = replace(self.HERE, undeclared_topics=("shop-new-changelog",))
        status = self._status(taken)
        assert status.restorability is Restorability.UNPROVEN
        assert "topic shop-new-changelog belongs to the application" in status.reason
        assert "not_mine" in status.reason
        # declared afterwards: the point still has nothing of it
        declared = {"shop-new-changelog": CHANGELOG}
        assert self._status(taken, roles=declared).restorability is Restorability.UNPROVEN
        mine = frozenset({"shop-new-changelog"})
        assert self._status(taken, not_mine=mine).restorability is Restorability.EXACT

    def test_offsets_of_a_topic_that_a_point_of_an_earlier_release_lacks(self) -> None:
        offsets = (GroupOffset("data", 0, 7, ""), GroupOffset("t", 0, 3, ""))
        taken = replace(self.HERE, group_offsets=offsets)
        assert taken.undeclared_topics is None
        status = self._status(taken)
        assert status.restorability is Restorability.UNPROVEN
        assert "topic data belongs to the application (the group has committed" in status.reason
        assert (
            self._status(taken, not_mine=frozenset({"data"})).restorability is Restorability.EXACT
        )

    def test_what_is_looked_at_alone_is_exact_all_the_same(self) -> None:
        taken = replace(
            self.HERE,
            absent_topics=("u",),
            undeclared_topics=("v",),
            guarantee=Guarantee.AT_LEAST_ONCE,
            cut_guarantee=Guarantee.EXACT,
        )
        status = self._status(taken.narrowed([self.A]), roles={"u": CHANGELOG})
        assert status.restorability is Restorability.EXACT


def test_ten_thousand_points_of_twenty_partitions_over_a_month_of_windows() -> None:
    """Every span has a hole, so that no bisection ends early; one window is missing."""
    windows, partitions, points = 720, 20, 10_000
    spans = [
        replace(
            stored_span(
                100 * index,
                100 * index + 100,
                index=index,
                partition=partition,
                continues=index > 0,
                first_hole=100 * index + 50,
                recorded_at_ms=10 * index + 10,
            ),
            partition=TopicPartitionId("t", partition),
        )
        for index in range(windows)
        for partition in range(partitions)
        if (index, partition) != (600, 3)
    ]
    taken = [
        exact(
            *[cut(7 * number + partition, partition=partition) for partition in range(partitions)],
            at_ms=7 * number // 10,
        )
        for number in range(points)
    ]
    with processor_time() as took:
        evaluator = RestorabilityEvaluator(
            chains_of(spans),
            roles={},
            backed_up={"t"},
            closed=[window(index) for index in range(windows)],
        )
        statuses = evaluator.evaluate(taken)
    found = {
        restorability: sum(s.restorability is restorability for s in statuses)
        for restorability in Restorability
    }
    assert found[Restorability.UNPROVEN] > 1000
    assert found[Restorability.EXACT] > 1000
    assert found[Restorability.NOTHING] > 0
    # 2.0 to 2.6 s on a busy machine; what must not come back is a cost of minutes.
    assert took.seconds < 5


class TestRowsThatExpireCompacted:
    """Of such a row the last record of each key is left: what a point needs of it may be gone."""

    @staticmethod
    def judged(
        roles: TopicRoles, end: int, *, committed: int | None = None, every: bool = False
    ) -> PointStatus:
        row = replace(
            stored_span(0, 2000),
            window=Window(0, 10, "w0").merged_to(Window(90, 100, "w9")),
            has_every_record=every,
        )
        rows = [row, stored_span(2000, 3000, index=10)]
        evaluator = RestorabilityEvaluator(chains_of(rows), roles={}, backed_up={"t"}, closed=[])
        taken = exact(cut(end, roles, saved_from=None), sealed=True, committed=committed)
        (status,) = evaluator.evaluate([taken])
        return status

    @pytest.mark.parametrize(
        ("roles", "end", "committed", "restorability"),
        [
            (CHANGELOG, 1500, None, Restorability.UNPROVEN),
            (CHANGELOG, 2000, None, Restorability.EXACT),
            (CHANGELOG, 2500, None, Restorability.EXACT),
            (INPUT, 2500, 2000, Restorability.EXACT),
            (INPUT, 2500, 1999, Restorability.UNPROVEN),
            (INPUT, 2500, None, Restorability.UNPROVEN),
            (INPUT, 1500, 1500, Restorability.UNPROVEN),
            (SOURCE_CHANGELOG, 2500, 2000, Restorability.EXACT),
            (SOURCE_CHANGELOG, 2500, 1000, Restorability.UNPROVEN),
            (OUTPUT, 1500, None, Restorability.UNPROVEN),
            (OUTPUT, 2500, None, Restorability.EXACT),
            (TopicRoles({TopicRole.GLOBAL}), 1999, None, Restorability.UNPROVEN),
            (TopicRoles({TopicRole.GLOBAL}), 2001, None, Restorability.EXACT),
            (REPARTITION, 2500, 1999, Restorability.UNPROVEN),
        ],
    )
    def test_a_point_that_needs_what_may_be_gone_is_not_exact(
        self, roles: TopicRoles, end: int, committed: int | None, restorability: Restorability
    ) -> None:
        status = self.judged(roles, end, committed=committed)
        assert status.restorability is restorability
        assert ("kept only the last record of each key" in status.reason) == (
            restorability is Restorability.UNPROVEN
        )
        whole = self.judged(roles, end, committed=committed, every=True)
        assert whole.restorability is Restorability.EXACT


class TestPending:
    """Points of the open window that only wait for the next backup."""

    def test_what_came_after_the_newest_backup(self) -> None:
        assert judged(exact(cut(120), at_ms=95), FIRST).is_pending
        assert judged(exact(cut(120), at_ms=95)).is_pending

    def test_of_a_closed_window_a_backup_is_due(self) -> None:
        assert not judged(exact(cut(120), at_ms=15), FIRST).is_pending

    def test_what_no_further_backup_brings(self) -> None:
        hole = judged(exact(cut(180), at_ms=95), FIRST, stored_span(150, 200, index=2))
        assert not hole.is_pending
        lost = judged(exact(cut(100), at_ms=95), replace(FIRST, complete=False))
        assert not lost.covered
        assert not lost.is_pending
        unselected = exact(cut(120, REPARTITION, topic="u"), at_ms=95, committed=0)
        assert not judged(unselected, FIRST).is_pending

    def test_a_covered_one(self) -> None:
        assert not judged(exact(cut(100), at_ms=95), FIRST).is_pending

    def test_increments_are_of_a_follower(self) -> None:
        part = replace(
            stored_span(100, 110, index=9), window=Window(90, 100, "w0009").increment(0, 90, 95)
        )
        assert judged(exact(cut(120), at_ms=96), FIRST, part).has_increments
        assert not judged(exact(cut(120), at_ms=96), FIRST).has_increments
