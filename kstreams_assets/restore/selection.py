"""Selects the recovery point to restore, and the offsets of each topic. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final, Protocol

from kstreams_assets.app.model import StreamsApplication, TopicRoles
from kstreams_assets.checks import Finding
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.point import PartitionCut, RecoveryPoint, WantedPartition, in_order
from kstreams_assets.model.point import Taken as InSequence
from kstreams_assets.model.restorability import RANK, PointStatus
from kstreams_assets.model.restores import RestoreMode, StoredRestore
from kstreams_assets.model.spans import Window
from kstreams_assets.restore.request import ChangelogSource, InputsExtent, RestoreRequest
from kstreams_assets.texts import iso_time

Evaluate = Callable[[Sequence[str]], Sequence[PointStatus]]
"""Evaluates the restorability of these points, in order; absent points are left out."""

Beyond = Callable[[Sequence[str]], Set[str]]
"""Returns which of these points are certainly not covered, without loading them."""

_STATE = RestoreMode.STATE
_FIRST_BATCH = 16
_FOLLOWED_MS: Final = 60_000
"""A follower without a covered point for longer than this has stopped, or cannot continue."""
_BATCH_GROWTH = 4
_FEW = 3
_REPAIR = (
    "Restore the damaged files from a copy of the warehouse, or back up the window again if Kafka"
    " still has its records."
)
_LIST = "kstreams-assets recovery-points list"


class Taken(InSequence, Protocol):
    """A recovery point: its order, and the end of its taking (epoch milliseconds).

    `effective_at_ms` is the time that decides its window.
    """

    @property
    def ended_at_ms(self) -> int: ...

    @property
    def effective_at_ms(self) -> int: ...


@dataclass(frozen=True, slots=True)
class OfWindow:
    """Only points of this window count; `key_at` returns the key of the window of a time."""

    window: Window
    key_at: Callable[[int], str]

    def __contains__(self, point: Taken) -> bool:
        """Whether a point belongs to the window."""
        return self.window.start_ms <= point.effective_at_ms < self.window.end_ms


class Snapshots(Protocol):
    """The KTable snapshots from which changelogs are to be written."""

    def missing(self, point_id: str) -> str:
        """Return which snapshots a point is missing, in words; empty if none."""
        ...

    def first_closing(self, point_ids: Iterable[str]) -> str | None:
        """Return the first of these points that closes a window, for making its snapshots."""
        ...

    def remedy(self, point_id: str) -> str:
        """Return how to make the snapshots of a point."""
        ...


@dataclass(frozen=True, slots=True)
class Choice:
    """The point to restore, None with blockers that explain why there is none."""

    status: PointStatus | None
    blockers: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()


def choose(
    points: Sequence[Taken],
    evaluate: Evaluate,
    request: RestoreRequest,
    *,
    unfinished: StoredRestore | None = None,
    snapshots: Snapshots | None = None,
    beyond: Beyond = lambda _: frozenset(),
    is_followed: Callable[[], bool] = lambda: False,
    of_window: OfWindow | None = None,
) -> Choice:
    """Choose the point with the requested id, or the newest complete at `as_of_ms`, or the newest.

    With `of_window` only points of this window count. With `snapshots`, points without any of them
    do not count. `is_followed`: whether a follower of the application runs, which covers each
    point some seconds after it was taken.

    The point must be covered and have the accepted restorability. Without id and time the point of
    an unfinished restore is chosen, so that a second run continues the first one's work. Record
    timestamps have no influence: `as_of_ms` is compared with the end of the taking. Positions are
    read until then, so a point that was only started before `as_of_ms` may contain later records.
    The sequence (`in_order`), not a clock, decides which of the remaining points is the newest.
    """
    wrong = _contradictions(request) or _outside(request, of_window)
    if wrong:
        return Choice(None, wrong)
    ordered = sorted(points, key=in_order)
    search = _Search(ordered, evaluate, request, snapshots, beyond, is_followed, of_window)
    if request.point_id is not None:
        return search.by_id(request.point_id)
    if unfinished is not None and request.as_of_ms is None and search.counts(unfinished.point_id):
        chosen = search.by_id(unfinished.point_id)
        note = (
            f"Restore {unfinished.restore_id} is unfinished, so this run continues it with point"
            f" {unfinished.point_id}. To restore another point, specify its id and delete the"
            " unfinished topics."
        )
        return Choice(chosen.status, chosen.blockers, (*chosen.notes, note))
    return search.newest()


def is_usable(status: PointStatus, request: RestoreRequest) -> bool:
    """Whether a restore in this mode may use the point.

    Only mode `state` needs a cut that proves the state. The other modes need the records of the
    topics that they write.
    """
    if not status.covered:
        return False
    if request.mode is not RestoreMode.STATE:
        return True
    return RANK[status.restorability] >= RANK[request.least]


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
                "It restores no changelogs, but changelog_source is snapshot.",
                action="Set changelog_source to raw, or mode to state.",
            ),
        )
    if request.inputs_are_at is not None and request.mode is not _STATE:
        return (
            Finding(
                f"mode {request.mode}",
                "It starts at the first record of the inputs, but inputs_are_at is given."
                if request.mode.recomputes
                else "It commits no group offsets, but inputs_are_at places the group.",
                action="Leave inputs_are_at out, or set mode to state.",
            ),
        )
    nothing_given = request.point_id is request.as_of_ms is request.window is None
    if request.mode is RestoreMode.INPUTS_UNTIL and nothing_given:
        return (
            Finding(
                "recovery point",
                "Mode inputs_until needs a time or a recovery point, and none is given.",
                action="Give as_of or a point id. To restore all inputs, use mode rebuild.",
            ),
        )
    return ()


def _outside(request: RestoreRequest, of_window: OfWindow | None) -> tuple[Finding, ...]:
    """Return a blocker for a time outside of the window."""
    as_of_ms = request.as_of_ms
    if of_window is None or as_of_ms is None:
        return ()
    window = of_window.window
    if window.start_ms <= as_of_ms < window.end_ms:
        return ()
    return (
        Finding(
            f"window {window.key}",
            f"as_of {iso_time(as_of_ms)} is in window {of_window.key_at(as_of_ms)}.",
            action=f"Choose that window, or leave as_of out for the last point of {window.key}.",
        ),
    )


class _Search:
    """Searches points in the order they were taken, and evaluates as few as possible."""

    def __init__(
        self,
        points: Sequence[Taken],
        evaluate: Evaluate,
        request: RestoreRequest,
        snapshots: Snapshots | None,
        beyond: Beyond,
        is_followed: Callable[[], bool],
        of_window: OfWindow | None,
    ) -> None:
        self._is_followed, self._of_window = is_followed, of_window
        self._points, self._evaluate, self._request = points, evaluate, request
        self._snapshots, self._beyond = snapshots, beyond

    def counts(self, point_id: str) -> bool:
        """Whether a point belongs to the requested window, if there is one."""
        return self._of_window is None or any(
            point.id == point_id and point in self._of_window for point in self._points
        )

    def by_id(self, point_id: str) -> Choice:
        index = next((i for i, p in enumerate(self._points) if p.id == point_id), None)
        subject = f"recovery point {point_id}"
        if index is None:
            known = f"the newest is {self._points[-1].id}" if self._points else "there is none"
            problem = f"It is not among the {len(self._points)} recorded points ({known})."
            return Choice(None, (Finding(subject, problem, action=f"List the ids with {_LIST}."),))
        if self._of_window is not None and not self.counts(point_id):
            key = self._of_window.key_at(self._points[index].effective_at_ms)
            problem = f"It belongs to window {key}, not to {self._of_window.window.key}."
            return Choice(None, (Finding(subject, problem, action="Choose that window."),))
        status = next(iter(self._evaluate([point_id])), None)
        if status is None:
            return Choice(
                None, (Finding(subject, "It was removed just now.", action="Try again."),)
            )
        missing = self._missing(point_id)
        if is_usable(status, self._request) and not missing:
            return Choice(status)
        near = self._near(self._points[:index], self._points[index + 1 :])
        if is_usable(status, self._request):
            return Choice(None, (Finding(subject, missing, action=self._make(point_id, near)),))
        remedy = f"{_REPAIR} {self._remedy(near)}" if status.damaged else self._remedy(near)
        return Choice(None, (Finding(subject, _why_not(status), action=remedy),))

    def newest(self) -> Choice:
        allowed = [point for point in self._points if self._is_allowed(point)]
        having = self._having(allowed)
        seen: list[PointStatus] = []
        for status in self._statuses(having[::-1]):
            if is_usable(status, self._request):
                damaged = next((s for s in seen if s.damaged), None)
                if damaged is not None:
                    return Choice(None, (_damaged(damaged, status),))
                notes = (
                    self._passed_over(seen, [p.id for p in having[::-1]].index(status.id), status),
                    self._older(status, allowed, having),
                    self._incomplete(),
                )
                return Choice(status, notes=tuple(note for note in notes if note))
            seen.append(status)
        if allowed and not having:
            return Choice(None, (self._no_snapshots(allowed),))
        return Choice(None, (self._nothing(allowed, seen),))

    def _is_allowed(self, point: Taken) -> bool:
        as_of_ms = self._request.as_of_ms
        is_complete = as_of_ms is None or point.ended_at_ms <= as_of_ms
        return is_complete and (self._of_window is None or point in self._of_window)

    def _missing(self, point_id: str) -> str:
        return self._snapshots.missing(point_id) if self._snapshots else ""

    def _having(self, points: Sequence[Taken]) -> list[Taken]:
        """Return those that have all snapshots, if these are needed."""
        return [point for point in points if not self._missing(point.id)]

    def _no_snapshots(self, allowed: Sequence[Taken]) -> Finding:
        ids = [point.id for point in allowed[::-1]]
        newest = (self._snapshots.first_closing(ids) if self._snapshots else None) or ids[0]
        near = self._near(*self._around(allowed))
        problem = f"No recovery point{self._until()} has proved KTable snapshots of every store."
        return Finding(
            "recovery point",
            f"{problem} Point {newest}: {self._missing(newest)}",
            action=self._make(newest, near),
        )

    def _make(self, point_id: str, near: Sequence[str]) -> str:
        nearest = f" The closest points with snapshots: {', '.join(near)}." if near else ""
        return (self._snapshots.remedy(point_id) if self._snapshots else "") + nearest

    def _around(self, allowed: Sequence[Taken]) -> tuple[list[Taken], list[Taken]]:
        """Return all other points, in order: those before the requested window, and those after."""
        ids = {point.id for point in allowed}
        others = [point for point in self._points if point.id not in ids]
        if self._of_window is None:
            return [], others
        start_ms = self._of_window.window.start_ms
        before = [point for point in others if point.effective_at_ms < start_ms]
        return before, [point for point in others if point.effective_at_ms >= start_ms]

    def _until(self) -> str:
        as_of_ms, of_window = self._request.as_of_ms, self._of_window
        window = "" if of_window is None else f" of window {of_window.window.key}"
        return window + ("" if as_of_ms is None else f" that was complete at {iso_time(as_of_ms)}")

    def _incomplete(self) -> str:
        """Describe points that had been started at that time but were not complete."""
        as_of_ms = self._request.as_of_ms
        if as_of_ms is None:
            return ""
        begun = [p for p in self._points if p.taken_at_ms <= as_of_ms < p.ended_at_ms]
        return "".join(
            f"Point {p.id} was started before {iso_time(as_of_ms)} and completed at"
            f" {iso_time(p.ended_at_ms)}, so it may contain later records. To restore it, specify"
            " its id."
            for p in begun[-1:]
        )

    def _older(self, status: PointStatus, allowed: Sequence[Taken], having: Sequence[Taken]) -> str:
        """Return a note if missing snapshots, not the log, make the restored point older."""
        chosen = next((i for i, p in enumerate(allowed) if p.id == status.id), len(allowed))
        newer, has = allowed[chosen + 1 :], {p.id for p in having}
        without = sum(p.id not in has for p in newer)
        if not without:
            return ""
        return (
            f"{without} newer point(s), the last of {iso_time(newer[-1].taken_at_ms)}, have no"
            " KTable snapshots: with changelog_source raw the covered ones can be restored."
        )

    def _nothing(self, allowed: Sequence[Taken], seen: Sequence[PointStatus]) -> Finding:
        if not seen:
            problem = f"No recovery point{self._until()} is recorded."
        else:
            reasons = _reasons(seen, len(self._having(allowed)))
            problem = f"No recovery point{self._until()} {self._wanted()}. {reasons}"
        near = self._near(*self._around(allowed))
        weaker = next((status for status in seen if status.covered), None)
        remedy = self._remedy(near, weaker)
        if any(status.damaged for status in seen):
            remedy = f"{_REPAIR} {remedy}" if near or weaker else _REPAIR
        return Finding("recovery point", problem, action=remedy)

    def _near(self, before: Sequence[Taken], after: Sequence[Taken]) -> list[str]:
        """Return the nearest usable points on both sides, in words."""
        request, found = self._request, []
        for side, points in (("before", before[::-1]), ("after", after)):
            usable = (s for s in self._statuses(self._having(points)) if is_usable(s, request))
            nearest = next(usable, None)
            if nearest is not None:
                window = self._window_of(nearest.id)
                found.append(f"{window}{nearest.id} {side} it ({iso_time(nearest.taken_at_ms)})")
        return found

    def _window_of(self, point_id: str) -> str:
        """Return the window of a point in words, if a window is requested."""
        if self._of_window is None:
            return ""
        point = next(point for point in self._points if point.id == point_id)
        return f"window {self._of_window.key_at(point.effective_at_ms)} with point "

    def _remedy(self, near: Sequence[str], weaker: PointStatus | None = None) -> str:
        if near:
            return f"The closest restorable points: {', '.join(near)}. Specify one of them."
        if weaker is not None:
            return (
                f"Point {weaker.id} ({iso_time(weaker.taken_at_ms)}) is covered and"
                f" {weaker.restorability}. Accept it (--accept {weaker.restorability}), or back up"
                " the windows that are due."
            )
        return f"Back up the windows that are due. {_LIST} shows the reason for each point."

    def _wanted(self) -> str:
        if self._request.mode.recomputes:
            return "has its inputs covered by backups"
        if self._request.mode is RestoreMode.LOGS:
            return "has its inputs and outputs covered by backups"
        return f"is {self._request.least} and covered by backups"

    def _passed_over(self, seen: Sequence[PointStatus], newer: int, chosen: PointStatus) -> str:
        """Describe newer points that cannot be restored, unless a follower will cover them."""
        unexpected = [status for status in seen if not self._is_to_be_covered(status, chosen)]
        if not unexpected:
            return ""
        count = newer - (len(seen) - len(unexpected))
        return f"{count} newer point(s) cannot be restored. {_reasons(unexpected, count)}"

    def _is_to_be_covered(self, status: PointStatus, chosen: PointStatus) -> bool:
        """Whether a follower will cover it: it covers one point after the other, within seconds."""
        if not status.is_pending:
            return False
        is_soon = status.taken_at_ms - chosen.taken_at_ms <= _FOLLOWED_MS
        return (chosen.has_increments and is_soon) or self._is_followed()

    def _statuses(self, points: Sequence[Taken]) -> Iterator[PointStatus]:
        """Yield statuses in order; after the first ones, skip those beyond all backups."""
        ids = [point.id for point in points]
        yield from self._evaluate(ids[:_FIRST_BATCH])
        lot, size = _FIRST_BATCH * _BATCH_GROWTH, _FIRST_BATCH
        begin = _FIRST_BATCH
        while begin < len(ids):
            beyond = self._beyond(ids[begin : begin + lot])
            left = [one for one in ids[begin : begin + lot] if one not in beyond]
            begin, lot = begin + lot, lot * _BATCH_GROWTH
            while left:
                yield from self._evaluate(left[:size])
                left, size = left[size:], size * _BATCH_GROWTH


def _damaged(newer: PointStatus, usable: PointStatus) -> Finding:
    """Return a blocker: an older point never silently replaces a damaged newer one."""
    return Finding(
        f"recovery point {newer.id}",
        newer.reason,
        action=f"{_REPAIR} To restore an older point instead, specify its id: {usable.id}"
        f" ({iso_time(usable.taken_at_ms)}) is the newest restorable one.",
    )


def _why_not(status: PointStatus) -> str:
    if not status.covered:
        return f"It is not covered by backups. {status.reason}"
    return f"Its restorability is only {status.restorability}. {status.reason}"


def _reasons(seen: Sequence[PointStatus], all_: int) -> str:
    texts = [f"{s.id} has restorability {s.restorability}: {s.reason}" for s in seen[:_FEW]]
    more = f" (and {all_ - _FEW} more)" if all_ > _FEW else ""
    return " ".join(texts) + more


Roles = Mapping[str, TopicRoles]
"""Limit per topic."""

_NONE: Final = TopicRoles()


@dataclass(frozen=True, slots=True)
class WantedTopic:
    """A topic for the target; without ranges it is created empty."""

    source: str
    roles: TopicRoles
    partitions: tuple[WantedPartition, ...]


@dataclass(frozen=True, slots=True)
class Selection:
    """The topics of a point to restore, with blockers and notes."""

    topics: tuple[WantedTopic, ...] = ()
    blockers: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()


def roles_at(application: StreamsApplication, point: RecoveryPoint | None) -> Roles:
    """Return the roles of the application's topics and of further topics in the point."""
    roles = {topic.name: topic.roles for topic in application.topics}
    for cut in point.partitions if point else ():
        roles[cut.topic] = cut.roles or roles.get(cut.topic, _NONE)
    return roles


