"""Creates snapshots: plan, Spark job, row in the table of snapshots."""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kstreams_assets.app.model import StreamsApplication
from kstreams_assets.errors import KStreamsAssetsError, SparkJobError, SparkLostError
from kstreams_assets.ktables.plan import SnapshotPlan, plan_snapshots, work_of
from kstreams_assets.ktables.stores import no_table, table_stores, why_unconfirmed
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.files import NewFile
from kstreams_assets.model.schemas import RegisteredSchema
from kstreams_assets.model.snapshot import RowProblem, Snapshot, SnapshotPartition, TableStore
from kstreams_assets.model.spans import Window
from kstreams_assets.model.tables import Lock
from kstreams_assets.repository.committer import commit, fence, require_written, sweep, uncommitted
from kstreams_assets.repository.ktable_files import open_table, prepare_table
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.snapshots import StoredSnapshots
from kstreams_assets.repository.staging import Staging
from kstreams_assets.repository.store_states import StoreStates
from kstreams_assets.settings import ApplicationSettings, BackupSettings
from kstreams_assets.store import StorePath
from kstreams_assets.store.locks import LockHandle
from spark_resources.work import SnapshotWork, Spark

_log = logging.getLogger(__name__)
_FEW_PROBLEMS = 20
"""Maximum number of listed rows with a problem."""


@dataclass(frozen=True, slots=True)
class KTableRun:
    """A run over stores and windows of one application, independent of Dagster.

    `schemas` are the schemas of Avro and Protobuf records, by id. `log` is called with lines about
    the progress.
    """

    application: StreamsApplication
    warehouse: Warehouse
    spark: Spark
    run_id: str
    settings: BackupSettings = field(default_factory=BackupSettings)
    schemas: "Mapping[int, RegisteredSchema]" = field(default_factory=dict)
    log: Callable[[str], None] = _log.info

    def execute(self, stores: Sequence[TableStore], windows: Sequence[Window]) -> list[Snapshot]:
        """Create the snapshots of these windows, oldest first, without a broker.

        Each snapshot builds on the nearest usable earlier one. An existing snapshot is created
        again, with the same rows.

        Raises:
            KStreamsAssetsError: A necessary window is not backed up, and nothing was created. Or a
                table has columns of other types than declared. Or Spark failed; snapshots created
                before are kept.
            StoredDataError: Files of the backups or of an earlier snapshot changed.
            WarehouseLockedError: Another run holds the lock of the application.
            NewerLayoutError: A newer release wrote the warehouse; nothing was changed.
        """
        repo = Repository.of(self.warehouse, self.application.application_id)
        with repo.writing(
            Lock.APPLICATION,
            purpose=f"KTable run {self.run_id}",
            wait_s=self.settings.lock_wait_seconds,
        ) as lock:
            self._sweep(stores, lock)
            states = repo.reading(self.application).states(stores)
            plans = plan_snapshots(states, stores, windows)
            return _Execution(self, lock, states).make(plans)

    def _sweep(self, stores: Sequence[TableStore], lock: LockHandle) -> None:
        """Fence earlier writers of the tables, and delete their uncommitted files."""
        name = self.application.application_id
        tables = [self.warehouse.ktable(name, store.store) for store in stores]
        for path, table in [(path, open_table(path, to_write=True)) for path in tables]:
            sweep(path, fence(path, table, lock))


