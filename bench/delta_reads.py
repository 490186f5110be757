"""Records of many windows for Spark: through Delta Lake, and from a list of their files."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final
from unittest import mock

from bench.harness import Act, Case, Measured, Options
from bench.simulated import APPLICATION, STEP, Shape, Simulation
from kstreams_assets.app.store_format import StoreFormat
from kstreams_assets.model.point import WantedPartition
from kstreams_assets.offsets import OffsetRange
from kstreams_assets.repository import contents
from kstreams_assets.repository.repository import Repository
from spark_resources.session import LazySession
from spark_resources.work import SnapshotWork

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TOPIC: Final = "simulated-totals-changelog"
_FEW: Final = 24
_PARTITIONS: Final = 1


def _works(simulation: Simulation, windows: int) -> dict[str, SnapshotWork]:
    """The newest windows of the topic, as a snapshot reads them: by files, and by the table."""
    settings, last = simulation.settings, simulation.shape.windows
    view = Repository.open(settings).reading(settings)
    (point,) = view.points.load([simulation.closing_id(last - 1)])
    span = OffsetRange((last - windows) * STEP, last * STEP)
    wanted = [WantedPartition(c, [span]) for c in point.partitions if c.topic == _TOPIC]
    files = [one.file for part in wanted for one in view.files(part)]
    with mock.patch.object(contents, "FEWEST_SCANNED", 1):
        scan = view.scan(wanted)
    if scan is None or len(files) != windows * _PARTITIONS:
        raise RuntimeError(f"{len(files)} files, scan {scan}")

    def work(*, by_table: bool) -> SnapshotWork:
        return SnapshotWork(
            window="",
            format=StoreFormat(),
            partitions=tuple(part.cut.partition for part in wanted),
            base_files=(),
            base_ranges=None,
            whole_files=tuple(file.path for file in files),
            cut_files=(),
            ranges={part.cut.partition: part.ranges for part in wanted},
            records=sum(file.records for file in files),
            scan=scan if by_table else None,
        )

    return {"files": work(by_table=False), "Delta": work(by_table=True)}


def _snapshot(spark: "SparkSession", work: SnapshotWork) -> int:
    """Two passes, as the job of a KTable makes them; how many records are chosen."""
    from spark_resources.ktable_rows import chosen_rows, newest_rows, read_source

    source = read_source(spark, work)
    newest = newest_rows(source, work)
    try:
        return chosen_rows(source, newest).selectExpr("count(value)").collect()[0][0]
    finally:
        newest.unpersist()


def _by_window(spark: "SparkSession", work: SnapshotWork) -> int:
    """One pass, as a rule that looks at windows; how many there are."""
    from spark_resources.ktable_rows import RECORD, RECORD_COLUMNS, rows_inside
    from spark_resources.stored_files import read_files, read_table

    if work.scan is None:
        keys = [path.name for path in work.whole_files]
        rows = read_files(spark, work.whole_files, RECORD, windows=keys)
    else:
        rows = read_table(spark, work.scan, RECORD_COLUMNS, with_windows=True)
    inside = rows_inside(rows, work.ranges)
    return inside.selectExpr("count(DISTINCT window)").collect()[0][0]


def _engine_cpu_s(pid: int | None) -> float:
    """Processor time of the engine's JVM so far."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


@contextmanager
def delta_reads(options: Options) -> Iterator[Case]:
    """The case."""
    many = options.scaled(10_000, least=30)
    shape = Shape(
        windows=many, partitions=_PARTITIONS, every_s=600, whole_topics=frozenset({_TOPIC})
    )
    with TemporaryDirectory(prefix="kstreams-bench-") as folder:
        simulation = Simulation(Path(folder), shape, now_ms=time.time_ns() // 1_000_000)
        simulation.make()
        session = LazySession()
        try:
            acts: list[Act] = []
            for windows in (many, min(_FEW, many)):
                works = _works(simulation, windows)
                for name, job in (("snapshot", _snapshot), ("rule by window", _by_window)):
                    for way, work in works.items():
                        acts.append(_act(session, f"{name}, {windows:,} windows", way, job, work))
            yield Case(
                f"Records of {many:,} windows of {APPLICATION} for Spark",
                acts,
                notes=[
                    f"One partition of a changelog, a file of {STEP - STEP // 10} records for each"
                    " window, on a disk. Both ways run in one engine and take turns. `files` gives"
                    " Spark the list of files, `Delta` the version of the table and the windows."
                    " Planning is included; `ratio` compares seconds, `cpu_s` is that of client"
                    " and JVM. Fewer than 200 files are read from their list (`FEWEST_SCANNED`).",
                ],
            )
        finally:
            session.stop()


def _act(
    session: LazySession,
    name: str,
    way: str,
    job: "Callable[[SparkSession, SnapshotWork], int]",
    work: SnapshotWork,
) -> Act:
    expected: set[int] = set()

    def run() -> Measured:
        spark, pid = session.spark_session, session.jvm_pid()
        began, cpu_s = time.monotonic(), _engine_cpu_s(pid) + time.process_time()
        expected.add(job(spark, work))
        if len(expected) != 1 or 0 in expected:
            raise RuntimeError(f"{name} by {way} found {expected}")
        took_s = time.monotonic() - began
        return Measured(took_s, cpu_s=_engine_cpu_s(pid) + time.process_time() - cpu_s)

    against = f"{name}, files" if way == "Delta" else ""
    at_most = {"ratio": 1.2} if against else {}
    return Act(f"{name}, {way}", run, against=against, at_most=at_most)