def reduced(
    point: RecoveryPoint, roles: Roles, request: RestoreRequest, excluded: Set[str]
) -> RecoveryPoint:
    """Return the point with only the partitions and offsets that must be in the backups."""
    cuts = []
    for cut in point.partitions:
        of_topic = cut.roles or roles.get(cut.topic, _NONE)
        if cut.topic in excluded or not request.mode.writes(of_topic):
            continue
        start = _start(cut, of_topic, request, point.group.at(cut))
        # For repartition topics the evaluation itself uses the committed offset.
        is_tail = of_topic.input_only and start > cut.log_start
        cuts.append(replace(cut, log_start=min(start, cut.end)) if is_tail else cut)
    absent = (
        topic
        for topic in point.absent_topics
        if topic not in excluded and request.mode.writes(roles.get(topic, _NONE))
    )
    unknown = (topic for topic in point.unknown_topics if topic not in excluded)
    return replace(
        point.narrowed(cuts), absent_topics=tuple(absent), undeclared_topics=tuple(unknown)
    )


def select(
    application: StreamsApplication,
    backed_up: Set[str],
    point: RecoveryPoint,
    request: RestoreRequest,
    excluded: Set[str],
) -> Selection:
    """Select what a restore of this mode uses of the point.

    `state` uses changelogs, outputs and intermediate topics as a whole, the records in flight of
    repartition topics, and all inputs or their tail from the committed offsets on. `rebuild` and
    `inputs_until` use all topics that the application reads and does not write, as a whole; topics
    that it writes are created without records, internal ones not at all. `logs` uses all but the
    internal topics, as a whole. Global topics and inputs that serve as changelog are state: always
    whole.
    """
    roles = roles_at(application, point)
    by_topic: dict[str, list[PartitionCut]] = {}
    for cut in sorted(point.partitions, key=lambda c: c.id):
        by_topic.setdefault(cut.topic, []).append(cut)
    missing = {
        topic: of_topic
        for topic, of_topic in roles.items()
        if topic in by_topic and topic not in backed_up and topic not in excluded
    }
    topics = tuple(
        _topic(topic, roles[topic], cuts, point, request)
        for topic, cuts in by_topic.items()
        if topic not in excluded
        # Records in flight are saved with the point, independent of the backups.
        and (topic in backed_up or roles[topic].in_flight_only)
        and request.mode.creates(roles[topic])
    )
    blockers = [
        *_mode_blockers(request),
        *_not_backed_up(missing, request),
        *_absent_state(roles, point, request, excluded),
        *_offsets_left_out(point, request, excluded),
        *_unconfirmed(application, request, excluded),
    ]
    if not blockers and not topics:
        blockers.append(
            Finding(
                f"recovery point {point.id}",
                ("All of its topics are excluded."),
                action="Exclude less.",
            )
        )
    notes = [
        *_left_out(missing, roles, request, excluded),
        *_unknown_to_point(roles, point, by_topic, request, excluded),
        *_about_offsets(topics, point, request, excluded),
        *_without_changelog(application, request),
    ]
    return Selection(topics, tuple(blockers), tuple(notes))


