"""Which recovery point is restored, and which offsets of which topics are taken from it. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final, Protocol

from kstreams_assets.app.model import StreamsApplication, TopicRoles
from kstreams_assets.checks import Finding
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.restore.request import ChangelogSource, InputsExtent, RestoreRequest
from kstreams_assets.texts import iso_time
from kstreams_assets.warehouse.judge import RANK, PointStatus
from kstreams_assets.warehouse.point import (
    GroupOffset,
    PartitionCut,
    RecoveryPoint,
    WantedPartition,
    in_order,
)
from kstreams_assets.warehouse.point import Taken as InSequence
from kstreams_assets.warehouse.restores import RestoreMode, StoredRestore

Judge = Callable[[Sequence[str]], Sequence[PointStatus]]
"""What a restore of the points with these ids would give, in their order; absent ones left out."""

Beyond = Callable[[Sequence[str]], Set[str]]
"""Of points with these ids, those that certainly are not covered: told without loading them."""

_STATE = RestoreMode.STATE
_FIRST_BATCH = 16
_FOLLOWED_MS: Final = 60_000
"""A follower that has not covered a point for longer has stopped, or cannot."""
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
    unfinished: StoredRestore | None = None,
    snapshots: Snapshots | None = None,
    beyond: Beyond = lambda _: frozenset(),
    is_followed: Callable[[], bool] = lambda: False,
) -> Choice:
    """The point of that id; or the newest one that was complete at `as_of_ms`; or the newest.

    With `snapshots`, points that lack any of them do not count. `is_followed`: whether a follower
    of the application is at work, which covers each point some seconds after it was taken.

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
    search = _Search(ordered, judge, request, snapshots, beyond, is_followed)
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
    return RANK[status.gives] >= RANK[request.least]


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
                "Mode inputs_until needs a time or a recovery point, and none is given.",
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
        beyond: Beyond,
        is_followed: Callable[[], bool],
    ) -> None:
        self._is_followed = is_followed
        self._points, self._judge, self._request = points, judge, request
        self._snapshots, self._beyond = snapshots, beyond

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
                    self._passed_over(seen, [p.id for p in having[::-1]].index(status.id), status),
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
            reasons = _reasons(seen, len(self._having(allowed)))
            problem = f"No recovery point{self._until()} {self._wanted()}. {reasons}"
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
        return f"is covered by backups and gives {self._request.least}"

    def _passed_over(self, seen: Sequence[PointStatus], newer: int, chosen: PointStatus) -> str:
        """Newer points that cannot be restored, unless a follower is about to cover them."""
        unexpected = [status for status in seen if not self._is_to_be_covered(status, chosen)]
        if not unexpected:
            return ""
        count = newer - (len(seen) - len(unexpected))
        return f"{count} newer point(s) cannot be restored. {_reasons(unexpected, count)}"

    def _is_to_be_covered(self, status: PointStatus, chosen: PointStatus) -> bool:
        """Whether a follower does so: it covers one point after the other, within seconds."""
        if not status.is_pending:
            return False
        is_soon = status.taken_at_ms - chosen.taken_at_ms <= _FOLLOWED_MS
        return (chosen.has_increments and is_soon) or self._is_followed()

    def _judged(self, points: Sequence[Taken]) -> Iterator[PointStatus]:
        """Their statuses in order; behind the first ones without those beyond all backups."""
        ids = [point.id for point in points]
        yield from self._judge(ids[:_FIRST_BATCH])
        lot, size = _FIRST_BATCH * _BATCH_GROWTH, _FIRST_BATCH
        begin = _FIRST_BATCH
        while begin < len(ids):
            beyond = self._beyond(ids[begin : begin + lot])
            left = [one for one in ids[begin : begin + lot] if one not in beyond]
            begin, lot = begin + lot, lot * _BATCH_GROWTH
            while left:
                yield from self._judge(left[:size])
                left, size = left[size:], size * _BATCH_GROWTH


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


def _reasons(seen: Sequence[PointStatus], all_: int) -> str:
    texts = [f"{s.id} gives {s.gives}: {s.reason}" for s in seen[:_FEW]]
    more = f" (and {all_ - _FEW} more)" if all_ > _FEW else ""
    return " ".join(texts) + more


Roles = Mapping[str, TopicRoles]
"""Of each topic."""

_NONE: Final = TopicRoles()


@dataclass(frozen=True, slots=True)
class WantedTopic:
    """A topic that the target is to have; without any range it is created empty."""

    source: str
    roles: TopicRoles
    partitions: tuple[WantedPartition, ...]


@dataclass(frozen=True, slots=True)
class Selection:
    """What is wanted of a point, and what stands against it or is to be told."""

    topics: tuple[WantedTopic, ...] = ()
    refusals: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()


