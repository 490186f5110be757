"""A scrape: the state of brokers, group and warehouse of an application, as samples."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from kstreams_assets.app.model import AppTopic
from kstreams_assets.backup.follower_status import status_of
from kstreams_assets.backup.requests import WindowStatus
from kstreams_assets.checks import Severity
from kstreams_assets.drill.readiness import Evidence, evaluate_readiness, facts_of
from kstreams_assets.drill.report import Phase
from kstreams_assets.errors import ConfigurationError, KStreamsAssetsError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.metrics import catalogue
from kstreams_assets.metrics.catalogue import SCRAPE_SECONDS, UP, Sample, Source, families
from kstreams_assets.model.drill import ObjectiveResult
from kstreams_assets.model.point import Guarantee
from kstreams_assets.model.restores import RestoreState
from kstreams_assets.model.rule_results import Outcome
from kstreams_assets.model.snapshot import Snapshot
from kstreams_assets.model.spans import LOSSES, UNKNOWN, GapCause
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store import StorePath
from kstreams_assets.store.failures import storage_failures
from kstreams_assets.upkeep.second_copy import state_at_ms

GROUP_STATES: Final = (
    "Absent",
    "Stable",
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "NotReady",
    "Empty",
    "Dead",
)
"""Kafka's states of classic, consumer and streams groups; `Absent` is our word for no group."""


def read_cluster(settings: ApplicationSettings, *, timeout_s: float) -> list[Sample]:
    """Topics of the application, and the starts and ends of their logs.

    Each request ends within `timeout_s` seconds. Raises KafkaError and its subclasses,
    SecretNotFoundError, ConfigurationError.
    """
    with KafkaCluster(settings.connection, timeout_s=timeout_s) as cluster:
        partitions = _partitions(cluster, settings.application.topics)
        present = [one for of_topic in partitions.values() for one in of_topic]
        starts = cluster.log_start_offsets(present)
        ends = cluster.last_stable_offsets(present)
    roles = _roles(settings)
    samples: list[Sample] = []
    for topic, of_topic in partitions.items():
        named = {"topic": topic, "role": roles[topic]}
        samples.append(catalogue.TOPIC_PRESENT.sample(bool(of_topic), **named))
        if of_topic:
            samples.append(catalogue.TOPIC_PARTITIONS.sample(len(of_topic), **named))
    for one in present:
        samples.append(catalogue.LOG_START.sample(starts[one], **_labels(one, roles)))
        samples.append(catalogue.PRODUCED.sample(ends[one], **_labels(one, roles)))
    return samples


def read_group(settings: ApplicationSettings, *, timeout_s: float) -> list[Sample]:
    """State and members of the group, its committed offsets, and their lag.

    Committed offsets wait for open transactions, so this may take up to 25 s more than its single
    requests, which end within `timeout_s` seconds. Raises the errors of `read_cluster`, and
    UnstableGroupOffsetsError.
    """
    application = settings.application
    topics = [topic for topic in application.topics if topic.roles.is_read_by_group]
    with KafkaCluster(settings.connection, timeout_s=timeout_s) as cluster:
        state = cluster.group_state(application.application_id)
        of_topics = _partitions(cluster, topics)
        read = [one for of_topic in of_topics.values() for one in of_topic]
        # Read ends after offsets: in the other order the lag of a fast application is negative.
        committed = cluster.group_offsets(application.application_id, partitions=read)
        starts = cluster.log_start_offsets(read)
        ends = cluster.last_stable_offsets(read)
    samples = [*catalogue.GROUP_STATE.one_of(state.state if state else "Absent", GROUP_STATES)]
    members = 0 if state is None else state.member_count
    if members is not None:
        samples.append(catalogue.GROUP_MEMBERS.sample(members))
    roles = _roles(settings)
    for one in read:
        labels = _labels(one, roles)
        reached = starts[one]
        if one in committed:
            reached = committed[one].offset
            samples.append(catalogue.CONSUMED.sample(reached, **labels))
        samples.append(catalogue.LAG.sample(max(0, ends[one] - reached), **labels))
    return samples


