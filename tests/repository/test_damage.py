"""Backups whose files do not hold what the ledger says: each is named, and nothing counts on it."""

import itertools
import math
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from deltalake import DeltaTable, write_deltalake

from kstreams_assets.app.model import AppTopic, TopicRole, TopicRoles
from kstreams_assets.errors import StoredDataError, WarehouseError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse, written_files
from kstreams_assets.model.point import Guarantee, RecoveryPoint, WantedPartition
from kstreams_assets.model.restorability import PointStatus, Restorability
from kstreams_assets.model.spans import SpanContent, SpanId, SpanResult
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.repository import inspection
from kstreams_assets.repository import ledger as ledger_module
from kstreams_assets.repository import records as damage_module
from kstreams_assets.repository.coverage import recovery_point_is_recent
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.points import RecoveryPointTable
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.restore.selection import choose
from kstreams_assets.settings import ApplicationSettings, WindowSchedule
from kstreams_assets.store import StorePath, relative
from tests.backup.record_files import write_records
from tests.backup.samples import APPLICATION_ID, application, backup, cut, point, span, window
from tests.repository.disk import on_disk
from tests.repository.spans_on_disk import span_files
from tests.store.place import edited, warehouse_at

pytestmark = pytest.mark.on_store

TOPICS = (AppTopic("log", TopicRoles({TopicRole.CHANGELOG})),)
LOG = TopicPartitionId("log", 0)
WINDOWS = 3
EACH = 10
Damage = Callable[[Path], object]


@pytest.fixture
def settings(tmp_path: Path) -> ApplicationSettings:
    """Three windows of ten records each, and a sealed point at the end of each."""
    settings = ApplicationSettings(
        application=application(*TOPICS),
        topics=TOPICS,
        connection=KafkaConnection(bootstrap_servers="localhost:1"),
        warehouse=warehouse_at(tmp_path / "warehouse"),
        windows=WindowSchedule.every("hour", start="2026-10-20"),
    )
    for index in range(WINDOWS):
        _back_up(settings.warehouse, index, range(EACH * index, EACH * index + EACH))
        _points(settings).append(_point(index))
    return settings


def _points(settings: ApplicationSettings) -> RecoveryPointTable:
    return Repository.open(settings).points


def _point(index: int) -> RecoveryPoint:
    taken = point(
        window(index).end_ms - 1, cut(0, EACH * index + EACH, topic="log"), point_id=f"p{index}"
    )
    return replace(taken, guarantee=Guarantee.EXACT, sealed=True)


def _back_up(warehouse: Warehouse, index: int, offsets: range) -> None:
    path = warehouse.records(APPLICATION_ID)
    with edited(path) as folder:
        write_records(folder, window(index).key, LOG, offsets)
    plan = span(offsets.start, offsets.stop, index=index, topic="log", continues=index > 0)
    (file,) = span_files(path, SpanId(window(index).key, LOG))
    written = written_files(path, [(str(relative(file.path, path)), file.records)])
    content = SpanContent(
        records=file.records,
        files=1,
        first_offset=file.first_offset,
        last_offset=file.last_offset,
        written=tuple(written),
    )
    made = SpanResult(plan, content, (), contiguity_known=True)
    ledger = Ledger(warehouse, APPLICATION_ID)
    ledger.record([backup(made, index=index, topic="log")], run_id="run")


def _records(settings: ApplicationSettings) -> StorePath:
    return settings.warehouse.records(APPLICATION_ID)


def _do(damage: Damage, settings: ApplicationSettings) -> None:
    with edited(_records(settings)) as records:
        damage(records)


def _last_commit(records: Path) -> None:
    max((records / "_delta_log").glob("*.json")).unlink()


def _no_table(records: Path) -> None:
    shutil.rmtree(records)


def _fewer_after_a_second_backup(records: Path) -> None:
    """What a run leaves that dies between Delta's commit and the comparison with the ledger."""
    key = window(WINDOWS - 1).key
    DeltaTable(records).delete(f"window = '{key}'")
    write_records(records, key, LOG, range(EACH * (WINDOWS - 1), EACH * WINDOWS - 1))


def _other_offsets(records: Path) -> None:
    key = window(WINDOWS - 1).key
    DeltaTable(records).delete(f"window = '{key}'")
    write_records(records, key, LOG, range(EACH * (WINDOWS - 1) - 1, EACH * WINDOWS - 1))