def _topic(
    topic: str,
    roles: TopicRoles,
    cuts: Iterable[PartitionCut],
    point: RecoveryPoint,
    request: RestoreRequest,
) -> WantedTopic:
    partitions = []
    for cut in cuts:
        offset = point.group.at(cut)
        ranges = cut.records_from(_start(cut, roles, request, offset))
        if not request.mode.writes(roles):
            ranges = ()
        if request.mode.recomputes:
            first = ranges[0].start if ranges else cut.log_start
            offset = GroupOffset(topic, cut.partition, first, "") if roles.is_input else None
        elif not request.mode.commits_offsets:
            offset = None
        partitions.append(WantedPartition(cut, ranges, offset))
    return WantedTopic(topic, roles, tuple(partitions))


def _start(
    cut: PartitionCut,
    roles: TopicRoles,
    request: RestoreRequest,
    committed: GroupOffset | None,
) -> int:
    is_tail = roles.input_only and request.inputs is InputsExtent.TAIL
    if committed is None or not (roles.in_flight_only or is_tail):
        return cut.log_start
    return max(cut.log_start, committed.offset)


def _mode_blockers(request: RestoreRequest) -> Iterable[Finding]:
    if request.mode is not RestoreMode.STATE and request.inputs is InputsExtent.TAIL:
        yield Finding(
            f"mode {request.mode}",
            "The mode recomputes everything, but inputs is tail."
            if request.mode.recomputes
            else "It restores whole logs, but inputs is tail.",
            action="Set inputs to full, or mode to state.",
        )

    if request.mode is RestoreMode.LOGS and request.after_command is not None:
        yield Finding(
            f"mode {request.mode}",
            "The after command starts the application, and no application continues from this"
            " mode: it would append its outputs to the restored ones.",
            action="Leave the after command out, or set mode to state or rebuild.",
        )


