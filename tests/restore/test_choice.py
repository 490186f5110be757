"""Which recovery point is taken, and what is said when there is none."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import pytest

from kstreams_assets.restore.request import ChangelogSource, RestoreMode, RestoreRequest
from kstreams_assets.restore.selection import Choice, choose
from kstreams_assets.warehouse.judge import PointStatus, Restores
from kstreams_assets.warehouse.point import Guarantee, Method, iso_time
from kstreams_assets.warehouse.points import PointInstant
from kstreams_assets.warehouse.restores import StoredRestore
from tests.restore.planning_samples import stored

SECOND = 1_000
E, A, U, N = Restores.EXACT, Restores.AT_LEAST_ONCE, Restores.UNPROVEN, Restores.NOTHING


@dataclass
class Points:
    """Points p0, p1 ... one second apart, the first at second 0; what each gives."""

    gives: Sequence[Restores]
    judged: list[str] = field(default_factory=list)
    closing_late: Mapping[int, int] = field(default_factory=dict)
    took_ms: Mapping[int, int] = field(default_factory=dict)
    snapshots: "Made | None" = None
    taken_s: Mapping[int, int] = field(default_factory=dict)
    """What the clock said, where it was wrong."""

    def judge(self, ids: Sequence[str]) -> list[PointStatus]:
        """As the coverage would."""
        self.judged += ids
        return [self._status(int(point_id[1:])) for point_id in ids]

    def choose(
        self, request: RestoreRequest | None = None, *, unfinished: StoredRestore | None = None
    ) -> Choice:
        """What is chosen of them."""
        instants = [
            PointInstant(
                f"p{i}",
                self._taken_ms(i),
                self.closing_late.get(i, self._taken_ms(i)),
                took_ms=self.took_ms.get(i, 0),
                sequence=i,
            )
            for i in range(len(self.gives))
        ]
        chosen = choose(
            instants,
            self.judge,
            request or RestoreRequest(),
            unfinished=unfinished,
            snapshots=self.snapshots,
        )
        assert (chosen.status is None) == bool(chosen.refusals)
        return chosen

    def _taken_ms(self, index: int) -> int:
        return self.taken_s.get(index, index) * SECOND

    def _status(self, index: int) -> PointStatus:
        gives = self.gives[index]
        return PointStatus(
            id=f"p{index}",
            taken_at_ms=self._taken_ms(index),
            method=Method.TRANSACTIONS,
            guarantee=Guarantee.EXACT,
            sealed=False,
            covered=gives is not N,
            gives=gives,
            reason=f"because of {index}.",
        )


@dataclass(frozen=True)
class Made:
    """Snapshots of these points; those besides close windows, too, but have none."""

    of: Set[str]
    closing: Set[str] = frozenset()

    def missing(self, point_id: str) -> str:
        """As the snapshots' table would."""
        return "" if point_id in self.of else f"No sums at {point_id}."

    def first_closing(self, point_ids: Iterable[str]) -> str | None:
        """The first that closes a window."""
        return next((p for p in point_ids if p in self.of | self.closing), None)

    def remedy(self, point_id: str) -> str:
        """How to make them."""
        return f"Make those of {point_id}."


def _id(choice: Choice) -> str | None:
    return choice.status.id if choice.status else None


def _refusal(choice: Choice) -> str:
    assert len(choice.refusals) == 1
    return str(choice.refusals[0])


class TestNewest:
    def test_the_newest_that_gives_what_is_accepted(self) -> None:
        chosen = Points([E, E, A, U, N]).choose()
        assert _id(chosen) == "p1"
        assert "3 newer point(s) cannot be restored" in chosen.notes[0]
        assert "p4 gives nothing: because of 4." in chosen.notes[0]

    @pytest.mark.parametrize(("accept", "expected"), [(E, "p0"), (A, "p1"), (U, "p2"), (N, "p2")])
    def test_accepting_less_gets_a_newer_one(self, accept: Restores, expected: str) -> None:
        assert _id(Points([E, A, U, N]).choose(RestoreRequest(accept=accept))) == expected

    def test_no_note_when_the_newest_of_all_is_taken(self) -> None:
        assert Points([N, E]).choose().notes == ()

    def test_no_more_points_are_judged_than_it_takes(self) -> None:
        points = Points([*[E] * 500, N, N])
        assert _id(points.choose()) == "p499"
        assert len(points.judged) < 50

    def test_all_are_looked_through(self) -> None:
        assert _id(Points([E, *[N] * 500]).choose()) == "p0"

    def test_the_number_decides_what_is_newest_not_the_clock(self) -> None:
        """The clock was set back before p3; p1 was stamped in the future."""
        assert _id(Points([E, E, E, E], taken_s={1: 900, 3: 1}).choose()) == "p3"
        at = RestoreRequest(as_of_ms=2 * SECOND)
        assert _id(Points([E, E, E, E], taken_s={1: 900, 3: 1}).choose(at)) == "p3"
        chosen = Points([E, N, E, N], taken_s={1: 900, 3: 1}).choose()
        assert _id(chosen) == "p2"
        assert chosen.notes[0].startswith("1 newer point(s) cannot be restored")

    def test_without_points(self) -> None:
        assert "No recovery point is recorded" in _refusal(Points([]).choose())

    def test_none_usable_names_the_weaker_one(self) -> None:
        text = _refusal(Points([A, U, N]).choose())
        assert "is covered by backups and gives exact" in text
        assert "p2 gives nothing: because of 2." in text
        assert "Point p1 (1970-01-01T00:00:01.000+00:00) is covered and gives unproven" in text

    def test_none_covered(self) -> None:
        text = _refusal(Points([N] * 5).choose())
        assert "(and 2 more)" in text
        assert "Back up the windows that are due" in text


