"""How far backups reach: the newest recovery point that can be restored, and how old it is."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kstreams_assets.app.model import StreamsApplication, TopicRole
from kstreams_assets.backup.partitions import WindowCalendar
from kstreams_assets.offsets import TopicPartitionId, outside
from kstreams_assets.recovery.completion import HeldPosition
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.judge import (
    PointJudge,
    PointStatus,
    Restores,
    absent_texts,
    unknown_texts,
)
from kstreams_assets.warehouse.ledger import (
    Chain,
    Ledger,
    PartitionLife,
    TopicFactsTable,
    chains_of,
)
from kstreams_assets.warehouse.point import CLOCK_STEP_MS, RecoveryPoint, in_order, iso_time
from kstreams_assets.warehouse.points import PointInstant, RecoveryPointTable
from kstreams_assets.warehouse.records import DamagedSpans


def held_positions(
    ledger: Ledger, application: StreamsApplication
) -> Mapping[TopicPartitionId, HeldPosition]:
    """Of each changelog partition, how far the recorded spans reach without a missing window.

    Counted from the begin of the newest life of the topic; a partition whose begin was never backed
    up is left out. Everything below the position was read before this is asked for.
    """
    topics = {topic.name for topic in application.with_role(TopicRole.CHANGELOG)}
    newest: dict[TopicPartitionId, Chain] = {}
    for chain in chains_of(ledger.folded_spans(topics, holes_matter=topics)).values():
        partition = chain.spans[0].partition
        other = newest.get(partition)
        if other is None or _last_window(other) < _last_window(chain):
            newest[partition] = chain
    damaged = ledger.damaged(topics, look_s=0)
    return {
        partition: HeldPosition(chain.spans[0].topic_id, _sound_end(chain, end, damaged))
        for partition, chain in newest.items()
        if (end := chain.unbroken_end) is not None
    }


def _sound_end(chain: Chain, end: int, damaged: DamagedSpans) -> int:
    """The end, or where the first span begins whose files do not match the ledger."""
    first = chain.spans[0]
    life = (first.partition.topic, first.partition.partition, first.topic_id)
    found = damaged.inside(life, 0, end)
    return end if found is None else min(end, found.start)


def proven_ranges(
    ledger: Ledger, application: StreamsApplication
) -> Mapping[TopicPartitionId, Sequence[tuple[str, int, int]]]:
    """Offsets of changelogs, as (topic id, start, end), that backups hold without a hole.

    What was saved of them with recovery points is there a second time.
    """
    topics = {topic.name for topic in application.with_role(TopicRole.CHANGELOG)}
    found: dict[TopicPartitionId, list[tuple[str, int, int]]] = {}
    damaged = ledger.damaged(topics, look_s=0)
    for span in ledger.folded_spans(topics, holes_matter=topics):
        end = span.end if span.first_hole is None else span.first_hole
        if span.complete and span.read_start < end:
            life = (span.partition.topic, span.partition.partition, span.topic_id)
            bad = damaged.ranges(life, span.read_start, end)
            found.setdefault(span.partition, []).extend(
                (span.topic_id, sound.start, sound.end)
                for sound in outside(span.read_start, end, bad)
            )
    return {partition: sorted(ranges) for partition, ranges in found.items()}


def _last_window(chain: Chain) -> int:
    return max(span.last_window.end_ms for span in chain.spans)


POINT_CHECKS: Mapping[str, str] = {
    "recovery_point_is_recent": (
        "A recovery point is exact and covered by backups, and the newest such point is not older"
        " than the declared objective (however old, when none is declared). Red: an outage now"
        " would lose more than was agreed, or the newest point lacks a topic of the application;"
        " back up the windows that are due, see why points are not exact."
    ),
}
"""Checks of the asset `<app>/recovery_points`."""

_BATCH = 16
"""So many points are in memory at a time: one of 1,000 partitions takes 0.7 MB."""
_NEWEST = 16
LOOK_S = 1.0
"""How long an evaluation looks at files; the next one in this process goes on from there."""
_PER_DOUBLING = 8


@dataclass(frozen=True, slots=True)
class Restorable:
    """The newest recovery point that restores exactly, and the newest that is covered at all."""

    exact: PointStatus | None
    covered: PointStatus | None
    lacking: str = ""
    """Topics of the application that the newest point of all has nothing of, with what to do."""


@dataclass(frozen=True, slots=True)
class Recency:
    """Whether the recovery point objective is met; ages and objective in seconds.

    `age_s` is None when no point is both exact and covered.
    """

    passed: bool
    explanation: str
    age_s: float | None
    objective_s: int | None
    restorable: Restorable


class Coverage:
    """The recovery points of one application, held against what is backed up now."""

    def __init__(self, settings: ApplicationSettings, *, look_s: float = LOOK_S) -> None:
        """`look_s`: how long files of the backups are looked at, see `Ledger.damaged`."""
        self._settings = settings
        self._points = RecoveryPointTable(settings.warehouse)
        self._backed_up = {topic.name for topic in settings.topics}
        topics = {topic.name for topic in settings.application.topics}
        self._topics = self._backed_up | topics
        self._changelogs = {t.name for t in settings.application.with_role(TopicRole.CHANGELOG)}
        # The ledger is read once: later backups do not show in this object.
        self._chains = self._read_chains()
        ledger = Ledger(settings.warehouse, settings.application_id)
        self._damaged = ledger.damaged(self._topics, look_s=look_s)
        facts = TopicFactsTable(settings.warehouse, settings.application_id)
        self._delete_retention_ms = facts.delete_retention_ms(self._topics)

    def _read_chains(self) -> Mapping[PartitionLife, Chain]:
        ledger = Ledger(self._settings.warehouse, self._settings.application_id)
        return chains_of(ledger.folded_spans(self._topics, holes_matter=self._changelogs))

    def _know_changelogs(self, points: Iterable[RecoveryPoint]) -> None:
        """A topic may have been a changelog when a point was taken and be declared none now."""
        cuts = (cut for point in points for cut in point.partitions)
        found = {cut.topic for cut in cuts if TopicRole.CHANGELOG in cut.roles}
        if not found <= self._changelogs:
            self._changelogs |= found
            self._chains = self._read_chains()

    def statuses(self, points: Sequence[RecoveryPoint]) -> list[PointStatus]:
        """What a restore of each of these points would give, in the order given."""
        if not points:
            return []
        self._know_changelogs(points)
        oldest_ms = min(point.effective_at_ms for point in points)
        judge = PointJudge(
            self._chains,
            roles={topic.name: topic.roles for topic in self._settings.application.topics},
            backed_up=self._backed_up,
            not_mine=self._settings.application.not_mine,
            closed=WindowCalendar(self._settings.windows).closed_since(oldest_ms),
            delete_retention_ms=self._delete_retention_ms,
            damaged=self._damaged,
        )
        return judge.judge(points)

    def newest(self, count: int) -> list[PointStatus]:
        """The statuses of the newest points, newest first."""
        return [status for status in self._loaded(self._newest_first()[:count]) if status]

    def newest_restorable(self) -> Restorable:
        """The newest points that can be restored; looks no further back than it has to.

        The newest points are looked at one by one; further back `_PER_DOUBLING` of those between
        one number of points and twice that number, and where one of them is found, the points
        right before it. So the points that are loaded are a few hundred however many there are,
        and one is only overlooked if older ones that are looked at on either side cannot be
        restored.
        """
        instants = self._newest_first()
        covered = self._search(instants, lambda status: status.covered)
        lacking = self._lacking()
        if covered is None or covered.gives is Restores.EXACT:
            return Restorable(exact=covered, covered=covered, lacking=lacking)
        after = next(n for n, i in enumerate(instants, start=1) if i.id == covered.id)
        older = [i for i in instants[after:] if i.exact]
        exact = self._search(older, lambda status: status.gives is Restores.EXACT)
        return Restorable(exact=exact, covered=covered, lacking=lacking)

    def _lacking(self) -> str:
        """Older points may well be exact, and the newest one lack what appeared or went since."""
        application = self._settings.application
        newest = next(iter(self._points.newest(application.application_id)), None)
        if newest is None:
            return ""
        roles = {topic.name: topic.roles for topic in application.topics}
        texts = [*absent_texts(newest, roles), *unknown_texts(newest, application.not_mine)]
        return "; ".join(texts)

    def _newest_first(self) -> list[PointInstant]:
        instants = self._points.instants(self._settings.application_id)
        return sorted(instants, key=in_order, reverse=True)

    def _search(
        self, instants: Sequence[PointInstant], wanted: Callable[[PointStatus], bool]
    ) -> PointStatus | None:
        """The newest point of the kind, among those that are looked at; newest first."""
        before = -1
        looked_at = _looked_at(len(instants))
        statuses = self._loaded([instants[index] for index in looked_at])
        for index, status in zip(looked_at, statuses, strict=True):
            if status and wanted(status):
                return self._first(instants[before + 1 : index], wanted) or status
            before = index
        return None

    def _first(
        self, instants: Sequence[PointInstant], wanted: Callable[[PointStatus], bool]
    ) -> PointStatus | None:
        """The newest of the points from which on all are of the kind; found by halving."""
        found: PointStatus | None = None
        while instants:
            middle = len(instants) // 2
            (status,) = self._loaded([instants[middle]])
            if status and wanted(status):
                found, instants = status, instants[:middle]
            else:
                instants = instants[middle + 1 :]
        return found

    def _loaded(self, instants: Sequence[PointInstant]) -> Iterator[PointStatus | None]:
        """The status of each point, None if it was dropped since; few are in memory at a time."""
        for begin in range(0, len(instants), _BATCH):
            batch = [instant.id for instant in instants[begin : begin + _BATCH]]
            loaded = self._points.load(self._settings.application_id, batch, damaged_too=True)
            statuses = {status.id: status for status in self.statuses(loaded)}
            yield from map(statuses.get, batch)


def _looked_at(points: int) -> list[int]:
    """Numbers of the points that are looked at, the newest being 0, and the oldest with them."""
    numbers = [*range(min(points, _NEWEST))]
    step = _NEWEST // _PER_DOUBLING
    while numbers and numbers[-1] < points - 1:
        further = range(numbers[-1] + step, points, step)[:_PER_DOUBLING]
        numbers += further or [points - 1]
        step *= 2
    return numbers


def newest_restorable(settings: ApplicationSettings, *, look_s: float = LOOK_S) -> Restorable:
    """The newest recovery points of an application that can be restored; see `Coverage`."""
    return Coverage(settings, look_s=look_s).newest_restorable()


def recovery_point_age(status: PointStatus | None, now_ms: int) -> float | None:
    """Seconds since a point was taken, None without one or if its stamp lies in the future.

    Clocks that are apart by less than a minute are told from one that is wrong.
    """
    if status is None or status.taken_at_ms > now_ms + CLOCK_STEP_MS:
        return None
    return max(now_ms - status.taken_at_ms, 0) / 1000


def recovery_point_is_recent(
    settings: ApplicationSettings,
    *,
    restorable: Restorable | None = None,
    now_ms: int | None = None,
) -> Recency:
    """Hold the age of the newest exact, covered point against the declared objective.

    Without such a point it does not pass, whether or not an objective is declared. Nor does it
    while new points lack topics of the application: they will not become exact by themselves.

    Args:
        restorable: Found before; looked for when left out.
        now_ms: Epoch milliseconds; the present time when left out.
    """
    found = restorable or newest_restorable(settings)
    objective_s = settings.recovery_points.objective_s
    age_s = recovery_point_age(found.exact, now_ms or time.time_ns() // 1_000_000)
    return Recency(
        passed=(
            age_s is not None
            and (objective_s is None or age_s <= objective_s)
            and not found.lacking
        ),
        explanation=_explanation(found, age_s, objective_s),
        age_s=age_s,
        objective_s=objective_s,
        restorable=found,
    )


def _explanation(found: Restorable, age_s: float | None, objective_s: int | None) -> str:
    texts: list[str] = []
    if found.exact and age_s is not None:
        at = iso_time(found.exact.taken_at_ms)
        texts.append(f"The newest exact, covered point is {age_s:.0f} s old ({at}).")
    elif found.exact:
        at = iso_time(found.exact.taken_at_ms)
        texts.append(
            f"The newest exact, covered point {found.exact.id} is stamped {at}, which is in the"
            " future: its age is not known. Set the clocks of the recorder and of this machine;"
            " the next point counts again."
        )
    else:
        texts.append("No recovery point is both exact and covered by backups.")
    if found.covered and found.covered != found.exact:
        at = iso_time(found.covered.taken_at_ms)
        texts.append(f"The newest covered one gives {found.covered.gives} ({at}).")
    if found.lacking:
        texts.append(f"The newest point lacks topics of the application: {found.lacking}.")
    if objective_s is None:
        texts.append("No objective is declared (recovery_points.objective_seconds).")
    else:
        texts.append(f"The objective is {objective_s} s.")
    if age_s is None or (objective_s is not None and age_s > objective_s):
        texts.append(
            "Back up the windows that are due; kstreams-assets recovery-points list reports why"
            " newer points do not count."
        )
    return " ".join(texts)


def counts(statuses: Iterable[PointStatus]) -> dict[Restores, int]:
    """How many points give what."""
    found = dict.fromkeys(Restores, 0)
    for status in statuses:
        found[status.gives] += 1
    return found
