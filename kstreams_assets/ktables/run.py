"""Makes one snapshot: plan, Spark job, row of the table of snapshots."""

import difflib
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa

from kstreams_assets.app.model import StreamsApplication, TopicRole
from kstreams_assets.app.store_format import format_of
from kstreams_assets.errors import (
    KTableError,
    SparkJobError,
    SparkLostError,
    StoredDataError,
    UnknownStoreError,
)
from kstreams_assets.ktables.plan import (
    SnapshotPlan,
    SnapshotWork,
    saved_cuts,
    work_of,
)
from kstreams_assets.ktables.planner import SnapshotPlanner
from kstreams_assets.ktables.snapshot import RowProblem, Snapshot, SnapshotPartition, TableStore
from kstreams_assets.ktables.snapshots_table import SnapshotsTable, require_snapshot
from kstreams_assets.ktables.state import why_unconfirmed
from kstreams_assets.ktables.table import open_table, prepare_table, window_files
from kstreams_assets.layout import Warehouse, changed_files
from kstreams_assets.lease import LockHandle, warehouse_lock
from kstreams_assets.offsets import RangeSet
from kstreams_assets.settings import ApplicationSettings, BackupSettings
from kstreams_assets.store import StorePath, remove_tree, write_parquet
from kstreams_assets.warehouse.committer import (
    NewFile,
    commit,
    fence,
    require_written,
    sweep,
    uncommitted,
)
from kstreams_assets.warehouse.points import NONE_SAVED
from kstreams_assets.warehouse.prefixes import Prefixes
from kstreams_assets.warehouse.records import open_records
from kstreams_assets.warehouse.schemas import RegisteredSchema, schemas_of, try_to_save_schemas
from kstreams_assets.warehouse.spans import Window
from kstreams_assets.warehouse.table import refuse_newer_tables
from spark_resources.work import Spark

_COLUMNS = ["partition", "offset", "timestamp_ms", "headers", "key", "value"]


@contextmanager
def staged_saved_records(
    warehouse: Warehouse, application_id: str, plan: SnapshotPlan
) -> Iterator[tuple[StorePath | None, int]]:
    """A file with the saved records of a plan and their number, while it lasts.

    None without any. What a killed run left behind is removed first: only the holder of the
    application's lock stages.
    """
    folder = warehouse.staging(f"ktables-{application_id}")
    remove_tree(folder)
    saved = Prefixes(warehouse, application_id)
    if not saved and not saved_cuts(plan.partitions):
        yield None, 0
        return
    folder.mkdir(parents=True)
    try:
        yield _write(saved, plan, folder / "saved.parquet")
    finally:
        remove_tree(folder)


def _write(saved: Prefixes, plan: SnapshotPlan, path: StorePath) -> tuple[StorePath | None, int]:
    ranges = {part.cut.id: RangeSet(part.ranges) for part in plan.partitions}
    cuts = {part.cut.id: replace(part.cut, saved_from=None) for part in plan.partitions}
    found = saved.saved(plan.point, {**cuts, **saved_cuts(plan.partitions)})
    rows = (
        pa.concat_tables(
            of_it.filter(pa.array(ranges[id_].mask(of_it["offset"].to_numpy())))
            for id_, of_it in [*sorted(found.items())]
        )
        if found
        else NONE_SAVED
    )
    if rows.num_rows == 0:
        return None, 0
    write_parquet(rows.select(_COLUMNS), path, use_dictionary=False)
    return path, rows.num_rows


_log = logging.getLogger(__name__)
_FEW_PROBLEMS = 20
"""How many of the rows with a problem are named."""


