"""Takes recovery points: control calls and short raw reads, no JVM, a fraction of a second."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from kstreams_assets.app.model import StreamsApplication
from kstreams_assets.app.names import BROKER_TOPICS, owner_of
from kstreams_assets.errors import KafkaError, StoredDataError, TopicNotFoundError, WarehouseError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.coordinator_log import TRANSACTION_STATE
from kstreams_assets.kafka.journal import journal_partition
from kstreams_assets.kafka.metadata import TopicIdentity
from kstreams_assets.kafka.raw_log import RawLogReader
from kstreams_assets.kafka.transactions import TransactionalTopics
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.groups import ConsumerGroup
from kstreams_assets.model.point import (
    CLOCK_STEP_MS,
    Guarantee,
    Method,
    RecoveryPoint,
    new_point_id,
)
from kstreams_assets.model.restored_ranges import RestoredRanges
from kstreams_assets.model.saved_records import SavedTail
from kstreams_assets.model.spans import Position
from kstreams_assets.model.tables import Lock
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.completion import Completed, Safe, complete
from kstreams_assets.recovery.evidence import Evidence, runs_at
from kstreams_assets.recovery.lineage import require_continues
from kstreams_assets.recovery.maintenance import maintain_if_due
from kstreams_assets.recovery.methods import offsets_first, quiesced, sandwich
from kstreams_assets.recovery.retention import Retention, retention_of
from kstreams_assets.recovery.scene import NotTaken, Positions, Scene, incarnations
from kstreams_assets.recovery.transactions import TransactionsMethod
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings, RecoveryPointSettings
from kstreams_assets.texts import iso_time

if TYPE_CHECKING:
    from kstreams_assets.kafka.control import CommitControl
    from kstreams_assets.recovery.passive_method import CommitHistory

_ATTEMPTS = 3
_PATIENCE_S = 15.0
"""After this time no better method is retried: a tick of a sensor has 60 s in all."""
_BROKERS_S = 12.0
"""How long to wait for a silent broker: by default the controller declares it dead after 9 s."""
_LOCK_WAIT_S = 30.0
_ON_DEMAND_S = 2.0
"""How long a cut takes if the application commits on demand."""
_AGAIN_S = 1.0
"""Between two attempts to watch an application, which may rebalance."""
_OTHER_GROUPS_S = 5.0
"""How long transactions may keep the offsets of other groups undecided, for all groups."""

_log = logging.getLogger(__name__)


class _Strategy(NamedTuple):
    """A method, how often it is tried, and the note in its points."""

    tries: int
    take: Callable[[Scene], Positions | NotTaken]
    text: str = ""


_STRATEGIES: Mapping[Method, _Strategy] = {
    Method.TRANSACTIONS: _Strategy(
        6,
        lambda scene: TransactionsMethod(scene).take(),
        "Whole committed transactions, identified in the raw logs.",
    ),
    Method.SANDWICH: _Strategy(
        1, sandwich, "Nothing was open or written at one time, between two reads of equal offsets."
    ),
    Method.QUIESCED: _Strategy(1, quiesced),
    Method.OFFSETS_FIRST: _Strategy(
        3,
        offsets_first,
        "Committed offsets were read before the ends of the logs: a restore loses nothing and may"
        " repeat up to one commit interval.",
    ),
}


_AT_COMMITS_TEXT = (
    "Each thread's part of the logs ends at one of its commits, readers before writers."
)


class _Start(NamedTuple):
    """The start of a point: epoch milliseconds, the monotonic clock, version of the ledger."""

    wall_ms: int
    monotonic_s: float
    ledger_version: int

    @classmethod
    def now(cls, repo: Repository) -> "_Start":
        """Start a point now."""
        version = repo.ledger.version()
        return cls(time.time_ns() // 1_000_000, time.monotonic(), version)


class AwaitedCut(NamedTuple):
    """A cut at commits that was found before the recorder's lock was taken.

    `newest_id` is the point that was the newest when the application was first watched. `better`
    says why better methods failed.
    """

    scene: Scene
    positions: Positions
    start: _Start
    newest_id: str | None
    better: Mapping[Method, str]


Awaited = AwaitedCut | Mapping[Method, str]
"""A cut at commits, or why each method that waits for commits failed."""


@dataclass(frozen=True, slots=True)
class Recorder:
    """Takes and stores recovery points of one application.

    Points of one application are taken one after the other (a lock in the warehouse), so a later
    point is never behind an earlier one. `between` is called between the steps of a method, with
    the name of the next one.
    """

    application: StreamsApplication
    cluster: KafkaCluster
    warehouse: Warehouse
    settings: RecoveryPointSettings = field(default_factory=RecoveryPointSettings)
    between: Callable[[str], None] = lambda _step: None
    retention: Retention | None = None
    """How points are pruned, at most every ten minutes after a take; None: not by this recorder."""
    new_lineage: bool = False
    """Accept a cluster that neither the backups nor a restore of them lead to."""

    def take(
        self,
        *,
        closes_window_end_ms: int | None = None,
        held: Mapping[TopicPartitionId, Position] | None = None,
        seal_bytes: int | None = None,
        commit_wait_s: float = 0.0,
        awaited: Awaited = MappingProxyType({}),
    ) -> RecoveryPoint:
        """Take a point now and store it, with the records of it that cannot wait.

        Args:
            closes_window_end_ms: Exclusive end of the closed window for which the point is taken,
                epoch milliseconds.
            held: The ends of the changelogs in the backups, as read before.
            seal_bytes: How many bytes of the changelogs may be saved to seal the point (default:
                from the settings).
            commit_wait_s: How long to wait for commits of a running at-least-once application, so
                that its point can be exact; 0: do not wait. Without a cut in this time, the point
                is taken as without a wait.
            awaited: The result of `wait_for_commits`; its connections must be open.

        Raises:
            ClusterUnavailableError: No broker answered in time.
            TopicNotFoundError: A topic of the application is not on the cluster, and this would be
                its first point (later ones record the topic as absent and continue).
            AuthorizationFailedError: A right is missing that even the weakest method needs.
            UnstableGroupOffsetsError: A transaction stays undecided for longer than 25 s.
            KafkaError: Topics changed during each attempt.
            KafkaError: No method succeeded, or records of the point were gone.
            WarehouseLockedError: Another recorder of the application does not finish in time.
            OtherClusterError: Neither the points before nor a restore of them lead to this cluster.
            LeaseLostError: Another recorder took the lock over while this one was suspended; no
                point was stored.
        """
        with self.cluster.raw_log() as reader:
            # Others take points meanwhile: no lock is held while this waits for commits.
            if commit_wait_s:
                awaited = self.wait_for_commits(reader, commit_wait_s)
            return self._take(reader, awaited, closes_window_end_ms, held or {}, seal_bytes)

    def _take(
        self,
        reader: RawLogReader,
        awaited: Awaited,
        closes_window_end_ms: int | None,
        held: Mapping[TopicPartitionId, Position],
        seal_bytes: int | None,
    ) -> RecoveryPoint:
        application_id = self.application.application_id
        repo = self._repo
        with repo.writing(Lock.RECORDER, purpose="recovery point", wait_s=_LOCK_WAIT_S) as lock:
            table = repo.points
            newest = next(iter(table.newest()), None)
            if newest is not None and not self.new_lineage:
                require_continues(self.warehouse, newest, self.cluster)
            sealed = newest
            if newest is not None and not newest.sealed:
                sealed = table.newest_sealed()
            safe = Safe(newest, sealed, self._held(held))
            limit = self.settings.seal_bytes if seal_bytes is None else seal_bytes
            point, tails = self._settled(reader, safe, limit, awaited)
            now_ms = point.ended_at_ms if point.commits else point.taken_at_ms
            taken_at_ms = _stamp(point.taken_at_ms, newest, repo, now_ms)
            point = replace(
                point,
                id=new_point_id(taken_at_ms),
                taken_at_ms=taken_at_ms,
                closes_window_end_ms=closes_window_end_ms,
                sequence=1 + ((newest.sequence or 0) if newest else 0),
            )
            saved = repo.saved_records
            saved.append(point.id, tails, writer=lock)
            if any(cut.saved_from is not None for cut in point.partitions):
                point = replace(point, saved_version=saved.version())
            table.append(point, writer=lock)
            if self.retention is not None:
                maintain_if_due(self.warehouse, application_id, self.retention, writer=lock)
        _log.info(
            "Recovery point %s of %s: %s by %s%s, %d partitions, %d records in flight, %d ms.",
            point.id,
            application_id,
            point.guarantee,
            point.method,
            ", sealed" if point.sealed else "",
            len(point.partitions),
            point.in_flight,
            point.took_ms,
        )
        return point

    @property
    def _repo(self) -> Repository:
        return Repository.of(self.warehouse, self.application.application_id)

    def wait_for_commits(
        self,
        reader: RawLogReader,
        wait_s: float,
        *,
        history: "CommitHistory | None" = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Awaited:
        """Return a cut at commits, or why each method failed.

        Neither is tried if the application does not run at least once. `sleep` is called between
        samples, and may raise to end the wait.
        """
        from kstreams_assets.recovery.passive_method import CommitHistory

        history = CommitHistory() if history is None else history
        started = time.monotonic()
        deadline = started + wait_s
        newest = next(iter(self._repo.points.newest()), None)
        if newest is not None and newest.runs_at is Guarantee.EXACT:
            return {}
        methods = self._methods_at_commits()
        reasons: dict[Method, str] = {}
        while True:
            self.cluster.watch_leaders()
            start = _Start.now(self._repo)
            scene = self._scene(reader)
            if scene.absent_topics:
                reason = f"topic {scene.absent_topics[0]} is not on the cluster"
                return {**reasons, methods[0]: reason}
            if not _runs_at_least_once(scene):
                return {}
            left_s = max(0.0, deadline - time.monotonic())
            found = self._at_commits(methods[0], scene, left_s, history, sleep)
            if isinstance(found, Positions):
                wait_for_brokers_s = min(_BROKERS_S, max(0.0, deadline - time.monotonic()))
                reason = self.cluster.stale_leader_check(scene.group, wait_s=wait_for_brokers_s)
                if not reason:
                    reasons.pop(found.method, None)
                    newest_id = newest.id if newest else None
                    return AwaitedCut(scene, found, start, newest_id, reasons)
                found = NotTaken(reason, again=True)
            reasons[methods[0]] = found.reason
            again_s = time.monotonic() + _AGAIN_S
            # The last method gets at least half of the time.
            share = 0.5 if methods[1:] else 1.0
            if found.again and again_s < started + share * wait_s:
                sleep(_AGAIN_S)
            elif methods[1:] and time.monotonic() < deadline:
                _log.info("%s: %s. Trying %s.", methods[0], found.reason, methods[1])
                methods = methods[1:]
            else:
                return reasons

    def cut_at_commits_takes_s(
        self, reader: RawLogReader, history: "CommitHistory"
    ) -> float | None:
        """Return how long a cut at commits takes, by the commits so far; None if it is unknown."""
        from kstreams_assets.recovery.passive_method import PassiveCommits

        scene = self._scene(reader)
        if scene.absent_topics:
            return None
        if self._control(scene.present) is not None:
            return _ON_DEMAND_S
        return PassiveCommits(scene, 0.0, history=history).takes_s()

    def _methods_at_commits(self) -> Sequence[Method]:
        """Return the methods that wait for commits, the best one first."""
        configured = self.settings.journal_topic
        topic = journal_partition(self.application.application_id, configured).topic
        present = self.cluster.metadata().topics
        if not configured and topic not in present:
            return (Method.PASSIVE_COMMITS,)
        if self._control(present) is None:
            return (Method.JOURNAL, Method.PASSIVE_COMMITS)
        return (Method.JOURNAL, Method.BARRIER, Method.PASSIVE_COMMITS)

    def _control(self, present: Mapping[str, TopicIdentity]) -> "CommitControl | None":
        """Return how to ask for commits, None if nothing is configured or the topic is missing."""
        if self.settings.control_token is not None:
            from kstreams_assets.kafka.control import ControlEndpoints

            return ControlEndpoints(self.settings.control_urls, self.settings.control_token)
        topic = self.settings.control_topic
        if topic is None:
            return None
        if topic not in present:
            _log.warning(
                "Control topic %s does not exist, or may not be described: no commits on demand.",
                topic,
            )
            return None
        from kstreams_assets.kafka.control import ControlTopic

        return ControlTopic(self.cluster.connection, topic)

    def _at_commits(
        self,
        method: Method,
        scene: Scene,
        wait_s: float,
        history: "CommitHistory",
        sleep: Callable[[float], None],
    ) -> Positions | NotTaken:
        if method is Method.JOURNAL:
            from kstreams_assets.recovery.journal_method import JournalCommits

            topic, control = self.settings.journal_topic, self._control(scene.present)
            return JournalCommits(scene, wait_s, topic, sleep=sleep, control=control).take()
        if method is Method.BARRIER:
            from kstreams_assets.recovery.barrier import Barrier

            control = self._control(scene.present)
            if control is None:
                return NotTaken(f"control topic {self.settings.control_topic} is gone")
            return Barrier(scene, control, self.settings.journal_topic, sleep=sleep).take()
        from kstreams_assets.recovery.passive_method import PassiveCommits

        return PassiveCommits(scene, wait_s, sleep=sleep, history=history).take()

    def _held(
        self, held: Mapping[TopicPartitionId, Position]
    ) -> Mapping[TopicPartitionId, Position]:
        """Return `held` with what a restore wrote: that need not be saved again."""
        repo = Repository.of(self.warehouse, self.application.application_id)
        origins = repo.lineage.origins([self.cluster.cluster_id()])
        if not origins:
            return held
        topics = self.cluster.metadata().topics
        written = origins.written({name: topic.topic_id for name, topic in topics.items()})
        restored = {
            partition: Position(one.target_topic_id, one.offsets.end)
            for partition, one in written.items()
        }
        of_these_logs = {
            partition: position
            for partition, position in held.items()
            if partition not in restored or restored[partition].topic_id == position.topic_id
        }
        return {**restored, **of_these_logs}

    def _scene(self, reader: RawLogReader) -> Scene:
        return Scene(
            self.application,
            self.cluster,
            reader,
            self.cluster.metadata().topics,
            self.settings.lookback_seconds,
            self.between,
            restored=self._restored(),
            other_groups=self._other_groups(),
        )

    def _settled(
        self,
        reader: RawLogReader,
        safe: Safe,
        seal_bytes: int,
        awaited: Awaited,
    ) -> tuple[RecoveryPoint, Sequence[SavedTail]]:
        """Use a cut at commits, or try the methods; retry while topics are created or deleted."""
        if isinstance(awaited, AwaitedCut):
            completed = self._completed(awaited, safe, seal_bytes)
            if not isinstance(completed, NotTaken):
                return completed
            better = {**awaited.better, awaited.positions.method: completed.reason}
        else:
            better = awaited
        changed: Sequence[str] = ()
        for _ in range(_ATTEMPTS):
            start = _Start.now(self._repo)
            scene = self._scene(reader)
            if scene.absent_topics and safe.newest is None:
                # At the first point the names have just been configured, so a missing topic is an
                # error. Later, a missing topic must not stop the recorder for the others.
                raise TopicNotFoundError(
                    topics=scene.absent_topics, cluster=self.cluster.connection.bootstrap_servers
                )
            try:
                taken = self._by_methods(scene, safe, seal_bytes, start, better)
                after = self.cluster.metadata().topics
            except TopicNotFoundError as error:  # deleted since the names were listed
                changed = error.topics
                continue
            changed = _changed(scene, after)
            if not changed:
                return taken
        raise KafkaError(
            f"Topic {', '.join(sorted(changed))} changed (was deleted, or has another id or number"
            f" of partitions) while the recovery point was taken, {_ATTEMPTS} times in a row.",
            remedy="Wait until no process creates or deletes topics of the application, then try"
            " again.",
        )

    def _completed(
        self, cut: AwaitedCut, safe: Safe, seal_bytes: int
    ) -> tuple[RecoveryPoint, Sequence[SavedTail]] | NotTaken:
        """Make the point of a cut at commits, unless another recorder's point goes beyond it."""
        positions, start, newest = cut.positions, cut.start, safe.newest
        try:
            scene = self._with_incarnations(cut.scene, safe)
            if newest is not None and newest.id != cut.newest_id:
                later = _beyond(positions, scene, newest)
                if later is not None:
                    return NotTaken(f"recovery point {newest.id} was taken meanwhile, with {later}")
            strategy = _Strategy(1, lambda _: positions)
            found = self._try(strategy, scene, safe, seal_bytes, start)
            if isinstance(found, NotTaken):
                return found
            point = self._point(scene, *found, cut.better, start, newest)
            changed = _changed(scene, self.cluster.metadata().topics)
        except TopicNotFoundError as error:
            changed = error.topics
        else:
            if not changed:
                return point, found[1].tails
        return NotTaken(f"topic {', '.join(sorted(changed))} changed during the cut")

    def _other_groups(self) -> tuple[ConsumerGroup, ...]:
        """Return the other groups that points record, read before the ends of the logs.

        So all records that a group had read were in the logs before the cut. A group that cannot be
        read in time is left out: it must not stop the recorder for the application.
        """
        deadline = time.monotonic() + _OTHER_GROUPS_S
        found = []
        for group in sorted({*self.settings.other_groups} - {self.application.application_id}):
            left_s = max(0.0, deadline - time.monotonic())
            try:
                committed = self.cluster.group_offsets(group, unstable_limit_s=left_s)
            except KafkaError as error:
                _log.warning("Offsets of group %s are not in the recovery point: %s", group, error)
            else:
                found.append(ConsumerGroup.of(group, committed))
        return tuple(found)

    def _by_methods(
        self,
        scene: Scene,
        safe: Safe,
        seal_bytes: int,
        start: _Start,
        better: Mapping[Method, str],
    ) -> tuple[RecoveryPoint, Sequence[SavedTail]]:
        """Return the first method's positions whose records can be saved; bounded tries."""
        reasons = dict(better)
        tries = 0
        for method, strategy in _STRATEGIES.items():
            for _ in range(strategy.tries):
                late = time.monotonic() - start.monotonic_s > _PATIENCE_S
                if late and method is not Method.OFFSETS_FIRST:
                    reasons.setdefault(method, "no time was left for it")
                    break
                tries += 1
                self.cluster.watch_leaders()
                scene = self._with_incarnations(scene, safe)
                found = self._try(strategy, scene, safe, seal_bytes, start)
                if not isinstance(found, NotTaken):
                    positions, completed = found
                    reasons.pop(method, None)
                    point = self._point(scene, positions, completed, reasons, start, safe.newest)
                    return replace(point, attempts=tries), completed.tails
                reasons[method] = found.reason
                if not found.again:
                    break
        raise KafkaError(
            f"No recovery point of {self.application.application_id} could be taken:"
            f" {_joined(reasons)}.",
            remedy="Nothing was stored. Try again; if it persists, fix the named causes.",
        )

    def _try(
        self, strategy: _Strategy, scene: Scene, safe: Safe, seal_bytes: int, start: _Start
    ) -> tuple[Positions, Completed] | NotTaken:
        positions = strategy.take(scene)
        if isinstance(positions, NotTaken):
            return positions
        completed = complete(scene, positions, safe, seal_bytes)
        if isinstance(completed, NotTaken):
            return completed
        evidence = Evidence(
            scene, positions, completed.partitions, lambda: self._newest_exact(safe)
        )
        positions = evidence.applied()
        # Checked after the last sample of any method: an answer may be a deposed leader's.
        self.between("leaders")
        since_s = time.monotonic() if positions.method.is_at_commits else start.monotonic_s
        left_s = since_s + _BROKERS_S - time.monotonic()
        uncertainty = self.cluster.stale_leader_check(scene.group, wait_s=max(0.0, left_s))
        return NotTaken(uncertainty, again=True) if uncertainty else (positions, completed)

    def _newest_exact(self, safe: Safe) -> RecoveryPoint | None:
        """Return the newest exact point, if it was taken on this cluster."""
        table = Repository.of(self.warehouse, self.application.application_id).points
        exact = (
            next(
                (p for p in (safe.newest, safe.sealed) if p and p.guarantee is Guarantee.EXACT),
                None,
            )
            or table.newest_exact()
        )
        if exact is None or exact.cluster_id != self.cluster.cluster_id():
            return None
        return exact

    def _restored(self) -> RestoredRanges:
        """Return what restores wrote on this cluster; if unknown, the point is taken without it."""
        try:
            repo = Repository.of(self.warehouse, self.application.application_id)
            return repo.lineage.restored_onto(self.cluster.cluster_id())
        except (StoredDataError, WarehouseError) as error:
            _log.warning("What restores wrote on this cluster could not be read: %s", error)
            return RestoredRanges()

    def _with_incarnations(self, scene: Scene, safe: Safe) -> Scene:
        """Add the logs that still have what the newest point saw; elections since are noticed."""
        topic_ids = {name: topic.topic_id for name, topic in scene.described.items()}
        known = {
            cut.id: cut
            for point in (safe.sealed, safe.newest)  # a topic may have been invisible
            for cut in (point.partitions if point else ())
        }
        scene = replace(scene, logs=incarnations(self.cluster, topic_ids, known.values()))
        exact = next(
            (p for p in (safe.newest, safe.sealed) if p and p.guarantee is Guarantee.EXACT), None
        )
        ends = {
            cut.id: cut.end
            for cut in (exact.partitions if exact else ())
            if cut.topic in topic_ids and cut.topic_id == scene.incarnation(cut.id)
        }
        return replace(scene, exact_ends=ends)

    def _point(
        self,
        scene: Scene,
        positions: Positions,
        completed: Completed,
        better: Mapping[Method, str],
        start: _Start,
        newest: RecoveryPoint | None,
    ) -> RecoveryPoint:
        """Return the point, without its id and its order after the newest one.

        `better` says why better methods failed.
        """
        seen = self._seen_written(scene, newest)
        written = self._written(scene, newest, seen)
        point = RecoveryPoint(
            id="",
            application_id=self.application.application_id,
            cluster_id=self.cluster.cluster_id(),
            taken_at_ms=start.wall_ms,
            method=positions.method,
            guarantee=positions.guarantee,
            reason="",
            took_ms=round((time.monotonic() - start.monotonic_s) * 1000),
            partitions=completed.partitions,
            group_offsets=completed.group.offsets,
            other_groups=scene.other_groups,
            sealed=not completed.unsealed_because,
            unsealed_because=completed.unsealed_because,
            absent_topics=scene.absent_topics,
            in_flight=completed.in_flight,
            undeclared_topics=self._undeclared(scene, completed, written),
            cut_guarantee=positions.guarantee,
            repeats_bound=positions.repeats_bound,
            commits=positions.commits,
            runs_at=_runs_at(scene, positions, seen),
            ledger_version=start.ledger_version,
        )
        missing = [
            *(point.why_absent(topic) for topic in scene.needed_but_absent),
            *(point.why_unknown(topic) for topic in point.unknown_topics),
        ]
        if missing or completed.left_in_kafka:
            point = replace(point, guarantee=Guarantee.AT_LEAST_ONCE)
        method = positions.method
        text = _AT_COMMITS_TEXT if method.is_at_commits else _STRATEGIES[method].text
        parts = [text, positions.note]
        if better:
            parts.append(f"Better methods failed: {_joined(better)}.")
        if scene.logs.truncated:
            parts.append(f"Lost: {'; '.join(scene.logs.truncated.values())}.")
        if scene.absent_topics:
            parts.append(f"Not on the cluster: {', '.join(scene.absent_topics)}.")
        if completed.left_in_kafka:
            parts.append(
                f"Not called exact, as {completed.left_in_kafka}. It can be restored exactly if the"
                " backup of its window still finds them in Kafka: back up soon, and find out why"
                " the application does not process them."
            )
        parts += [f"{guess} {guess.remedy}" for guess in self.application.guesses]
        if missing:
            parts.append(f"The point is missing topics of the application: {'; '.join(missing)}.")
        return replace(point, reason=" ".join(filter(None, parts)))

    def _undeclared(self, scene: Scene, completed: Completed, written: Set[str]) -> tuple[str, ...]:
        """Return undeclared topics of the application, of which the point has nothing.

        Other applications of the cluster are queried only if a name may be theirs. If that fails (a
        broker is down), the name counts as the application's, so that it is reported.
        """
        application = self.application
        known = application.not_mine | {topic.name for topic in application.topics}
        read = completed.group.topics - known
        internal = application.undeclared_internal(scene.present)
        if internal:
            try:
                others = self.cluster.group_ids()
            except KafkaError as error:
                _log.debug("The groups of the cluster could not be listed: %s", error)
            else:
                internal = application.undeclared_internal(internal, others=others)
        return tuple(sorted(read | internal | (written - known)))

    def _written(
        self, scene: Scene, newest: RecoveryPoint | None, seen: TransactionalTopics
    ) -> frozenset[str]:
        """Return topics that the application's transactions wrote since the newest point, and those
        that this point named: a dead letter queue may be written once a day.

        Internal topics are left out: their names say more. Invisible topics are not named.
        """
        id_ = self.application.application_id
        earlier = () if newest is None else newest.written_topics
        found = {*earlier, *seen.topics} & scene.present.keys() - BROKER_TOPICS
        return frozenset(t for t in found if owner_of(t, [id_]) is None)

    def _seen_written(self, scene: Scene, newest: RecoveryPoint | None) -> TransactionalTopics:
        """Return the application's transactional ids, and topics written since the newest point."""
        id_ = self.application.application_id
        now = time.monotonic()
        since = now - (scene.lookback_s if newest is None else _age_s(newest))
        since = min(since, _LOOKED.get(id_, since))
        log = scene.present.get(TRANSACTION_STATE)
        seen = self.cluster.written_topics(
            id_,
            scene.reader,
            log_partitions=None if log is None else log.partitions,
            lookback_s=now - since + _LOOK_MARGIN_S,
        )
        if seen.reason is None:
            _LOOKED[id_] = now
        else:
            _log.debug(
                "The topics that %s writes in transactions are unknown: %s", id_, seen.reason
            )
        return seen