def roles_at(application: StreamsApplication, point: RecoveryPoint | None) -> Roles:
    """The roles of the topics of the application and of those that the point knows besides."""
    roles = {topic.name: topic.roles for topic in application.topics}
    for cut in point.partitions if point else ():
        roles[cut.topic] = cut.roles or roles.get(cut.topic, _NONE)
    return roles


def reduced(
    point: RecoveryPoint, roles: Roles, request: RestoreRequest, excluded: Set[str]
) -> RecoveryPoint:
    """The point with only the partitions and offsets that a restore needs to find backed up."""
    committed = _committed(point)
    rebuilds = request.mode is not RestoreMode.STATE
    cuts = []
    for cut in point.partitions:
        of_topic = cut.roles or roles.get(cut.topic, _NONE)
        if cut.topic in excluded or (rebuilds and not of_topic.is_recomputed_from):
            continue
        start = _start(cut, of_topic, request, committed.get(cut.id))
        # Of repartition topics the judge itself looks at the committed offset.
        is_tail = of_topic.input_only and start > cut.log_start
        cuts.append(replace(cut, log_start=min(start, cut.end)) if is_tail else cut)
    absent = (
        topic
        for topic in point.absent_topics
        if topic not in excluded and (not rebuilds or roles.get(topic, _NONE).is_recomputed_from)
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
    """What a restore of this mode takes from the point.

    `state` takes changelogs, outputs and intermediate topics whole, of repartition topics what was
    in flight, of inputs all or the tail from the committed offsets on. `rebuild` and `inputs_until`
    take what the application reads and does not write, whole; topics that it writes are made
    without records, internal ones not at all. Global topics and inputs that serve as changelog are
    state: always whole.
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
        # Records in flight are saved with the point, whatever is backed up.
        and (topic in backed_up or roles[topic].in_flight_only)
        and _belongs(roles[topic], request)
    )
    refusals = [
        *_mode_refusals(request),
        *_not_backed_up(missing, request),
        *_absent_state(roles, point, request, excluded),
        *_offsets_left_out(point, request, excluded),
        *_unconfirmed(application, request, excluded),
    ]
    if not refusals and not topics:
        refusals.append(
            Finding(
                f"recovery point {point.id}", "Nothing of it is wanted.", action="Exclude less."
            )
        )
    notes = [
        *_left_out(missing, roles, request, excluded),
        *_unknown_to_point(roles, point, by_topic, request, excluded),
        *_about_offsets(topics, point, request, excluded),
        *_without_changelog(application, request),
    ]
    return Selection(topics, tuple(refusals), tuple(notes))


def _topic(
    topic: str,
    roles: TopicRoles,
    cuts: Iterable[PartitionCut],
    point: RecoveryPoint,
    request: RestoreRequest,
) -> WantedTopic:
    committed = _committed(point)
    partitions = []
    for cut in cuts:
        offset = committed.get(cut.id)
        ranges = cut.records_from(_start(cut, roles, request, offset))
        if request.mode is not RestoreMode.STATE:
            ranges = ranges if roles.is_recomputed_from else ()
            first = ranges[0].start if ranges else cut.log_start
            offset = GroupOffset(topic, cut.partition, first, "")
        is_read = roles.is_input or request.mode is RestoreMode.STATE
        partitions.append(WantedPartition(cut, ranges, offset if is_read else None))
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


def _belongs(roles: TopicRoles, request: RestoreRequest) -> bool:
    return request.mode is RestoreMode.STATE or not roles.is_internal


def _committed(point: RecoveryPoint) -> dict[TopicPartitionId, GroupOffset]:
    return {TopicPartitionId(o.topic, o.partition): o for o in point.group_offsets}


def _mode_refusals(request: RestoreRequest) -> Iterable[Finding]:
    if request.mode is not RestoreMode.STATE and request.inputs is InputsExtent.TAIL:
        yield Finding(
            f"mode {request.mode}",
            "Everything is to be recomputed, but only the tail of the inputs is to be restored.",
            action="Set inputs to full, or mode to state.",
        )


def _not_backed_up(missing: Roles, request: RestoreRequest) -> Iterable[Finding]:
    """Topics without which the application would go on wrongly."""
    for topic, roles in sorted(missing.items()):
        if request.mode is RestoreMode.STATE:
            needed = not (roles.written_only or roles.in_flight_only)
        else:
            needed = roles.is_recomputed_from
        if needed:
            yield Finding(
                f"topic {topic}",
                f"It is not backed up, but mode {request.mode} needs it (role"
                f" {'+'.join(sorted(roles)) or 'unknown'}).",
                action="Select it for backup and take a newer point, or exclude it if the target"
                " has it.",
            )


def _unconfirmed(
    application: StreamsApplication, request: RestoreRequest, excluded: Set[str]
) -> Iterable[Finding]:
    """State is not restored by a guess; a rebuild needs none."""
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
        if of_topic.is_output and not (
            request.mode is RestoreMode.STATE and not of_topic.written_only
        ):
            yield (
                f"Topic {topic} is not backed up and not restored; create it before the application"
                " starts."
            )
    for topic in sorted(excluded):
        what = f"Topic {topic} is excluded."
        of_topic = roles.get(topic, _NONE)
        if request.mode is RestoreMode.STATE and not of_topic.written_only:
            what += (
                " The state needs it (role "
                f"{'+'.join(sorted(of_topic)) or 'unknown'}): the application goes on exactly only"
                " if the target has it as it was at the point."
            )
        yield what


def _absent_state(
    roles: Roles, point: RecoveryPoint, request: RestoreRequest, excluded: Set[str]
) -> Iterable[Finding]:
    """Changelogs that were known before the point and were not seen when it was taken.

    They had been deleted, or the recorder's user had lost the right to see them: brokers do not
    tell the two apart. Either way the stores would be restored empty.
    """
    if request.mode is not RestoreMode.STATE:
        return
    for topic in sorted(set(point.absent_topics) - excluded):
        if roles.get(topic, _NONE).is_changelog:
            yield Finding(
                f"changelog {topic}",
                f"It was not seen on the cluster when point {point.id} was taken, and was before:"
                " its store would begin empty.",
                action="Take a point from before it vanished; give the recorder DESCRIBE and READ"
                " on it if it is still there; or exclude it if it was deleted for good.",
            )


def _unknown_to_point(
    roles: Roles,
    point: RecoveryPoint,
    by_topic: Mapping[str, object],
    request: RestoreRequest,
    excluded: Set[str],
) -> Iterable[str]:
    for topic, of_topic in sorted(roles.items()):
        if topic in by_topic or topic in excluded or not _belongs(of_topic, request):
            continue
        why = "was not on the cluster" if topic in point.absent_topics else "was not known"
        yield f"Topic {topic} {why} when point {point.id} was taken: it is not restored."


def excluded_with_offsets(
    point: RecoveryPoint, request: RestoreRequest, excluded: Set[str]
) -> list[str]:
    """The excluded topics in which the group goes on, so that it must be known where."""
    if request.mode is not RestoreMode.STATE:
        return []
    return sorted({offset.topic for offset in point.group_offsets} & excluded)


def _offsets_left_out(
    point: RecoveryPoint, request: RestoreRequest, excluded: Set[str]
) -> Iterable[Finding]:
    """Without an offset the group would begin where auto.offset.reset says: never exact."""
    topics = excluded_with_offsets(point, request, excluded)
    if request.inputs_are_at is not None and not topics:
        yield Finding(
            f"inputs_are_at {request.inputs_are_at}",
            f"No excluded topic has committed offsets at point {point.id}.",
            action="Leave it out, or exclude the input that the target has already.",
        )
    for topic in topics if request.inputs_are_at is None else ():
        count = sum(offset.topic == topic for offset in point.group_offsets)
        yield Finding(
            f"topic {topic}",
            f"It is excluded, and the group had committed offsets in {count} partition(s) of it:"
            " without them the application begins where auto.offset.reset says, never exactly.",
            action="Restore it, too; or say where the group goes on in the topic that the target"
            " has: --inputs-are-at mapped (at the same records, which another restore has brought"
            " back, or which never went) or latest (what lies in it is not read).",
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
    dropped = sorted({o.topic for o in point.group_offsets} - planned - excluded)
    if dropped:
        yield f"Committed offsets of topics that are not restored are left out: {_join(dropped)}."
    for topic in topics:
        without = [p.cut.partition for p in topic.partitions if p.committed is None]
        if topic.roles.is_input and without:
            yield (
                f"{len(without)} of {len(topic.partitions)} partitions of {topic.source} had no"
                " committed offset; they get none, auto.offset.reset decides as it did before."
            )
        both = topic.roles.is_input and topic.roles.is_changelog
        if both and point.undeclared_topics is None:  # taken by an earlier release
            yield (
                f"Input {topic.source} serves as changelog, and this point of an earlier release"
                " ends at the committed offsets: what was written to it behind them is not"
                " restored and must be produced again. Points of this release have it."
            )


def _without_changelog(application: StreamsApplication, request: RestoreRequest) -> Iterable[str]:
    """What no restore can give back."""
    if request.mode is not RestoreMode.STATE:
        return
    for store in application.stores:
        if store.changelog is None and not store.is_global:
            yield f"Store {store.name} has no changelog (logging disabled): it starts empty."


def _join(names: Iterable[str]) -> str:
    return ", ".join(names)