def _partitions(
    cluster: KafkaCluster, topics: Sequence[AppTopic]
) -> Mapping[str, list[TopicPartitionId]]:
    """The current partitions of each of these topics; none for absent topics."""
    found = cluster.topics()
    return {
        topic.name: [TopicPartitionId(topic.name, n) for n in range(found.get(topic.name, 0))]
        for topic in topics
    }


def _roles(settings: ApplicationSettings) -> Mapping[str, str]:
    return {topic.name: "+".join(sorted(topic.roles)) for topic in settings.application.topics}


def _labels(one: TopicPartitionId, roles: Mapping[str, str]) -> Mapping[str, str]:
    return {"topic": one.topic, "partition": str(one.partition), "role": roles[one.topic]}


REPORTED_CAUSES: Final = tuple(cause.value for cause in GapCause if cause in LOSSES | UNKNOWN)
"""The causes of gaps that make a check red."""

_COLUMNS: Final = [
    "window_end_ms",
    "topic",
    "partition",
    "end",
    "records",
    "stored_bytes",
    "gaps",
    "recorded_at_ms",
]


def point_samples(evidence: Evidence) -> Iterator[Sample]:
    """The newest recovery points and their restorability."""
    settings = evidence.settings
    objective_s = settings.recovery_points.objective_seconds
    if objective_s is not None:
        yield catalogue.POINT_OBJECTIVE.sample(objective_s)
    newest = Repository.open(settings).points.newest()
    if not newest:
        return
    (point,) = newest
    yield catalogue.POINT_TIME.sample(point.taken_at_ms / 1000, kind="newest")
    yield catalogue.POINT_EXACT.sample(point.guarantee is Guarantee.EXACT)
    yield catalogue.POINT_SECONDS.sample(point.took_ms / 1000)
    yield catalogue.POINT_IN_FLIGHT.sample(point.in_flight)
    restorable = evidence.restorable
    yield catalogue.POINT_REPEATS.sample(point.most_repeats)
    if restorable.enough is not None:
        yield catalogue.POINT_ENOUGH_TIME.sample(restorable.enough.taken_at_ms / 1000)
    for kind, status in (("covered", restorable.covered), ("exact", restorable.exact)):
        if status is not None:
            yield catalogue.POINT_TIME.sample(status.taken_at_ms / 1000, kind=kind)


def follower_samples(evidence: Evidence) -> Iterator[Sample]:
    """The state of the follower, if it has run."""
    status = status_of(evidence.settings.warehouse, evidence.settings.application_id)
    if status is None or status.stepped_at_ms is None:
        return
    yield catalogue.FOLLOWER_STEP_TIME.sample(status.stepped_at_ms / 1000)
    yield catalogue.FOLLOWER_STEP_SECONDS.sample(status.step_s)
    yield catalogue.FOLLOWER_FAILURES.sample(status.failures)


def backup_samples(evidence: Evidence) -> Iterator[Sample]:
    """Backed-up, due and lost data."""
    settings, statuses = evidence.settings, evidence.windows
    yield catalogue.WINDOWS_DUE.sample(sum(status.is_due for status in statuses))
    topics = sorted(topic.name for topic in settings.topics)
    ledger = Repository.open(settings).ledger
    # The follower's backups of the open window count: they can be restored.
    rows = ledger.span_rows(topics, columns=_COLUMNS, increments=True)
    yield from _times(statuses, rows)
    yield from _ends(rows)
    sums = {
        row["topic"]: row
        for row in rows.group_by("topic")
        .aggregate([("records", "sum"), ("stored_bytes", "sum")])
        .to_pylist()
    }
    for topic, row in sorted(sums.items()):
        yield catalogue.BACKUP_RECORDS.sample(row["records_sum"], topic=topic)
        yield catalogue.BACKUP_BYTES.sample(row["stored_bytes_sum"], topic=topic)
    yield from _losses(rows, sorted(sums))


