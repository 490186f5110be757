"""Which offsets of which topics a restore takes from a recovery point. Pure."""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace

from kstreams_assets.app.model import StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.checks import Finding
from kstreams_assets.offsets import TopicPartitionId, outside
from kstreams_assets.restore.request import InputsExtent, RestoreMode, RestoreRequest
from kstreams_assets.warehouse.point import (
    GroupOffset,
    PartitionCut,
    RecoveryPoint,
    WantedPartition,
)

Roles = Mapping[str, TopicRoles]
"""Of each topic."""

_NONE: TopicRoles = TopicRoles()
_IN_FLIGHT_ONLY = TopicRoles({TopicRole.REPARTITION})
_WRITTEN_ONLY = TopicRoles({TopicRole.OUTPUT})
_INPUT_ONLY = TopicRoles({TopicRole.INPUT})
_INTERNAL = TopicRoles({TopicRole.REPARTITION, TopicRole.CHANGELOG})
_SOURCES = TopicRoles({TopicRole.INPUT, TopicRole.GLOBAL})


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
        roles[cut.topic] = cut.roles or roles.get(cut.topic, TopicRoles())
    return roles


def is_recomputed_from(roles: TopicRoles) -> bool:
    """Whether a rebuild starts from the topic: the application reads it and does not write it."""
    return bool(roles & _SOURCES) and TopicRole.OUTPUT not in roles


def reduced(
    point: RecoveryPoint, roles: Roles, request: RestoreRequest, excluded: Set[str]
) -> RecoveryPoint:
    """The point with only the partitions and offsets that a restore needs to find backed up."""
    committed = _committed(point)
    rebuilds = request.mode is not RestoreMode.STATE
    cuts = []
    for cut in point.partitions:
        of_topic = cut.roles or roles.get(cut.topic, TopicRoles())
        if cut.topic in excluded or (rebuilds and not is_recomputed_from(of_topic)):
            continue
        start = _start(cut, of_topic, request, committed.get(cut.id))
        # Of repartition topics the judge itself looks at the committed offset.
        is_tail = of_topic == _INPUT_ONLY and start > cut.log_start
        cuts.append(replace(cut, log_start=min(start, cut.end)) if is_tail else cut)
    absent = (
        topic
        for topic in point.absent_topics
        if topic not in excluded and (not rebuilds or is_recomputed_from(roles.get(topic, _NONE)))
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
        and (topic in backed_up or _is_saved(roles[topic]))
        and _belongs(roles[topic], request)
    )
    refusals = [
        *_mode_refusals(request),
        *_not_backed_up(missing, request),
        *_absent_state(roles, point, request, excluded),
        *_offsets_left_out(point, request, excluded),
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
        ranges = outside(_start(cut, roles, request, offset), cut.end, cut.excluded)
        if request.mode is not RestoreMode.STATE:
            ranges = ranges if is_recomputed_from(roles) else ()
            first = ranges[0].start if ranges else cut.log_start
            offset = GroupOffset(topic, cut.partition, first, "")
        is_read = TopicRole.INPUT in roles or request.mode is RestoreMode.STATE
        partitions.append(WantedPartition(cut, ranges, offset if is_read else None))
    return WantedTopic(topic, roles, tuple(partitions))


def _start(
    cut: PartitionCut,
    roles: TopicRoles,
    request: RestoreRequest,
    committed: GroupOffset | None,
) -> int:
    is_tail = roles == _INPUT_ONLY and request.inputs is InputsExtent.TAIL
    if committed is None or not (roles == _IN_FLIGHT_ONLY or is_tail):
        return cut.log_start
    return max(cut.log_start, committed.offset)


def _belongs(roles: TopicRoles, request: RestoreRequest) -> bool:
    return request.mode is RestoreMode.STATE or bool(roles - _INTERNAL)


def _is_saved(roles: TopicRoles) -> bool:
    """Records in flight are saved with the point, whatever is backed up."""
    return roles == _IN_FLIGHT_ONLY


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
            needed = roles not in (_WRITTEN_ONLY, _IN_FLIGHT_ONLY)
        else:
            needed = is_recomputed_from(roles)
        if needed:
            yield Finding(
                f"topic {topic}",
                f"It is not backed up, but mode {request.mode} needs it (role"
                f" {'+'.join(sorted(roles)) or 'unknown'}).",
                action="Select it for backup and take a newer point, or exclude it if the target"
                " has it.",
            )


def _left_out(
    missing: Roles, roles: Roles, request: RestoreRequest, excluded: Set[str]
) -> Iterable[str]:
    for topic, of_topic in sorted(missing.items()):
        if TopicRole.OUTPUT in of_topic and not (
            request.mode is RestoreMode.STATE and of_topic != _WRITTEN_ONLY
        ):
            yield (
                f"Topic {topic} is not backed up and not restored; create it before the application"
                " starts."
            )
    for topic in sorted(excluded):
        what = f"Topic {topic} is excluded."
        of_topic = roles.get(topic, TopicRoles())
        if request.mode is RestoreMode.STATE and of_topic != _WRITTEN_ONLY:
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
        if TopicRole.CHANGELOG in roles.get(topic, TopicRoles()):
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
        if TopicRole.INPUT in topic.roles and without:
            yield (
                f"{len(without)} of {len(topic.partitions)} partitions of {topic.source} had no"
                " committed offset; they get none, auto.offset.reset decides as it did before."
            )
        both = {TopicRole.INPUT, TopicRole.CHANGELOG} <= topic.roles
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
