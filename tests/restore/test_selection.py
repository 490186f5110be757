"""Which recovery point is taken, and which offsets of which topics."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kstreams_assets.app.model import Store
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.point import (
    Guarantee,
    Method,
    PointInstant,
    RecoveryPoint,
    WantedPartition,
)
from kstreams_assets.model.restorability import PointStatus, Restorability
from kstreams_assets.model.restores import InputsAt, RestoreMode, StoredRestore
from kstreams_assets.model.spans import Window
from kstreams_assets.offsets import OffsetRange
from kstreams_assets.restore.request import ChangelogSource, InputsExtent, RestoreRequest
from kstreams_assets.restore.selection import (
    Choice,
    OfWindow,
    Selection,
    choose,
    reduced,
    roles_at,
    select,
)
from kstreams_assets.texts import iso_time
from tests.restore.planning_samples import INTERNAL, ROLES, application, point, stored

SECOND = 1_000
E, A, U, N = (
    Restorability.EXACT,
    Restorability.AT_LEAST_ONCE,
    Restorability.UNPROVEN,
    Restorability.NOTHING,
)


@dataclass
class Points:
    """Points p0, p1 ... one second apart, the first at second 0; what each gives."""

    restorability: Sequence[Restorability]
    judged: list[str] = field(default_factory=list)
    closing_late: Mapping[int, int] = field(default_factory=dict)
    took_ms: Mapping[int, int] = field(default_factory=dict)
    snapshots: "Made | None" = None
    taken_s: Mapping[int, int] = field(default_factory=dict)
    """What the clock said, where it was wrong."""
    beyond: Set[str] = frozenset()
    pending: Set[str] = frozenset()
    has_increments: bool = False
    is_followed: bool = False
    """Those that need what no backup reaches."""

    def evaluate(self, ids: Sequence[str]) -> list[PointStatus]:
        """As the coverage would."""
        self.judged += ids
        return [self._status(int(point_id[1:])) for point_id in ids]

    def choose(
        self,
        request: RestoreRequest | None = None,
        *,
        unfinished: StoredRestore | None = None,
        of_window: OfWindow | None = None,
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
            for i in range(len(self.restorability))
        ]
        chosen = choose(
            instants,
            self.evaluate,
            request or RestoreRequest(),
            unfinished=unfinished,
            snapshots=self.snapshots,
            beyond=lambda ids: self.beyond & {*ids},
            is_followed=lambda: self.is_followed,
            of_window=of_window,
        )
        assert (chosen.status is None) == bool(chosen.blockers)
        return chosen

    def _taken_ms(self, index: int) -> int:
        return self.taken_s.get(index, index) * SECOND

    def _status(self, index: int) -> PointStatus:
        restorability = self.restorability[index]
        return PointStatus(
            id=f"p{index}",
            taken_at_ms=self._taken_ms(index),
            method=Method.TRANSACTIONS,
            guarantee=Guarantee.EXACT,
            sealed=False,
            covered=restorability is not N,
            restorability=restorability,
            reason=f"because of {index}.",
            is_pending=f"p{index}" in self.pending,
            has_increments=self.has_increments,
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


def _blocker(choice: Choice) -> str:
    assert len(choice.blockers) == 1
    return str(choice.blockers[0])


class TestNewest:
    def test_the_newest_that_gives_what_is_accepted(self) -> None:
        chosen = Points([E, E, A, U, N]).choose()
        assert _id(chosen) == "p1"
        assert "3 newer point(s) cannot be restored" in chosen.notes[0]
        assert "p4 has restorability nothing: because of 4." in chosen.notes[0]

    @pytest.mark.parametrize(("accept", "expected"), [(E, "p0"), (A, "p1"), (U, "p2"), (N, "p2")])
    def test_accepting_less_gets_a_newer_one(self, accept: Restorability, expected: str) -> None:
        assert _id(Points([E, A, U, N]).choose(RestoreRequest(accept=accept))) == expected

    def test_no_note_when_the_newest_of_all_is_taken(self) -> None:
        assert Points([N, E]).choose().notes == ()

    def test_no_more_points_are_judged_than_it_takes(self) -> None:
        points = Points([*[E] * 500, N, N])
        assert _id(points.choose()) == "p499"
        assert len(points.judged) < 50

    def test_all_are_looked_through(self) -> None:
        assert _id(Points([E, *[N] * 500]).choose()) == "p0"

    def test_those_beyond_all_backups_are_passed_over_unseen(self) -> None:
        points = Points([E, *[N] * 500], beyond={f"p{i}" for i in range(1, 501)})
        chosen = points.choose()
        assert _id(chosen) == "p0"
        assert "500 newer point(s) cannot be restored" in chosen.notes[0]
        assert len(points.judged) < 50

    @pytest.mark.parametrize("of_follower", [{"has_increments": True}, {"is_followed": True}])
    def test_points_that_a_follower_is_about_to_cover_are_no_news(
        self, of_follower: dict[str, Any]
    ) -> None:
        assert Points([E, N, N], pending={"p1", "p2"}, **of_follower).choose().notes == ()
        (note,) = Points([E, N, N, N], pending={"p2", "p3"}, **of_follower).choose().notes
        assert (
            note
            == "1 newer point(s) cannot be restored. p1 has restorability nothing: because of 1."
        )

    def test_without_a_follower_they_are(self) -> None:
        (note,) = Points([E, N, N], pending={"p1", "p2"}).choose().notes
        assert note.startswith("2 newer point(s) cannot be restored")
        stopped = Points([E, N], pending={"p1"}, has_increments=True, taken_s={1: 300})
        assert stopped.choose().notes[0].startswith("1 newer point(s) cannot be restored")

    def test_the_number_decides_what_is_newest_not_the_clock(self) -> None:
        """The clock was set back before p3; p1 was stamped in the future."""
        assert _id(Points([E, E, E, E], taken_s={1: 900, 3: 1}).choose()) == "p3"
        at = RestoreRequest(as_of_ms=2 * SECOND)
        assert _id(Points([E, E, E, E], taken_s={1: 900, 3: 1}).choose(at)) == "p3"
        chosen = Points([E, N, E, N], taken_s={1: 900, 3: 1}).choose()
        assert _id(chosen) == "p2"
        assert chosen.notes[0].startswith("1 newer point(s) cannot be restored")

    def test_without_points(self) -> None:
        assert "No recovery point is recorded" in _blocker(Points([]).choose())

    def test_none_usable_names_the_weaker_one(self) -> None:
        text = _blocker(Points([A, U, N]).choose())
        assert "is exact and covered by backups" in text
        assert "p2 has restorability nothing: because of 2." in text
        assert "Point p1 (1970-01-01T00:00:01.000+00:00) is covered and unproven" in text

    def test_none_covered(self) -> None:
        text = _blocker(Points([N] * 5).choose())
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
        assert chosen.notes[-1].startswith("Point p1 was started before 1970-01-01T00:00:01.500")

    def test_an_older_one_where_the_last_before_cannot_be_restored(self) -> None:
        assert _id(Points([E, N, N, E]).choose(RestoreRequest(as_of_ms=2_500))) == "p0"

    def test_before_the_first_the_nearest_after_is_named(self) -> None:
        text = _blocker(Points([N, N, E, E]).choose(RestoreRequest(as_of_ms=1_500)))
        assert "that was complete at 1970-01-01T00:00:01.500+00:00" in text
        assert "p2 after it (1970-01-01T00:00:02.000+00:00)" in text
        assert "p3" not in text

    def test_before_any_point(self) -> None:
        text = _blocker(Points([E]).choose(RestoreRequest(as_of_ms=-1)))
        assert "No recovery point that was complete at" in text
        assert "p0 after it" in text

    def test_the_time_a_point_was_taken_counts_not_the_window_it_closes(self) -> None:
        points = Points([E, E], closing_late={1: 10})
        assert _id(points.choose(RestoreRequest(as_of_ms=500))) == "p0"


def _window(number: int) -> OfWindow:
    """One of the windows w0, w1 ... of three seconds each."""
    start_ms = 3 * SECOND * number
    return OfWindow(
        Window(start_ms, start_ms + 3 * SECOND, f"w{number}"),
        lambda instant_ms: f"w{instant_ms // (3 * SECOND)}",
    )


class TestWindow:
    """Points p0 to p2 belong to window w0, p3 to p5 to w1, and so on."""

    def test_its_last_point_that_is_enough(self) -> None:
        points = Points([E, E, E, E, E, A, E, E])
        assert _id(points.choose(of_window=_window(0))) == "p2"
        assert _id(points.choose(of_window=_window(1))) == "p4"
        accept_less = RestoreRequest(accept=A)
        assert _id(points.choose(accept_less, of_window=_window(1))) == "p5"
        assert _id(points.choose(of_window=_window(2))) == "p7"

    def test_a_point_that_closes_it_late_belongs_to_it(self) -> None:
        points = Points([E, E, E, E], closing_late={3: 3 * SECOND - 1})
        assert _id(points.choose(of_window=_window(0))) == "p3"

    def test_without_one_it_says_why_and_which_windows_are_near(self) -> None:
        points = Points([E, E, E, N, A, N, N, N, N, E])
        (why,) = points.choose(of_window=_window(1)).blockers
        assert "No recovery point of window w1 is exact and covered by backups." in why.found
        assert "p4 has restorability at_least_once: because of 4." in why.found
        assert "window w0 with point p2 before it" in why.action
        assert "window w3 with point p9 after it" in why.action

    def test_without_any_point(self) -> None:
        (why,) = Points([E, E]).choose(of_window=_window(2)).blockers
        assert why.found == "No recovery point of window w2 is recorded."
        assert "window w0 with point p1 before it" in why.action

    def test_at_a_time_in_it(self) -> None:
        points, at = Points([E] * 9), RestoreRequest(as_of_ms=4 * SECOND)
        assert _id(points.choose(at, of_window=_window(1))) == "p4"
        (why,) = points.choose(at, of_window=_window(2)).blockers
        assert (why.subject, why.found.split()[-1]) == ("window w2", "w1.")

    def test_a_point_of_another_window(self) -> None:
        points, named = Points([E] * 9), RestoreRequest(point_id="p4")
        assert _id(points.choose(named, of_window=_window(1))) == "p4"
        (why,) = points.choose(named, of_window=_window(2)).blockers
        assert why.found == "It belongs to window w1, not to w2."

    def test_an_unfinished_restore_of_it_goes_on(self) -> None:
        points, unfinished = Points([E] * 9), stored(point_id="p3")
        assert _id(points.choose(unfinished=unfinished, of_window=_window(1))) == "p3"
        assert _id(points.choose(unfinished=unfinished, of_window=_window(2))) == "p8"


class TestById:
    def test_taken_whatever_is_newer(self) -> None:
        assert _id(Points([E, E, E]).choose(RestoreRequest(point_id="p1"))) == "p1"

    def test_unknown(self) -> None:
        text = _blocker(Points([E, E]).choose(RestoreRequest(point_id="p7")))
        assert "among the 2 recorded points (the newest is p1)" in text

    def test_not_covered_names_both_neighbours(self) -> None:
        points = Points([E, E, N, N, A, E, E])
        text = _blocker(points.choose(RestoreRequest(point_id="p3")))
        assert "It is not covered by backups. because of 3." in text
        assert "p1 before it" in text
        assert "p5 after it" in text

    def test_too_weak(self) -> None:
        text = _blocker(Points([A]).choose(RestoreRequest(point_id="p0")))
        assert "Its restorability is only at_least_once" in text
        accepted = RestoreRequest(point_id="p0", accept=A)
        assert _id(Points([A]).choose(accepted)) == "p0"

    def test_not_with_a_time_besides(self) -> None:
        text = _blocker(Points([E]).choose(RestoreRequest(point_id="p0", as_of_ms=5)))
        assert "Both point p0 and as_of" in text


class TestRebuildPoint:
    @pytest.mark.parametrize("restorability", [A, U])
    def test_what_the_cut_proves_of_state_does_not_matter(
        self, restorability: Restorability
    ) -> None:
        request = RestoreRequest(mode=RestoreMode.REBUILD)
        assert _id(Points([E, restorability]).choose(request)) == "p1"

    def test_the_inputs_must_be_there(self) -> None:
        request = RestoreRequest(mode=RestoreMode.REBUILD)
        assert _id(Points([E, N]).choose(request)) == "p0"
        assert "has its inputs covered" in _blocker(Points([N]).choose(request))

    def test_inputs_until_must_be_told_until_when(self) -> None:
        until = RestoreRequest(mode=RestoreMode.INPUTS_UNTIL)
        assert "needs a time or a recovery point" in _blocker(Points([E]).choose(until))
        as_of = RestoreRequest(mode=RestoreMode.INPUTS_UNTIL, as_of_ms=0)
        assert _id(Points([E, E]).choose(as_of)) == "p0"
        by_id = RestoreRequest(mode=RestoreMode.INPUTS_UNTIL, point_id="p1")
        assert _id(Points([E, E]).choose(by_id)) == "p1"


class TestUnfinished:
    BEGUN = stored(restore_id="p0-12345678", point_id="p0")

    def test_its_point_is_taken_again(self) -> None:
        chosen = Points([E, E]).choose(unfinished=self.BEGUN)
        assert _id(chosen) == "p0"
        assert "Restore p0-12345678 is unfinished" in chosen.notes[-1]

    def test_not_where_a_time_or_a_point_is_given(self) -> None:
        points = Points([E, E, E])
        at = points.choose(RestoreRequest(as_of_ms=1_000), unfinished=self.BEGUN)
        named = points.choose(RestoreRequest(point_id="p2"), unfinished=self.BEGUN)
        assert (_id(at), at.notes, _id(named), named.notes) == ("p1", (), "p2", ())

    def test_one_that_cannot_be_restored_any_more_is_refused(self) -> None:
        chosen = Points([N, E]).choose(unfinished=self.BEGUN)
        assert "recovery point p0: It is not covered" in _blocker(chosen)
        assert "p1 after it" in _blocker(chosen)


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
        text = _blocker(self._choose(Made({"p0", "p4"}), point_id="p2"))
        assert text.startswith("recovery point p2: No sums at p2. Make those of p2.")
        assert "The closest points with snapshots: p0 before it" in text
        assert "p4 after it" in text

    def test_a_named_point_with_them(self) -> None:
        assert _id(self._choose(Made({"p2"}), point_id="p2")) == "p2"

    def test_none_has_them(self) -> None:
        text = _blocker(self._choose(Made(set(), closing={"p1", "p3"})))
        assert "No recovery point has proved KTable snapshots of every store." in text
        assert "Point p3: No sums at p3. Make those of p3." in text

    def test_none_at_or_before_a_time(self) -> None:
        text = _blocker(self._choose(Made({"p4"}, closing={"p1"}), as_of_ms=2_000))
        assert "that was complete at 1970-01-01T00:00:02.000" in text
        assert "Make those of p1. The closest points with snapshots: p4 after it" in text

    def test_an_unfinished_restore_goes_on_with_its_point(self) -> None:
        points = Points([E, E], snapshots=Made({"p0", "p1"}))
        begun = stored(restore_id="p0-12345678", point_id="p0")
        assert _id(points.choose(self.REQUEST, unfinished=begun)) == "p0"

    @pytest.mark.parametrize("mode", [RestoreMode.REBUILD, RestoreMode.INPUTS_UNTIL])
    def test_not_where_no_changelogs_are_restored(self, mode: RestoreMode) -> None:
        text = _blocker(self._choose(Made({"p2"}), mode=mode))
        assert text.startswith(f"mode {mode}: It restores no changelogs")


def test_times_are_in_utc() -> None:
    assert iso_time(1_795_287_178_005) == "2026-11-21T18:52:58.005+00:00"


STATE = RestoreRequest()
TAIL = RestoreRequest(inputs=InputsExtent.TAIL)
REBUILD = RestoreRequest(mode=RestoreMode.REBUILD)
LOGS = RestoreRequest(mode=RestoreMode.LOGS)
WHOLE = (OffsetRange(10, 100),)


def _select(
    request: RestoreRequest = STATE,
    taken: RecoveryPoint | None = None,
    *,
    backed_up: set[str] | None = None,
    excluded: set[str] = frozenset(),  # pyright: ignore[reportArgumentType]
) -> Selection:
    return select(
        application(),
        set(ROLES) if backed_up is None else backed_up,
        taken or point(),
        request,
        excluded,
    )


def _partitions(selection: Selection) -> dict[str, WantedPartition]:
    return {topic.source: topic.partitions[0] for topic in selection.topics}


class TestState:
    def test_everything_but_repartition_topics_is_taken_whole(self) -> None:
        found = _select()
        ranges = {topic: wanted.ranges for topic, wanted in _partitions(found).items()}
        assert ranges == {
            **dict.fromkeys(ROLES, WHOLE),
            "shop-sums-repartition": (OffsetRange(80, 100),),
        }
        assert found.blockers == ()

    def test_committed_offsets_of_all_that_is_read_with_their_metadata(self) -> None:
        committed = {topic: p.committed for topic, p in _partitions(_select()).items()}
        assert committed == {
            "orders": GroupOffset("orders", 0, 60, "metadata of orders"),
            "names": GroupOffset("names", 0, 100, "metadata of names"),
            "between": GroupOffset("between", 0, 70, "metadata of between"),
            "shop-sums-repartition": GroupOffset(
                "shop-sums-repartition", 0, 80, "metadata of shop-sums-repartition"
            ),
            "rates": None,
            "totals": None,
            "shop-sums-changelog": None,
        }

    def test_ranges_of_other_transactions_are_left_out(self) -> None:
        bad = [OffsetRange(60, 65), OffsetRange(90, 95)]
        taken = point(excluded={"shop-sums-changelog": bad, "shop-sums-repartition": bad})
        found = _partitions(_select(taken=taken))
        assert found["shop-sums-changelog"].ranges == (
            OffsetRange(10, 60),
            OffsetRange(65, 90),
            OffsetRange(95, 100),
        )
        assert found["shop-sums-repartition"].ranges == (OffsetRange(80, 90), OffsetRange(95, 100))

    def test_the_tail_is_that_of_pure_inputs_only(self) -> None:
        found = _partitions(_select(TAIL))
        assert found["orders"].ranges == (OffsetRange(60, 100),)
        assert {found[topic].ranges for topic in ("rates", "names", "between", "totals")} == {WHOLE}

    @pytest.mark.parametrize(("offset", "start"), [(3, 10), (10, 10), (100, None)])
    def test_the_tail_begins_no_earlier_than_the_log(self, offset: int, start: int | None) -> None:
        found = _partitions(_select(TAIL, point(committed={"orders": offset})))
        expected = () if start is None else (OffsetRange(start, 100),)
        assert found["orders"].ranges == expected

    def test_without_a_committed_offset_there_is_none_and_everything_is_taken(self) -> None:
        found = _select(TAIL, point(committed={}))
        wanted = _partitions(found)
        assert {w.committed for w in wanted.values()} == {None}
        assert {w.ranges for w in wanted.values()} == {WHOLE}
        assert any("1 of 1 partitions of orders had no" in note for note in found.notes)

    @pytest.mark.parametrize(("request_", "told"), [(STATE, True), (REBUILD, False)])
    def test_a_store_with_logging_disabled_is_told(
        self, request_: RestoreRequest, told: bool
    ) -> None:
        logged, cache = Store("sums", "shop-sums-changelog"), Store("cache", None)
        names = Store("all-names", None, is_global=True)
        shop = replace(application(), stores=(cache, logged, names))
        notes = select(shop, set(ROLES), point(), request_, frozenset()).notes
        about_stores = [note for note in notes if note.startswith("Store ")]
        cache_starts_empty = "Store cache has no changelog (logging disabled): it starts empty."
        assert about_stores == ([cache_starts_empty] if told else [])

    def test_an_input_that_serves_as_changelog_and_ends_at_the_committed_offsets_is_told(
        self,
    ) -> None:
        told = "Input names serves as changelog"
        assert any(told in note for note in _select().notes)
        of_this_release = replace(point(), undeclared_topics=())
        assert not any(told in note for note in _select(taken=of_this_release).notes)


class TestRebuild:
    @pytest.mark.parametrize("mode", [RestoreMode.REBUILD, RestoreMode.INPUTS_UNTIL])
    def test_what_is_only_read_is_taken_what_is_written_is_made_empty(
        self, mode: RestoreMode
    ) -> None:
        found = _partitions(_select(RestoreRequest(mode=mode)))
        assert {topic: wanted.ranges for topic, wanted in found.items()} == {
            "orders": WHOLE,
            "rates": WHOLE,
            "names": WHOLE,
            "between": (),
            "totals": (),
        }

    def test_the_group_begins_at_the_first_restored_offset_without_metadata(self) -> None:
        bad = {"orders": [OffsetRange(10, 12)]}
        found = _partitions(_select(REBUILD, point(excluded=bad)))
        assert found["orders"].committed == GroupOffset("orders", 0, 12, "")
        assert found["names"].committed == GroupOffset("names", 0, 10, "")
        assert found["between"].committed == GroupOffset("between", 0, 10, "")
        assert (found["rates"].committed, found["totals"].committed) == (None, None)

    def test_not_from_the_tail(self) -> None:
        request = RestoreRequest(mode=RestoreMode.REBUILD, inputs=InputsExtent.TAIL)
        assert [r.subject for r in _select(request).blockers] == ["mode rebuild"]


class TestLogs:
    def test_inputs_and_outputs_are_taken_whole_and_no_internal_topic(self) -> None:
        found = _partitions(_select(LOGS))
        assert {topic: wanted.ranges for topic, wanted in found.items()} == dict.fromkeys(
            set(ROLES) - INTERNAL, WHOLE
        )

    def test_the_group_gets_no_offsets(self) -> None:
        found = _select(LOGS)
        assert {wanted.committed for wanted in _partitions(found).values()} == {None}
        assert found.blockers == ()

    def test_changelogs_and_stores_do_not_matter(self) -> None:
        found = _select(LOGS, backed_up=set(ROLES) - INTERNAL)
        assert (found.blockers, found.notes) == ((), ())
        topics = set(ROLES) - INTERNAL
        cuts = reduced(point(), roles_at(application(), None), LOGS, set()).partitions
        assert {cut.topic for cut in cuts} == topics

    @pytest.mark.parametrize("topic", ["orders", "rates", "between", "totals"])
    def test_every_input_and_output_must_be_backed_up_or_excluded(self, topic: str) -> None:
        backed_up = set(ROLES) - {topic}
        (blocker,) = _select(LOGS, backed_up=backed_up).blockers
        assert blocker.subject == f"topic {topic}"
        assert "mode logs needs it" in blocker.found
        assert _select(LOGS, backed_up=backed_up, excluded={topic}).blockers == ()

    def test_not_from_the_tail(self) -> None:
        request = LOGS.model_copy(update={"inputs": InputsExtent.TAIL})
        (blocker,) = _select(request).blockers
        assert blocker.found == "It restores whole logs, but inputs is tail."

    @pytest.mark.parametrize("restorability", [A, U])
    def test_the_state_of_the_point_does_not_matter(self, restorability: Restorability) -> None:
        assert _id(Points([restorability]).choose(LOGS)) == "p0"

    def test_without_a_covered_point_the_needed_topics_are_named(self) -> None:
        text = _blocker(Points([N]).choose(LOGS))
        assert "No recovery point has its inputs and outputs covered by backups" in text

    def test_a_command_that_starts_the_application_is_refused(self) -> None:
        request = LOGS.model_copy(update={"after_command": "start it"})
        (blocker,) = _select(request).blockers
        assert "append its outputs to the restored ones" in blocker.found

    def test_a_place_of_the_group_contradicts_it(self) -> None:
        request = LOGS.model_copy(update={"inputs_are_at": InputsAt.MAPPED})
        assert "It commits no group offsets" in _blocker(Points([E]).choose(request))


class TestNotBackedUp:
    @pytest.mark.parametrize(
        "topic", ["orders", "rates", "names", "between", "shop-sums-changelog"]
    )
    def test_refused_where_the_state_needs_it(self, topic: str) -> None:
        found = _select(backed_up=set(ROLES) - {topic})
        assert [r.subject for r in found.blockers] == [f"topic {topic}"]
        assert "mode state needs it" in found.blockers[0].found

    def test_an_output_is_told(self) -> None:
        found = _select(backed_up=set(ROLES) - {"totals"})
        assert found.blockers == ()
        assert "totals" not in _partitions(found)
        assert any("totals is not backed up and not restored" in note for note in found.notes)

    def test_records_in_flight_come_from_the_point_all_the_same(self) -> None:
        found = _select(backed_up=set(ROLES) - {"shop-sums-repartition"})
        assert found.blockers == ()
        assert _partitions(found)["shop-sums-repartition"].ranges == (OffsetRange(80, 100),)

    def test_a_rebuild_needs_the_inputs_only(self) -> None:
        needed = {"orders", "rates", "names"}
        assert _select(REBUILD, backed_up=needed).blockers == ()
        found = _select(REBUILD, backed_up=needed - {"orders"})
        assert [r.subject for r in found.blockers] == ["topic orders"]

    def test_excluding_it_is_a_way_out_that_is_told(self) -> None:
        changelog = "shop-sums-changelog"
        found = _select(backed_up=set(ROLES) - {changelog}, excluded={changelog})
        assert found.blockers == ()
        assert any(
            f"{changelog} is excluded. The state depends on it" in note for note in found.notes
        )
        assert f"Topic {changelog}" in found.notes[0]

    def test_nothing_left(self) -> None:
        found = _select(excluded=set(ROLES), taken=point(committed={}))
        assert found.blockers[0].found == "All of its topics are excluded."


class TestExcludedInputs:
    """The group had committed offsets in them: it must be known where it goes on."""

    @pytest.mark.parametrize("topic", ["orders", "between", "shop-sums-repartition"])
    def test_are_refused_without_a_word(self, topic: str) -> None:
        (blocker,) = _select(excluded={topic}).blockers
        assert blocker.subject == f"topic {topic}"
        assert "committed offsets in 1 partition(s)" in blocker.found
        assert "--inputs-are-at mapped" in blocker.action

    @pytest.mark.parametrize("inputs_are_at", list(InputsAt))
    def test_with_a_word_they_are_left_as_they_are(self, inputs_are_at: InputsAt) -> None:
        found = _select(
            STATE.model_copy(update={"inputs_are_at": inputs_are_at}), excluded={"orders"}
        )
        assert found.blockers == ()
        assert "orders" not in _partitions(found)

    def test_the_word_needs_one(self) -> None:
        for excluded in (set[str](), {"totals"}):
            request = STATE.model_copy(update={"inputs_are_at": InputsAt.MAPPED})
            (blocker,) = _select(request, excluded=excluded).blockers
            assert blocker.subject == "inputs_are_at mapped"

    def test_where_nothing_was_committed_nothing_is_left_out(self) -> None:
        assert _select(taken=point(committed={}), excluded={"orders"}).blockers == ()

    def test_a_rebuild_begins_at_the_beginning_anyway(self) -> None:
        assert _select(REBUILD, excluded={"orders"}).blockers == ()


def test_topics_that_the_point_does_not_know_are_told() -> None:
    without = [topic for topic in ROLES if topic not in ("totals", "rates")]
    notes = _select(taken=point(topics=without, absent=["totals"])).notes
    assert any("Topic totals was not on the cluster" in note for note in notes)
    assert any("Topic rates was not known" in note for note in notes)


def test_a_changelog_that_had_vanished_is_refused_and_can_be_excluded() -> None:
    changelog = "shop-sums-changelog"
    taken = point(topics=[t for t in ROLES if t != changelog], absent=[changelog])
    [blocker] = _select(taken=taken).blockers
    assert blocker.subject == f"changelog {changelog}"
    assert "if it was deleted permanently, exclude it" in blocker.action
    assert _select(taken=taken, excluded={changelog}).blockers == ()
    assert _select(REBUILD, taken=taken).blockers == ()
    never_seen = point(topics=[t for t in ROLES if t != changelog])
    assert _select(taken=never_seen).blockers == ()


def test_topics_that_only_the_point_knows_are_taken_for_what_it_says() -> None:
    taken = point()
    extra = replace(taken.partitions[0], topic="old", roles=ROLES["totals"])
    taken = replace(taken, partitions=(*taken.partitions, extra))
    assert roles_at(application(), taken)["old"] == ROLES["totals"]
    assert any("old is not backed up" in note for note in _select(taken=taken).notes)


class TestReduced:
    def _topics(self, request: RestoreRequest, excluded: set[str] | None = None) -> dict[str, int]:
        found = reduced(point(), roles_at(application(), None), request, excluded or set())
        return {cut.topic: cut.log_start for cut in found.partitions}

    def test_all_of_it_for_the_state(self) -> None:
        assert self._topics(STATE) == dict.fromkeys(ROLES, 10)

    def test_inputs_and_globals_for_a_rebuild(self) -> None:
        assert self._topics(REBUILD) == {"orders": 10, "rates": 10, "names": 10}

    def test_of_a_tail_no_more_than_the_tail(self) -> None:
        assert self._topics(TAIL) == {**dict.fromkeys(ROLES, 10), "orders": 60}

    def test_nothing_of_what_is_excluded(self) -> None:
        assert set(self._topics(STATE, {"totals"})) == set(ROLES) - {"totals"}

    def test_internal_topics_are_none_of_a_rebuild(self) -> None:
        assert not INTERNAL & set(self._topics(REBUILD))

    def test_what_the_point_lacks_and_this_restore_needs(self) -> None:
        absent = ["orders", "totals", "shop-sums-changelog"]
        taken = replace(point(absent=absent), undeclared_topics=("new", "other"))

        def lacking(request: RestoreRequest, excluded: set[str]) -> tuple[set[str], set[str]]:
            found = reduced(taken, roles_at(application(), None), request, excluded)
            return set(found.absent_topics), set(found.unknown_topics)

        assert lacking(STATE, set()) == (set(absent), {"new", "other"})
        assert lacking(STATE, {"orders", "new"}) == (set(absent) - {"orders"}, {"other"})
        assert lacking(REBUILD, set()) == ({"orders"}, {"new", "other"})
        nothing = replace(taken, partitions=())
        found = reduced(nothing, roles_at(application(), None), STATE, set())
        assert set(found.absent_topics) == set(absent)

    def test_what_is_left_out_is_no_topic_that_the_point_does_not_know(self) -> None:
        taken = point()
        assert taken.undeclared_topics is None
        found = reduced(taken, roles_at(application(), None), STATE, {"orders"})
        assert found.unknown_topics == ()


@pytest.mark.parametrize("mode", list(RestoreMode))
def test_a_guess_that_nobody_has_confirmed_keeps_state_from_being_restored(
    mode: RestoreMode,
) -> None:
    """Not a rebuild, which reads no store; and not what is excluded."""
    whole = application()
    log = "shop-sums-changelog"
    guessed = replace(
        whole,
        stores=(Store("sums", log, unconfirmed=("Perhaps.",)),),
        topics=tuple(
            replace(t, unconfirmed=("Whose is it?",)) if t.name == "orders" else t
            for t in whole.topics
        ),
    )
    asked = RestoreRequest(mode=mode)
    found = select(guessed, set(ROLES), point(), asked, set())
    subjects = [blocker.subject for blocker in found.blockers]
    is_state = mode is RestoreMode.STATE
    assert subjects == (["stores.sums", "topics.orders"] if is_state else [])
    if is_state:
        assert "remove stores.sums.unconfirmed" in found.blockers[0].action
    left = select(guessed, set(ROLES), point(), asked, {log, "orders"})
    assert {r.subject for r in left.blockers} <= {"topic orders"}