def _times(statuses: list[WindowStatus], rows: pa.Table) -> Iterator[Sample]:
    """Times of the newest backup, of any window, and of the newest window with all topics."""
    empty = pa.array([s.window.end_ms for s in statuses if s.without_point], pa.int64())
    rows = rows.filter(~pc.field("window_end_ms").isin(empty))
    if rows.num_rows == 0:
        return
    yield catalogue.BACKUP_TIME.sample(_newest(rows["recorded_at_ms"]) / 1000)
    done = [status.window for status in statuses if status.is_backed_up]
    if not done:
        return
    end_ms = max(window.end_ms for window in done)
    yield catalogue.WINDOW_END.sample(end_ms / 1000)
    recorded = rows.filter(pc.field("window_end_ms") == end_ms)["recorded_at_ms"]
    if len(recorded):
        yield catalogue.BACKUP_DELAY.sample((_newest(recorded) - end_ms) / 1000)


def _newest(times_ms: pa.ChunkedArray) -> int:
    return max(times_ms.to_pylist())


def _ends(rows: pa.Table) -> Iterator[Sample]:
    by_time = [("window_end_ms", "ascending"), ("end", "ascending")]
    ordered = rows.select(["topic", "partition", "window_end_ms", "end"]).sort_by(by_time)
    newest = ordered.group_by(["topic", "partition"], use_threads=False).aggregate(
        [("end", "last")]
    )
    for row in newest.sort_by([("topic", "ascending"), ("partition", "ascending")]).to_pylist():
        yield catalogue.BACKUP_END.sample(
            row["end_last"], topic=row["topic"], partition=str(row["partition"])
        )


def _losses(rows: pa.Table, topics: list[str]) -> Iterator[Sample]:
    """Every cause of every topic, so that an alert sees a 0 change."""
    gaps = rows["gaps"].combine_chunks()
    lost = pa.table(
        {
            "topic": rows["topic"].take(gaps.value_parent_indices()),
            "cause": gaps.flatten().field("cause"),
            "offsets": gaps.flatten().field("offsets"),
        }
    )
    summed = lost.group_by(["topic", "cause"]).aggregate([("offsets", "sum"), ("cause", "count")])
    found = {(row["topic"], row["cause"]): row for row in summed.to_pylist()}
    for topic in topics:
        for cause in REPORTED_CAUSES:
            row = found.get((topic, cause), {"offsets_sum": 0, "cause_count": 0})
            labels = {"topic": topic, "cause": cause}
            yield catalogue.LOST_OFFSETS.sample(row["offsets_sum"] or 0, **labels)
            yield catalogue.LOSSES.sample(row["cause_count"], **labels)


def store_samples(evidence: Evidence) -> Iterator[Sample]:
    """The newest snapshot of each store."""
    newest: dict[str, Snapshot] = {}
    settings = evidence.settings
    for snapshot in Repository.open(settings).snapshots.of():
        newest[snapshot.store] = snapshot  # in order of time
    for store, snapshot in newest.items():
        yield catalogue.STORE_ROWS.sample(snapshot.rows, store=store)
        yield catalogue.STORE_BYTES.sample(snapshot.bytes, store=store)
        yield catalogue.STORE_TIME.sample(snapshot.taken_at_ms / 1000, store=store)
        yield catalogue.STORE_PROVED.sample(snapshot.proved, store=store)
        yield catalogue.STORE_PROBLEMS.sample(snapshot.problem_rows, store=store)
        yield catalogue.STORE_SECONDS.sample(snapshot.took_ms / 1000, store=store)


def restore_samples(evidence: Evidence) -> Iterator[Sample]:
    """The newest restore, and the number of open ones; those of drills do not count."""
    settings = evidence.settings
    repo = Repository.open(settings)
    every = repo.restores.all()
    drills = repo.drills
    restores = drills.without_drills(every)
    yield catalogue.RESTORES_OPEN.sample(sum(not restore.is_finished for restore in restores))
    if restores:
        newest = restores[0]
        yield from catalogue.RESTORE_STATE.one_of(newest.state.value, RestoreState)
        yield catalogue.RESTORE_TIME.sample(newest.changed_at_ms / 1000)


