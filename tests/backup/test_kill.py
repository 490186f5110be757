"""SIGKILL of a run at any moment: the next run makes the windows whole, nothing twice."""

import json
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from kstreams_assets.model.spans import Window
from kstreams_assets.store.locks import _is_alive
from tests.backup.driving import driver
from tests.backup.reading import Record, consume, stored
from tests.backup.writing import open_transaction, send, write
from tests.streams.workbench import Workbench

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.drill,
    pytest.mark.cluster,
    pytest.mark.on_store,
]

LIMIT_S = 90.0
PARTITIONS = 2


@dataclass(frozen=True)
class Moment:
    """When to kill: so long after a milestone, or once something is on disk after it."""

    milestone: str
    delay_s: float = 0.0
    hold: bool = False
    until: Callable[[Workbench], bool] | None = None
    here: bool = False


def _has_data_files(bench: Workbench) -> bool:
    return any(bench.records_path.glob("*/*.parquet"))


def _has_commit(bench: Workbench) -> bool:
    return len(list((bench.records_path / "_delta_log").glob("*.json"))) > 1


def _has_ledger_file(bench: Workbench) -> bool:
    return any((bench.warehouse.root / "windows").glob("application_id=*/*.parquet"))


# each on a new warehouse, in the order in which a run comes to them
FIRST_BACKUP = {
    "before anything": Moment("start"),
    "lock taken": Moment("locked", hold=True),
    "planned": Moment("planned", hold=True),
    "Spark is asked": Moment("writing"),
    "tasks begin": Moment("writing", delay_s=0.3),
    "files are written": Moment("writing", until=_has_data_files),
    "files are written in the process itself": Moment("writing", until=_has_data_files, here=True),
    "the Delta commit is there": Moment("writing", until=_has_commit),
    "committed, nothing recorded": Moment("written", hold=True),
    "topics described, no ledger": Moment("described", hold=True),
    "the ledger is being written": Moment("recording", until=_has_ledger_file),
}
SAMPLE = ("files are written", "committed, nothing recorded")
# windows that are stored are written anew beside new ones
SECOND_BACKUP = {
    "rewritten, not committed": Moment("writing", until=lambda bench: _files(bench) > 12),
}


def _files(bench: Workbench) -> int:
    return len(list(bench.records_path.glob("*/*.parquet")))


def _kill_at(bench: Workbench, windows: Sequence[Window], moment: Moment) -> None:
    hold = moment.milestone if moment.hold else None
    with driver(bench, windows, hold=hold, here=moment.here) as running:
        if moment.milestone != "start":
            running.await_milestone(moment.milestone)
        time.sleep(moment.delay_s)
        deadline = time.monotonic() + LIMIT_S
        while moment.until is not None and not moment.until(bench):
            assert time.monotonic() < deadline
            running.require_alive()
            time.sleep(0.005)
        running.require_alive()
        running.process.send_signal(signal.SIGKILL)
        assert running.process.wait(10) == -signal.SIGKILL


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    """Two topics, three closed windows with records, an aborted transaction among them."""
    topics = [workbench.topic(name, partitions=PARTITIONS) for name in ("orders", "customers")]
    for _ in range(3):
        for topic in topics:
            for partition in range(PARTITIONS):
                write(workbench, topic, 300, partition=partition)
        sender = open_transaction(workbench)
        send(sender, topics[0], b"never")
        sender.abort_transaction(20)
        workbench.close_window()
    return workbench


def _assert_equals_the_reference(bench: Workbench, expected: dict[str, list[Record]]) -> None:
    for topic, records in expected.items():
        assert stored(bench, topic) == records
    entries = bench.ledger.entries()
    assert len(entries) == 3 * len(bench.roles) * PARTITIONS
    for entry in entries:
        plan, content = entry.result.plan, entry.result.content
        found = [
            record.offset
            for record in stored(bench, plan.partition.topic, {plan.window.key})
            if record.partition == plan.partition.partition
        ]
        assert content.records == len(found)
        assert (content.first_offset, content.last_offset) == (found[0], found[-1])
        assert entry.result.unaccounted == 0


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.sample] if name in SAMPLE else [])
        for name in FIRST_BACKUP
    ],
)
def test_killed_in_its_first_backup(bench: Workbench, name: str) -> None:
    _kill_at(bench, bench.windows, FIRST_BACKUP[name])
    _run_again(bench)


@pytest.mark.parametrize("name", SECOND_BACKUP)
def test_killed_while_stored_windows_are_written_again(bench: Workbench, name: str) -> None:
    bench.back_up(*bench.windows[:2])
    _kill_at(bench, bench.windows, SECOND_BACKUP[name])
    _run_again(bench)


def _run_again(bench: Workbench) -> None:
    expected = {topic: consume(bench.bootstrap_servers, topic, PARTITIONS) for topic in bench.roles}
    orphan = _writer(bench)
    backups = bench.back_up()  # at once: the lock waits for a JVM that outlives its owner
    if orphan is not None:
        assert not _is_alive(orphan)
    _assert_equals_the_reference(bench, expected)
    assert all(verdict.passed for verdict in bench.verdicts(backups).values())


def _writer(bench: Workbench) -> int | None:
    lock = bench.warehouse.lock_file(bench.application_id)
    text = lock.read_text() if lock.exists() else ""
    return json.loads(text).get("writer_pid") if text else None