def _not_backed_up(missing: Roles, request: RestoreRequest) -> Iterable[Finding]:
    """Yield topics without which the application would continue incorrectly."""
    for topic, roles in sorted(missing.items()):
        if _is_needed(roles, request):
            yield Finding(
                f"topic {topic}",
                f"It is not backed up, but mode {request.mode} needs it (role"
                f" {'+'.join(sorted(roles)) or 'unknown'}).",
                action="Select it for backup and take a newer point, or exclude it if the target"
                " has it.",
            )


def _is_needed(roles: TopicRoles, request: RestoreRequest) -> bool:
    """Whether the restore is wrong without the records of a topic with these roles."""
    if request.mode is RestoreMode.STATE:
        return not (roles.written_only or roles.in_flight_only)
    return request.mode.writes(roles)


def _unconfirmed(
    application: StreamsApplication, request: RestoreRequest, excluded: Set[str]
) -> Iterable[Finding]:
    """Yield guessed topics: state is not restored by a guess; a rebuild needs none."""
    if request.mode is not RestoreMode.STATE:
        return
    topics = {topic.name for topic in application.topics} - excluded
    stores = {store.name for store in application.stores if store.changelog not in excluded}
    for guess in application.guesses_about(topics=topics, stores=stores):
        yield Finding(guess.setting, str(guess), action=guess.remedy)


