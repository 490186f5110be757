"""What looks at a whole warehouse have found: the table, and which of it is still so."""

import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

from kstreams_assets.checks import Finding, Severity
from kstreams_assets.layout import CONTROL_TABLES, Warehouse
from kstreams_assets.texts import iso_time
from kstreams_assets.warehouse.chain import Head, TableProblem, head, shortened, table_problems
from kstreams_assets.warehouse.column import ApplicationId, Column, RunId
from kstreams_assets.warehouse.table import (
    MARKER,
    MARKER_REMEDY,
    Table,
    marker_problem,
    storage_failures,
)

_KEPT_MS: Final = 400 * 86_400_000
_FEW: Final = 3
MOST_POINTS: Final = 20
"""So many recovery points are named that a damage takes away."""


class VerificationKind(StrEnum):
    """How much was looked at.

    `quick`: logs, ledger, names and sizes of files, chains of spans, rows of points. `full`: also
    the content of every file, or of a sample of them.
    """

    QUICK = "quick"
    FULL = "full"


class DamageKind(StrEnum):
    """What is damaged."""

    WAREHOUSE = "warehouse"
    """The marker of the folder, or all of it."""
    TABLE = "table"
    """A control table, which all applications share."""
    FILE = "file"
    """A file of records, or what Delta's log says of it."""
    LEDGER = "ledger"
    """Rows of the ledger that are missing, that come twice or contradict each other."""
    POINT = "recovery_point"
    SAVED_RECORDS = "saved_records"
    """Records that were saved with recovery points."""
    OFFSET_MAP = "offset_map"
    SNAPSHOT = "ktable_snapshot"


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that is not as it was written.

    `place` is the table or file, below the warehouse. Offsets are `[start, end)`. `points` are the
    newest recovery points that it takes away, newest first, `points_lost` says of how many.
    `by_reading`: only whoever reads contents sees it. `accepted` is why somebody has given it up:
    it is a warning then, and restores still refuse what needs it.
    """

    kind: DamageKind
    place: str
    problem: str
    remedy: str
    window: str | None = None
    topic: str | None = None
    partition: int | None = None
    topic_id: str | None = None
    start: int | None = None
    end: int | None = None
    store: str | None = None
    points: tuple[str, ...] = ()
    points_lost: int = 0
    by_reading: bool = False
    severity: Severity = Severity.ERROR
    accepted: str = ""

    def given_up(self, reason: str) -> "Damage":
        """The same, accepted as lost for good."""
        return replace(self, severity=Severity.WARN, accepted=reason)

    @property
    def identity(self) -> tuple[object, ...]:
        """The same for the same damage at two looks."""
        return (self.kind, self.place, self.window, self.topic, self.partition, self.start)

    @property
    def subject(self) -> str:
        """Where it is, as far as that is known: window, topic, partition, offsets."""
        parts = [] if self.window is None else [f"window {self.window}"]
        if self.topic is not None:
            number = "" if self.partition is None else f"-{self.partition}"
            parts.append(f"{self.topic}{number}")
        if self.start is not None and self.end is not None and self.start < self.end:
            parts.append(f"offsets {self.start} to {self.end - 1}")
        if self.store is not None:
            parts.append(f"store {self.store}")
        return ", ".join(parts) or self.place

    @property
    def finding(self) -> Finding:
        """As it is shown."""
        where = "" if self.subject == self.place else f"{self.place}: "
        accepted = f" Accepted as lost: {self.accepted.rstrip('.')}." if self.accepted else ""
        return Finding(
            self.subject,
            f"{where}{self.problem}.{self._points_told}{accepted}",
            action=self.remedy,
            severity=self.severity,
        )

    @property
    def _points_told(self) -> str:
        if not self.points_lost:
            return ""
        few = ", ".join(self.points[:_FEW])
        more = self.points_lost - len(self.points[:_FEW])
        return (
            f" It takes away {self.points_lost} recovery point(s): {few}"
            f"{f' and {more} older' if more else ''}."
        )

    def touches(self, start: int, end: int) -> bool:
        """Whether it is of one of the offsets `[start, end)` of its partition."""
        return self.start is None or self.end is None or (self.start < end and start < self.end)

    def document(self) -> dict[str, Any]:
        """As JSON has it, without what is not known."""
        return {name: value for name, value in asdict(self).items() if value not in (None, (), "")}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Damage":
        """The damage of a document; what a later release has added to it is left out."""
        known = {
            name: value for name, value in document.items() if name in cls.__dataclass_fields__
        }
        return cls(
            **{
                "remedy": "",
                **known,
                "kind": DamageKind(known["kind"]),
                "severity": Severity(known.get("severity", Severity.ERROR)),
                "points": tuple(known.get("points", ())),
            }
        )


@dataclass(frozen=True, slots=True)
class StoredVerification:
    """One look at all that the warehouse holds of an application."""

    application_id: ApplicationId
    verified_at_ms: Annotated[int, Column("When it was begun, epoch milliseconds.")]
    kind: Annotated[VerificationKind, Column("`quick` or `full`.")]
    sample: Annotated[float, Column("Which share of the files was read, 0 in a quick one.")]
    rounds: Annotated[
        int,
        Column("In so many looks of this sample every file is read once.", type="int32"),
    ]
    round: Annotated[int, Column("Which of them it was, from 0.", type="int32")]
    files: Annotated[int, Column("Files that were read.")]
    bytes: Annotated[int, Column("Bytes that were read.")]
    took_ms: Annotated[int, Column("How long it took.")]
    covered_since_ms: Annotated[
        int | None,
        Column(
            "Since this time every file has been read at least once, epoch milliseconds; null: not"
            " yet."
        ),
    ]
    errors: Annotated[int, Column("Damages that were found and are still open.", type="int32")]
    findings: Annotated[str, Column("What was found and is still open, as JSON.")]
    heads: Annotated[
        str, Column("Newest version of each control table and its digest then, as JSON.")
    ]
    run_id: RunId

    @property
    def damages(self) -> tuple[Damage, ...]:
        """What was found and was still open."""
        return tuple(Damage.of(one) for one in json.loads(self.findings))

    @property
    def seen_heads(self) -> Mapping[str, Head]:
        """The newest version of each control table then."""
        return {name: Head(**said) for name, said in json.loads(self.heads).items()}


class VerificationsTable:
    """The verifications of all applications, kept for 400 days."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._table = Table(
            warehouse.control("verifications"),
            StoredVerification,
            grows_along="verified_at_ms",
            statistics=("verified_at_ms",),
            kept=_KEPT_MS,
        )

    def record(self, verification: StoredVerification) -> None:
        """Add one."""
        self._table.append([verification])

    def newest(self, application_id: str, count: int = 1) -> list[StoredVerification]:
        """The newest ones, newest first.

        Raises:
            NewerLayoutError: A newer release wrote the table.
        """
        rows = self._table.newest_rows(application_id, count)
        return sorted(rows, key=lambda row: row.verified_at_ms, reverse=True)[:count]

    def all(self, application_id: str) -> list[StoredVerification]:
        """All of them, newest first."""
        rows = self._table.rows(application_id)
        return sorted(rows, key=lambda row: row.verified_at_ms, reverse=True)


