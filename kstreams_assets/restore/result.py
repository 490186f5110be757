"""The result of a restore, and the progress of a running one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kstreams_assets.model.restores import PartitionProduced, RestoreState, StoredRestore
from kstreams_assets.model.rule_results import RuleResult
from kstreams_assets.restore.plan import RestorePlan
from spark_resources.partition_records import Difference, PartitionVerified


class Phase(StrEnum):
    """The phases of a restore, in order."""

    BEFORE = "before_command"
    CHECK = "check"
    STAGE = "stage"
    TOPICS = "topics"
    PRODUCE = "produce"
    VERIFY = "verify"
    RULES = "rules"
    OFFSETS = "offsets"
    AFTER = "after_command"


@dataclass(frozen=True, slots=True)
class RestoredRecords:
    """Records that were written and read back; `took_s` are the seconds of each of its phases."""

    restore: StoredRestore
    produced: tuple[PartitionProduced, ...]
    verified: tuple[PartitionVerified, ...]
    problems: tuple[Difference, ...]
    took_s: Mapping[str, float]

    @property
    def passed(self) -> bool:
        """Whether the target matches the backup."""
        return self.restore.state is not RestoreState.FAILED_VERIFICATION

    @property
    def compared(self) -> int:
        """Number of records that were read back and compared."""
        return sum(partition.compared for partition in self.verified)


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """The result of a run of a restore so far.

    `plan` is the plan that was run. `records` is None if blockers of the plan prevented its start,
    `committed` if the target differs from the backup or a rule blocks. `took_s` does not include
    the commands before and after it.
    """

    plan: RestorePlan
    records: RestoredRecords | None = None
    rules: Sequence[RuleResult] = ()
    committed: StoredRestore | None = None
    took_s: float = 0.0

    @property
    def restore(self) -> StoredRestore | None:
        """The restore as it is stored now; None if it did not start."""
        return self.committed or (None if self.records is None else self.records.restore)

    @property
    def may_commit(self) -> bool:
        """Whether the target matches the backup and no rule blocks."""
        passed = self.records is not None and self.records.passed
        return passed and not any(rule.blocks for rule in self.rules)


@dataclass(frozen=True, slots=True)
class Progress:
    """A phase starts, or has a `line` of text to show; `result` is the result so far."""

    phase: Phase
    result: RestoreResult
    line: str = ""


OnPhase = Callable[[Progress], None]
"""Called when a phase starts, and for each line that a phase has to show."""