@dataclass(frozen=True, slots=True)
class KTableRun:
    """One run over stores and windows of one application; knows no Dagster.

    `schemas` are those of Avro and Protobuf records, by id. `log` takes lines on the progress.
    """

    application: StreamsApplication
    warehouse: Warehouse
    spark: Spark
    run_id: str
    settings: BackupSettings = field(default_factory=BackupSettings)
    schemas: "Mapping[int, RegisteredSchema]" = field(default_factory=dict)
    log: Callable[[str], None] = _log.info

    def execute(self, stores: Sequence[TableStore], windows: Sequence[Window]) -> list[Snapshot]:
        """Make the snapshots of these windows, in order of time.

        Each builds on the nearest earlier one that fits. A snapshot that is there is made again,
        with the same rows. No broker is needed.

        Raises:
            KTableWindowError: A window that is needed is not backed up; nothing was made.
            KTableError: A table has columns of other types than are declared now.
            StoredDataError: Files of the backups or of an earlier snapshot were changed.
            KTableError: Spark failed; snapshots that were made before it stay.
            WarehouseLockedError: Another run holds the application's lock.
            NewerLayoutError: A newer release wrote the warehouse; nothing was changed.
        """
        name = self.application.application_id
        with warehouse_lock(
            self.warehouse.lock_file(name),
            purpose=f"KTable run {self.run_id}",
            wait_s=self.settings.lock_wait_s,
        ) as lock:
            self._refuse_newer(stores, lock)
            plans = SnapshotPlanner(self.application, self.warehouse, stores).plan(windows)
            return _Execution(self, lock).make(plans)

    def _refuse_newer(self, stores: Sequence[TableStore], lock: LockHandle) -> None:
        """A newer layout is refused before anything is touched; then leftovers go."""
        name = self.application.application_id
        open_records(self.warehouse.records(name))
        refuse_newer_tables(self.warehouse)
        SnapshotsTable(self.warehouse).fence(name, lock)
        tables = [self.warehouse.ktable(name, store.store) for store in stores]
        for path, table in [(path, open_table(path, to_write=True)) for path in tables]:
            sweep(path, fence(path, table, lock))


@dataclass(frozen=True, slots=True)
class _Execution:
    """The snapshots of one run, one after the other."""

    run: KTableRun
    lock: LockHandle

    def make(self, plans: Sequence[SnapshotPlan]) -> list[Snapshot]:
        table = SnapshotsTable(self.run.warehouse)
        made: dict[tuple[str, str], Snapshot] = {}
        for number, plan in enumerate(plans, 1):
            base = plan.base
            if base is not None:
                base = made.get((base.store, base.window.key), base)
            snapshot = self._make(plan, base)
            table.record([snapshot], writer=self.lock)
            made[snapshot.store, snapshot.window.key] = snapshot
            self.run.log(_progress(snapshot, number, len(plans)))
        return list(made.values())

    def _make(self, plan: SnapshotPlan, base: Snapshot | None) -> Snapshot:
        began = time.monotonic()
        name = self.run.application.application_id
        self._require_records(plan)
        with staged_saved_records(self.run.warehouse, name, plan) as (saved, count):
            work = work_of(plan, base, self._base_files(base), saved, count)
            made = self._write(plan, work)
        promised = plan.promised(name)
        return replace(
            promised,
            partitions=tuple(made.filled(part) for part in promised.partitions),
            records=plan.records + count,
            problem_rows=sum(file.about["problem_rows"] for file in made.files),
            problems=made.problems(),
            delta_version=made.delta_version,
            took_ms=round(1000 * (time.monotonic() - began)),
            run_id=self.run.run_id,
            written=tuple(file.written for file in made.files),
        )

    def _require_records(self, plan: SnapshotPlan) -> None:
        """Before a record is used: the files are those that their backups wrote, byte for byte."""
        whose = {
            file.path: (part.cut.id, file)
            for part in plan.partitions
            for file in part.files
            if file.written
        }
        noted = [(path, file.written) for path, (_, file) in whose.items() if file.written]
        for path, problem in changed_files(noted).items():
            partition, file = whose[path]
            raise StoredDataError(
                subject=f"The backup of {partition}, window {file.window},",
                problem=problem,
                remedy="Bring the file back from a second copy, or back the window up again"
                f" (kstreams-assets backup --window {file.window}) if Kafka still has it; then make"
                " the snapshot again.",
            )

    def _table(self, store: str) -> StorePath:
        return self.run.warehouse.ktable(self.run.application.application_id, store)

    def _base_files(self, base: Snapshot | None) -> list[StorePath]:
        if base is None:
            return []
        path = self.run.warehouse.ktable(base.application_id, base.store)
        require_snapshot(path, base)
        files = window_files(open_table(path), path)
        return [file for file, _ in files.get(base.window.key, [])]

    def _write(self, plan: SnapshotPlan, work: SnapshotWork) -> "_Made":
        """Write the files, look, and put them in place of what the table holds for the window."""
        from spark_resources.ktable_job import snapshot_rows

        run, name = self.run, self.run.application.application_id
        path = self._table(plan.store.store)
        try:
            with snapshot_rows(run.spark.spark_session, work, run.schemas) as rows:
                table = prepare_table(path, rows.schema_json)
                with uncommitted(path) as folder:
                    files = rows.write(
                        folder,
                        compression=run.settings.compression,
                        compression_level=run.settings.compression_level,
                        most_problems=_FEW_PROBLEMS,
                    )
                    require_written(path, files)
        except SparkLostError:
            raise
        except SparkJobError as error:
            raise KTableError(
                f"The snapshot of store {plan.store.store} for window {plan.window.key} could not"
                f" be made: {error.problem.rstrip('.')}.",
                remedy="The table is as it was; see the log of the run, mend the cause and try"
                " again.",
            ) from error
        version = commit(
            path,
            table,
            files,
            writer=self.lock,
            replaces=[{"window": plan.window.key}],
            provenance={
                "run_id": run.run_id,
                "application_id": name,
                "recovery_point_id": plan.point.id,
                "fingerprint": plan.store.format.fingerprint,
            },
        )
        return _Made(files, table.version() if version is None else version, rows.stream_times)


