"""Damage found by a verification, and its place."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, Final

from kstreams_assets.checks import Finding, Severity
from kstreams_assets.errors import StoredDataError
from kstreams_assets.model.column import ApplicationId, Column, RunId
from kstreams_assets.offsets import OffsetRange
from kstreams_assets.public_form import TABLE, Form, Value

_FEW: Final = 3
_DEPTHS: Final = {"records": 2, "ktables": 3}
"""Number of parts of a table's path, below these folders."""


MOST_POINTS: Final = 20
"""At most this many recovery points affected by a damage are named."""


class VerificationKind(StrEnum):
    """The extent of a verification.

    `quick`: logs, ledger, names and sizes of files, chains of spans, rows of points. `full`: also
    the content of every file, or of a sample of them.
    """

    QUICK = "quick"
    FULL = "full"


class DamageKind(StrEnum):
    """The kind of damaged data."""

    WAREHOUSE = "warehouse"
    """The marker of the folder, or the whole folder."""
    TABLE = "table"
    """A control table, which all applications share."""
    FILE = "file"
    """A file of records, or its entry in Delta's log."""
    LEDGER = "ledger"
    """Rows of the ledger that are missing, duplicate or contradictory."""
    POINT = "recovery_point"
    SAVED_RECORDS = "saved_records"
    """Records that were saved with recovery points."""
    OFFSET_MAP = "offset_map"
    SNAPSHOT = "ktable_snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredExtent:
    """The contents of a stored file, or the extent of a damage, as far as known.

    `window` is a key of the ledger, also of an increment. Offsets are `[start, end)`.
    """

    window: str | None = None
    topic: str | None = None
    partition: int | None = None
    topic_id: str | None = None
    start: int | None = None
    end: int | None = None
    store: str | None = None

    @property
    def span(self) -> tuple[object, ...]:
        """Equal for all files of a span of records, and for their damage."""
        return (self.window, self.topic, self.partition, self.topic_id, self.start)


@dataclass(frozen=True, slots=True)
class Damage(StoredExtent):
    """Stored data that is not intact.

    `place` is the table or file, below the warehouse. `points` are the newest affected recovery
    points, newest first; `points_lost` is the number of all. `by_reading`: only reading the
    contents shows it. `accepted` is the reason why a user has accepted the loss: the damage is a
    warning then, and restores still refuse data that needs it.
    """

    kind: DamageKind
    place: str
    problem: str
    remedy: str
    points: tuple[str, ...] = ()
    points_lost: int = 0
    by_reading: bool = False
    severity: Severity = Severity.ERROR
    accepted: str = ""

    def given_up(self, reason: str) -> "Damage":
        """A copy, accepted as permanently lost."""
        return replace(self, severity=Severity.WARN, accepted=reason)

    def as_error(self) -> StoredDataError:
        """The error of a backup or snapshot that cannot be used."""
        subject = f"The backup of {self.topic}-{self.partition}, window {self.window},"
        if self.kind is DamageKind.SNAPSHOT:
            subject = f"The KTable snapshot of store {self.store}, window {self.window},"
        return StoredDataError(subject=subject, problem=self.problem, remedy=self.remedy)

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for the same damage in two verifications."""
        return (self.kind, self.place, self.window, self.topic, self.partition, self.start)

    @property
    def table(self) -> str:
        """The table, by its path below the warehouse."""
        parts = self.place.split("/")
        return "/".join(parts[: _DEPTHS.get(parts[0], 1)])

    @property
    def file(self) -> str:
        """The file, by its path below the table; empty if the place names none."""
        return self.place.removeprefix(self.table).removeprefix("/")

    def __str__(self) -> str:
        return f"{self.subject}: {self.problem}"

    @property
    def subject(self) -> str:
        """The place, as far as known: window, topic, partition, offsets."""
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
        """The public form."""
        where = "" if self.subject == self.place else f"{self.place}: "
        accepted = f" Accepted as lost: {self.accepted.rstrip('.')}." if self.accepted else ""
        return Finding(
            self.subject,
            f"{where}{self.problem}.{self._affected_points_text}{accepted}",
            action=self.remedy,
            severity=self.severity,
        )

    @property
    def _affected_points_text(self) -> str:
        if not self.points_lost:
            return ""
        few = ", ".join(self.points[:_FEW])
        more = self.points_lost - len(self.points[:_FEW])
        return (
            f" It affects {self.points_lost} recovery point(s): {few}"
            f"{f' and {more} older' if more else ''}."
        )

    @property
    def offsets(self) -> OffsetRange:
        """The damaged offsets of its partition; empty if it has none."""
        return OffsetRange(self.start or 0, self.end or 0)

    def touches(self, start: int, end: int) -> bool:
        """Whether it affects one of the offsets `[start, end)` of its partition."""
        return self.start is None or self.end is None or (self.start < end and start < self.end)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Damage":
        """The damage in a document; fields of later releases are ignored."""
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


def _where(damage: Damage) -> str:
    subject, place = damage.subject, damage.place
    return subject if subject == place else f"{subject}\n{place}"


def _description(damage: Damage) -> str:
    accepted = f"\naccepted: {damage.accepted}" if damage.accepted else ""
    return f"{damage.problem}{accepted}"


_WARNING: Final = {Severity.ERROR: "", Severity.WARN: " (warning)"}
DAMAGE: Final = Form(
    Damage,
    "kind place problem",
    Value("remedy", heading="what to do"),
    "window topic partition topic_id start end store points points_lost by_reading severity",
    "accepted",
    Value("what", of=lambda damage: f"{damage.kind}{_WARNING[damage.severity]}", where=TABLE),
    Value("where", of=_where, where=TABLE),
    Value("description", of=_description, heading="problem", where=TABLE),
    Value(
        "lost", of=lambda d: d.points_lost or "", heading="affected recovery points", where=TABLE
    ),
    omits_empty=True,
)
"""The public form of damage, also its stored form."""


@dataclass(frozen=True, slots=True)
class Head:
    """The newest entry of a table's log: its version, and the SHA-256 of its bytes in hex."""

    version: int
    digest: str


