"""The warehouse of an application as one object: its tables, its places, its locks."""

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from kstreams_assets.app.model import StreamsApplication
from kstreams_assets.copy_mark import copy_mark
from kstreams_assets.errors import LockOrderError, WarehouseError
from kstreams_assets.layout import Warehouse
from kstreams_assets.lease import warehouse_lock
from kstreams_assets.model.spans import Window
from kstreams_assets.model.tables import Lock
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store import StorePath, store_at
from kstreams_assets.store.locks import LockHandle

if TYPE_CHECKING:  # they load Arrow, and much of the program opens no table
    from kstreams_assets.repository.contents import View
    from kstreams_assets.repository.control_tables import ControlTables
    from kstreams_assets.repository.drills import DrillsTable
    from kstreams_assets.repository.findings import FindingsTable
    from kstreams_assets.repository.known import Known
    from kstreams_assets.repository.ledger import Ledger, TopicFactsTable
    from kstreams_assets.repository.lineage import Lineage
    from kstreams_assets.repository.points import PinsTable, RecoveryPointTable, SavedRecordsTable
    from kstreams_assets.repository.restores import OffsetMapsTable, RestoresTable
    from kstreams_assets.repository.results import ResultsTable
    from kstreams_assets.repository.schemas import SchemasTable
    from kstreams_assets.repository.snapshots import SnapshotsTable
    from kstreams_assets.repository.verifications import VerificationsTable


class _Opened:
    """An attribute that is created at its first use: a table, or a view on several tables."""

    def __init__(self, module: str, *, is_table: bool) -> None:
        self._module, self._is_table = module, is_table

    def __set_name__(self, owner: type, name: str) -> None:
        self._name, self._kind = name, owner.__annotations__[name]

    def __get__(self, repo: "Repository | None", owner: type) -> Any:  # noqa: ANN401
        if repo is None:
            return self
        module = import_module(f"kstreams_assets.repository.{self._module}")
        kind = getattr(module, self._kind)
        of_table = repo.warehouse, repo.application_id, repo.known
        made = kind(*of_table) if self._is_table else kind(repo)
        repo.__dict__[self._name] = made
        return made


def _in(module: str) -> Any:  # noqa: ANN401
    """The table of the annotated class, in a module of this package."""
    return _Opened(module, is_table=True)


def _over(module: str) -> Any:  # noqa: ANN401
    """The annotated class, in a module of this package, over several tables."""
    return _Opened(module, is_table=False)


INSPECT_TIMEOUT_S: Final = 1.0
"""How long files are inspected before points are evaluated; the next call continues there."""

_held = threading.local()
"""For each thread its locks, by the root of the warehouse."""