@dataclass(frozen=True, slots=True)
class _Made:
    """A snapshot as it was written."""

    files: Sequence[NewFile]
    delta_version: int
    stream_times: Mapping[int, int]

    def filled(self, part: SnapshotPartition) -> SnapshotPartition:
        """The partition with its rows; the bytes of a file are shared out by rows."""
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
        """The first rows with a problem."""
        found = sorted(tuple(row) for file in self.files for row in file.about["problems"])
        return tuple(RowProblem(*row) for row in found[:_FEW_PROBLEMS])


def _progress(snapshot: Snapshot, number: int, total: int) -> str:
    base = f" on {snapshot.base_window}" if snapshot.base_window else ""
    return (
        f"Snapshot {number} of {total}: {snapshot.store}, window {snapshot.window.key}{base}:"
        f" {snapshot.rows:,} rows from {snapshot.records:,} records,"
        f" {snapshot.took_ms / 1000:.1f} s{'' if snapshot.proved else ', not proved'}."
    )


def table_stores(
    settings: ApplicationSettings, *, unconfirmed: bool = False
) -> tuple[TableStore, ...]:
    """The stores of which tables are made, by name: those with a log that is backed up.

    A store that depends on a guess which nobody has confirmed is among them only with
    `unconfirmed`. A store of which nothing is declared is read as bytes; where the DSL made its
    name up, that name tells its kind.
    """
    backed_up = {topic.name for topic in settings.topics}
    return tuple(
        TableStore(
            store=store.name,
            topic=store.changelog,
            format=format_of(store.name, settings.store_formats),
            is_global=store.is_global,
            is_changelog_only=_is_changelog_only(settings.application, store.changelog),
        )
        for store in sorted(settings.application.stores, key=lambda store: store.name)
        if store.changelog is not None
        and store.changelog in backed_up
        and store.name not in settings.without_ktable
        and (unconfirmed or not settings.application.guesses_about(stores=[store.name]))
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
    """Make the snapshots of these windows, of all stores or those named; see `KTableRun.execute`.

    Raises:
        UnknownStoreError: A store is named of which no table is made.
        KStreamsAssetsError: As `KTableRun.execute`.
    """
    known = table_stores(settings)
    names = [store.store for store in known]
    for name in sorted(set(stores or ()) - set(names)):
        raise UnknownStoreError(
            application_id=settings.application_id,
            store=name,
            known=names,
            near=difflib.get_close_matches(name, names),
            why=why_unconfirmed(settings, name),
        )
    chosen = [store for store in known if stores is None or store.store in stores]
    schemas: Mapping[int, RegisteredSchema] = {}
    if any(store.format.needs_registry for store in chosen):
        # What is stored suffices as a rule; a registry that is down must not keep tables away.
        try_to_save_schemas(settings)
        schemas = schemas_of(settings.warehouse, settings.application_id)
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


def _is_changelog_only(application: StreamsApplication, topic: str) -> bool:
    return application.topic(topic).roles == {TopicRole.CHANGELOG}
