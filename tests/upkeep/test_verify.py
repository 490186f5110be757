"""What `verify` says of a warehouse that is whole, or was mended; samples, and read-only copies."""

import json
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from kstreams_assets.checks import Severity
from kstreams_assets.cli import verify as command
from kstreams_assets.drill.readiness import Evidence, evaluate_readiness, readiness
from kstreams_assets.drill.readiness import facts_of as facts
from kstreams_assets.errors import StoredDataError, WarehouseError
from kstreams_assets.kafka import throttle
from kstreams_assets.layout import Warehouse
from kstreams_assets.metrics.collect import verification_samples
from kstreams_assets.model.damage import (
    DAMAGE,
    Damage,
    DamageKind,
    StoredVerification,
    VerificationKind,
)
from kstreams_assets.model.point import WantedPartition
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.verifications import VerificationsTable
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store import StorePath
from kstreams_assets.upkeep import verify as module
from kstreams_assets.upkeep.verify import Verification, VerifyJob, covered_since, turn_of
from spark_resources.resource import SparkSessionResource
from tests.backup.samples import APPLICATION_ID, window
from tests.repository.disk import on_disk
from tests.repository.test_damage import LOG, WINDOWS
from tests.repository.test_damage import settings as backed_up
from tests.store.place import edited
from tests.streams.workbench import Workbench
from tests.timing import Clock

__all__ = ["backed_up"]

DAY_MS = 86_400_000


@pytest.fixture
def settings(backed_up: ApplicationSettings) -> ApplicationSettings:
    """Three windows of ten records each, and a sealed point at the end of each."""
    # Rows made by hand say that they were written when the records table had version 3.
    with edited(backed_up.warehouse.records(APPLICATION_ID)) as records:
        table = DeltaTable(records)
        while table.version() < 3:
            table.alter.set_table_properties({"made": "by hand"}, raise_if_not_exists=False)
    return backed_up


def _verify(settings: ApplicationSettings, **options: object) -> Verification:
    return VerifyJob(settings, **{"settle_s": 0.2, **options}).run()  # type: ignore[arg-type]


def _files(settings: ApplicationSettings) -> list[StorePath]:
    return sorted(settings.warehouse.records(APPLICATION_ID).rglob("*.parquet"))


def _flip(settings: ApplicationSettings, index: int) -> Callable[[], None]:
    """Damage a file; what puts it back."""
    path = _data(settings)[index]
    content = path.read_bytes()
    with edited(path.parent) as folder:
        (folder / path.name).write_bytes(bytes([*content[:40], content[40] ^ 1, *content[41:]]))

    def mend() -> None:
        with edited(path.parent) as folder:
            (folder / path.name).write_bytes(content)

    return mend


def _data(settings: ApplicationSettings) -> list[StorePath]:
    """The data file of each window, in order."""
    rows = Ledger(settings.warehouse, APPLICATION_ID).entries()
    root = settings.warehouse.records(APPLICATION_ID)
    by_name = {path.name: path for path in _files(settings)}
    return [by_name[Path(e.result.content.written[0].path).name] for e in rows if root]