def _left_out(
    missing: Roles, roles: Roles, request: RestoreRequest, excluded: Set[str]
) -> Iterable[str]:
    for topic, of_topic in sorted(missing.items()):
        if of_topic.is_output and not _is_needed(of_topic, request):
            yield (
                f"Topic {topic} is not backed up and not restored; create it before the application"
                " starts."
            )
    for topic in sorted(excluded):
        what = f"Topic {topic} is excluded."
        of_topic = roles.get(topic, _NONE)
        if request.mode is RestoreMode.STATE and not of_topic.written_only:
            what += (
                f" The state depends on it (role {'+'.join(sorted(of_topic)) or 'unknown'}). The"
                " application continues exactly only if the topic on the target has its content"
                " at the point."
            )
        yield what


def _absent_state(
    roles: Roles, point: RecoveryPoint, request: RestoreRequest, excluded: Set[str]
) -> Iterable[Finding]:
    """Yield changelogs that were known before the point but not seen when it was taken.

    They had been deleted, or the recorder's user had lost the right to see them: brokers do not
    distinguish the two. Either way the stores would be restored empty.
    """
    if request.mode is not RestoreMode.STATE:
        return
    for topic in sorted(set(point.absent_topics) - excluded):
        if roles.get(topic, _NONE).is_changelog:
            yield Finding(
                f"changelog {topic}",
                f"It was missing on the cluster when point {point.id} was taken, but existed"
                " before. Its store would start empty.",
                action="Choose an earlier point. If the topic still exists, grant the recorder"
                " DESCRIBE and READ on it; if it was deleted permanently, exclude it.",
            )


