"""The stored form of a restore drill."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from kstreams_assets.model.column import ApplicationId, Column


class ObjectiveResult(StrEnum):
    """The relation of the recovery time to the declared objective."""

    MET = "met"
    MISSED = "missed"
    NOT_RECOVERED = "not_recovered"
    NOT_DECLARED = "not_declared"


@dataclass(frozen=True, slots=True)
class StoredDrill:
    """One drill, a row of the table; None means not measured or not reached."""

    application_id: ApplicationId
    drill_id: Annotated[str, Column("The drill.", nullable=True)]
    run_id: Annotated[str, Column("Dagster run, or `cli-...`.", nullable=True)]
    began_at_ms: Annotated[int, Column("When it started, epoch milliseconds.", nullable=True)]
    ended_at_ms: Annotated[int, Column("When it ended, epoch milliseconds.", nullable=True)]
    point_id: Annotated[
        str | None, Column("The recovery point; null if the drill ended before one was chosen.")
    ]
    passed: Annotated[
        bool,
        Column(
            "Whether the application recovered with the right state, however long it took.",
            nullable=True,
        ),
    ]
    failed_phase: Annotated[str | None, Column("The phase that failed.")]
    reason: Annotated[str, Column("Why it did not pass; empty if it did.", nullable=True)]
    objective_result: Annotated[
        ObjectiveResult,
        Column("`met`, `missed`, `not_recovered` or `not_declared`.", nullable=True),
    ]
    objective_s: Annotated[float | None, Column("The declared recovery time objective, seconds.")]
    total_s: Annotated[
        float | None,
        Column("From the start of the restore until caught up; null if it never was."),
    ]
    restore_s: Annotated[float | None, Column("Its part for writing and verifying topics.")]
    start_s: Annotated[float | None, Column("From the start of the application to RUNNING.")]
    catch_up_s: Annotated[float | None, Column("From RUNNING to caught up.")]
    restored_records: Annotated[int | None, Column("Records restored.")]
    restored_bytes: Annotated[int | None, Column("Their approximate size.")]
    changelog_records_per_s: Annotated[
        float | None, Column("How fast the application read its changelogs.")
    ]
    cpu_s: Annotated[float | None, Column("CPU time of the application, with its children.")]
    peak_memory_bytes: Annotated[int | None, Column("Its peak memory.")]
    disk_written_bytes: Annotated[int | None, Column("Bytes that it wrote to disk.")]
    state_bytes: Annotated[int | None, Column("Size of its state directory at the end.")]
    report: Annotated[str, Column("The whole report `restoreDrill`, as YAML.", nullable=True)]
