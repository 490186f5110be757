"""Names as long as Kafka allows: backed up, read, copied, expired and repaired."""

import os
from pathlib import Path

import pytest

from kstreams_assets.app.names import LONGEST_NAME, name_problem
from kstreams_assets.layout import Warehouse
from kstreams_assets.lease import warehouse_lock
from kstreams_assets.settings import KeepSettings
from kstreams_assets.store import disk_name, store_at
from kstreams_assets.upkeep.copy import CopyJob
from kstreams_assets.upkeep.repair import RepairJob
from kstreams_assets.upkeep.verify import VerifyJob
from tests.streams.workbench import NoSpark
from tests.upkeep import simulated_app
from tests.upkeep.simulated_app import SimulatedApp, restored_state

NAME_MAX = 255
KEEP = KeepSettings(all="90d")


def _long(begin: str, end: str = "", length: int = LONGEST_NAME) -> str:
    return begin + "x" * (length - len(begin) - len(end)) + end


@pytest.mark.parametrize("length", [233, LONGEST_NAME])
def test_the_way_of_a_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    app_id = _long("shop-", length=length)
    names = {
        "INPUT": _long("orders-", length=length),
        "FLIGHT": _long("shop-", "-repartition", length),
        "STATE": _long("shop-", "-changelog", length),
        "OUTPUT": _long("orders-", "-sums", length),
    }
    assert not any(map(name_problem, names.values()))
    roles = dict(zip(names.values(), simulated_app.ROLES.values(), strict=True))
    monkeypatch.setattr(simulated_app, "APPLICATION_ID", app_id)
    monkeypatch.setattr(simulated_app, "ROLES", roles)
    for constant, name in names.items():
        monkeypatch.setattr(simulated_app, constant, name)
    warehouse = Warehouse(tmp_path / "w")
    app = SimulatedApp.at(warehouse, seed=1, windows=3, keep=KEEP)
    app.run(app.windows)
    assert restored_state(app.settings, app.points[-1], names["STATE"]) == app.state(
        app.points[-1], names["STATE"]
    )
    copy = tmp_path / "copy"
    CopyJob(warehouse, copy).run()
    damaged = next(warehouse.records(app_id).rglob("orders-*.parquet"))
    assert isinstance(damaged, Path)
    damaged.write_bytes(b"damaged")
    look = VerifyJob(app.settings, full=True, settle_s=0)
    assert not look.run().sound
    done = RepairJob(look, copy, NoSpark()).run()
    assert done.repairs
    assert [one.problem for one in done.repairs if one.source is None] == []
    assert done.verification.sound
    longest = max(len(os.fsencode(path.name)) for path in tmp_path.rglob("*"))
    assert longest <= NAME_MAX


@pytest.mark.parametrize(
    "lock",
    [
        "{}",
        "recorder/{}",
        "recorder-sensor/{}",
        "backup-requests/{}",
        "backup-reports/{}",
        "dagster-reports/{}",
        "backup-pace/{}",
        "followers/{}",
        "fold/{}",
        "maintenance/{}",
        "drill-{}",
        "restore-4L6g3nShT-eMCtK--X86sw-{}",
    ],
)
def test_locks_and_what_lies_beside_them(tmp_path: Path, lock: str) -> None:
    warehouse = Warehouse(tmp_path)
    paths = [warehouse.lock_file(lock.format(_long("app-", end))) for end in ("-a", "-b")]
    assert paths[0] != paths[1]  # they differ at the end only
    for path in paths:
        with warehouse_lock(path, purpose="test", wait_s=0) as held:
            assert held is not None
        store_at(path.with_suffix(".json")).put_text("{}")
        path.with_suffix("").mkdir()


def test_folders_of_runs(tmp_path: Path) -> None:
    warehouse = Warehouse(tmp_path)
    for begin in ("ktables", "completeness"):
        folder = warehouse.staging(f"{begin}-{_long('app-')}")
        folder.mkdir(parents=True)
        assert folder.name.startswith(f"{begin}-app-xxx")


@pytest.mark.parametrize("length", [220, 241, NAME_MAX])
def test_files_of_earlier_releases_with_long_names_are_put_in_place(
    tmp_path: Path, length: int
) -> None:
    path = tmp_path / ("x" * length)
    store_at(path).put_text("a")
    store_at(path).put_file(b"b")
    assert path.read_bytes() == b"b"
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_short_names_stay_and_long_ones_differ() -> None:
    assert disk_name("x" * 220) == "x" * 220
    names = {disk_name("ü" * 150 + str(number)) for number in range(100)}
    assert len(names) == 100
    assert max(len(name.encode()) for name in names) <= 220
