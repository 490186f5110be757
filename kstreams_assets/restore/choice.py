"""Which recovery point is restored. Pure: points are judged by a function that is passed in."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from kstreams_assets.backup.point_judge import PointStatus, Restores
from kstreams_assets.recovery.point import iso_time
from kstreams_assets.restore.plan import Refusal
from kstreams_assets.restore.request import RestoreMode, RestoreRequest

Judge = Callable[[Sequence[str]], Sequence[PointStatus]]
"""What a restore of the points with these ids would give, in their order; absent ones left out."""

_RANK = {
    Restores.EXACT: 3,
    Restores.AT_LEAST_ONCE: 2,
    Restores.UNPROVEN: 1,
    Restores.NOTHING: 0,
}
_FIRST_BATCH = 32
_BATCH_GROWTH = 4
_FEW = 3
_LIST = "kstreams-assets recovery-points list"


class Taken(Protocol):
    """A recovery point, by id and the time it was taken (epoch milliseconds)."""

    @property
    def id(self) -> str: ...

    @property
    def taken_at_ms(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A restore of the same mode, names and target that was begun and not finished."""

    restore_id: str
    point_id: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The point to restore, None with refusals that say why there is none."""

    status: PointStatus | None
    refusals: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = ()


def choose(
    points: Sequence[Taken],
    judge: Judge,
    request: RestoreRequest,
    *,
    unfinished: Unfinished | None = None,
) -> Choice:
    """The point of that id; or the newest one taken at or before `as_of_ms`; or the newest.

    It must be covered and give what is accepted. Without id and time the point of an unfinished
    restore is taken, so that a second run goes on with the first one's work. Record timestamps
    play no part: `as_of_ms` is held against the time at which points were taken.
    """
    wrong = _contradictions(request)
    if wrong:
        return Choice(None, wrong)
    search = _Search(sorted(points, key=lambda p: (p.taken_at_ms, p.id)), judge, request)
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


def _contradictions(request: RestoreRequest) -> tuple[Refusal, ...]:
    if request.point_id is not None and request.as_of_ms is not None:
        return (
            Refusal(
                "recovery point",
                f"Both point {request.point_id} and as_of {iso_time(request.as_of_ms)} are given.",
                "Give one of them.",
            ),
        )
    nothing_given = request.point_id is None and request.as_of_ms is None
    if request.mode is RestoreMode.INPUTS_UNTIL and nothing_given:
        return (
            Refusal(
                "recovery point",
                "Mode inputs_until is told neither a time nor a recovery point.",
                "Give as_of or a point id; for all there is take mode rebuild.",
            ),
        )
    return ()


class _Search:
    """Looks for points in order of time, judging no more than it must."""

    def __init__(self, points: Sequence[Taken], judge: Judge, request: RestoreRequest) -> None:
        self._points, self._judge, self._request = points, judge, request

    def by_id(self, point_id: str) -> Choice:
        index = next((i for i, p in enumerate(self._points) if p.id == point_id), None)
        subject = f"recovery point {point_id}"
        if index is None:
            known = f"the newest is {self._points[-1].id}" if self._points else "there is none"
            problem = f"It is not among the {len(self._points)} recorded points ({known})."
            return Choice(None, (Refusal(subject, problem, f"Look ids up: {_LIST}."),))
        status = next(iter(self._judge([point_id])), None)
        if status is None:
            return Choice(None, (Refusal(subject, "It was removed just now.", "Try again."),))
        if is_usable(status, self._request):
            return Choice(status)
        near = self._near(self._points[:index], self._points[index + 1 :])
        return Choice(None, (Refusal(subject, _why_not(status), self._remedy(near)),))

    def newest(self) -> Choice:
        as_of_ms = self._request.as_of_ms
        allowed = [p for p in self._points if as_of_ms is None or p.taken_at_ms <= as_of_ms]
        seen: list[PointStatus] = []
        for status in self._judged(allowed[::-1]):
            if is_usable(status, self._request):
                note = self._passed_over(seen)
                return Choice(status, notes=(note,) if note else ())
            seen.append(status)
        return Choice(None, (self._nothing(allowed, seen),))

    def _nothing(self, allowed: Sequence[Taken], seen: Sequence[PointStatus]) -> Refusal:
        as_of_ms = self._request.as_of_ms
        until = "" if as_of_ms is None else f" taken at or before {iso_time(as_of_ms)}"
        if not seen:
            problem = f"No recovery point{until} is recorded."
        else:
            problem = f"No recovery point{until} {self._wanted()}. {_reasons(seen)}"
        near = self._near((), self._points[len(allowed) :])
        weaker = next((status for status in seen if status.covered), None)
        return Refusal("recovery point", problem, self._remedy(near, weaker))

    def _near(self, before: Sequence[Taken], after: Sequence[Taken]) -> list[str]:
        """The nearest usable points on both sides, in words."""
        request, found = self._request, []
        for side, points in (("before", before[::-1]), ("after", after)):
            usable = (s for s in self._judged(points) if is_usable(s, request))
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


def _why_not(status: PointStatus) -> str:
    if not status.covered:
        return f"It is not covered by backups. {status.reason}"
    return f"It gives {status.gives} only. {status.reason}"


def _reasons(seen: Sequence[PointStatus]) -> str:
    texts = [f"{s.id} gives {s.gives}: {s.reason}" for s in seen[:_FEW]]
    more = f" (and {len(seen) - _FEW} more)" if len(seen) > _FEW else ""
    return " ".join(texts) + more