def completeness_samples(evidence: Evidence) -> Iterator[Sample]:
    """The outcome of each declared rule, at each place where it was evaluated."""
    for standing in evidence.rules:
        result = standing.newest
        labels = {"rule": result.rule, "place": result.place.value}
        yield from catalogue.RULE_OUTCOME.one_of(result.outcome.value, Outcome, **labels)
        yield catalogue.RULE_VIOLATIONS.sample(result.violations, **labels)
        yield catalogue.RULE_TIME.sample(result.evaluated_at_ms / 1000, **labels)
        for outcome, count in standing.evaluations.items():
            yield catalogue.RULE_EVALUATIONS.sample(count, **labels, outcome=outcome.value)


def governance_samples(evidence: Evidence) -> Iterator[Sample]:
    """The number of findings of each check at its last evaluation."""
    report = evidence.governance
    if report is None:
        return
    yield catalogue.GOVERNANCE_TIME.sample(report.judged_at_ms / 1000)
    for evaluation in report.evaluations:
        for severity in Severity:
            found = sum(finding.severity is severity for finding in evaluation.findings)
            labels = {"check": evaluation.check, "severity": severity.value}
            yield catalogue.GOVERNANCE_FINDINGS.sample(found, **labels)


def drill_samples(evidence: Evidence) -> Iterator[Sample]:
    """The newest drill, and the declared time to recover."""
    objective_s = evidence.settings.drill.objective_seconds
    if objective_s is not None:
        yield catalogue.RECOVERY_OBJECTIVE.sample(objective_s)
    drill = evidence.drill
    if drill is None:
        return
    yield catalogue.DRILL_TIME.sample(drill.ended_at_ms / 1000)
    yield catalogue.DRILL_PASSED.sample(drill.passed)
    yield from catalogue.DRILL_OBJECTIVE.one_of(drill.objective_result.value, ObjectiveResult)
    if drill.total_s is not None:
        yield catalogue.DRILL_SECONDS.sample(drill.total_s)
    took_s = {
        Phase.RESTORE: drill.restore_s,
        Phase.START: drill.start_s,
        Phase.CATCH_UP: drill.catch_up_s,
    }
    for phase, seconds in took_s.items():
        if seconds is not None:
            yield catalogue.DRILL_PHASE_SECONDS.sample(seconds, phase=phase.value)


def verification_samples(evidence: Evidence) -> Iterator[Sample]:
    """When the warehouse was verified, and the open findings."""
    verified = evidence.verified
    if verified is None or verified.any_at_ms is None:
        return
    times_ms = {
        "any": verified.any_at_ms,
        "full": verified.full_at_ms,
        "covered": verified.covered_since_ms,
    }
    for kind, at_ms in times_ms.items():
        if at_ms is not None:
            yield catalogue.VERIFICATION_TIME.sample(at_ms / 1000, kind=kind)
    for severity in Severity:
        found = sum(damage.severity is severity for damage in verified.open)
        yield catalogue.VERIFICATION_FINDINGS.sample(found, severity=severity.value)


