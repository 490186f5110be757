"""What it takes to plan with 10,000 windows of 50 partitions, each in a process of its own.

`growth` shows how files, logs and times grow with years of hourly windows.
"""

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.harness import Act, Case, Measured, Options
from bench.machine import write_result
from bench.simulated import APPLICATION, STEP, TOPICS, Shape, Simulation

_YEAR: Final = 8_760
_DAY_S: Final = 86_400
_TIMEOUT_S: Final = 600
_LOG: Final = "Delta's log alone"


def _half_past() -> int:
    """The last full half hour: the newest points lie in a window that is still open."""
    hour_ms = 3_600_000
    return (time.time_ns() // 1_000_000 // hour_ms - 1) * hour_ms + hour_ms // 2


def measured(root: Path, shape: Shape, now_ms: int, act: str) -> Measured:
    """An act in a process of its own; imports do not count, but for memory."""
    told = {
        "root": str(root),
        "windows": shape.windows,
        "partitions": shape.partitions,
        "now_ms": now_ms,
        "act": act,
    }
    done = subprocess.run(
        [sys.executable, "-m", "bench.scale", json.dumps(told)],
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
        cwd=Path(__file__).parents[1],
    )
    if done.returncode:
        raise RuntimeError(f"{act}: {done.stderr[-2000:]}")
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


@contextmanager
def scale(options: Options) -> Iterator[Case]:
    """The case."""
    shape = Shape(windows=options.scaled(10_000, least=30))
    with TemporaryDirectory(prefix="kstreams-bench-") as folder:
        now_ms = _half_past()
        began = time.process_time()
        Simulation(Path(folder), shape, now_ms=now_ms).make()
        made_s = time.process_time() - began

        def act(name: str, **at_most: float) -> Act:
            def run() -> Measured:
                return measured(Path(folder), shape, now_ms, name)

            return Act(name, run, against="" if name == _LOG else _LOG, at_most=at_most)

        yield Case(
            f"A warehouse of {shape.windows:,} windows x {shape.partitions * len(TOPICS)}"
            " partitions",
            [
                act(_LOG),
                act("due windows"),
                act("plan a backup", seconds=2, peak_mb=1_000),
                act("positions that backups hold"),
                act("ledger against log"),
                act("ledger against log, every file looked at"),
                act("newest restorable points"),
                act("plan a restore of everything", seconds=2, peak_mb=1_000),
                act("info", seconds=2, peak_mb=1_000),
                act("quick verify", seconds=5),
                act("plan the first expire"),
            ],
            notes=[
                "One application with an input, a repartition topic, two changelogs and an output,"
                f" a file of {STEP} offsets for each partition and window; a point for each"
                " window, and one every 10 s of the last day. The tables are written by the code"
                f" that writes them otherwise ({made_s:.0f} s of processor time).",
                "Each figure is that of a new process without its imports (0.7 s, 170 MB, which are"
                " in its peak). *Plan a backup* and *plan a restore* are all that is read of the"
                " warehouse; the look at Kafka comes on top. The restore is that of the newest"
                " point with all topics from their first record on: it needs 400,000 files, which"
                " it looks at for a fifth of a second, as the shown plan does. *Plan the first"
                " expire* is what a policy (all of 2 days, hourly for 7, daily for 90) would do to"
                " a warehouse that never had one: 9,700 points go, 49,000 windows of topics are put"
                " together. Before it went topic by topic and knew at once what no point needs, it"
                " took 90 s of processor time and 2.2 GB.",
                "Before spans were folded by the column, the"
                " ledger had row groups of more than 512 rows, checkpoints had statistics as"
                " columns, and files were looked at only where they are needed, the same acts took"
                " (processor time, peak): log 1.8 s, 755 MB; due windows 1.6 s;"
                " plan a backup 3.0 s, 457 MB; positions 13.5 s, 1,658 MB; ledger against log"
                " 4.8 s, 1,622 MB; with every file looked at 8.1 s; newest restorable points"
                " 15.0 s, 1,690 MB; plan a restore 32.2 s, 2,384 MB; quick verify"
                " 7.9 s, 1,459 MB.",
            ],
        )


def growth() -> None:
    """Measure and write bench/results/growth.md."""
    rows: list[list[object]] = []
    for years in (0.25, 1, 2, 4):
        shape = Shape(windows=round(_YEAR * years), partitions=2, every_s=60, with_files=False)
        with TemporaryDirectory(prefix="kstreams-bench-") as folder:
            root, now_ms = Path(folder), time.time_ns() // 1_000_000
            Simulation(root, shape, now_ms=now_ms).make()

            def take(act: str, root: Path = root, shape: Shape = shape, now: int = now_ms) -> str:
                found = measured(root, shape, now, act)
                return f"{found.cpu_s:.2f} s, {found.peak_mb:.0f} MB"

            rows.append(
                [
                    f"{years:g}",
                    shape.windows * len(TOPICS) * shape.partitions,
                    len([*root.glob("windows/application_id=*/*.parquet")]),
                    _mb(root / "windows", "application_id=*/*.parquet"),
                    _mb(root / "records" / APPLICATION, "_delta_log/*.checkpoint.parquet"),
                    _mb(root / "recovery_points", "application_id=*/*.parquet"),
                    take("plan a backup"),
                    take("ledger against log"),
                    take("newest restorable points"),
                ]
            )
            print(rows[-1], flush=True)
    write_result(
        "growth",
        title="Years of hourly windows",
        command="python -m bench growth",
        columns=[
            "years",
            "files of records",
            "files of the ledger",
            "ledger MB",
            "last checkpoint of the records' log MB",
            "points MB",
            "plan a backup",
            "ledger against log",
            "newest restorable points",
        ],
        rows=rows,
        notes=[
            f"{len(TOPICS)} topics with 2 partitions, one file for each partition and window;"
            " nothing expires. Processor time and peak memory of new processes, without their"
            " imports (but for memory). Everything grows in proportion to the rows, from what an"
            " empty process takes; the policy of `expire` is what bounds it.",
        ],
    )


def _mb(root: Path, pattern: str) -> float:
    newest = sorted(root.glob(pattern))
    if "checkpoint" in pattern:
        newest = newest[-1:]
    return sum(file.stat().st_size for file in newest) / 1e6


def _acts(simulation: Simulation) -> Mapping[str, Callable[[], object]]:
    from kstreams_assets.backup.planner import load_edges
    from kstreams_assets.backup.requests import window_statuses
    from kstreams_assets.metrics.info import warehouse_info
    from kstreams_assets.model.restorability import PointStatus
    from kstreams_assets.repository.coverage import newest_restorable
    from kstreams_assets.repository.records import file_actions
    from kstreams_assets.repository.repository import Repository
    from kstreams_assets.restore.planner import INSPECT_TIMEOUT_S
    from kstreams_assets.restore.request import RestoreRequest
    from kstreams_assets.restore.selection import choose, select
    from kstreams_assets.settings import KeepSettings
    from kstreams_assets.upkeep.expire import ExpireJob
    from kstreams_assets.upkeep.verify import VerifyJob

    settings, warehouse = simulation.settings, simulation.warehouse
    names = {topic.name for topic in settings.topics}
    repo = Repository(warehouse, APPLICATION)
    ledger, points = repo.ledger, repo.points
    newest = simulation.window(simulation.shape.windows - 1)

    def backup() -> None:
        due = [status for status in window_statuses(settings) if status.is_due]
        if due:
            raise RuntimeError(f"{len(due)} windows are due")
        load_edges(repo, [newest], names, begins_ms=simulation.first_ms)
        points.newest()
        ledger.entries(windows={newest.key}, topics=names)
        ledger.first_spans_cut_short(names, begins_ms=simulation.first_ms)

    def damaged(inspect_timeout_s: float) -> None:
        found = [*ledger.damaged(inspect_timeout_s=inspect_timeout_s)]
        if found:
            raise RuntimeError(f"{len(found)} spans are damaged: {found[0]}")

    def quick_verify() -> None:
        found = VerifyJob(settings, record=False, settle_s=0).run()
        if found.damages:
            raise RuntimeError(f"{len(found.damages)} damages: {found.damages[0].problem}")

    def restorable() -> None:
        found = newest_restorable(
            settings, Repository.open(settings).reading(settings, inspect_timeout_s=0)
        )
        if found.exact is None:
            raise RuntimeError("no point can be restored")

    def restore() -> None:
        contents = Repository.open(settings).reading(
            settings, inspect_timeout_s=0, requested_inspect_timeout_s=INSPECT_TIMEOUT_S
        )
        request = RestoreRequest()

        def judged(ids: Sequence[str]) -> Sequence[PointStatus]:
            loaded = {p.id: p for p in points.load(ids, damaged_too=True)}
            return contents.statuses([loaded[point_id] for point_id in ids])

        def beyond(ids: Sequence[str]) -> frozenset[str]:
            return contents.beyond(ids, lambda *_: True)

        instants = points.instants()
        status = choose(instants, judged, request, beyond=beyond).status
        if status is None:
            raise RuntimeError("no point can be restored")
        [point] = points.load([status.id])
        selection = select(settings.application, names, point, request, frozenset())
        wanted = [one for topic in selection.topics for one in topic.partitions]
        holdings = contents.contents(point, wanted)
        if any(held.damaged for held in holdings.values()):
            raise RuntimeError("files are damaged")
        found = sum(held.records for held in holdings.values())
        if found < simulation.shape.windows * STEP * simulation.shape.partitions:
            raise RuntimeError(f"{found:,} records were found")
        contents.facts(point, {t.source: t.partitions[0].cut.topic_id for t in selection.topics})

    def expire() -> None:
        keep = KeepSettings(all="2d", hourly="7d", daily="90d")
        policy = replace(settings, keep=keep)
        if not ExpireJob(policy, now_ms=simulation.now_ms).plan().expiring:
            raise RuntimeError("nothing would expire")

    return {
        _LOG: lambda: file_actions(warehouse.records(APPLICATION)),
        "due windows": lambda: window_statuses(settings),
        "plan a backup": backup,
        "positions that backups hold": lambda: ledger.held_positions(settings.application),
        "ledger against log": lambda: damaged(0),
        "ledger against log, every file looked at": lambda: damaged(math.inf),
        "newest restorable points": restorable,
        "plan a restore of everything": restore,
        "info": lambda: warehouse_info(warehouse, [settings]),
        "quick verify": quick_verify,
        "plan the first expire": expire,
    }


def _run(told: Mapping[str, object]) -> None:
    """An act, in this process; prints what it took."""
    from unittest import mock

    from kstreams_assets import calendar

    shape = Shape(windows=int(str(told["windows"])), partitions=int(str(told["partitions"])))
    now_ms = int(str(told["now_ms"]))
    simulation = Simulation(Path(str(told["root"])), shape, now_ms=now_ms)
    act = _acts(simulation)[str(told["act"])]
    now = datetime.fromtimestamp(now_ms / 1000, tz=UTC)
    with mock.patch.object(calendar, "now", return_value=now):
        began, cpu = time.monotonic(), time.process_time()
        act()
        took, cpu = time.monotonic() - began, time.process_time() - cpu
    print(json.dumps({"seconds": took, "cpu_s": cpu, "peak_mb": _peak_mb()}))


def _peak_mb() -> float:
    """Of this process; `getrusage` would tell that of the one which has started it as well."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    [line] = [line for line in lines if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024 / 1e6


if __name__ == "__main__":
    _run(json.loads(sys.argv[1]))