class TestAsOf:
    @pytest.mark.parametrize(
        ("as_of_ms", "expected"), [(2_000, "p2"), (2_999, "p2"), (1_999, "p1"), (10**13, "p3")]
    )
    def test_the_newest_taken_at_or_before(self, as_of_ms: int, expected: str) -> None:
        assert _id(Points([E, E, E, E]).choose(RestoreRequest(as_of_ms=as_of_ms))) == expected

    @pytest.mark.parametrize(
        ("as_of_ms", "expected"), [(1_000, "p0"), (1_299, "p0"), (1_300, "p1"), (2_000, "p2")]
    )
    def test_the_end_of_the_taking_counts(self, as_of_ms: int, expected: str) -> None:
        points = Points([E, E, E, E], took_ms={1: 300})
        assert _id(points.choose(RestoreRequest(as_of_ms=as_of_ms))) == expected

    def test_a_point_that_was_begun_before_and_ended_after_is_named(self) -> None:
        """Its positions were read until 31 s: records of that time may be among its own."""
        points = Points([E, E, E], took_ms={1: 30_000})
        chosen = points.choose(RestoreRequest(as_of_ms=1_500))
        assert _id(chosen) == "p0"
        assert chosen.notes[-1].startswith("Point p1 was begun before 1970-01-01T00:00:01.500")

    def test_an_older_one_where_the_last_before_cannot_be_restored(self) -> None:
        assert _id(Points([E, N, N, E]).choose(RestoreRequest(as_of_ms=2_500))) == "p0"

    def test_before_the_first_the_nearest_after_is_named(self) -> None:
        text = _refusal(Points([N, N, E, E]).choose(RestoreRequest(as_of_ms=1_500)))
        assert "that was complete at 1970-01-01T00:00:01.500+00:00" in text
        assert "p2 after it (1970-01-01T00:00:02.000+00:00)" in text
        assert "p3" not in text

    def test_before_any_point(self) -> None:
        text = _refusal(Points([E]).choose(RestoreRequest(as_of_ms=-1)))
        assert "No recovery point that was complete at" in text
        assert "p0 after it" in text

    def test_the_time_a_point_was_taken_counts_not_the_window_it_closes(self) -> None:
        points = Points([E, E], closing_late={1: 10})
        assert _id(points.choose(RestoreRequest(as_of_ms=500))) == "p0"


class TestById:
    def test_taken_whatever_is_newer(self) -> None:
        assert _id(Points([E, E, E]).choose(RestoreRequest(point_id="p1"))) == "p1"

    def test_unknown(self) -> None:
        text = _refusal(Points([E, E]).choose(RestoreRequest(point_id="p7")))
        assert "among the 2 recorded points (the newest is p1)" in text

    def test_not_covered_names_both_neighbours(self) -> None:
        points = Points([E, E, N, N, A, E, E])
        text = _refusal(points.choose(RestoreRequest(point_id="p3")))
        assert "It is not covered by backups. because of 3." in text
        assert "p1 before it" in text
        assert "p5 after it" in text

    def test_too_weak(self) -> None:
        text = _refusal(Points([A]).choose(RestoreRequest(point_id="p0")))
        assert "It gives at_least_once only" in text
        accepted = RestoreRequest(point_id="p0", accept=A)
        assert _id(Points([A]).choose(accepted)) == "p0"

    def test_not_with_a_time_besides(self) -> None:
        text = _refusal(Points([E]).choose(RestoreRequest(point_id="p0", as_of_ms=5)))
        assert "Both point p0 and as_of" in text


