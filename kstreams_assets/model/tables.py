"""Every small table of a warehouse, declared once.

The order of copies, checks of layout, verification, reference pages and the places of tables follow
from these declarations. `records` and the tables of state stores are not included: they consist of
data files, one table for each application and store.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from kstreams_assets.model.damage import StoredVerification
from kstreams_assets.model.drill import StoredDrill
from kstreams_assets.model.governance_report import StoredVerdict
from kstreams_assets.model.point import Pin, RecoveryPoint
from kstreams_assets.model.recordings import LedgerEntry, NotedTopic
from kstreams_assets.model.restores import MapRow, StoredRestore
from kstreams_assets.model.rule_results import RuleResult
from kstreams_assets.model.saved_records import SavedRecord
from kstreams_assets.model.schemas import StoredSchema
from kstreams_assets.model.snapshot import Snapshot
from kstreams_assets.model.spans import SpanKey

R = TypeVar("R")

_DAY_MS: Final = 86_400_000


class Lock(Enum):
    """The locks of a warehouse, in the order in which they may be taken together.

    A later lock may be taken while an earlier one is held, never the other way round, so no two
    processes wait for each other. The value is the name of the lock's file.
    """

    FOLLOWER = "followers/{application_id}"
    """One follower of an application."""
    DRILL = "drill-{application_id}"
    """One drill of an application."""
    RECORDER_SENSOR = "recorder-sensor/{application_id}"
    BACKUP_SENSOR = "backup-requests/{application_id}"
    REPORTS_SENSOR = "dagster-reports/{application_id}"
    """One tick of a sensor; two daemons may tick at once."""
    RESTORE = "restore-{of}"
    """Writes to one group on one target cluster (`of`: `<cluster id>-<group>`)."""
    MERGE = "fold/{application_id}"
    """Only one run at a time merges increments or windows, because it removes what others would
    read."""
    APPLICATION = "{application_id}"
    """Commits to the records, ledger, snapshots and topics of an application."""
    RECORDER = "recorder/{application_id}"
    """Taking, dropping and pinning recovery points."""

    @property
    def rank(self) -> int:
        """Its place in the order."""
        return [*Lock].index(self)


@dataclass(frozen=True, slots=True)
class Derived:
    """Columns that are missing in rows of earlier releases, and that follow from an existing
    column.

    `of` computes their values from a value of `source`. Readers see them in all rows; the first
    writer rewrites files without them.
    """

    source: str
    columns: tuple[str, ...]
    of: Callable[[Any], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class TableSpec(Generic[R]):
    """One table: its name, the class of its rows, its purpose, the layout of its files.

    `written_under` is the lock whose holder writes it; a new holder fences it. None: rows are added
    without a lock. `is_state`: restores, drills and checks write it, so it is in `state_in` if the
    warehouse itself is read-only. `derived`: missing columns of earlier releases. The others are as
    in `Table`.
    """

    name: str
    row: type[R]
    text: str
    grows_along: str
    statistics: tuple[str, ...] = ()
    written_under: Lock | None = None
    is_state: bool = False
    bulky: bool = False
    narrow: bool = False
    small_files: int = 32
    kept: int | None = None
    derived: Derived | None = None


def _span_columns(key: str) -> tuple[str, str, str]:
    span = SpanKey.of(key)
    return span.kind.value, span.first_window, span.last_window


_SPAN_OF_KEY: Final = Derived("window", ("kind", "first_window", "last_window"), _span_columns)
_LEDGER_STATISTICS: Final = (
    "window",
    "window_start_ms",
    "window_end_ms",
    "topic",
    "recovery_point_id",
    "kind",
)

RECOVERY_POINTS: Final = TableSpec(
    "recovery_points",
    RecoveryPoint,
    "Recovery points, one row each.",
    grows_along="taken_at_ms",
    statistics=("taken_at_ms", "id", "sequence"),
    written_under=Lock.RECORDER,
    small_files=128,  # maintenance rounds merge earlier; this is for the case without them
)
SAVED_RECORDS: Final = TableSpec(
    "recovery_point_records",
    SavedRecord,
    "Records of recovery points that could not wait for a backup: repartition records in"
    " flight, tails of changelogs.",
    grows_along="recovery_point_id",  # ids sort by the time their point was taken
    statistics=("recovery_point_id", "topic", "partition", "offset"),
    written_under=Lock.RECORDER,
    bulky=True,
    small_files=128,  # as for the points
)
PINS: Final = TableSpec(
    "pins",
    Pin,
    "Recovery points that are kept until they are unpinned (`recovery-points pin`).",
    grows_along="pinned_at_ms",
    written_under=Lock.RECORDER,
)
WINDOWS: Final = TableSpec(
    "windows",
    LedgerEntry,
    "The ledger: one row for each window, topic and partition that is backed up.",
    grows_along="window_start_ms",
    statistics=_LEDGER_STATISTICS,
    written_under=Lock.APPLICATION,
    narrow=True,
    derived=_SPAN_OF_KEY,
)
INCREMENTS: Final = TableSpec(
    "increments",
    LedgerEntry,
    "A follower's backups of open windows, in order: rows as in `windows`, with the window's key,"
    " `+` and a number as `window`. They are removed once the window's own rows exist.",
    grows_along="window_start_ms",
    statistics=_LEDGER_STATISTICS,
    written_under=Lock.APPLICATION,
    narrow=True,
    derived=_SPAN_OF_KEY,
)
TOPICS: Final = TableSpec(
    "topics",
    NotedTopic,
    "How each topic was described when a window was backed up.",
    grows_along="window_end_ms",
    statistics=("window", "window_end_ms", "topic"),
    written_under=Lock.APPLICATION,
    narrow=True,
)
RESTORES: Final = TableSpec(
    "restores",
    StoredRestore,
    "Restores, one row for each change of state.",
    grows_along="changed_at_ms",
    statistics=("restore_id", "change", "changed_at_ms"),
    written_under=Lock.RESTORE,
    is_state=True,
)
OFFSET_MAPS: Final = TableSpec(
    "offset_maps",
    MapRow,
    "Positions of restored records: source offsets to target offsets, run by run.",
    grows_along="restore_id",
    statistics=("restore_id", "topic", "partition", "source_start"),
    written_under=Lock.RESTORE,
    is_state=True,
    bulky=True,
)
SNAPSHOTS: Final = TableSpec(
    "ktable_snapshots",
    Snapshot,
    "The snapshots of state stores, one row for each store and window.",
    grows_along="recorded_at_ms",
    statistics=("store", "window", "recorded_at_ms"),
    written_under=Lock.APPLICATION,
)
SCHEMAS: Final = TableSpec(
    "schemas",
    StoredSchema,
    "Schemas of Avro and Protobuf records, copied from the registry.",
    grows_along="saved_at_ms",
    statistics=("id", "saved_at_ms"),
)
FINDINGS: Final = TableSpec(
    "governance_findings",
    StoredVerdict,
    "Governance reports, one row for each check; kept for 90 days.",
    grows_along="judged_at_ms",
    statistics=("judged_at_ms",),
    is_state=True,
    kept=90 * _DAY_MS,
)
RESULTS: Final = TableSpec(
    "completeness_results",
    RuleResult,
    "Results of completeness rules, one row for each evaluation of each rule.",
    grows_along="evaluated_at_ms",
    statistics=("evaluated_at_ms", "window", "point_id", "run_id"),
    is_state=True,
)
DRILLS: Final = TableSpec(
    "drills",
    StoredDrill,
    "Restore drills, one row each.",
    grows_along="began_at_ms",
    statistics=("drill_id", "began_at_ms"),
    is_state=True,
)
VERIFICATIONS: Final = TableSpec(
    "verifications",
    StoredVerification,
    "Verifications of the whole warehouse (`verify`), one row each; kept for 400 days.",
    grows_along="verified_at_ms",
    statistics=("verified_at_ms",),
    is_state=True,
    kept=400 * _DAY_MS,
)

TABLES: Final[tuple[TableSpec[Any], ...]] = (
    RECOVERY_POINTS,
    SAVED_RECORDS,
    PINS,
    WINDOWS,
    INCREMENTS,
    TOPICS,
    RESTORES,
    OFFSET_MAPS,
    SNAPSHOTS,
    SCHEMAS,
    FINDINGS,
    RESULTS,
    DRILLS,
    VERIFICATIONS,
)
"""All tables, in the order in which they are copied: references come before their targets."""
CONTROL_TABLES: Final = tuple(table.name for table in TABLES)
STATE_TABLES: Final = frozenset(table.name for table in TABLES if table.is_state)


def written_under(lock: Lock) -> tuple[TableSpec[Any], ...]:
    """The tables that the holder of a lock writes."""
    return tuple(table for table in TABLES if table.written_under is lock)