def _unknown_to_point(
    roles: Roles,
    point: RecoveryPoint,
    by_topic: Mapping[str, object],
    request: RestoreRequest,
    excluded: Set[str],
) -> Iterable[str]:
    for topic, of_topic in sorted(roles.items()):
        if topic in by_topic or topic in excluded or not request.mode.creates(of_topic):
            continue
        why = "was not on the cluster" if topic in point.absent_topics else "was not known"
        yield f"Topic {topic} {why} when point {point.id} was taken: it is not restored."


def excluded_with_offsets(
    point: RecoveryPoint, request: RestoreRequest, excluded: Set[str]
) -> list[str]:
    """Return the excluded topics in which the group continues, so its position is needed."""
    if request.mode is not RestoreMode.STATE:
        return []
    return sorted(point.group.topics & excluded)


def _offsets_left_out(
    point: RecoveryPoint, request: RestoreRequest, excluded: Set[str]
) -> Iterable[Finding]:
    """Yield missing offsets: the group would start at auto.offset.reset, which is never exact."""
    topics = excluded_with_offsets(point, request, excluded)
    if request.inputs_are_at is not None and not topics:
        yield Finding(
            f"inputs_are_at {request.inputs_are_at}",
            f"No excluded topic has committed offsets at point {point.id}.",
            action="Remove inputs_are_at, or exclude the input that already exists on the target.",
        )
    for topic in topics if request.inputs_are_at is None else ():
        count = len(point.group.of_topic(topic))
        yield Finding(
            f"topic {topic}",
            f"It is excluded, but the group had committed offsets in {count} partition(s) of it."
            " Without them, the application starts at auto.offset.reset, which is never exact.",
            action="Restore it too, or set the group's position in the topic of the target:"
            " --inputs-are-at mapped (at the same records) or latest (at its end; existing"
            " records are not read).",
        )