@pytest.mark.on_store
class TestLooks:
    def test_a_whole_warehouse(self, settings: ApplicationSettings) -> None:
        for full in (False, True):
            found = _verify(settings, full=full)
            assert found.sound
            assert found.damages == ()
            assert found.files == (WINDOWS if full else 0)
        assert found.covered_since_ms == found.began_at_ms

    def test_what_a_full_look_found_stays_until_it_is_mended(
        self, settings: ApplicationSettings
    ) -> None:
        mend = _flip(settings, 1)
        assert _verify(settings).sound, "nobody has read it"
        (damage,) = _verify(settings, full=True).damages
        assert (damage.window, damage.topic, damage.partition) == (window(1).key, "log", 0)
        assert (damage.start, damage.end) == (10, 20)
        assert damage.points == ("p2", "p1")
        assert "p0" in damage.remedy
        again = _verify(settings)
        assert [one.identity for one in again.damages] == [damage.identity]
        assert window(1).key in readiness(settings).why
        mend()
        assert _verify(settings).sound
        assert window(1).key not in readiness(settings).why

    def test_what_is_given_up_is_a_warning_and_nothing_else_is(
        self, settings: ApplicationSettings
    ) -> None:
        _flip(settings, 0)
        found = _verify(settings, full=True, accept="The disk died, Kafka has it no more.")
        assert found.sound
        for full in (False, True):
            (damage,) = _verify(settings, full=full).damages
            assert damage.severity is Severity.WARN
            assert "Accepted as lost: The disk died" in str(damage.finding)
        assert window(0).key not in readiness(settings).why
        mend = _flip(settings, 1)
        found = _verify(settings, full=True)
        assert [one.window for one in found.errors] == [window(1).key]
        assert len(found.damages) == 2
        mend()
        assert _verify(settings, full=True).sound

    def test_a_table_that_was_brought_back_in_an_older_state(
        self, settings: ApplicationSettings
    ) -> None:
        points = Repository(settings.warehouse, APPLICATION_ID).points
        log = settings.warehouse.control("recovery_points") / "_delta_log"
        (newest,) = points.newest()
        points.append(replace(newest, id="p9", sequence=9, digest=None))
        assert _verify(settings).sound
        with edited(log) as folder:
            max(folder.glob("*.json")).unlink()
        (damage,) = _verify(settings).errors
        assert "--accept" in damage.remedy
        assert not _verify(settings).sound, "by itself it stays"
        assert _verify(settings, accept="p9 was a mistake").sound
        assert _verify(settings).damages == ()

    def test_a_sample_takes_turns(self, settings: ApplicationSettings) -> None:
        first = _verify(settings, full=True, sample=0.5)
        second = _verify(settings, full=True, sample=0.5)
        assert first.files + second.files == WINDOWS
        assert first.covered_since_ms is None
        assert second.covered_since_ms == first.began_at_ms

    def test_a_row_that_comes_twice_and_one_that_is_gone(
        self, settings: ApplicationSettings
    ) -> None:
        ledger = Ledger(settings.warehouse, APPLICATION_ID)
        rows = ledger.entries()
        ledger._table.append([rows[0]])
        found = _verify(settings)
        assert any("2 rows" in one.problem for one in found.errors), found.damages
        ledger._table.replace([rows[0], rows[2]], where=pc.scalar(True))
        found = _verify(settings)
        (gone, hole) = sorted(found.errors, key=lambda one: one.problem)
        assert (hole.window, hole.start, hole.end) in {
            (window(2).key, 10, 20),
            (window(1).key, 10, 20),
        }
        assert {gone.window, hole.window} == {window(1).key, window(2).key}

    def test_a_window_that_is_due_is_a_warning(self, settings: ApplicationSettings) -> None:
        """Backed up out of order: nothing is damaged."""
        with edited(settings.warehouse.records(APPLICATION_ID)) as records:
            DeltaTable(records).delete(f"window = '{window(1).key}'")
        ledger = Ledger(settings.warehouse, APPLICATION_ID)
        rows = ledger.entries()
        ledger._table.replace([rows[0], rows[2]], where=pc.scalar(True))
        found = _verify(settings)
        assert found.sound
        (damage,) = found.damages
        assert damage.severity is Severity.WARN

    def test_rules_use_no_changed_file(self, settings: ApplicationSettings) -> None:
        _flip(settings, 1)
        contents = Repository.open(settings).reading(settings)
        (point,) = Repository(settings.warehouse, APPLICATION_ID).points.load(["p2"])
        cut = point.partitions[0]
        contents.require_unchanged([WantedPartition(cut, cut.records_from(20))])
        with pytest.raises(StoredDataError, match=rf"{LOG}, window {window(1).key}, .*SHA-256"):
            contents.require_unchanged([WantedPartition(cut, cut.records_from(0))])

    def test_metrics(self, settings: ApplicationSettings) -> None:
        assert list(verification_samples(Evidence(settings))) == []
        _flip(settings, 0)
        found = _verify(settings, full=True)
        samples = {
            (s.metric.name, *s.labels): s.value for s in verification_samples(Evidence(settings))
        }
        at_s = found.began_at_ms / 1000
        assert samples["kstreams_verification_timestamp_seconds", "full"] == at_s
        assert samples["kstreams_verification_timestamp_seconds", "covered"] == at_s
        assert samples["kstreams_verification_open_findings", "error"] == 1
        assert samples["kstreams_verification_open_findings", "warn"] == 0

    def test_nothing_is_there(self, settings: ApplicationSettings, tmp_path: Path) -> None:
        nowhere = replace(settings, warehouse=Warehouse(tmp_path / "nowhere"))
        with pytest.raises(WarehouseError):
            _verify(nowhere)
        assert not (tmp_path / "nowhere").exists()


