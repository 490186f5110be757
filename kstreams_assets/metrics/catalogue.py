"""Every metric and its meaning. The reference is generated from it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as MetricFamily

APPLICATION = "application_id"
"""The label of every metric."""


class Kind(StrEnum):
    """Prometheus' own types: a counter only increases, until its source restarts."""

    GAUGE = "gauge"
    COUNTER = "counter"


class Source(StrEnum):
    """The sources of metrics; each is read separately and may fail separately.

    `cluster`: topics and the ends of their logs. `group`: the consumer group's coordinator.
    `warehouse`: the tables. `second_copy`: the copy of the warehouse, if declared.
    """

    CLUSTER = "cluster"
    GROUP = "group"
    WAREHOUSE = "warehouse"
    SECOND_COPY = "second_copy"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; `labels` are those in addition to `application_id`, in order.

    `source` is None for metrics about the sources themselves.
    """

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...]
    source: Source | None

    def sample(self, value: float, **labels: str) -> "Sample":
        """One measured value; raises ValueError unless the labels are those of the metric."""
        if labels.keys() != set(self.labels):
            message = f"{self.name} has labels {self.labels}, not {sorted(labels)}"
            raise ValueError(message)
        return Sample(self, tuple(labels[name] for name in self.labels), float(value))

    def one_of(self, current: str, known: Iterable[str], **labels: str) -> Iterator["Sample"]:
        """1 for the current state and 0 for every other known one; the last label is the state."""
        name = self.labels[-1]
        for state in dict.fromkeys([*known, current]):
            yield self.sample(state == current, **labels, **{name: state})


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of one metric; `labels` are in the metric's order."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


def families(samples: Mapping[str, Iterable[Sample]]) -> list[MetricFamily]:
    """The input of Prometheus, from the samples of each application; ordered by name."""
    found: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    for application_id, of_it in samples.items():
        for sample in of_it:
            family = found.setdefault(sample.metric.name, _family(sample.metric))
            family.add_metric([application_id, *sample.labels], sample.value)
    return [found[name] for name in sorted(found)]


def _family(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily:
    labels = [APPLICATION, *metric.labels]
    if metric.kind is Kind.COUNTER:
        return CounterMetricFamily(metric.name, metric.text, labels=labels)
    return GaugeMetricFamily(metric.name, metric.text, labels=labels)


METRICS: Final[dict[str, Metric]] = {}
"""Every metric by name, in the order of the reference."""


def _metric(name: str, text: str, *labels: str, source: Source | None) -> Metric:
    kind = Kind.COUNTER if name.endswith("_total") else Kind.GAUGE
    METRICS[name] = metric = Metric(name, kind, text, labels, source)
    return metric


def _of_cluster(name: str, text: str, *labels: str) -> Metric:
    return _metric(name, text, *labels, source=Source.CLUSTER)


def _of_group(name: str, text: str, *labels: str) -> Metric:
    return _metric(name, text, *labels, source=Source.GROUP)


def _of_warehouse(name: str, text: str, *labels: str) -> Metric:
    return _metric(name, text, *labels, source=Source.WAREHOUSE)


UP: Final = _metric(
    "kstreams_up",
    "Whether this source answered in time; if not, its metrics are missing.",
    "source",
    source=None,
)
SCRAPE_SECONDS: Final = _metric(
    "kstreams_scrape_duration_seconds",
    "How long this source took to answer.",
    "source",
    source=None,
)

TOPIC_PRESENT: Final = _of_cluster(
    "kstreams_topic_present", "Whether the topic is on the cluster.", "topic", "role"
)
TOPIC_PARTITIONS: Final = _of_cluster(
    "kstreams_topic_partitions", "Number of partitions.", "topic", "role"
)
LOG_START: Final = _of_cluster(
    "kstreams_log_start_offset",
    "First offset that the log still contains.",
    *("topic", "partition", "role"),
)
PRODUCED: Final = _of_cluster(
    "kstreams_produced_offsets_total",
    "Last stable offset: end of the decided records. Transaction markers also use offsets.",
    *("topic", "partition", "role"),
)

GROUP_STATE: Final = _of_group(
    "kstreams_group_state",
    "1 for the state of the consumer group, in Kafka's words; Absent without a group.",
    "state",
)
GROUP_MEMBERS: Final = _of_group(
    "kstreams_group_members",
    "Members of the group: one for each stream thread. Missing for groups with members that use"
    " the newer protocols.",
)
CONSUMED: Final = _of_group(
    "kstreams_consumed_offsets_total",
    "Committed offset of the group.",
    *("topic", "partition", "role"),
)
LAG: Final = _of_group(
    "kstreams_lag_offsets",
    "Offsets from the committed one to the last stable one; without a committed offset the whole"
    " log. Role repartition: lag inside the application.",
    *("topic", "partition", "role"),
)

POINT_TIME: Final = _of_warehouse(
    "kstreams_recovery_point_timestamp_seconds",
    "When the newest recovery point was taken. kind: newest of all; covered by backups; exact and"
    " covered.",
    "kind",
)
POINT_EXACT: Final = _of_warehouse(
    "kstreams_recovery_point_exact", "Whether the newest recovery point was taken as exact."
)
POINT_ENOUGH_TIME: Final = _of_warehouse(
    "kstreams_restorable_point_timestamp_seconds",
    "When the newest recovery point was taken that is covered by backups and has the application's"
    " own guarantee.",
)
POINT_REPEATS: Final = _of_warehouse(
    "kstreams_recovery_point_repeats_at_most",
    "Maximum number of records that a restore of the newest recovery point would process twice.",
)
POINT_SECONDS: Final = _of_warehouse(
    "kstreams_recovery_point_duration_seconds", "How long the newest one took."
)
FOLLOWER_STEP_TIME: Final = _of_warehouse(
    "kstreams_follower_step_timestamp_seconds",
    "When the follower finished its newest step; absent if it has never run.",
)
FOLLOWER_STEP_SECONDS: Final = _of_warehouse(
    "kstreams_follower_step_seconds", "Duration of the follower's newest step."
)
FOLLOWER_FAILURES: Final = _of_warehouse(
    "kstreams_follower_failures", "Consecutive failed steps of the follower."
)
POINT_IN_FLIGHT: Final = _of_warehouse(
    "kstreams_recovery_point_in_flight_records",
    "Unprocessed records of repartition topics in the newest one.",
)
POINT_OBJECTIVE: Final = _of_warehouse(
    "kstreams_recovery_point_objective_seconds",
    "Maximum age of the newest covered point with the application's own guarantee"
    " (recovery_points.objective_seconds).",
)

WINDOWS_DUE: Final = _of_warehouse("kstreams_windows_due", "Closed windows not yet backed up.")
WINDOW_END: Final = _of_warehouse(
    "kstreams_backup_window_end_timestamp_seconds",
    "End of the newest window whose topics are all backed up.",
)
BACKUP_TIME: Final = _of_warehouse(
    "kstreams_backup_timestamp_seconds", "When the newest backup was recorded."
)
BACKUP_DELAY: Final = _of_warehouse(
    "kstreams_backup_delay_seconds",
    "From the end of the newest backed-up window until it was recorded.",
)
BACKUP_END: Final = _of_warehouse(
    "kstreams_backup_end_offset",
    "Exclusive end of the newest backed-up span.",
    *("topic", "partition"),
)
BACKUP_RECORDS: Final = _of_warehouse(
    "kstreams_backup_records", "Records in the backups of the topic.", "topic"
)
BACKUP_BYTES: Final = _of_warehouse(
    "kstreams_backup_stored_bytes", "Size of the files with them.", "topic"
)
LOST_OFFSETS: Final = _of_warehouse(
    "kstreams_backup_lost_offsets",
    "Offsets in backed-up windows whose records are lost, or missing for an unknown cause.",
    *("topic", "cause"),
)
LOSSES: Final = _of_warehouse(
    "kstreams_backup_losses",
    "Number of such gaps; gaps of unknown length count only here.",
    *("topic", "cause"),
)

STORE_ROWS: Final = _of_warehouse(
    "kstreams_store_rows", "Rows of the store's newest KTable snapshot.", "store"
)
STORE_BYTES: Final = _of_warehouse(
    "kstreams_store_bytes", "Uncompressed size of these rows, approximately.", "store"
)
STORE_TIME: Final = _of_warehouse(
    "kstreams_store_snapshot_timestamp_seconds",
    "When the recovery point of this snapshot was taken.",
    "store",
)
STORE_PROVED: Final = _of_warehouse(
    "kstreams_store_snapshot_proved", "Whether it exactly equals the store's content then.", "store"
)
STORE_PROBLEMS: Final = _of_warehouse(
    "kstreams_store_snapshot_problem_rows", "Rows of it that could not be decoded.", "store"
)
STORE_SECONDS: Final = _of_warehouse(
    "kstreams_store_snapshot_duration_seconds", "How long the snapshot took.", "store"
)

RESTORE_STATE: Final = _of_warehouse(
    "kstreams_restore_state",
    "1 for the state of the newest restore (see the table restores), 0 for the others.",
    "state",
)
RESTORE_TIME: Final = _of_warehouse(
    "kstreams_restore_timestamp_seconds", "When it entered this state."
)
RESTORES_OPEN: Final = _of_warehouse(
    "kstreams_restores_unfinished",
    "Unfinished restores; their recovery points are kept for them.",
)

RULE_OUTCOME: Final = _of_warehouse(
    "kstreams_completeness_outcome",
    "1 for the outcome of the rule's last evaluation at this place: passed, violated,"
    " not_verifiable, failed. Recomputed stores are the rules recompute_<store>.",
    *("rule", "place", "outcome"),
)
RULE_VIOLATIONS: Final = _of_warehouse(
    "kstreams_completeness_violations",
    "Violating rows in that evaluation.",
    *("rule", "place"),
)
RULE_TIME: Final = _of_warehouse(
    "kstreams_completeness_timestamp_seconds", "When that evaluation was.", *("rule", "place")
)
RULE_EVALUATIONS: Final = _of_warehouse(
    "kstreams_completeness_evaluations_total",
    "All evaluations so far; only here a backfill's results for older windows appear.",
    *("rule", "place", "outcome"),
)

GOVERNANCE_FINDINGS: Final = _of_warehouse(
    "kstreams_governance_findings",
    "Findings of each governance check at its last evaluation.",
    *("check", "severity"),
)
GOVERNANCE_TIME: Final = _of_warehouse(
    "kstreams_governance_timestamp_seconds", "Time of the last governance evaluation."
)

DRILL_TIME: Final = _of_warehouse(
    "kstreams_drill_timestamp_seconds", "When the newest restore drill ended."
)
DRILL_PASSED: Final = _of_warehouse(
    "kstreams_drill_passed", "Whether the application recovered with the right state in it."
)
DRILL_SECONDS: Final = _of_warehouse(
    "kstreams_drill_duration_seconds",
    "From the start of the restore until the application caught up; missing if it never did.",
)
DRILL_PHASE_SECONDS: Final = _of_warehouse(
    "kstreams_drill_phase_duration_seconds",
    "Durations of its phases: the restore, the start until RUNNING, and catching up; only phases"
    " that were reached.",
    "phase",
)
DRILL_OBJECTIVE: Final = _of_warehouse(
    "kstreams_drill_objective",
    "1 for the relation of the duration to the objective: met, missed, not_recovered,"
    " not_declared.",
    "result",
)
RECOVERY_OBJECTIVE: Final = _of_warehouse(
    "kstreams_recovery_time_objective_seconds",
    "Maximum duration of a recovery (drill.objective_seconds).",
)

VERIFICATION_TIME: Final = _of_warehouse(
    "kstreams_verification_timestamp_seconds",
    "When the warehouse was verified last: any (quick or full), full, and the time since when"
    " every file has been read (covered).",
    "kind",
)
VERIFICATION_FINDINGS: Final = _of_warehouse(
    "kstreams_verification_open_findings",
    "Unrepaired damage found by verifications.",
    "severity",
)

SECOND_COPY_TIME: Final = _metric(
    "kstreams_second_copy_timestamp_seconds",
    "When the kstreams-assets copy run of the readers' state ended.",
    source=Source.SECOND_COPY,
)

READY: Final = _of_warehouse(
    "kstreams_ready",
    "Whether a recovery is possible now; kstreams-assets ready lists the blockers.",
)