@dataclass(frozen=True, slots=True)
class StoredVerification:
    """One verification of an application's part of the warehouse."""

    application_id: ApplicationId
    verified_at_ms: Annotated[int, Column("When it started, epoch milliseconds.")]
    kind: Annotated[VerificationKind, Column("`quick` or `full`.")]
    sample: Annotated[float, Column("Share of the files that was read, 0 in a quick verification.")]
    rounds: Annotated[
        int,
        Column("Number of verifications with this sample that read every file once.", type="int32"),
    ]
    round: Annotated[int, Column("Its number among these, from 0.", type="int32")]
    files: Annotated[int, Column("Files that were read.")]
    bytes: Annotated[int, Column("Bytes that were read.")]
    took_ms: Annotated[int, Column("Its duration.")]
    covered_since_ms: Annotated[
        int | None,
        Column(
            "Every file has been read at least once since this time, epoch milliseconds; null: not"
            " yet."
        ),
    ]
    errors: Annotated[int, Column("Number of unrepaired damages.", type="int32")]
    findings: Annotated[str, Column("Unrepaired findings, as JSON.")]
    heads: Annotated[
        str, Column("Newest version of each control table then, with its digest, as JSON.")
    ]
    run_id: RunId

    @property
    def damages(self) -> tuple[Damage, ...]:
        """The unrepaired damage."""
        return tuple(Damage.of(one) for one in json.loads(self.findings))

    @property
    def seen_heads(self) -> Mapping[str, Head]:
        """The newest version of each control table then."""
        return {name: Head(**said) for name, said in json.loads(self.heads).items()}


class DamagedSpans:
    """Damage of spans, in order of topic, partition and offsets."""

    def __init__(self, spans: Iterable[Damage] = ()) -> None:
        self._spans = sorted(
            spans, key=lambda s: (s.topic or "", s.partition or 0, s.offsets.start, s.window or "")
        )
        self._by_life: dict[tuple[object, ...], list[Damage]] = defaultdict(list)
        for span in self._spans:
            self._by_life[span.topic, span.partition, span.topic_id].append(span)

    def __iter__(self) -> Iterator[Damage]:
        return iter(self._spans)

    def __bool__(self) -> bool:
        return bool(self._spans)

    def inside(self, life: tuple[str, int, str], start: int, end: int) -> Damage | None:
        """The first one of a partition (topic, partition, topic id) with offsets `[start, end)`."""
        return next((s for s in self._by_life.get(life, ()) if s.touches(start, end)), None)

    def ranges(self, life: tuple[str, int, str], start: int, end: int) -> list[OffsetRange]:
        """The damaged part of offsets `[start, end)` of a partition, in order."""
        return [
            OffsetRange(max(s.offsets.start, start), min(s.offsets.end, end))
            for s in self._by_life.get(life, ())
            if s.touches(start, end)
        ]


NOTHING_DAMAGED: Final = DamagedSpans()


@dataclass(frozen=True, slots=True)
class Verified:
    """The last verification of an application's warehouse; times in epoch milliseconds.

    `open` are findings that were not seen as repaired.
    """

    open: tuple[Damage, ...] = ()
    any_at_ms: int | None = None
    full_at_ms: int | None = None
    covered_since_ms: int | None = None
    heads: Mapping[str, Head] | None = None


def heads_text(heads: Mapping[str, Head]) -> str:
    """The stored form."""
    return json.dumps({name: asdict(one) for name, one in sorted(heads.items())})
