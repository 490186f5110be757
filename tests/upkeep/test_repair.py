"""Damage is put back from a second copy or from Kafka; a copy alone is restored from."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from kstreams_assets.app.model import Store, TopicRole
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.ktables.run import make_snapshots
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.damage import DamageKind
from kstreams_assets.model.restores import RestoreState
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore.planner import plan_restore
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.upkeep.copy import CopyJob
from kstreams_assets.upkeep.repair import REPAIR, Repair, RepairJob
from kstreams_assets.upkeep.verify import Verification, VerifyJob
from tests.backup.reading import consume, newest_files
from tests.repository.disk import on_disk
from tests.restore.test_damaged_backups import COUNT, settings
from tests.restore.trial import own_names, restored
from tests.streams.cluster import unique_name
from tests.streams.workbench import Workbench

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.usefixtures("closed_in_order"),
]

__all__ = ["settings"]


def _topic(settings: ApplicationSettings, role: TopicRole) -> str:
    return next(topic.name for topic in settings.topics if role in topic.roles)


def _files(place: Path) -> dict[str, str]:
    return {
        str(path.relative_to(place)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in place.rglob("*")
        if path.is_file()
    }


def _flip(file: Path) -> bytes:
    before = file.read_bytes()
    content = bytearray(before)
    content[len(content) // 3] ^= 1
    file.write_bytes(bytes(content))
    return before


def _look(settings: ApplicationSettings) -> Verification:
    return VerifyJob(settings, full=True, settle_s=0, record=False, log=lambda _: None).run()


def _repair(
    bench: Workbench, settings: ApplicationSettings, copy: Path | None
) -> tuple[Repair, ...]:
    look = VerifyJob(
        settings,
        full=True,
        settle_s=0,
        record=False,
        run_id=unique_name("repair"),
        log=lambda _: None,
    )
    found = RepairJob(look, copy, bench.spark).run()
    assert found.repairs
    return found.repairs


def _put_aside(settings: ApplicationSettings, done: Repair, content: bytes) -> None:
    assert done.kept is not None
    kept = on_disk(settings.warehouse.root) / done.kept
    assert kept.read_bytes() == content
    note = json.loads(kept.with_name(f"{kept.name}.json").read_text())
    assert note["file"] in str(kept)
    assert note["problem"]


def test_restored_from_a_copy_alone(
    workbench: Workbench, settings: ApplicationSettings, tmp_path: Path
) -> None:
    """The first warehouse is lost; the copy is only read."""
    place = tmp_path / "copy"
    assert CopyJob(settings.warehouse, place).run().lacking == ()
    shutil.rmtree(on_disk(settings.warehouse.root))
    before = _files(place)
    reading = replace(settings, warehouse=Warehouse.at(place, state_in=str(tmp_path / "notes")))
    newest = Repository(reading.warehouse, settings.application_id).points.newest()[0]
    request = own_names("copy", newest)
    plan = plan_restore(reading, request, settings.connection)
    assert [str(blocker) for blocker in plan.blockers] == []
    assert restored(reading, plan, workbench.spark) is RestoreState.VERIFIED
    for topic in plan.topics:
        source = consume(workbench.bootstrap_servers, topic.source)
        target = consume(workbench.bootstrap_servers, topic.target)
        assert len(source) == COUNT
        assert [(r.key, r.value, r.timestamp_ms) for r in target] == [
            (r.key, r.value, r.timestamp_ms) for r in source
        ]
    (noted,) = Repository(reading.warehouse, settings.application_id).restores.all()
    assert noted.state is RestoreState.VERIFIED
    assert _files(place) == before
    # Without a place for notes, it says which option it lacks, before anything is written.
    bare = replace(settings, warehouse=Warehouse(place))
    other = plan_restore(bare, own_names("other", newest), settings.connection)
    with pytest.raises(KStreamsAssetsError, match=r"it is a copy of .*--state-in"):
        restored(bare, other, workbench.spark)
    assert _files(place) == before
    assert not {t.target for t in other.topics} & set(workbench.cluster.topics())


@pytest.mark.parametrize("how", ["flipped", "gone", "swapped"])
def test_from_the_copy(
    workbench: Workbench, settings: ApplicationSettings, tmp_path: Path, how: str
) -> None:
    place = tmp_path / "copy"
    CopyJob(settings.warehouse, place).run()
    records = on_disk(settings.warehouse.records(settings.application_id))
    bad = newest_files(records, _topic(settings, TopicRole.INPUT))[0]
    good = bad.read_bytes()
    if how == "flipped":
        _flip(bad)
    elif how == "gone":
        bad.unlink()
    else:
        bad.write_bytes(
            newest_files(records, _topic(settings, TopicRole.CHANGELOG))[0].read_bytes()
        )
    damaged = bad.read_bytes() if bad.exists() else b""
    (done,) = _repair(workbench, settings, place)
    assert done.is_done
    assert done.source == f"the copy ({place / bad.relative_to(on_disk(settings.warehouse.root))})"
    assert bad.read_bytes() == good
    assert done.digest == hashlib.sha256(good).hexdigest()
    assert "repaired from the copy" in str(done)
    assert REPAIR.document(done)["repaired"] is True
    if how == "gone":
        assert done.kept is None
    else:
        _put_aside(settings, done, damaged)
    assert _look(settings).damages == ()


def test_from_kafka(workbench: Workbench, settings: ApplicationSettings, tmp_path: Path) -> None:
    """There is no copy, or its file is damaged, too."""
    records = on_disk(settings.warehouse.records(settings.application_id))
    place = tmp_path / "copy"
    CopyJob(settings.warehouse, place).run()
    bad = newest_files(records, _topic(settings, TopicRole.INPUT))[0]
    _flip(bad)
    _flip(place / bad.relative_to(on_disk(settings.warehouse.root)))
    damaged = bad.read_bytes()
    (done,) = _repair(workbench, settings, place)
    assert done.is_done, str(done)
    assert done.source == "Kafka (window w0001 was read again)"
    _put_aside(settings, done, damaged)
    assert _look(settings).damages == ()
    request = own_names("again", workbench.points()[-1])
    plan = plan_restore(settings, request, settings.connection)
    assert restored(settings, plan, workbench.spark) is RestoreState.VERIFIED


def test_nowhere(workbench: Workbench, settings: ApplicationSettings) -> None:
    """Kafka has deleted some of it: a poorer backup does not replace a damaged one."""
    topic = _topic(settings, TopicRole.INPUT)
    records = on_disk(settings.warehouse.records(settings.application_id))
    bad = newest_files(records, topic)[0]
    _flip(bad)
    before = bad.read_bytes()
    workbench.delete_records(topic, COUNT - 10)
    (done,) = _repair(workbench, settings, None)
    assert not done.is_done
    assert "no second copy was given, and Kafka does not have all records any more" in str(done)
    assert done.remedy
    assert bad.read_bytes() == before
    assert not _look(settings).sound


@pytest.mark.parametrize("what", ["data", "entry", "checkpoint"])
def test_a_control_table(
    workbench: Workbench, settings: ApplicationSettings, tmp_path: Path, what: str
) -> None:
    place = tmp_path / "copy"
    root = on_disk(settings.warehouse.root)
    if what == "checkpoint":
        DeltaTable(str(root / "windows")).create_checkpoint()
    CopyJob(settings.warehouse, place).run()
    pattern = {
        "data": "application_id=*/*.parquet",
        "entry": "_delta_log/*1.json",
        "checkpoint": "_delta_log/*.checkpoint.parquet",
    }[what]
    bad = next((root / "windows").glob(pattern))
    good = _flip(bad)
    if what == "checkpoint":
        bad.write_bytes(good[:-100])
    damaged = bad.read_bytes()
    found = _look(settings)
    assert {one.kind for one in found.damages} >= {DamageKind.TABLE}
    done = [one for one in _repair(workbench, settings, place) if one.is_done]
    assert [one.file for one in done] == [str(bad.relative_to(root))]
    assert bad.read_bytes() == good
    _put_aside(settings, done[0], damaged)
    assert _look(settings).damages == ()


@pytest.mark.parametrize("from_copy", [True, False])
def test_a_snapshot(
    workbench: Workbench, settings: ApplicationSettings, tmp_path: Path, from_copy: bool
) -> None:
    totals = _topic(settings, TopicRole.CHANGELOG)
    application = replace(settings.application, stores=(Store("totals", totals),))
    settings = replace(settings, application=application)
    windows = workbench.windows[-1:]
    make_snapshots(settings, windows, spark=workbench.spark, run_id=unique_name("ktables"))
    place = tmp_path / "copy"
    CopyJob(settings.warehouse, place).run()
    table = on_disk(settings.warehouse.ktable(settings.application_id, "totals"))
    bad = next(p for p in table.rglob("*.parquet") if "_delta_log" not in p.parts)
    good = _flip(bad)
    (done,) = _repair(workbench, settings, place if from_copy else None)
    assert done.is_done
    assert done.damage.kind is DamageKind.SNAPSHOT
    if from_copy:
        assert bad.read_bytes() == good
    else:
        assert "created again" in str(done)
    assert _look(settings).damages == ()
