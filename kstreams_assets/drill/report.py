"""What a drill measured and found. Pure.

Times in seconds unless a name says otherwise, sizes in bytes, shares between 0 and 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from kstreams_assets.completeness.result import RuleResult


class Phase(StrEnum):
    """The parts of a drill, in order; those up to `catch_up` make up the time to recover.

    `restore`: topics are written and verified. `completeness`: the rules are evaluated, before
    `commit`, the group offsets. `start`: from the start of the process until the application is
    RUNNING, so with the restoration of its stores. `catch_up`: until its lag is zero. `comparison`:
    the stopped application's state and totals are judged.
    """

    RESTORE = "restore"
    COMPLETENESS = "completeness"
    COMMIT = "commit"
    START = "start"
    CATCH_UP = "catch_up"
    COMPARISON = "comparison"


class RateFrom(StrEnum):
    """Where the rate at which changelogs were read comes from.

    `log`: counts and times of Kafka Streams' own lines on restoration. `offsets`: records of the
    restored changelogs over the time from the start of the process to RUNNING; the start of the
    JVM and the rebalance are in it, so the true rate is higher.
    """

    LOG = "log"
    OFFSETS = "offsets"


@dataclass(frozen=True, slots=True)
class PhaseMeasure:
    """How long a phase took, and what it used.

    `cpu_share` is the share of this machine's processors that were busy, whoever used them,
    `io_wait_share` the share that waited for disks; None where the system does not tell.
    """

    phase: Phase
    took_s: float
    cpu_share: float | None = None
    io_wait_share: float | None = None


@dataclass(frozen=True, slots=True)
class LagSample:
    """Records not yet processed, `at_s` seconds after the application's start.

    An upper bound unless `counted`.
    """

    at_s: float
    records: int
    counted: bool


@dataclass(frozen=True, slots=True)
class ApplicationMeasure:
    """The application's process with all its children.

    `to_running_s` and `to_caught_up_s` count from its start, None when it did not come so far.
    `changelog_records` are those it restored its stores from, of `changelog_records_expected`; the
    rate is in records per second, None without a record. `state_bytes` is the size of its state
    directory at the end. `exit_code` is set when it ended by itself; `last_lines` of its output
    when it did not come to its end.
    """

    to_running_s: float | None
    to_caught_up_s: float | None
    changelog_records: int | None
    changelog_records_expected: int
    changelog_records_per_s: float | None
    rate_from: RateFrom | None
    cpu_s: float
    cpu_start_s: float
    cpu_catch_up_s: float
    peak_memory_bytes: int
    disk_written_bytes: int | None
    disk_read_bytes: int | None
    state_bytes: int
    exit_code: int | None = None
    last_lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StoreComparison:
    """A changelog in the drill's cluster: newest record of each key, then and now.

    `records_at_point` are there of `records_restored`; `records_since` were written by the
    application in the drill. Keys count with a value: `changed` have another one, `rewritten` the
    same one once more, `added` had none at the point, `deleted` have none now. `sample` are some
    keys that are not as at the point, in hexadecimal.
    """

    topic: str
    stores: tuple[str, ...]
    records_restored: int
    records_at_point: int
    records_since: int
    keys_at_point: int
    keys_now: int
    changed: int
    rewritten: int
    added: int
    deleted: int
    sample: tuple[str, ...] = ()

    @property
    def moved(self) -> int:
        """How many keys are not as at the point."""
        return self.changed + self.added + self.deleted


@dataclass(frozen=True, slots=True)
class EvaluatedRules:
    """The completeness rules and recomputed stores, `after` the application had caught up or before
    its offsets were committed."""

    after: bool
    results: tuple[RuleResult, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """What ended a drill before its end, in which phase."""

    phase: Phase
    reason: str


@dataclass(frozen=True, slots=True)
class Restored:
    """What was restored, and from which point; `gives` as in `Restores`.

    `notes` and `retention` are what the plan and the topics' own retention say of it.
    """

    point_id: str
    point_taken_at_ms: int
    gives: str
    records: int
    bytes: int
    input_records: int
    notes: tuple[str, ...] = ()
    retention: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DrillReport:
    """One drill. `restored` and `application` are None when it ended before.

    `waiting_records` had not been processed at the point (an upper bound unless
    `waiting_counted`). `objective_s` is the declared recovery time objective. `problems` are what
    the comparison of state and totals found. Epoch milliseconds.
    """

    drill_id: str
    application_id: str
    run_id: str
    began_at_ms: int
    ended_at_ms: int
    stores: tuple[str, ...]
    objective_s: float | None
    phases: tuple[PhaseMeasure, ...]
    restored: Restored | None = None
    application: ApplicationMeasure | None = None
    waiting_records: int | None = None
    waiting_counted: bool = True
    lag: tuple[LagSample, ...] = ()
    comparisons: tuple[StoreComparison, ...] = ()
    rules: tuple[EvaluatedRules, ...] = ()
    problems: tuple[str, ...] = ()
    failure: Failure | None = None
    kept: str | None = None

    @property
    def passed(self) -> bool:
        """Whether the application came back with the right state, however long it took."""
        return self.failure is None and not self.problems

    @property
    def total_s(self) -> float | None:
        """From the begin of the restore to caught up; None when it never was."""
        if self.application is None or self.application.to_caught_up_s is None:
            return None
        own = (Phase.START, Phase.CATCH_UP, Phase.COMPARISON)
        before = sum(m.took_s for m in self.phases if m.phase not in own)
        return before + self.application.to_caught_up_s

    @property
    def reason(self) -> str:
        """Why it did not pass, empty when it did."""
        if self.failure is not None:
            return self.failure.reason
        return " ".join(self.problems)

    def measure(self, phase: Phase) -> PhaseMeasure | None:
        """What was measured of a phase, None when the drill did not come to it."""
        return next((m for m in self.phases if m.phase is phase), None)


def with_own_times(
    phases: Sequence[PhaseMeasure], application: ApplicationMeasure | None
) -> tuple[PhaseMeasure, ...]:
    """The phases with the application's own times, which do not depend on when it was looked at."""
    if application is None or application.to_running_s is None:
        return tuple(phases)
    running_s, caught_up_s = application.to_running_s, application.to_caught_up_s
    own = {Phase.START: running_s}
    if caught_up_s is not None:
        own[Phase.CATCH_UP] = caught_up_s - running_s
    return tuple(replace(m, took_s=own.get(m.phase, m.took_s)) for m in phases)
