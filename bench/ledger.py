"""The ledger after 10,000 backup runs: what a read costs, what one more run writes, no cluster.

The rows are written by the code that backup runs use, one commit a run.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

from deltalake import DeltaTable

from bench.machine import write_result
from kstreams_assets.backup.result import TopicBackup
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.spans import SpanContent, SpanPlan, SpanResult, TopicFacts, Window
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.ledger import Ledger, TopicFactsTable
from kstreams_assets.repository.table import Table

_APPLICATION = "order-processor"
_START_MS = 1_795_000_000_000 // 3_600_000 * 3_600_000
_HOUR_MS = 3_600_000
_RUNS = 10_000
_MEASURED = (100, 1_000, _RUNS)
_NEVER = 500
_LOT = 100
_ONE_BY_ONE = 500
"""The last of the runs are made one by one, those before them in lots: their rows are one commit of
so many windows, as those of a backfill."""
_TOPICS = ("orders", "order-processor-totals-changelog")
_PARTITIONS = 2
_RATE = 1_000
_FACTS = TopicFacts("x7YkZq0aTmWbPc3nRs5uVw", _PARTITIONS, 3, (("cleanup.policy", "compact"),))


@dataclass(slots=True)
class _Year:
    """A warehouse that one backup run after the other writes to."""

    folder: Path
    ledger: Ledger = field(init=False)
    facts: TopicFactsTable = field(init=False)
    runs: int = 0
    record_ms: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._open()

    def _open(self) -> None:
        """With nothing read yet, as in a new process."""
        warehouse = Warehouse(self.folder)
        self.ledger = Ledger(warehouse, _APPLICATION)
        self.facts = TopicFactsTable(warehouse, _APPLICATION)

    def until(self, runs: int) -> None:
        """Backup runs, one window each."""
        while self.runs < runs:
            lot = _LOT if self.runs + _LOT <= runs - _ONE_BY_ONE else 1
            numbers = range(self.runs, self.runs + lot)
            backups = [_backup(number, topic) for number in numbers for topic in _TOPICS]
            began = time.process_time()
            self.ledger.record(backups, run_id=f"run-{self.runs}")
            self.facts.record(backups)
            if lot == 1:
                self.record_ms.append((time.process_time() - began) * 1000)
            self.runs += lot

    def row(self, name: str) -> list[object]:
        """What the tables cost now."""
        self._open()
        first = _ms(self._spans)
        self.until(self.runs + 1)
        again = _ms(self._spans)
        last = self.record_ms[-100:]
        return [
            name,
            len(self.ledger.entries()),
            DeltaTable(self.folder / "windows").get_add_actions().num_rows,
            _median_ms(self.ledger.entries),
            _median_ms(lambda: self.ledger.done(_TOPICS)),
            first,
            again,
            statistics.median(last),
            statistics.fmean(last),
        ]

    def _spans(self) -> object:
        self.facts.delete_retention_ms(_TOPICS)
        return self.ledger.merged_spans(_TOPICS, holes_matter=_TOPICS)


def _backup(number: int, topic: str) -> TopicBackup:
    start_ms = _START_MS + number * _HOUR_MS
    window = Window(start_ms, start_ms + _HOUR_MS, f"window-{number:06d}")
    return TopicBackup(
        window=window,
        topic=topic,
        spans=tuple(_span(window, number, TopicPartitionId(topic, p)) for p in range(_PARTITIONS)),
        role="input",
        facts=_FACTS,
        previous_facts=_FACTS,
        recovery_point_id=f"20261121T114003.250Z-{number:06x}",
        delta_version=number,
        duration_s=1.0,
    )


def _span(window: Window, number: int, partition: TopicPartitionId) -> SpanResult:
    start, end = number * _RATE, (number + 1) * _RATE
    plan = SpanPlan(window, partition, _FACTS.topic_id, start, end, start, number > 0)
    content = SpanContent(
        _RATE, _RATE * 100, _RATE * 30, 1, 0, 0, 0, start, end - 1, window.start_ms, window.end_ms
    )
    return SpanResult(plan, content, (), contiguity_known=True)


def _ms(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return (time.process_time() - began) * 1000


def _median_ms(call: Callable[[], object]) -> float:
    return statistics.median(_ms(call) for _ in range(3))


def main() -> None:
    """Measure and write bench/results/ledger.md."""
    rows: list[list[object]] = []
    began = time.process_time()
    with TemporaryDirectory(prefix="kstreams-bench-") as folder:
        year = _Year(Path(folder))
        for runs in _MEASURED:
            year.until(runs)
            rows.append(year.row(f"{runs:,}"))
            print(rows[-1], flush=True)
    took_s = time.process_time() - began
    with TemporaryDirectory(prefix="kstreams-bench-") as folder:
        year = _Year(Path(folder))
        with mock.patch.object(Table, "_put_together"):
            year.until(_NEVER)
            rows.append(year.row(f"{_NEVER:,}, never put together"))
        print(rows[-1], flush=True)
    write_result(
        "ledger",
        title="The ledger after ten thousand backup runs",
        command="python -m bench ledger",
        columns=_COLUMNS,
        rows=rows,
        notes=[
            f"One window a run, {len(_TOPICS)} topics with {_PARTITIONS} partitions each, written"
            f" by the code of backup runs in one process ({took_s:.0f} s of processor time for the"
            f" {_RUNS:,} runs). Small files are put together when 32 can be spared; the mean time"
            f" of a run's writing contains it. All but the last {_ONE_BY_ONE} runs before a row"
            f" were written in lots of {_LOT}, by the same code; files put together are the same.",
            "Times are processor time. *Spans* is what the check `recovery_point_is_recent` reads"
            " of the ledger and the table `topics`: the first time in a process, and once more"
            " after another run. The last row is how earlier releases left the tables, and was"
            " not taken further because of its cost.",
        ],
    )


_COLUMNS = [
    "runs",
    "rows",
    "files of the ledger",
    "read all rows ms",
    "windows that are done ms",
    "spans, first time ms",
    "spans, one run later ms",
    "one run writes ms (median)",
    "mean",
]


if __name__ == "__main__":
    main()