def _runs_at_least_once(scene: Scene) -> bool:
    """Whether the application runs, and its newest records were written without transactions."""
    state = scene.cluster.group_state(scene.group)
    if state is None or state.is_empty:
        return False
    ends = scene.cluster.high_watermarks(scene.written)
    found = runs_at(scene, ends, scene.committed_offsets(), has_transactional_ids=False)
    return found is Guarantee.AT_LEAST_ONCE


def _changed(scene: Scene, after: Mapping[str, TopicIdentity]) -> list[str]:
    """Return topics that were deleted or recreated, or have another number of partitions."""
    return sorted(name for name, topic in scene.described.items() if after.get(name) != topic)


def _beyond(positions: Positions, scene: Scene, newest: RecoveryPoint) -> str | None:
    """Return the records or offset of a point that a cut does not have, in words."""
    for cut in newest.partitions:
        is_same = cut.topic in scene.described and cut.topic_id == scene.incarnation(cut.id)
        end = positions.ends.get(cut.id)
        if not is_same or end is None:
            continue
        excluded = positions.excluded.get(cut.id, ())
        if cut.end > (excluded[0].start if excluded else end):
            return f"later records of {cut.id}"
    for one in newest.group_offsets:
        committed = positions.committed.get(one.id)
        if committed is None or committed.offset < one.offset:
            return f"a later offset of {one.id}"
    return None


