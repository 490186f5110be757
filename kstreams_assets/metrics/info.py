"""A summary of each application in a warehouse: points, windows, bytes, its last checks.

Everything comes from tables of the warehouse, without broker and JVM. File integrity is checked by
`verify`, whose last result is shown.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from kstreams_assets.backup.requests import window_statuses
from kstreams_assets.drill.readiness import Evidence, evaluate_readiness, facts_of
from kstreams_assets.errors import WarehouseError
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.damage import Verified
from kstreams_assets.model.point import Guarantee, Method, PointInstant, in_order
from kstreams_assets.model.restorability import PointStatus, Restorability
from kstreams_assets.model.spans import SpanKind
from kstreams_assets.model.tables import CONTROL_TABLES
from kstreams_assets.public_form import Form, Timestamp, Value
from kstreams_assets.recovery.retention import NOT_BACKED_UP, kept_by_policy
from kstreams_assets.repository.known import known_of
from kstreams_assets.repository.ktable_files import open_table
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.table import open_delta
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store.failures import storage_failures

_DAY_MS = 86_400_000
_GROWTH_DAYS = 7
_COLUMNS = [
    "window",
    "kind",
    "window_start_ms",
    "window_end_ms",
    "topic",
    "records",
    "stored_bytes",
    "continues",
    "min_timestamp_ms",
]
SAVED = "recovery_point_records"


@dataclass(frozen=True, slots=True)
class ApplicationInfo:
    """One application of a warehouse; sizes in bytes as stored, times in epoch milliseconds.

    `newest_exact`, `newest_enough` (`Restorable.enough`) and `newest_covered` are known only for
    applications whose YAML is given. The same holds for `due` windows, `not_ready_because` (the
    blockers of a recovery, as in `ready`) and `expires` (how many points the policy would delete,
    None without one). `bytes_by_role` are the sizes of the records' files by the roles of their
    topics. `windows` counts rows of the ledger: windows that `expire` has merged count as one.
    """

    application_id: str
    points: int = 0
    newest_point: PointInstant | None = None
    oldest_point: PointInstant | None = None
    pinned: int = 0
    newest_exact: PointStatus | None = None
    newest_enough: PointStatus | None = None
    newest_covered: PointStatus | None = None
    windows: int = 0
    put_together: int = 0
    backed_up_to_ms: int | None = None
    due: int | None = None
    records: int = 0
    bytes_by_role: Mapping[str, int] = field(default_factory=dict)
    saved_bytes: int = 0
    ktable_bytes: int = 0
    growth: "Growth | None" = None
    verified: Verified = field(default_factory=Verified)
    drilled_at_ms: int | None = None
    drill_passed: bool | None = None
    unfinished_restores: int = 0
    not_ready_because: tuple[str, ...] | None = None
    expires: int | None = None

    @property
    def bytes(self) -> int:
        """All bytes that belong to the application alone."""
        return sum(self.bytes_by_role.values()) + self.saved_bytes + self.ktable_bytes

    @property
    def ready(self) -> bool | None:
        """Whether a recovery has no blockers; None if unknown."""
        return None if self.not_ready_because is None else not self.not_ready_because

    @property
    def growth_per_day(self) -> float | None:
        """Growth per day in bytes; None if not known yet."""
        return None if self.growth is None else self.growth.bytes * _DAY_MS / self.growth.over_ms


@dataclass(frozen=True, slots=True)
class Growth:
    """Bytes that backups added during a time: records, and KTable snapshots of the same windows."""

    bytes: int
    over_ms: int


@dataclass(frozen=True, slots=True)
class WarehouseInfo:
    """All applications of a warehouse; `table_bytes` is the size of their shared tables."""

    root: str
    applications: tuple[ApplicationInfo, ...]
    table_bytes: int
    now_ms: int


_APPLICATION: Final = Form(
    ApplicationInfo,
    "application_id points pinned newest_point=newest_point.id oldest_point=oldest_point.id",
    "newest_exact=newest_exact.id newest_covered=newest_covered.id",
    "gives=newest_covered.restorability windows put_together due",
    Value("backed_up_to", Timestamp, "backed_up_to_ms"),
    "records bytes bytes_by_role saved_bytes ktable_bytes growth_bytes_per_day=growth_per_day",
    Value("verified_at", Timestamp, "verified.any_at_ms"),
    Value("verified_in_full_at", Timestamp, "verified.full_at_ms"),
    Value("open_findings", of=lambda info: len(info.verified.open)),
    Value("drilled_at", Timestamp, "drilled_at_ms"),
    "drill_passed unfinished_restores ready expires",
)
WAREHOUSE: Final = Form(
    WarehouseInfo,
    "warehouse=root table_bytes",
    Value("applications", form=_APPLICATION),
)


def warehouse_info(
    warehouse: Warehouse,
    settings: Iterable[ApplicationSettings] = (),
    *,
    now_ms: int | None = None,
) -> WarehouseInfo:
    """The contents of a warehouse; for applications with settings also their due windows.

    Raises:
        WarehouseError: The warehouse does not exist, or cannot be read.
    """
    if not warehouse.exists:
        raise WarehouseError(
            path=warehouse.root,
            reason="there is no warehouse, so nothing is backed up there",
            remedy="Check the path (warehouse in the YAML, --warehouse).",
        )
    known = {
        # All applications of the warehouse share the data that is read.
        one.application_id: replace(one, warehouse=warehouse) if one.warehouse == warehouse else one
        for one in settings
    }
    moment = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    sizes = _table_sizes(warehouse)
    found = {*known, *_applications(warehouse), *(id_ for _, id_ in sizes)}
    return WarehouseInfo(
        str(warehouse.root),
        tuple(
            _of_application(warehouse, id_, known.get(id_), sizes, moment) for id_ in sorted(found)
        ),
        sum(size for (table, _), size in sizes.items() if table != SAVED),
        moment,
    )


def _applications(warehouse: Warehouse) -> set[str]:
    with storage_failures(warehouse.root):
        try:
            found = {path.name for path in (warehouse.root / "records").iterdir()}
        except FileNotFoundError:
            found = set()
    return found


def _table_sizes(warehouse: Warehouse) -> dict[tuple[str, str], int]:
    """Bytes of the files of each control table and application, according to its log."""
    found: dict[tuple[str, str], int] = {}
    known = known_of(warehouse)
    for name in CONTROL_TABLES:
        table = open_delta(warehouse.control(name), name, known=known)
        if table is None:
            continue
        added = pa.table(table.get_add_actions(flatten=True))
        if added.num_rows == 0:
            continue
        sums = added.group_by("partition.application_id").aggregate([("size_bytes", "sum")])
        ids, sizes = sums["partition.application_id"], sums["size_bytes_sum"]
        for application_id, size in zip(ids.to_pylist(), sizes.to_pylist(), strict=True):
            found[name, application_id] = size
    return found


def _of_application(
    warehouse: Warehouse,
    application_id: str,
    settings: ApplicationSettings | None,
    sizes: Mapping[tuple[str, str], int],
    now_ms: int,
) -> ApplicationInfo:
    repo = Repository.of(warehouse, application_id)
    instants = sorted(repo.points.instants(), key=in_order)
    rows = repo.ledger.every_row(_COLUMNS)
    drill = repo.drills.newest()
    ktables = _ktable_bytes(warehouse, application_id)
    info = ApplicationInfo(
        application_id=application_id,
        points=len(instants),
        newest_point=instants[-1] if instants else None,
        oldest_point=instants[0] if instants else None,
        pinned=len(repo.pins.all()),
        windows=_windows(rows, SpanKind.WINDOW),
        put_together=_windows(rows, SpanKind.MERGED),
        backed_up_to_ms=int(rows["window_end_ms"].to_numpy().max()) if rows.num_rows else None,
        records=_sum(rows, "records"),
        bytes_by_role=_by_role(warehouse, application_id, rows),
        saved_bytes=sizes.get((SAVED, application_id), 0),
        ktable_bytes=sum(ktables.values()),
        growth=growth_of(rows, ktables, now_ms),
        verified=repo.verifications.verified(),
        drilled_at_ms=None if drill is None else drill.began_at_ms,
        drill_passed=None if drill is None else drill.passed,
        unfinished_restores=len(repo.drills.without_drills(repo.restores.unfinished())),
    )
    return info if settings is None else _with_settings(info, settings, instants, now_ms)


def _with_settings(
    info: ApplicationInfo,
    settings: ApplicationSettings,
    instants: Sequence[PointInstant],
    now_ms: int,
) -> ApplicationInfo:
    # The same evaluation as in `ready`, the metrics and Dagster: damaged files count.
    facts = facts_of(Evidence(settings), now_ms)
    restorable, readiness = facts.recency.restorable, evaluate_readiness(facts)
    due = [status.window for status in window_statuses(settings) if status.is_due]
    return replace(
        info,
        newest_exact=restorable.exact,
        newest_enough=restorable.enough,
        newest_covered=restorable.covered,
        due=len(due),
        not_ready_because=tuple(one.text for one in readiness.against),
        expires=_expires(info, settings, instants, now_ms),
    )


def _expires(
    info: ApplicationInfo,
    settings: ApplicationSettings,
    instants: Sequence[PointInstant],
    now_ms: int,
) -> int | None:
    """How many points would expire, if all of them could be restored."""
    if settings.keep is None:
        return None
    by_id = {instant.id: instant for instant in instants}

    def status_of(point_id: str) -> PointStatus:
        instant = by_id[point_id]
        exact = instant.exact
        return PointStatus(
            point_id,
            instant.taken_at_ms,
            Method.TRANSACTIONS,
            Guarantee.EXACT if exact else Guarantee.AT_LEAST_ONCE,
            instant.sealed,
            covered=True,
            restorability=Restorability.EXACT if exact else Restorability.AT_LEAST_ONCE,
            reason=NOT_BACKED_UP,
        )

    kept = kept_by_policy(
        settings, instants, status_of, now_ms=now_ms, backed_up_to_ms=info.backed_up_to_ms or 0
    )
    return len(instants) - len(kept)


def _windows(rows: pa.Table, kind: SpanKind) -> int:
    return len(rows.filter(pc.field("kind") == kind)["window"].unique())


def _by_role(warehouse: Warehouse, application_id: str, rows: pa.Table) -> dict[str, int]:
    roles = Repository.of(warehouse, application_id).topics.roles()
    found: dict[str, int] = {}
    sums = rows.group_by("topic").aggregate([("stored_bytes", "sum")])
    for topic, size in zip(
        sums["topic"].to_pylist(), sums["stored_bytes_sum"].to_pylist(), strict=True
    ):
        role = roles.get(topic, "not noted")
        found[role] = found.get(role, 0) + size
    return found


def _ktable_bytes(warehouse: Warehouse, application_id: str) -> Mapping[str, int]:
    """Bytes of all KTable snapshots by window."""
    folder = warehouse.ktable(application_id, "store").parent
    with storage_failures(folder):
        try:
            stores = [*folder.iterdir()]
        except FileNotFoundError:
            return {}
    found: dict[str, int] = {}
    for path in stores:
        table = open_table(path, known=known_of(warehouse))
        added = None if table is None else pa.table(table.get_add_actions(flatten=True))
        if added is None or not added.num_rows:
            continue
        named = added.select(["partition.window", "size_bytes"]).to_pydict()
        for window, size in zip(*named.values(), strict=True):
            found[window] = found.get(window, 0) + size
    return found


def growth_of(rows: pa.Table, ktables: Mapping[str, int], now_ms: int) -> Growth | None:
    """The growth by the windows of the last days, and their duration; None if unknown.

    The first span of a partition contains all earlier records, so its bytes do not count, unless
    there are no others: then the time starts with its oldest record. Only the time of backed-up
    windows counts, for the open one up to its last increment.
    """
    recent = rows.filter(
        (pc.field("window_end_ms") > now_ms - _GROWTH_DAYS * _DAY_MS)
        & (pc.field("kind") != SpanKind.MERGED)
    )
    steady = recent.filter(pc.field("continues"))
    if steady.num_rows:
        times = _times(steady, "window_start_ms")
        windows = {*steady["window"].to_pylist()}
        added = _sum(steady, "stored_bytes") + sum(ktables.get(window, 0) for window in windows)
    else:
        with_records = recent.filter(pc.field("min_timestamp_ms") > 0)
        times = _times(with_records, "min_timestamp_ms")
        added = _sum(with_records, "stored_bytes")
    over_ms = _length_ms(times)
    return Growth(added, over_ms) if over_ms > 0 else None


def _times(rows: pa.Table, start: str) -> list[tuple[int, int]]:
    ends = rows["window_end_ms"].to_pylist()
    return sorted({*zip(rows[start].to_pylist(), ends, strict=True)})


def _length_ms(times: Iterable[tuple[int, int]]) -> int:
    """The total length of times that may overlap; they are ordered by start."""
    length = reached = 0
    for start, end in times:
        length += max(0, end - max(start, reached))
        reached = max(reached, end)
    return length


def _sum(rows: pa.Table, column: str) -> int:
    return int(rows[column].to_numpy().sum())