@pytest.mark.spark
def test_on_the_engine(settings: ApplicationSettings, spark: SparkSessionResource) -> None:
    """Tasks of Spark read the files: the result is the same."""
    assert _verify(settings, full=True, spark=spark).files == WINDOWS
    _flip(settings, 1)
    on_engine, here = (_verify(settings, full=True, spark=s, record=False) for s in (spark, None))
    assert on_engine.damages == here.damages
    assert [one.window for one in here.damages] == [window(1).key]


def test_a_throttle(settings: ApplicationSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(throttle, "time", clock)
    size = sum(path.stat().st_size for path in _data(settings))
    began = clock.now_s
    found = _verify(settings, full=True, bytes_per_s=size // 2)
    # Of the time before it began a second may be made up for.
    assert clock.now_s - began > 0.8
    assert found.sound
    assert found.bytes == size


def test_without_a_record(settings: ApplicationSettings) -> None:
    table = Repository(settings.warehouse, APPLICATION_ID).verifications
    _verify(settings, record=False)
    assert table.all() == []
    _verify(settings, run_id="run-1")
    (row,) = table.all()
    assert (row.run_id, row.kind, row.errors) == ("run-1", VerificationKind.QUICK, 0)
    assert "windows" in row.seen_heads


def test_a_warehouse_that_cannot_be_written(
    settings: ApplicationSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise WarehouseError(path="w", reason="Read-only file system", remedy="Mount it.")

    monkeypatch.setattr(VerificationsTable, "record", refuse)
    found = _verify(settings)
    assert found.sound
    assert "Read-only" in found.unrecorded


def test_a_table_that_lost_commits_is_told_until_they_are_back(
    settings: ApplicationSettings,
) -> None:
    """The next look compares with what was seen before the loss, not with what is left."""
    _verify(settings)
    ledger_log = on_disk(settings.warehouse.control("recovery_points")) / "_delta_log"
    last = max(ledger_log.glob("*.json"))
    content = last.read_bytes()
    last.unlink()
    for _ in range(3):
        found = _verify(settings)
        assert any(one.place.startswith("recovery_points") for one in found.errors)
    last.write_bytes(content)
    assert _verify(settings).sound


def _row(at: int, *, rounds: int = 1, number: int = 0, full: bool = True) -> StoredVerification:
    return StoredVerification(
        "a",
        at,
        VerificationKind.FULL if full else VerificationKind.QUICK,
        1 / rounds,
        rounds,
        number,
        0,
        0,
        0,
        None,
        0,
        "[]",
        "{}",
        "run",
    )


class TestTurns:
    def test_every_part_comes_before_one_comes_again(self) -> None:
        before: list[StoredVerification] = []
        parts = []
        for at in range(8):
            turn = turn_of(before, 0.25)
            parts.append(turn.number)
            before.insert(0, _row(at, rounds=turn.rounds, number=turn.number))
        assert sorted(parts[:4]) == [0, 1, 2, 3]
        assert parts[4:] == parts[:4]

    def test_quick_looks_and_other_samples_do_not_count(self) -> None:
        before = [_row(3, full=False), _row(2, rounds=3, number=1), _row(1, rounds=2, number=0)]
        assert turn_of(before, 0.5).number == 1

    def test_since_when_all_was_read(self) -> None:
        half = [_row(5, rounds=2, number=0)]
        assert covered_since(half, turn_of(half, 0.5), 9) == 5
        assert covered_since([], turn_of([], 0.5), 9) is None
        assert covered_since([_row(4)], turn_of([_row(4)], 0.1), 9) == 4
        assert covered_since([], turn_of([], 1.0), 9) == 9


def test_ready_warns_of_an_old_look(settings: ApplicationSettings) -> None:
    def told(now_ms: int) -> str:
        statements = evaluate_readiness(facts(Evidence(settings), now_ms)).statements
        return " ".join(s.text for s in statements if s.subject == "verification")

    assert "never verified in full" in told(0)
    at_ms = _verify(settings, full=True).began_at_ms
    assert "without open findings" in told(at_ms + DAY_MS)
    assert "8 days ago" in told(at_ms + 8 * DAY_MS)


def test_a_damage_comes_back_from_json() -> None:
    damage = Damage(
        DamageKind.FILE,
        "records/a/f",
        "is gone",
        "Mend it.",
        window="w",
        topic="t",
        partition=0,
        start=0,
        end=9,
        points=("p2", "p1"),
        points_lost=2,
        severity=Severity.WARN,
    )
    document = json.loads(json.dumps(DAMAGE.document(damage)))
    assert Damage.of({**document, "of_a_later_release": 1}) == damage
    assert str(damage.finding) == (
        "window w, t-0, offsets 0 to 8: records/a/f: is gone. It affects 2 recovery point(s):"
        " p2, p1. Mend it."
    )


class TestCommand:
    @pytest.fixture
    def app_file(self, settings: ApplicationSettings, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        from kstreams_assets.cli import options

        monkeypatch.setattr(options, "load_settings", lambda *_, **__: settings)
        monkeypatch.setattr(module, "SETTLE_S", 0.2)
        return ["--app", "defs.yaml"]

    def test_exit_codes_and_json(self, settings: ApplicationSettings, app_file: list[str]) -> None:
        run = CliRunner().invoke
        done = run(command.verify, [*app_file, "--full"])
        assert (done.exit_code, "sound" in done.stdout) == (0, True), done.output
        _flip(settings, 2)
        done = run(command.verify, [*app_file, "--full", "--json"])
        assert done.exit_code == 1
        (found,) = json.loads(done.stdout)["applications"]
        (damage,) = found["damages"]
        assert (damage["window"], damage["kind"]) == (window(2).key, "file")
        done = run(command.verify, app_file)
        assert (done.exit_code, window(2).key in done.stdout) == (1, True)


def test_no_false_alarm_while_others_write(workbench: Workbench) -> None:
    """Ten looks, quick and full in turn, while points are taken and windows are backed up."""
    _clean_runs(workbench, 10)


test_no_false_alarm_while_others_write = pytest.mark.kafka(
    pytest.mark.spark(test_no_false_alarm_while_others_write)
)


@pytest.mark.drill
@pytest.mark.kafka
@pytest.mark.spark
def test_no_false_alarm_in_a_hundred_looks(workbench: Workbench) -> None:
    _clean_runs(workbench, 100)


def _clean_runs(bench: Workbench, looks: int) -> None:
    from tests.backup.writing import producer

    topic = bench.topic("orders", partitions=3)
    sender = producer(bench.bootstrap_servers, linger_ms=1)
    stop, failures = threading.Event(), list[BaseException]()

    def back_up() -> None:
        try:
            while not stop.is_set():
                for number in range(60):
                    sender.produce(topic, b"v" * 50, partition=number % 3)
                sender.flush(10)
                bench.take_point()
                bench.back_up(bench.close_window())
                bench.back_up(bench.windows[-1])  # once more: its rows and files are replaced
        except BaseException as error:  # noqa: BLE001 (shown by the test)
            failures.append(error)

    writer = threading.Thread(target=back_up)
    writer.start()
    try:
        while not bench.windows:
            assert writer.is_alive(), failures
            time.sleep(0.05)
        number = 0
        while number < looks or len(bench.windows) < 3:
            number += 1
            found = VerifyJob(bench.application_settings, full=number % 2 == 1).run()
            assert found.damages == (), [str(one.finding) for one in found.damages]
    finally:
        stop.set()
        writer.join(120)
    assert failures == []
    assert len(bench.windows) > 1


@contextmanager
def _read_only(root: Path) -> Iterator[None]:
    folders = [root, *(path for path in root.rglob("*") if path.is_dir())]
    modes = {path: path.stat().st_mode for path in folders}
    for path in folders:
        path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_copy_that_is_read_only(settings: ApplicationSettings, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(on_disk(settings.warehouse.root), copy)
    with _read_only(copy), suppress(FileNotFoundError):
        found = _verify(replace(settings, warehouse=Warehouse(copy)), full=True)
        assert found.sound
        assert found.unrecorded