class Repository:
    """The warehouse of one application.

    Its tables are attributes and are created at their first use. Nothing outside this package
    creates a table or a lock. Its cache is its own (`known`): a new Repository has read nothing,
    and a long process keeps one for each application.

    Example:
        >>> repo = Repository.open(settings)
        >>> repo.points.newest()
    """

    points: "RecoveryPointTable" = _in("points")
    saved_records: "SavedRecordsTable" = _in("points")
    pins: "PinsTable" = _in("points")
    ledger: "Ledger" = _in("ledger")
    topics: "TopicFactsTable" = _in("ledger")
    restores: "RestoresTable" = _in("restores")
    offset_maps: "OffsetMapsTable" = _in("restores")
    snapshots: "SnapshotsTable" = _in("snapshots")
    schemas: "SchemasTable" = _in("schemas")
    results: "ResultsTable" = _in("results")
    findings: "FindingsTable" = _in("findings")
    drills: "DrillsTable" = _in("drills")
    verifications: "VerificationsTable" = _in("verifications")
    lineage: "Lineage" = _over("lineage")
    control_tables: "ControlTables" = _over("control_tables")

    def __init__(self, warehouse: Warehouse, application_id: str) -> None:
        self.warehouse = warehouse
        self.application_id = application_id
        self._first_seen_ms: int | None = None

    @classmethod
    def open(cls, settings: ApplicationSettings) -> "Repository":
        """The warehouse in the settings; nothing is read or created yet.

        Opening it again with the same `Warehouse` object returns the same Repository.
        """
        return cls.of(settings.warehouse, settings.application_id)

    @classmethod
    def of(cls, warehouse: Warehouse, application_id: str) -> "Repository":
        """Like `open`, for an application in a warehouse."""
        return warehouse.opened.setdefault(application_id, cls(warehouse, application_id))

    @property
    def records_path(self) -> StorePath:
        """The path of the records table."""
        return self.warehouse.records(self.application_id)

    @cached_property
    def known(self) -> "Known":
        """The data that it has read and need not read again."""
        from kstreams_assets.repository.known import Known, known_of

        is_opened = self.warehouse.opened.get(self.application_id) is self
        return known_of(self.warehouse) if is_opened else Known()

    def first_seen_ms(self) -> int | None:
        """The earliest recovery point or recorded window (epoch ms), None if there is none.

        Points are dropped over time; the row of the first window stays. Once something is recorded,
        the answer does not change.

        Raises:
            NewerLayoutError: A newer release wrote a table.
            WarehouseError: The warehouse cannot be read.
        """
        if self._first_seen_ms is None:
            found = [instant.effective_at_ms for instant in self.points.instants()]
            window_ms = self.ledger.first_start_ms()
            found += [] if window_ms is None else [window_ms]
            self._first_seen_ms = min(found, default=None)
        return self._first_seen_ms

    def absence(self) -> WarehouseError | None:
        """An expected part that is missing, as an error to show or raise.

        Raises:
            WarehouseError: The path is a file or cannot be read.
        """
        from kstreams_assets.repository.table import holds_files

        warehouse, application_id = self.warehouse, self.application_id
        if not warehouse.exists:
            return WarehouseError(
                path=warehouse.root,
                reason="there is no warehouse, so nothing is backed up there",
                remedy="Check the path (warehouse in the YAML, --warehouse) and whether its disk is"
                " mounted."
                if store_at(warehouse.root).on_disk
                else "Check bucket and prefix (warehouse in the YAML, --warehouse).",
            )
        mark = copy_mark(warehouse.root)
        if mark is not None and application_id not in (mark.applications or (application_id,)):
            return WarehouseError(
                path=warehouse.root,
                reason=f"it is a copy of {mark.source} that contains"
                f" {', '.join(mark.applications or ())}, but not {application_id}",
                remedy="Use another copy, or add the application (kstreams-assets copy"
                f" --application {application_id}).",
            )
        # Until the first window is closed, a follower has only increments.
        ledger = (warehouse.control(name) for name in ("windows", "increments"))
        if not any(path.exists() for path in ledger) and holds_files(
            warehouse.records(application_id)
        ):
            return WarehouseError(
                path=warehouse.root,
                reason=f"it contains records of {application_id}, but the ledger of its backups"
                f" ({warehouse.control('windows').name}) is missing",
                remedy="Restore it from a copy of the warehouse; a backup would start from the"
                " beginning.",
            )
        return None

    def require_backup(self) -> None:
        """Stop if there is no warehouse or no ledger, before anything is created there.

        Raises:
            WarehouseError: See `absence`.
        """
        missing = self.absence()
        if missing is not None:
            raise missing

    def reading(
        self,
        of: ApplicationSettings | StreamsApplication,
        *,
        inspect_timeout_s: float | None = INSPECT_TIMEOUT_S,
        requested_inspect_timeout_s: float = math.inf,
    ) -> "View":
        """One state of the tables, from which everything is planned.

        Args:
            of: The application as currently configured or declared.
            inspect_timeout_s: How long files are inspected before points are evaluated, see `View`.
            requested_inspect_timeout_s: How long files with requested records are inspected.

        Raises:
            NewerLayoutError: A newer release wrote a table.
            WarehouseError: The warehouse cannot be read.
        """
        from kstreams_assets.repository.contents import View

        if isinstance(of, StreamsApplication):
            return View(
                self,
                of,
                inspect_timeout_s=inspect_timeout_s,
                requested_inspect_timeout_s=requested_inspect_timeout_s,
            )

        def closed(instant_ms: int) -> Sequence[Window]:
            from kstreams_assets.calendar import WindowCalendar

            return WindowCalendar(of.windows).closed_since(instant_ms)

        return View(
            self,
            of.application,
            backed_up={topic.name for topic in of.topics},
            closed=closed,
            inspect_timeout_s=inspect_timeout_s,
            requested_inspect_timeout_s=requested_inspect_timeout_s,
        )

    @contextmanager
    def lock(
        self, lock: Lock, *, purpose: str, wait_s: float, of: Sequence[str] = ()
    ) -> Iterator[LockHandle]:
        """Hold one of the locks for the time of the block; `of` as its name requires.

        Raises:
            LockOrderError: This thread holds a later lock in the order of `Lock`.
            WarehouseError: The warehouse is a read-only copy.
            WarehouseLockedError: Another process holds it for longer than `wait_s` seconds.
        """
        held: list[Lock] = _held.__dict__.setdefault(str(self.warehouse.noted), [])
        if any(other.rank >= lock.rank for other in held):
            raise LockOrderError(wanted=lock.name, held=[other.name for other in held])
        name = lock.value.format(application_id=self.application_id, of="-".join(of))
        with warehouse_lock(
            self.warehouse.lock_file(name), purpose=purpose, wait_s=wait_s
        ) as handle:
            held.append(lock)
            try:
                yield handle
            finally:
                held.remove(lock)

    @contextmanager
    def writing(
        self, lock: Lock, *, purpose: str, wait_s: float, of: Sequence[str] = ()
    ) -> Iterator[LockHandle]:
        """Hold a lock after preparing everything that its holder writes.

        Earlier holders can no longer commit to its tables. With the application's lock, leftovers
        of killed writers in the records table are removed as well.

        Raises:
            ConfigurationError: The warehouse is only read (`state_in`), but tables of it are
                written under the lock.
            NewerLayoutError: A newer release wrote a table; nothing was changed.
            LeaseLostError: A later holder now has the lock.
            WarehouseError: The warehouse cannot be read or written.
            LockOrderError, WarehouseLockedError: See `lock`.
        """
        from kstreams_assets.repository.fences import put_in_order

        with self.lock(lock, purpose=purpose, wait_s=wait_s, of=of) as handle:
            put_in_order(self, lock, handle, of)
            yield handle
