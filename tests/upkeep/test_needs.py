"""Which windows expire may put together, given what every listed point needs: plans, without files.

The oracle holds each point against the records as they were, and against the evaluator.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kstreams_assets.app.model import TopicRole, TopicRoles
from kstreams_assets.model.chains import StoredSpan, chains_of
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.point import Guarantee, Method, PartitionCut, RecoveryPoint
from kstreams_assets.model.restorability import Restorability
from kstreams_assets.model.spans import Window
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.repository.evaluator import RestorabilityEvaluator
from kstreams_assets.upkeep.expire import Change, TopicChange, _Topic
from kstreams_assets.upkeep.needs import PartitionNeed, TopicNeeds

TOPIC = "t"
PARTITIONS = 2
INPUT = TopicRoles({TopicRole.INPUT})
CHANGELOG = TopicRoles({TopicRole.CHANGELOG})
BOTH = TopicRoles({TopicRole.INPUT, TopicRole.CHANGELOG})
GLOBAL = TopicRoles({TopicRole.GLOBAL})
OUTPUT = TopicRoles({TopicRole.OUTPUT})
FLIGHT = TopicRoles({TopicRole.REPARTITION})

Log = dict[tuple[int, str], list[int]]
"""By partition and topic id the offsets of the records that are stored."""


def window(number: int) -> Window:
    return Window(number * 100, number * 100 + 100, f"w{number:02d}")


def point(
    number: int, cuts: Sequence[PartitionCut], committed: Sequence[int | None]
) -> RecoveryPoint:
    return RecoveryPoint(
        application_id="a",
        id=f"p{number:02d}",
        cluster_id="c",
        taken_at_ms=window(number).end_ms - 1,
        method=Method.TRANSACTIONS,
        guarantee=Guarantee.EXACT,
        sealed=True,
        reason="",
        took_ms=1,
        partitions=tuple(cuts),
        group_offsets=tuple(
            GroupOffset(TOPIC, partition, offset, "")
            for partition, offset in enumerate(committed)
            if offset is not None
        ),
        undeclared_topics=(),
    )


def span(number: int, partition: int, start: int, end: int, *, life: str = "A") -> StoredSpan:
    id_ = TopicPartitionId(TOPIC, partition)
    return StoredSpan(
        window(number), id_, life, start, end, start, start > 0, True, 0, None, number, None, number
    )


@dataclass
class Case:
    """Windows that were backed up, and the points that are listed, one behind each at most."""

    roles: TopicRoles
    spans: list[StoredSpan]
    points: list[RecoveryPoint]

    def plan(self, below: Change, between: Change, **needs: object) -> list[TopicChange]:
        last = next((p for p in reversed(self.points) if p.partitions), None)
        return _Topic(
            TOPIC,
            self.spans,
            TopicNeeds.of(self.points, self.roles, **needs),  # pyright: ignore[reportArgumentType]
            last,
            below=below,
            between=between,
            is_changelog=self.roles.changelog_only,
            delete_retention_ms=10**9,
            sizes={},
            given_up=set(),
        ).changes()


def after(
    case: Case, changes: Sequence[TopicChange], log: Log, keys: int
) -> tuple[list[StoredSpan], Log]:
    """The spans and records that changes leave, as `_row` and `MergeTask` make them."""
    needs = TopicNeeds.of(case.points, case.roles)
    spans, left = [*case.spans], {life: [*offsets] for life, offsets in log.items()}
    for change in changes:
        mine = [s for s in spans if s.window in change.windows]
        spans = [s for s in spans if s.window not in change.windows]
        for partition in sorted({s.partition for s in mine}):
            of_it = [s for s in mine if s.partition == partition]
            whole = [s for s in of_it if s.topic_id == of_it[-1].topic_id]
            first, last = whole[0], whole[-1]
            every = True
            for life in {s.topic_id for s in of_it}:
                rows = [s for s in of_it if s.topic_id == life]
                id_, low, high = (partition.partition, life), rows[0].start, rows[-1].end
                inside = [o for o in left[id_] if low <= o < high]
                stays = inside
                if change.what is Change.DROP or life != last.topic_id:
                    stays = []
                elif change.what is Change.COMPACT:
                    undecided = needs.of_life(last.life).undecided
                    decided = {o % keys: o for o in inside if not undecided.holds(o)}
                    stays = [o for o in inside if undecided.holds(o) or o in decided.values()]
                if life == last.topic_id:
                    every = stays == inside and not any(s.is_compacted for s in rows)
                left[id_] = sorted({*left[id_]} - {*inside} | {*stays})
            spans.append(
                replace(
                    first,
                    window=change.window,
                    end=last.end,
                    read_start=last.end if change.what is Change.DROP else first.start,
                    expired=change.what is Change.DROP,
                    has_every_record=every or change.what is Change.DROP,
                )
            )
    return spans, left


def restorability(case: Case, spans: Sequence[StoredSpan]) -> list[Restorability]:
    evaluator = RestorabilityEvaluator(chains_of(spans), roles={}, backed_up={TOPIC}, closed=[])
    return [status.restorability for status in evaluator.evaluate(case.points)]


def state(cut: PartitionCut, below: int, log: Log, keys: int) -> dict[int, int]:
    held = [o for o in log[cut.partition, cut.topic_id] if cut.holds(o) and o < below]
    return {o % keys: o for o in held}


def needed(cut: PartitionCut, whole_from: int, log: Log) -> list[int]:
    return [o for o in log[cut.partition, cut.topic_id] if o >= whole_from and cut.holds(o)]


class TestNeedOfAPartition:
    @given(
        st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=6),
        st.integers(0, 12),
        st.integers(0, 12),
    )
    def test_what_is_allowed(self, found: list[tuple[int, int]], one: int, other: int) -> None:
        pairs = [(min(pair), max(pair)) for pair in found]
        start, end = min(one, other), max(one, other)
        need = PartitionNeed(pairs)
        assert need.allows(start, end) == all(start >= high or end <= low for low, high in pairs)
        assert need.ends_inside(start, end) == any(start < high < end for _, high in pairs)
        assert need.least == min((low for low, _ in pairs), default=float("inf"))
        assert need.is_listed == bool(pairs)


@st.composite
def cases(draw: st.DrawFn, roles: TopicRoles) -> tuple[Case, Log]:
    """Offsets of the group go anywhere; the topic may be deleted and made again."""
    windows = draw(st.integers(2, 9))
    ends, life, starts = [0] * PARTITIONS, "A", [0] * PARTITIONS
    spans: list[StoredSpan] = []
    points: list[RecoveryPoint] = []
    log: Log = {(partition, "A"): [] for partition in range(PARTITIONS)}
    excluded: list[OffsetRange] = []
    for number in range(windows):
        if number and draw(st.integers(0, 9)) == 0:
            life, ends, starts, excluded = life + "+", [0] * PARTITIONS, [0] * PARTITIONS, []
            log |= {(partition, life): [] for partition in range(PARTITIONS)}
        for partition in range(PARTITIONS):
            steps = draw(st.integers(0, 12))
            log[partition, life] += range(ends[partition], ends[partition] + steps)
            ends[partition] += steps
        if roles == CHANGELOG and ends[0] - starts[0] > 4 and draw(st.booleans()):
            begin = draw(st.integers(starts[0], ends[0] - 2))
            excluded = [OffsetRange(begin, begin + 1)]
        cuts = [
            PartitionCut(TOPIC, p, life, 0, ends[p], roles, tuple(excluded) if p == 0 else ())
            for p in range(PARTITIONS)
        ]
        committed = [draw(st.none() | st.integers(0, ends[p])) for p in range(PARTITIONS)]
        points.append(point(number, cuts, committed if roles.is_read_by_group else ()))
        spans += [span(number, p, starts[p], ends[p], life=life) for p in range(PARTITIONS)]
        starts = [*ends]
        if draw(st.booleans()):
            excluded = []
    listed = [p for p in points if draw(st.booleans())]
    return Case(roles, spans, listed or points[-1:]), log


PLANS = [
    pytest.param(INPUT, Change.DROP, Change.JOIN, id="input"),
    pytest.param(INPUT, Change.COMPACT, Change.JOIN, id="compacted input"),
    pytest.param(OUTPUT, Change.DROP, Change.JOIN, id="output"),
    pytest.param(OUTPUT, Change.COMPACT, Change.JOIN, id="compacted output"),
    pytest.param(FLIGHT, Change.DROP, Change.JOIN, id="in flight"),
    pytest.param(CHANGELOG, Change.COMPACT, Change.COMPACT, id="changelog"),
    pytest.param(CHANGELOG, Change.JOIN, Change.JOIN, id="versioned"),
    pytest.param(BOTH, Change.COMPACT, Change.COMPACT, id="input and changelog"),
    pytest.param(GLOBAL, Change.COMPACT, Change.COMPACT, id="global"),
]


@pytest.mark.parametrize(("roles", "below", "between"), PLANS)
@settings(max_examples=40)
@given(data=st.data())
def test_every_listed_point_restores_as_before(
    data: st.DataObject, roles: TopicRoles, below: Change, between: Change
) -> None:
    case, log = data.draw(cases(roles))
    keys = data.draw(st.integers(1, 4))
    before = restorability(case, case.spans)
    spans, left = after(case, case.plan(below, between), log, keys)
    listed = case.points
    assert restorability(case, spans) == before
    for one, status in zip(listed, before, strict=True):
        if status is Restorability.NOTHING:
            continue
        committed = {offset.partition: offset.offset for offset in one.group_offsets}
        for cut in one.partitions:
            whole_from = cut.whole_from(roles, committed.get(cut.partition))
            assert needed(cut, whole_from, left) == needed(cut, whole_from, log)
            if below is not Change.DROP:
                there = state(cut, whole_from, left, keys)
                assert there == state(cut, whole_from, log, keys)
    # Another night, with fewer points: rows that were put together are put together again.
    case = Case(roles, sorted(spans, key=lambda s: s.window), listed[1::2] or listed[-1:])
    before = restorability(case, case.spans)
    again, least = after(case, case.plan(below, between), left, keys)
    assert restorability(case, again) == before
    for one in case.points:
        committed = {offset.partition: offset.offset for offset in one.group_offsets}
        for cut in one.partitions:
            whole_from = cut.whole_from(roles, committed.get(cut.partition))
            assert needed(cut, whole_from, least) == needed(cut, whole_from, log)
            if below is not Change.DROP:
                assert state(cut, whole_from, least, keys) == state(cut, whole_from, log, keys)