class TestRebuild:
    @pytest.mark.parametrize("gives", [A, U])
    def test_what_the_cut_proves_of_state_does_not_matter(self, gives: Restores) -> None:
        request = RestoreRequest(mode=RestoreMode.REBUILD)
        assert _id(Points([E, gives]).choose(request)) == "p1"

    def test_the_inputs_must_be_there(self) -> None:
        request = RestoreRequest(mode=RestoreMode.REBUILD)
        assert _id(Points([E, N]).choose(request)) == "p0"
        assert "has its inputs covered" in _refusal(Points([N]).choose(request))

    def test_inputs_until_must_be_told_until_when(self) -> None:
        until = RestoreRequest(mode=RestoreMode.INPUTS_UNTIL)
        assert "needs a time or a recovery point" in _refusal(Points([E]).choose(until))
        as_of = RestoreRequest(mode=RestoreMode.INPUTS_UNTIL, as_of_ms=0)
        assert _id(Points([E, E]).choose(as_of)) == "p0"
        by_id = RestoreRequest(mode=RestoreMode.INPUTS_UNTIL, point_id="p1")
        assert _id(Points([E, E]).choose(by_id)) == "p1"


class TestUnfinished:
    BEGUN = stored(restore_id="p0-12345678", point_id="p0")

    def test_its_point_is_taken_again(self) -> None:
        chosen = Points([E, E]).choose(unfinished=self.BEGUN)
        assert _id(chosen) == "p0"
        assert "Restore p0-12345678 was begun" in chosen.notes[-1]

    def test_not_where_a_time_or_a_point_is_given(self) -> None:
        points = Points([E, E, E])
        at = points.choose(RestoreRequest(as_of_ms=1_000), unfinished=self.BEGUN)
        named = points.choose(RestoreRequest(point_id="p2"), unfinished=self.BEGUN)
        assert (_id(at), at.notes, _id(named), named.notes) == ("p1", (), "p2", ())

    def test_one_that_cannot_be_restored_any_more_is_refused(self) -> None:
        chosen = Points([N, E]).choose(unfinished=self.BEGUN)
        assert "recovery point p0: It is not covered" in _refusal(chosen)
        assert "p1 after it" in _refusal(chosen)


class TestSnapshots:
    REQUEST = RestoreRequest(changelog_source=ChangelogSource.SNAPSHOT)

    def _choose(self, made: Made, count: int = 5, **changes: Any) -> Choice:
        points = Points([E] * count, snapshots=made)
        return points.choose(self.REQUEST.model_copy(update=changes))

    def test_the_newest_point_that_has_them(self) -> None:
        chosen = self._choose(Made({"p1", "p2"}))
        assert _id(chosen) == "p2"
        assert "2 newer point(s), the last of 1970-01-01T00:00:04.000" in chosen.notes[0]
        assert "changelog_source raw" in chosen.notes[0]

    def test_no_note_where_nothing_newer_is_passed_over(self) -> None:
        assert self._choose(Made({"p4"})).notes == ()

    def test_the_newest_at_or_before_a_time(self) -> None:
        made = Made({"p0", "p2", "p4"})
        assert _id(self._choose(made, as_of_ms=3_500)) == "p2"
        assert _id(self._choose(made, as_of_ms=2_000)) == "p2"

    def test_points_without_them_are_not_judged(self) -> None:
        points = Points([E] * 200, snapshots=Made({"p3"}))
        assert _id(points.choose(self.REQUEST)) == "p3"
        assert points.judged == ["p3"]

    def test_one_that_has_them_must_be_covered_still(self) -> None:
        points = Points([E, N], snapshots=Made({"p0", "p1"}))
        assert _id(points.choose(self.REQUEST)) == "p0"

    def test_a_named_point_without_them(self) -> None:
        text = _refusal(self._choose(Made({"p0", "p4"}), point_id="p2"))
        assert text.startswith("recovery point p2: No sums at p2. Make those of p2.")
        assert "The nearest that have them: p0 before it" in text
        assert "p4 after it" in text

    def test_a_named_point_with_them(self) -> None:
        assert _id(self._choose(Made({"p2"}), point_id="p2")) == "p2"

    def test_none_has_them(self) -> None:
        text = _refusal(self._choose(Made(set(), closing={"p1", "p3"})))
        assert "No recovery point has proved KTable snapshots of every store." in text
        assert "Point p3: No sums at p3. Make those of p3." in text

    def test_none_at_or_before_a_time(self) -> None:
        text = _refusal(self._choose(Made({"p4"}, closing={"p1"}), as_of_ms=2_000))
        assert "that was complete at 1970-01-01T00:00:02.000" in text
        assert "Make those of p1. The nearest that have them: p4 after it" in text

    def test_an_unfinished_restore_goes_on_with_its_point(self) -> None:
        points = Points([E, E], snapshots=Made({"p0", "p1"}))
        begun = stored(restore_id="p0-12345678", point_id="p0")
        assert _id(points.choose(self.REQUEST, unfinished=begun)) == "p0"

    @pytest.mark.parametrize("mode", [RestoreMode.REBUILD, RestoreMode.INPUTS_UNTIL])
    def test_not_where_no_changelogs_are_restored(self, mode: RestoreMode) -> None:
        text = _refusal(self._choose(Made({"p2"}), mode=mode))
        assert text.startswith(f"mode {mode}: It restores no changelogs")


def test_times_are_in_utc() -> None:
    assert iso_time(1_795_287_178_005) == "2026-11-21T18:52:58.005+00:00"