def _runs_at(scene: Scene, positions: Positions, seen: TransactionalTopics) -> Guarantee | None:
    if positions.shows_transactions and positions.guarantee is Guarantee.EXACT:
        return Guarantee.EXACT
    known = bool(seen.transactional_ids)
    return runs_at(scene, positions.ends, positions.committed, has_transactional_ids=known)


_LOOKED: dict[str, float] = {}
"""When this process last saw the transactions of an application, monotonic seconds."""
_LOOK_MARGIN_S = 5.0
_LONGEST_LOOK_S = 86_400.0


def _age_s(point: RecoveryPoint) -> float:
    return min(max(time.time() - point.taken_at_ms / 1000, 0.0), _LONGEST_LOOK_S)


def _stamp(taken_ms: int, newest: RecoveryPoint | None, repo: Repository, now_ms: int) -> int:
    """Return the time to store with a point: after the newest one's, unless that is in the future.

    A clock that was set back must not make a later point look earlier. But one point of a clock
    that was ahead must not move all later ones into the future: if others were taken by now, it
    was the wrong one. The sequence orders all of them anyway.
    """
    if newest is None or newest.taken_at_ms < taken_ms:
        return taken_ms
    if newest.taken_at_ms > now_ms + CLOCK_STEP_MS:
        instants = repo.points.instants()
        if any(instant.taken_at_ms <= now_ms for instant in instants):
            _log.warning(
                "Recovery point %s is stamped %s, which is in the future by this machine's clock.",
                newest.id,
                iso_time(newest.taken_at_ms),
            )
            return taken_ms
    return newest.taken_at_ms + 1


def _joined(reasons: Mapping[Method, str]) -> str:
    return "; ".join(f"{method}: {reason}" for method, reason in reasons.items())


def recorder_of(
    settings: ApplicationSettings, cluster: KafkaCluster, *, new_lineage: bool = False
) -> Recorder:
    """Return the recorder of a configured application, which also prunes its points."""
    return Recorder(
        application=settings.application,
        cluster=cluster,
        warehouse=settings.warehouse,
        settings=settings.recovery_points,
        retention=retention_of(settings),
        new_lineage=new_lineage,
    )