def _rewritten_through_delta(records: Path) -> None:
    """As many records with the same offsets, in a file that no backup wrote."""
    rows = DeltaTable(records).to_pyarrow_table()
    write_deltalake(records, rows, mode="overwrite")


def _newest_file(records: Path) -> Path:
    (file,) = span_files(records, SpanId(window(WINDOWS - 1).key, LOG))
    return on_disk(file.path)


def _no_file(records: Path) -> None:
    _newest_file(records).unlink()


def _cut_off(records: Path) -> None:
    file = _newest_file(records)
    file.write_bytes(file.read_bytes()[:-7])


IN_THE_LOG = {
    "last commit": _last_commit,
    "records/ gone": _no_table,
    "fewer after a second backup": _fewer_after_a_second_backup,
    "other offsets": _other_offsets,
    "rewritten through Delta": _rewritten_through_delta,
}
IN_FILES = {"no file": _no_file, "cut off": _cut_off}


EVERY = IN_THE_LOG | IN_FILES


@pytest.mark.parametrize("damage", EVERY.values(), ids=EVERY)
class TestDamage:
    """Whatever the damage: who reads the span finds it."""

    def test_the_span_is_named(self, settings: ApplicationSettings, damage: Damage) -> None:
        ledger = Ledger(settings.warehouse, APPLICATION_ID)
        assert list(ledger.damaged()) == []
        _do(damage, settings)
        last = list(ledger.damaged())[-1]
        assert (last.window, last.topic, last.partition) == (window(2).key, "log", 0)
        assert (last.start, last.end) == (20, 30)
        assert window(2).key in last.remedy

    def test_no_point_that_needs_it_gives_anything(
        self, settings: ApplicationSettings, damage: Damage
    ) -> None:
        assert _restorability(settings) == [Restorability.EXACT] * 3
        _do(damage, settings)
        assert _restorability(settings)[-1] is Restorability.NOTHING
        (status,) = (
            Repository.open(settings)
            .reading(settings, inspect_timeout_s=math.inf)
            .statuses([_point(2)])
        )
        assert re.search(r"window w000\d, log-0, offsets \d+ to \d*9: ", status.reason)
        assert status.damaged

    def test_an_older_point_is_not_taken_in_silence(
        self, settings: ApplicationSettings, damage: Damage
    ) -> None:
        _do(damage, settings)
        points = [_point(index) for index in range(WINDOWS)]
        coverage = Repository.open(settings).reading(settings, inspect_timeout_s=math.inf)

        def judge(ids: Sequence[str]) -> Sequence[PointStatus]:
            return coverage.statuses([one for id_ in ids for one in points if one.id == id_])

        choice = choose(points, judge, RestoreRequest())
        assert choice.status is None
        (blocker,) = choice.blockers
        assert re.search(r"p2\b.*window w000\d, log-0, offsets \d+ to \d*9: ", str(blocker))
        assert "from a copy" in blocker.action

    def test_a_restore_finds_no_file_of_it(
        self, settings: ApplicationSettings, damage: Damage
    ) -> None:
        _do(damage, settings)
        contents = Repository.open(settings).reading(settings)
        wanted = WantedPartition(_point(2).partitions[0], (OffsetRange(20, 30),), None)
        held = contents.contents(_point(2), [wanted])[LOG]
        assert ([found.window for found in held.damaged], held.files) == ([window(2).key], ())
        with pytest.raises(StoredDataError, match=rf"{window(2).key}, log-0, offsets 20 to 29"):
            contents.files(wanted)


@pytest.mark.parametrize("window_of", [0, WINDOWS - 1])
def test_a_file_that_is_gone_is_not_green(settings: ApplicationSettings, window_of: int) -> None:
    """Also one of an older window, which no run reads any more."""
    soon_ms = _point(WINDOWS - 1).taken_at_ms + 1000
    assert recovery_point_is_recent(settings, now_ms=soon_ms).passed
    (file,) = span_files(_records(settings), SpanId(window(window_of).key, LOG))
    content = file.path.read_bytes()
    file.path.unlink()
    recency = recovery_point_is_recent(settings, now_ms=soon_ms)
    newest = recency.restorable.exact
    assert (newest.id if newest else None) == (f"p{window_of - 1}" if window_of else None)
    assert window_of or not recency.passed
    file.path.write_bytes(content)
    assert recovery_point_is_recent(settings, now_ms=soon_ms).passed