@dataclass(frozen=True, slots=True)
class _Execution:
    """Creates the snapshots of a run, one after the other."""

    run: KTableRun
    lock: LockHandle
    states: StoreStates

    def make(self, plans: Sequence[SnapshotPlan]) -> list[Snapshot]:
        table = Repository.of(self.run.warehouse, self.run.application.application_id).snapshots
        made: dict[tuple[str, str], Snapshot] = {}
        for number, plan in enumerate(plans, 1):
            base = plan.state.base
            if base is not None:
                base = made.get((base.store, base.window.key), base)
            snapshot = self._make(plan, base)
            table.record([snapshot], writer=self.lock)
            made[snapshot.store, snapshot.window.key] = snapshot
            self.run.log(_progress(snapshot, number, len(plans)))
        return list(made.values())

    def _make(self, plan: SnapshotPlan, base: Snapshot | None) -> Snapshot:
        started = time.monotonic()
        name = self.run.application.application_id
        self.states.require_unchanged(plan.state)
        rows = self.states.saved(plan.state.point, plan.state.partitions)
        with Staging(self.run.warehouse, f"ktables-{name}") as staging:
            saved = staging.write(rows) if rows.num_rows else None
            work = work_of(plan, base, self._base_files(base), saved, rows.num_rows)
            made = self._write(plan, work)
        promised = plan.promised(name)
        return replace(
            promised,
            partitions=tuple(made.filled(part) for part in promised.partitions),
            records=plan.state.records + rows.num_rows,
            problem_rows=sum(file.about["problem_rows"] for file in made.files),
            problems=made.problems(),
            delta_version=made.delta_version,
            took_ms=round(1000 * (time.monotonic() - started)),
            run_id=self.run.run_id,
            written=tuple(file.written for file in made.files),
        )

    def _table(self, store: str) -> StorePath:
        return self.run.warehouse.ktable(self.run.application.application_id, store)

    def _base_files(self, base: Snapshot | None) -> list[StorePath]:
        """Return the present files of the base, which this run may have created."""
        if base is None:
            return []
        snapshots = StoredSnapshots(Repository.of(self.run.warehouse, base.application_id))
        snapshots.require_unchanged(base)
        return [file.path for file in snapshots.files(base)]

    def _write(self, plan: SnapshotPlan, work: SnapshotWork) -> "_Made":
        """Write and check the files, then replace the rows of the window in the table."""
        from spark_resources.ktable_job import again_by_files

        run, name = self.run, self.run.application.application_id
        path = self._table(plan.state.store.store)
        try:
            written = again_by_files(lambda work: self._files(path, work), work)
        except SparkLostError:
            raise
        except SparkJobError as error:
            raise KStreamsAssetsError(
                f"The snapshot of store {plan.state.store.store} for window {plan.window.key}"
                f" could not be created: {error.problem.rstrip('.')}.",
                remedy="The table was not changed. Check the log of the run, fix the cause and try"
                " again.",
            ) from error
        # Open the table only now, to keep changes made during the write (VACUUM, properties) and to
        # notice a later holder of the lock.
        table = prepare_table(path, written.columns)
        version = commit(
            path,
            table,
            written.files,
            writer=self.lock,
            replaces=[{"window": plan.window.key}],
            provenance={
                "run_id": run.run_id,
                "application_id": name,
                "recovery_point_id": plan.state.point.id,
                "fingerprint": plan.state.store.format.fingerprint,
            },
        )
        version = table.version() if version is None else version
        return _Made(written.files, version, written.stream_times)

    def _files(self, path: StorePath, work: SnapshotWork) -> "_Files":
        """Write the files of a snapshot and compare them with the reports of the tasks."""
        from spark_resources.ktable_job import snapshot_rows

        run = self.run
        with snapshot_rows(run.spark.spark_session, work, run.schemas) as rows:
            prepare_table(path, rows.schema_json)
            with uncommitted(path) as folder:
                files = rows.write(
                    folder,
                    compression=run.settings.compression,
                    compression_level=run.settings.compression_level,
                    most_problems=_FEW_PROBLEMS,
                )
                require_written(path, files)
            return _Files(files, rows.schema_json, rows.stream_times)


@dataclass(frozen=True, slots=True)
class _Files:
    """The files of a snapshot before their commit, and the schema of their table as JSON."""

    files: Sequence[NewFile]
    columns: str
    stream_times: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class _Made:
    """A written snapshot."""

    files: Sequence[NewFile]
    delta_version: int
    stream_times: Mapping[int, int]

    def filled(self, part: SnapshotPartition) -> SnapshotPartition:
        """Add rows and bytes to a partition; the bytes of a file are divided by rows."""
        number = str(part.partition)
        rows = [file.about["rows"].get(number, 0) for file in self.files]
        sizes = [
            count * file.payload_bytes / file.records
            for count, file in zip(rows, self.files, strict=True)
        ]
        return replace(
            part,
            rows=sum(rows),
            bytes=round(sum(sizes)),
            stream_time_ms=self.stream_times.get(part.partition),
        )

    def problems(self) -> tuple[RowProblem, ...]:
        """Return the first rows with a problem."""
        found = sorted(tuple(row) for file in self.files for row in file.about["problems"])
        return tuple(RowProblem(*row) for row in found[:_FEW_PROBLEMS])


def _progress(snapshot: Snapshot, number: int, total: int) -> str:
    base = f" on {snapshot.base_window}" if snapshot.base_window else ""
    return (
        f"Snapshot {number} of {total}: {snapshot.store}, window {snapshot.window.key}{base}:"
        f" {snapshot.rows:,} rows from {snapshot.records:,} records,"
        f" {snapshot.took_ms / 1000:.1f} s{'' if snapshot.proved else ', not proved'}."
    )


def make_snapshots(
    settings: ApplicationSettings,
    windows: Sequence[Window],
    *,
    stores: Collection[str] | None = None,
    spark: Spark,
    run_id: str,
    log: Callable[[str], None] = _log.info,
) -> list[Snapshot]:
    """Create the snapshots of these windows, of all or selected stores; see `KTableRun.execute`.

    Raises:
        KStreamsAssetsError: A selected store has no table, or as for `KTableRun.execute`.
    """
    known = table_stores(settings)
    names = [store.store for store in known]
    for name in sorted(set(stores or ()) - set(names)):
        raise no_table(settings, name, names, why=why_unconfirmed(settings, name))
    chosen = [store for store in known if stores is None or store.store in stores]
    schemas: Mapping[int, RegisteredSchema] = {}
    if any(store.format.needs_registry for store in chosen):
        # Stored schemas are usually sufficient, so that a registry outage does not prevent tables.
        stored = Repository.open(settings).schemas
        stored.try_to_save(settings.registry)
        schemas = stored.all()
    run = KTableRun(
        application=settings.application,
        warehouse=settings.warehouse,
        spark=spark,
        run_id=run_id,
        settings=settings.backup,
        schemas=schemas,
        log=log,
    )
    return run.execute(chosen, windows)