def _about_offsets(
    topics: Iterable[WantedTopic],
    point: RecoveryPoint,
    request: RestoreRequest,
    excluded: Set[str],
) -> Iterable[str]:
    if request.mode is not RestoreMode.STATE:
        return
    planned = {topic.source for topic in topics}
    dropped = sorted(point.group.topics - planned - excluded)
    if dropped:
        yield f"Committed offsets of topics that are not restored are left out: {_join(dropped)}."
    for topic in topics:
        without = [p.cut.partition for p in topic.partitions if p.committed is None]
        if topic.roles.is_input and without:
            yield (
                f"{len(without)} of {len(topic.partitions)} partitions of {topic.source} had no"
                " committed offset and get none. auto.offset.reset applies, as before."
            )
        both = topic.roles.is_input and topic.roles.is_changelog
        if both and point.undeclared_topics is None:  # taken by an earlier release
            yield (
                f"Input {topic.source} serves as changelog, and this point of an earlier release"
                " ends at the committed offsets: records written to it after them are not"
                " restored and must be produced again. Points of this release have them."
            )


def _without_changelog(application: StreamsApplication, request: RestoreRequest) -> Iterable[str]:
    """Yield notes on stores that no restore can rebuild."""
    if request.mode is not RestoreMode.STATE:
        return
    for store in application.stores:
        if store.changelog is None and not store.is_global:
            yield f"Store {store.name} has no changelog (logging disabled): it starts empty."


def _join(names: Iterable[str]) -> str:
    return ", ".join(names)