def test_files_are_looked_at_in_turns(
    settings: ApplicationSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, a call looks at some, and the next ones at the others."""
    monkeypatch.setattr(inspection, "_AT_ONCE", 1)
    clock = SimpleNamespace(monotonic=itertools.count().__next__)
    for module in (damage_module, inspection):
        monkeypatch.setattr(module, "time", clock)
    ledger = Ledger(settings.warehouse, APPLICATION_ID)
    for index in range(WINDOWS):
        for file in span_files(_records(settings), SpanId(window(index).key, LOG)):
            file.path.unlink()
    for found in range(1, WINDOWS + 1):
        assert len(list(ledger.damaged(inspect_timeout_s=1.5))) == found
    # Another backup: what was found stays, and the looks go on.
    _back_up(settings.warehouse, WINDOWS, range(EACH * WINDOWS, EACH * WINDOWS + EACH))
    assert len(list(ledger.damaged(inspect_timeout_s=0))) == WINDOWS
    assert len(list(ledger.damaged())) == WINDOWS


def test_ledger_and_log_are_compared_again_only_when_one_changed(
    settings: ApplicationSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(settings.warehouse, APPLICATION_ID)
    reads: list[StorePath] = []
    counted = ledger_module.file_actions
    monkeypatch.setattr(
        ledger_module, "file_actions", lambda *of: (reads.append(of[0]), counted(*of))[1]
    )
    for _ in range(5):
        assert list(ledger.damaged(inspect_timeout_s=0)) == []
    assert len(reads) == 1
    _back_up(settings.warehouse, WINDOWS, range(EACH * WINDOWS, EACH * WINDOWS + EACH))
    assert list(ledger.damaged(inspect_timeout_s=0)) == []
    assert len(reads) == 2
    _do(_last_commit, settings)
    assert [one.window for one in ledger.damaged(inspect_timeout_s=0)] == [window(WINDOWS).key]
    assert len(reads) == 3


@pytest.mark.parametrize("damage", IN_THE_LOG.values(), ids=IN_THE_LOG)
def test_saved_records_are_kept_for_a_damaged_backup(
    settings: ApplicationSettings, damage: Damage
) -> None:
    ledger = Ledger(settings.warehouse, APPLICATION_ID)
    assert ledger.held_positions(settings.application)[LOG].offset == 30
    assert ledger.proven_ranges(settings.application) == {LOG: [("life-1", 0, 30)]}
    _do(damage, settings)
    held = ledger.held_positions(settings.application).get(LOG)
    assert held is None or held.offset <= 20
    proven = ledger.proven_ranges(settings.application).get(LOG, ())
    assert all(end <= 20 for _, _, end in proven)


def test_a_point_below_the_damage_still_restores(settings: ApplicationSettings) -> None:
    _do(_last_commit, settings)
    assert _restorability(settings) == [
        Restorability.EXACT,
        Restorability.EXACT,
        Restorability.NOTHING,
    ]


@pytest.mark.parametrize("text", ["", "not JSON", '{"commitInfo":{}}\n{"add":'])
def test_a_log_that_cannot_be_read(settings: ApplicationSettings, text: str) -> None:
    log = _records(settings) / "_delta_log" / f"{0:020}.json"
    log.write_text(text)
    with pytest.raises(WarehouseError, match="records/shop"):
        Ledger(settings.warehouse, APPLICATION_ID).damaged()
    with pytest.raises(WarehouseError):
        Repository.open(settings).reading(settings).statuses([_point(0)])


def test_a_ledger_of_an_earlier_release(settings: ApplicationSettings) -> None:
    """It did not note its files: counts, offsets, existence and size decide."""
    ledger = Ledger(settings.warehouse, APPLICATION_ID)
    for index, entry in enumerate(ledger.entries()):
        older = replace(entry.result, content=replace(entry.result.content, written=()))
        ledger.record([backup(older, index=index, topic="log")], run_id="run")
    assert list(ledger.damaged()) == []
    _do(_rewritten_through_delta, settings)
    assert list(ledger.damaged()) == []
    _do(_cut_off, settings)
    assert [one.window for one in ledger.damaged()] == [window(2).key]


def _restorability(settings: ApplicationSettings) -> list[Restorability]:
    coverage = Repository.open(settings).reading(settings, inspect_timeout_s=math.inf)
    return [
        status.restorability for status in coverage.statuses([_point(i) for i in range(WINDOWS)])
    ]
