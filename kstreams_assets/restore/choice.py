"""Which recovery point is restored. Pure: points are judged by a function that is passed in."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from kstreams_assets.checks import Finding
from kstreams_assets.restore.request import ChangelogSource, RestoreMode, RestoreRequest
from kstreams_assets.warehouse.judge import PointStatus, Restores
from kstreams_assets.warehouse.point import Taken as InSequence
from kstreams_assets.warehouse.point import in_order, iso_time

Judge = Callable[[Sequence[str]], Sequence[PointStatus]]
"""What a restore of the points with these ids would give, in their order; absent ones left out."""

_RANK = {
    Restores.EXACT: 3,
    Restores.AT_LEAST_ONCE: 2,
    Restores.UNPROVEN: 1,
    Restores.NOTHING: 0,
}
_STATE = RestoreMode.STATE
_FIRST_BATCH = 32
_BATCH_GROWTH = 4
_FEW = 3
_MEND = (
    "Restore the damaged files from a copy of the warehouse, or back the window up again if Kafka"
    " still has it."
)
_LIST = "kstreams-assets recovery-points list"


class Taken(InSequence, Protocol):
    """A recovery point: what orders it, and when its taking had ended (epoch milliseconds)."""

    @property
    def ended_at_ms(self) -> int: ...


class Snapshots(Protocol):
    """The KTable snapshots that changelogs are to be written from."""

    def missing(self, point_id: str) -> str:
        """What of them a point lacks, in words; empty if nothing."""
        ...

    def first_closing(self, point_ids: Iterable[str]) -> str | None:
        """The first of these points that closes a window, so that they can be made."""
        ...

    def remedy(self, point_id: str) -> str:
        """How to make those of a point."""
        ...


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A restore of the same mode, names and target that was begun and not finished."""

    restore_id: str
    point_id: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The point to restore, None with refusals that say why there is none."""

    status: PointStatus | None
    refusals: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()


def choose(
    points: Sequence[Taken],
    judge: Judge,
    request: RestoreRequest,
    *,
    unfinished: Unfinished | None = None,
    snapshots: Snapshots | None = None,
) -> Choice:
    """The point of that id; or the newest one that was complete at `as_of_ms`; or the newest.

    With `snapshots`, points that lack any of them do not count.

    It must be covered and give what is accepted. Without id and time the point of an unfinished
    restore is taken, so that a second run goes on with the first one's work. Record timestamps
    play no part: `as_of_ms` is compared with the end of the taking. Positions are read until then,
    so a point that was only begun before `as_of_ms` may hold what came after it. Which of the
    points that remain is the newest is decided by their sequence (`in_order`), not by clocks.
    """
    wrong = _contradictions(request)
    if wrong:
        return Choice(None, wrong)
    ordered = sorted(points, key=in_order)
    search = _Search(ordered, judge, request, snapshots)
    if request.point_id is not None:
        return search.by_id(request.point_id)
    if unfinished is not None and request.as_of_ms is None:
        chosen = search.by_id(unfinished.point_id)
        note = (
            f"Restore {unfinished.restore_id} was begun and is not finished: its point"
            f" {unfinished.point_id} is taken again, so that this run goes on with its work. To"
            " restore another point, name it, and delete the topics that were begun."
        )
        return Choice(chosen.status, chosen.refusals, (*chosen.notes, note))
    return search.newest()


def is_usable(status: PointStatus, request: RestoreRequest) -> bool:
    """Whether a restore in this mode may be made from the point.

    A rebuild recomputes everything from the inputs, so what their cut proves about state does not
    matter to it; they must be there.
    """
    if not status.covered:
        return False
    if request.mode is not RestoreMode.STATE:
        return True
    return _RANK[status.gives] >= _RANK[request.accept]


def _contradictions(request: RestoreRequest) -> tuple[Finding, ...]:
    if request.point_id is not None and request.as_of_ms is not None:
        return (
            Finding(
                "recovery point",
                f"Both point {request.point_id} and as_of {iso_time(request.as_of_ms)} are given.",
                action="Give one of them.",
            ),
        )
    if request.changelog_source is ChangelogSource.SNAPSHOT and request.mode is not _STATE:
        return (
            Finding(
                f"mode {request.mode}",
                "It restores no changelogs, but they are to come from KTable snapshots.",
                action="Set changelog_source to raw, or mode to state.",
            ),
        )
    if request.inputs_are_at is not None and request.mode is not _STATE:
        return (
            Finding(
                f"mode {request.mode}",
                "It begins at the first record of the inputs, but inputs_are_at says otherwise.",
                action="Leave inputs_are_at out, or set mode to state.",
            ),
        )
    nothing_given = request.point_id is None and request.as_of_ms is None
    if request.mode is RestoreMode.INPUTS_UNTIL and nothing_given:
        return (
            Finding(
                "recovery point",
                "Mode inputs_until is told neither a time nor a recovery point.",
                action="Give as_of or a point id; for all there is take mode rebuild.",
            ),
        )
    return ()


class _Search:
    """Looks for points in the order they were taken, judging no more than it must."""

    def __init__(
        self,
        points: Sequence[Taken],
        judge: Judge,
        request: RestoreRequest,
        snapshots: Snapshots | None,
    ) -> None:
        self._points, self._judge, self._request = points, judge, request
        self._snapshots = snapshots

    def by_id(self, point_id: str) -> Choice:
        index = next((i for i, p in enumerate(self._points) if p.id == point_id), None)
        subject = f"recovery point {point_id}"
        if index is None:
            known = f"the newest is {self._points[-1].id}" if self._points else "there is none"
            problem = f"It is not among the {len(self._points)} recorded points ({known})."
            return Choice(None, (Finding(subject, problem, action=f"Look ids up: {_LIST}."),))
        status = next(iter(self._judge([point_id])), None)
        if status is None:
            return Choice(
                None, (Finding(subject, "It was removed just now.", action="Try again."),)
            )
        lacks = self._lacks(point_id)
        if is_usable(status, self._request) and not lacks:
            return Choice(status)
        near = self._near(self._points[:index], self._points[index + 1 :])
        if is_usable(status, self._request):
            return Choice(None, (Finding(subject, lacks, action=self._make(point_id, near)),))
        remedy = f"{_MEND} {self._remedy(near)}" if status.damaged else self._remedy(near)
        return Choice(None, (Finding(subject, _why_not(status), action=remedy),))

    def newest(self) -> Choice:
        as_of_ms = self._request.as_of_ms
        allowed = [p for p in self._points if as_of_ms is None or p.ended_at_ms <= as_of_ms]
        having = self._having(allowed)
        seen: list[PointStatus] = []
        for status in self._judged(having[::-1]):
            if is_usable(status, self._request):
                damaged = next((s for s in seen if s.damaged), None)
                if damaged is not None:
                    return Choice(None, (_damaged(damaged, status),))
                notes = (
                    self._passed_over(seen),
                    self._older(status, allowed, having),
                    self._incomplete(),
                )
                return Choice(status, notes=tuple(note for note in notes if note))
            seen.append(status)
        if allowed and not having:
            return Choice(None, (self._no_snapshots(allowed),))
        return Choice(None, (self._nothing(allowed, seen),))

    def _lacks(self, point_id: str) -> str:
        return self._snapshots.missing(point_id) if self._snapshots else ""

    def _having(self, points: Sequence[Taken]) -> list[Taken]:
        """Those that have all snapshots, where they are needed."""
        return [point for point in points if not self._lacks(point.id)]

    def _no_snapshots(self, allowed: Sequence[Taken]) -> Finding:
        ids = [point.id for point in allowed[::-1]]
        newest = (self._snapshots.first_closing(ids) if self._snapshots else None) or ids[0]
        near = self._near((), self._later(allowed))
        problem = f"No recovery point{self._until()} has proved KTable snapshots of every store."
        return Finding(
            "recovery point",
            f"{problem} Point {newest}: {self._lacks(newest)}",
            action=self._make(newest, near),
        )

    def _make(self, point_id: str, near: Sequence[str]) -> str:
        nearest = f" The nearest that have them: {', '.join(near)}." if near else ""
        return (self._snapshots.remedy(point_id) if self._snapshots else "") + nearest

    def _later(self, allowed: Sequence[Taken]) -> list[Taken]:
        """All the others, in order."""
        ids = {point.id for point in allowed}
        return [point for point in self._points if point.id not in ids]

    def _until(self) -> str:
        as_of_ms = self._request.as_of_ms
        return "" if as_of_ms is None else f" that was complete at {iso_time(as_of_ms)}"

    def _incomplete(self) -> str:
        """Points that had been begun at that time, and were not complete."""
        as_of_ms = self._request.as_of_ms
        if as_of_ms is None:
            return ""
        begun = [p for p in self._points if p.taken_at_ms <= as_of_ms < p.ended_at_ms]
        return "".join(
            f"Point {p.id} was begun before {iso_time(as_of_ms)} and complete at"
            f" {iso_time(p.ended_at_ms)}, so it may hold records that came after that time; to"
            " restore it, name it."
            for p in begun[-1:]
        )

    def _older(self, status: PointStatus, allowed: Sequence[Taken], having: Sequence[Taken]) -> str:
        """That snapshots, not the log, decide how far the restore reaches."""
        chosen = next((i for i, p in enumerate(allowed) if p.id == status.id), len(allowed))
        newer, has = allowed[chosen + 1 :], {p.id for p in having}
        without = sum(p.id not in has for p in newer)
        if not without:
            return ""
        return (
            f"{without} newer point(s), the last of {iso_time(newer[-1].taken_at_ms)}, have no"
            " KTable snapshots: with changelog_source raw those that are covered can be restored."
        )

    def _nothing(self, allowed: Sequence[Taken], seen: Sequence[PointStatus]) -> Finding:
        if not seen:
            problem = f"No recovery point{self._until()} is recorded."
        else:
            problem = f"No recovery point{self._until()} {self._wanted()}. {_reasons(seen)}"
        near = self._near((), self._later(allowed))
        weaker = next((status for status in seen if status.covered), None)
        remedy = self._remedy(near, weaker)
        if any(status.damaged for status in seen):
            remedy = f"{_MEND} {remedy}" if near or weaker else _MEND
        return Finding("recovery point", problem, action=remedy)

    def _near(self, before: Sequence[Taken], after: Sequence[Taken]) -> list[str]:
        """The nearest usable points on both sides, in words."""
        request, found = self._request, []
        for side, points in (("before", before[::-1]), ("after", after)):
            usable = (s for s in self._judged(self._having(points)) if is_usable(s, request))
            nearest = next(usable, None)
            if nearest is not None:
                found.append(f"{nearest.id} {side} it ({iso_time(nearest.taken_at_ms)})")
        return found

    def _remedy(self, near: Sequence[str], weaker: PointStatus | None = None) -> str:
        if near:
            return f"The nearest that can be restored: {', '.join(near)}; name one of them."
        if weaker is not None:
            return (
                f"Point {weaker.id} ({iso_time(weaker.taken_at_ms)}) is covered and gives"
                f" {weaker.gives}: accept that, or back up the windows that are due."
            )
        return f"Back up the windows that are due; see {_LIST} for why points do not count."

    def _wanted(self) -> str:
        if self._request.mode is not RestoreMode.STATE:
            return "has its inputs covered by backups"
        return f"is covered by backups and gives {self._request.accept}"

    def _passed_over(self, seen: Sequence[PointStatus]) -> str:
        if not seen:
            return ""
        return f"{len(seen)} newer point(s) cannot be restored. {_reasons(seen)}"

    def _judged(self, points: Sequence[Taken]) -> Iterator[PointStatus]:
        ids, size = [point.id for point in points], _FIRST_BATCH
        while ids:
            batch, ids = ids[:size], ids[size:]
            yield from self._judge(batch)
            size *= _BATCH_GROWTH


def _damaged(newer: PointStatus, usable: PointStatus) -> Finding:
    """An older point is never taken in silence for one that the backups should give."""
    return Finding(
        f"recovery point {newer.id}",
        newer.reason,
        action=f"{_MEND} To restore an older point all the same, name it: {usable.id}"
        f" ({iso_time(usable.taken_at_ms)}) is the newest that can be restored.",
    )


def _why_not(status: PointStatus) -> str:
    if not status.covered:
        return f"It is not covered by backups. {status.reason}"
    return f"It gives {status.gives} only. {status.reason}"


def _reasons(seen: Sequence[PointStatus]) -> str:
    texts = [f"{s.id} gives {s.gives}: {s.reason}" for s in seen[:_FEW]]
    more = f" (and {len(seen) - _FEW} more)" if len(seen) > _FEW else ""
    return " ".join(texts) + more