def readiness_samples(evidence: Evidence) -> Iterator[Sample]:
    """Whether the application could be recovered now."""
    facts = facts_of(evidence, time.time_ns() // 1_000_000)
    yield catalogue.READY.sample(evaluate_readiness(facts).ready)


_LOG: Final = logging.getLogger(__name__)
_DOWN: Final = (KStreamsAssetsError, DeltaError, OSError)
"""Errors of a source that cannot answer; other errors are bugs of ours, and are shown."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a source, and its duration (seconds)."""

    samples: Sequence[Sample]
    took_s: float


@dataclass(slots=True)
class Reading:
    """One source of one application; usable from several threads.

    `limit_s` is how long a scrape waits (seconds). A request that is still open at the next scrape
    is not repeated, so a hanging source costs one thread. A late answer is used by the next scrape,
    and the source is read again for the following one: a slow source is one scrape old, not
    missing.
    """

    application_id: str
    source: Source
    read: Callable[[], Sequence[Sample]]
    limit_s: float
    _newest: "Future[Answer] | None" = None
    _is_slow: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> "Future[Answer]":
        """The answer to wait for; starts a request unless the last one is still open."""
        with self._lock:
            last = self._newest
            if last is not None and not last.done():
                return last
            self._newest = Future()
            name = f"metrics-{self.source}-{self.application_id}"
            # A daemon thread: a hanging broker must not keep the program from ending.
            threading.Thread(
                target=self._answer, args=(self._newest,), name=name, daemon=True
            ).start()
            return last if last is not None and self._is_slow else self._newest

    def _answer(self, answer: "Future[Answer]") -> None:
        began = time.monotonic()
        try:
            samples = self.read()
            answer.set_result(Answer(samples, time.monotonic() - began))
        except _DOWN as error:
            answer.set_exception(error)
        finally:
            answer.cancel()  # unfinished work never finishes

    def finish(self, answer: "Future[Answer]", *, deadline: float) -> list[Sample]:
        """The samples, and whether the source is up; without an answer in time it is not.

        `deadline` is on the clock of `time.monotonic`.
        """
        named = {"source": self.source.value}
        try:
            found = answer.result(timeout=max(0.0, deadline - time.monotonic()))
        except CancelledError:
            return self._down("an error of this program, shown above")
        except _DOWN as error:
            self._is_slow = not answer.done()
            late = f"no answer within {self.limit_s:g} s"
            return self._down(late if self._is_slow else str(error))
        self._is_slow = found.took_s > self.limit_s
        return [
            UP.sample(1, **named),
            SCRAPE_SECONDS.sample(found.took_s, **named),
            *found.samples,
        ]

    def _down(self, reason: str) -> list[Sample]:
        _LOG.warning("%s, %s: %s", self.application_id, self.source, reason)
        return [UP.sample(0, source=self.source.value)]


_REQUEST_SHARE: Final = 0.8
_PARTS: Final = (
    point_samples,
    follower_samples,
    backup_samples,
    store_samples,
    restore_samples,
    completeness_samples,
    governance_samples,
    drill_samples,
    verification_samples,
    readiness_samples,
)


class Scrape(Collector):
    """The collector for Prometheus' client, run at each scrape; usable from several threads.

    A scrape takes `timeout_s` seconds at most. A source that fails or does not answer in time has
    `kstreams_up` 0; the results of the others are complete.
    """

    def __init__(self, settings: Iterable[ApplicationSettings], *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._readings = [
            reading for of_one in settings for reading in _readings(of_one, timeout_s)
        ]

    def collect(self) -> list[MetricFamily]:
        """Every metric of every application."""
        deadline = time.monotonic() + self._timeout_s
        asked = [(reading, reading.start()) for reading in self._readings]
        samples: dict[str, list[Sample]] = {}
        for reading, answer in asked:
            found = reading.finish(answer, deadline=deadline)
            samples.setdefault(reading.application_id, []).extend(found)
        return families(samples)


def _readings(settings: ApplicationSettings, timeout_s: float) -> list[Reading]:
    # Ends before the scrape, so that the broker's own reason is reported and not just a timeout.
    request_s = min(settings.connection.request_timeout_seconds, _REQUEST_SHARE * timeout_s)
    read: dict[Source, Callable[[], Sequence[Sample]]] = {
        Source.CLUSTER: partial(read_cluster, settings, timeout_s=request_s),
        Source.GROUP: partial(read_group, settings, timeout_s=request_s),
        Source.WAREHOUSE: partial(read_warehouse, settings),
    }
    if settings.second_copy.place is not None:
        read[Source.SECOND_COPY] = partial(read_second_copy, settings.second_copy.place)
    return [
        Reading(settings.application_id, source, ask, timeout_s) for source, ask in read.items()
    ]


def read_second_copy(to: StorePath) -> list[Sample]:
    """When the copy was last updated; nothing without a copy."""
    finished_at_ms = state_at_ms(to)
    if finished_at_ms is None:
        return []
    return [catalogue.SECOND_COPY_TIME.sample(finished_at_ms / 1000)]


def read_warehouse(settings: ApplicationSettings) -> list[Sample]:
    """All metrics from the tables.

    Raises NewerLayoutError, and ConfigurationError if the folder does not exist (not mounted).
    """
    with storage_failures(settings.warehouse.root):
        is_there = settings.warehouse.root.is_dir()
    if not is_there:
        raise ConfigurationError(
            f"The warehouse {settings.warehouse.root} does not exist.",
            remedy="Check the path and whether the disk is mounted.",
        )
    evidence = Evidence(settings)
    return [sample for part in _PARTS for sample in part(evidence)]