@dataclass(frozen=True, slots=True)
class Verified:
    """How an application's warehouse was verified last; times in epoch milliseconds.

    `open` is what was found and has not been seen to be mended.
    """

    open: tuple[Damage, ...] = ()
    any_at_ms: int | None = None
    full_at_ms: int | None = None
    covered_since_ms: int | None = None
    heads: Mapping[str, Head] | None = None

    @classmethod
    def of(cls, warehouse: Warehouse, application_id: str) -> "Verified":
        """As it is stored; each verification carries on what those before it found."""
        rows = VerificationsTable(warehouse).all(application_id)
        if not rows:
            return cls()
        newest = rows[0]
        full = next((row for row in rows if row.kind is VerificationKind.FULL), None)
        return cls(
            open=newest.damages,
            any_at_ms=newest.verified_at_ms,
            full_at_ms=None if full is None else full.verified_at_ms,
            covered_since_ms=newest.covered_since_ms,
            heads=newest.seen_heads,
        )


def heads_of(warehouse: Warehouse) -> dict[str, Head]:
    """The newest version of each control table that can be read."""

    def look(name: str) -> Head | None:
        try:
            return head(warehouse.control(name))
        except OSError:
            return None

    return {name: found for name, found in _of_each_table(look) if found is not None}


def heads_text(heads: Mapping[str, Head]) -> str:
    """As they are stored."""
    return json.dumps({name: asdict(one) for name, one in sorted(heads.items())})


def damaged_tables(
    warehouse: Warehouse,
    seen: Mapping[str, Head] | None = None,
    *,
    read: bool = False,
    public_key: Path | None = None,
    throttle: Callable[[int], None] | None = None,
) -> list[Damage]:
    """Control tables that are not as they were committed, or that have lost commits since `seen`.

    With `read` by their contents, too. Among them the marker of the warehouse.

    Raises:
        NewerLayoutError: A newer release wrote something.
        WarehouseError: The warehouse cannot be read.
    """

    def look(name: str) -> list[TableProblem]:
        path = warehouse.control(name)
        before = None if seen is None else seen.get(name)
        with storage_failures(path):
            found = table_problems(path, name, read=read, public_key=public_key, throttle=throttle)
            lost = None if before is None else shortened(path, name, before)
        return found if lost is None else [*found, lost]

    return [
        *_of_marker(warehouse),
        *(
            _of_table(problem, by_reading=read)
            for _, problems in _of_each_table(look)
            for problem in problems
        ),
    ]


def _of_marker(warehouse: Warehouse) -> Iterable[Damage]:
    with storage_failures(warehouse.root):
        problem = marker_problem(warehouse.root)
    if problem:
        yield Damage(
            DamageKind.WAREHOUSE,
            MARKER,
            f"the marker of the warehouse: {problem}",
            MARKER_REMEDY,
            # Releases before markers made none.
            severity=Severity.ERROR if (warehouse.root / MARKER).exists() else Severity.WARN,
        )


def _of_each_table(look: Callable[[str], Any]) -> Iterable[tuple[str, Any]]:
    # A store answers each question late, and many at once.
    with ThreadPoolExecutor(len(CONTROL_TABLES)) as pool:
        return list(zip(CONTROL_TABLES, pool.map(look, CONTROL_TABLES), strict=True))


def _of_table(problem: TableProblem, *, by_reading: bool) -> Damage:
    place = problem.table if not problem.file else f"{problem.table}/{problem.file}"
    return Damage(
        DamageKind.TABLE,
        place,
        problem.problem.rstrip("."),
        problem.remedy,
        by_reading=by_reading,
    )


def unverified_text(verified: Verified, now_ms: int, old_ms: int) -> str:
    """Why a full verification is due, empty when it is not."""
    if verified.full_at_ms is None:
        return "The warehouse was never verified in full."
    if now_ms - verified.full_at_ms > old_ms:
        days = (now_ms - verified.full_at_ms) / 86_400_000
        return (
            f"The last full verification was {days:.0f} days ago ({iso_time(verified.full_at_ms)})."
        )
    return ""
