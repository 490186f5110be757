"""What is asked of the points of an application is what it guarantees itself."""

from dataclasses import replace
from pathlib import Path

import pytest

from kstreams_assets.app.model import TopicRole, TopicRoles
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.point import Guarantee, PartitionCut, RecoveryPoint
from kstreams_assets.model.restorability import Restorability, Restorable, Yardstick
from kstreams_assets.offsets import OffsetRange
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import DeclaredGuarantee
from tests.backup.samples import point

E, A = Guarantee.EXACT, Guarantee.AT_LEAST_ONCE
INPUT, STEP = TopicRoles({TopicRole.INPUT}), TopicRoles({TopicRole.REPARTITION})
TABLE, OUTPUT = TopicRoles({TopicRole.CHANGELOG}), TopicRoles({TopicRole.OUTPUT})


def _yardstick(folder: Path, declared: DeclaredGuarantee = DeclaredGuarantee.AUTO) -> Yardstick:
    return Repository(Warehouse(folder), "shop").points.yardstick(declared)


def _points(folder: Path, *runs_at: Guarantee | None) -> None:
    table = Repository(Warehouse(folder), "shop").points
    for number, one in enumerate(runs_at):
        taken = point(1_000 * number, point_id=f"p{number}")
        table.append(replace(taken, runs_at=one, sequence=number + 1))


@pytest.mark.parametrize(
    ("runs_at", "expected", "shown_by", "other"),
    [
        ((), E, None, None),
        ((None, None), E, None, None),
        ((E, E), E, "p1", None),
        ((A, A), A, "p1", None),
        # What a later point could not see, an earlier one did.
        ((A, None), A, "p0", None),
        # A change counts at once, either way, and is told.
        ((A, E), E, "p1", "p0"),
        ((E, A, None), A, "p1", "p0"),
    ],
)
def test_the_newest_point_that_shows_it_decides(
    tmp_path: Path,
    runs_at: tuple[Guarantee | None, ...],
    expected: Guarantee,
    shown_by: str | None,
    other: str | None,
) -> None:
    _points(tmp_path, *runs_at)
    found = _yardstick(tmp_path)
    assert found.guarantee is expected
    assert (found.shown_by and found.shown_by.id, found.other and found.other.id) == (
        shown_by,
        other,
    )
    assert ("assumed" in str(found)) is (shown_by is None)


@pytest.mark.parametrize(
    ("declared", "expected"),
    [(DeclaredGuarantee.EXACT, E), (DeclaredGuarantee.AT_LEAST_ONCE, A)],
)
def test_what_is_declared_wins(
    tmp_path: Path, declared: DeclaredGuarantee, expected: Guarantee
) -> None:
    _points(tmp_path, A if expected is E else E)
    found = _yardstick(tmp_path, declared)
    assert (found.guarantee, found.declared) == (expected, True)


@pytest.mark.parametrize(
    ("guarantee", "accepted"),
    [(E, {Restorability.EXACT}), (A, {Restorability.EXACT, Restorability.AT_LEAST_ONCE})],
)
def test_less_than_the_application_guarantees_is_never_enough(
    guarantee: Guarantee, accepted: set[Restorability]
) -> None:
    yardstick = Yardstick(guarantee)
    assert {
        restorability for restorability in Restorability if yardstick.accepts(restorability)
    } == accepted


def _live(guarantee: Guarantee = A, **offsets: int) -> RecoveryPoint:
    cuts = (
        PartitionCut("in", 0, "t", 10, 100, INPUT),
        PartitionCut("in", 1, "t", 0, 50, INPUT),
        PartitionCut("steps", 0, "t", 0, 30, STEP, excluded=(OffsetRange(20, 25),)),
        PartitionCut("table", 0, "t", 0, 70, TABLE),
        PartitionCut("out", 0, "t", 0, 70, OUTPUT),
    )
    committed = tuple(
        GroupOffset(name.rstrip("01"), int(name[-1]), offset, "")
        for name, offset in offsets.items()
    )
    return replace(
        point(1_000, *cuts), guarantee=guarantee, group_offsets=committed, cut_guarantee=guarantee
    )


def test_a_restore_repeats_at_most_what_lies_between_offsets_and_ends() -> None:
    assert _live(in0=90, in1=50, steps0=18).repeats_at_most == {"in": 10, "steps": 7}
    # Without a committed offset it may have read all that is there.
    assert _live(in0=100).repeats_at_most == {"in": 50, "steps": 25}
    assert _live(in0=100, in1=50, steps0=30).repeats_at_most == {"in": 0, "steps": 0}
    assert _live(E, in0=90).repeats_at_most == {}


def test_a_passive_cut_repeats_at_most_what_was_written_after_its_commits() -> None:
    live = _live(in0=90, in1=50, steps0=18)
    passive = replace(live, repeats_bound=9)
    assert passive.repeats_at_most == {"in": 9, "steps": 7}
    assert [live.most_repeats, passive.most_repeats] == [17, 9]
    assert replace(live, repeats_bound=100).most_repeats == 17
    assert replace(_live(E), repeats_bound=0).most_repeats == 0


def test_what_is_enough_is_the_newest_point_that_the_yardstick_accepts() -> None:
    from tests.restore.planning_samples import status

    weak = status(Restorability.AT_LEAST_ONCE)
    assert Restorable(None, weak).enough is None
    assert Restorable(None, weak, yardstick=Yardstick(E)).enough is None
    assert Restorable(None, weak, yardstick=Yardstick(A)).enough is weak
    unproven = status(Restorability.UNPROVEN)
    assert Restorable(None, unproven, yardstick=Yardstick(A)).enough is None
