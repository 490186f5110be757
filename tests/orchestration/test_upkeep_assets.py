"""The assets `<app>/expire` and `<app>/second_copy`: what their runs do, and what they tell."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import dagster as dg
import pytest

from kstreams_assets.copy_mark import MARK
from kstreams_assets.layout import Warehouse
from kstreams_assets.metrics.collect import Scrape
from kstreams_assets.orchestration.upkeep import (
    COMPLETE,
    ExpireConfig,
    build_expire_assets,
    build_expire_schedules,
    build_second_copy_assets,
    build_second_copy_schedules,
)
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings, SecondCopySettings
from tests.metrics.exposed import Exposed, when_up
from tests.orchestration.default_keys import expire_key
from tests.repository.disk import on_disk
from tests.store.place import warehouse_at
from tests.upkeep.simulated_app import APPLICATION_ID, SimulatedApp, restored_state
from tests.upkeep.test_expire import require_all_restore, simulated

pytestmark = pytest.mark.e2e


@pytest.fixture
def app(tmp_path: Path) -> SimulatedApp:
    """An application that was backed up for some hours."""
    made = simulated(tmp_path, seed=5, windows=30)
    made.run(made.windows)
    return made


def _run(asset: dg.AssetsDefinition, config: dg.Config | None = None) -> dg.ExecuteInProcessResult:
    of_op = {expire_key(APPLICATION_ID).to_python_identifier(): config} if config else {}
    return dg.materialize([asset], run_config=dg.RunConfig(of_op), selection=[asset])


def _told(done: dg.ExecuteInProcessResult) -> dict[str, object]:
    (event,) = done.get_asset_materialization_events()
    return {name: value.value for name, value in event.materialization.metadata.items()}


class TestExpire:
    def test_a_dry_run_and_a_run(self, app: SimulatedApp) -> None:
        (asset,) = build_expire_assets(app.settings)
        table = Repository(app.settings.warehouse, APPLICATION_ID).points
        before = table.instants()
        planned = _told(_run(asset, ExpireConfig(dry_run=True)))
        assert table.instants() == before
        done = _told(_run(asset))
        assert (
            done["points_gone"]
            == planned["points_gone"]
            == len(before) - len(require_all_restore(app))
        )
        freed = done["bytes_freed"]
        assert isinstance(freed, int)
        assert freed > 0

    def test_none_without_a_policy(self, app: SimulatedApp) -> None:
        assert build_expire_assets(replace(app.settings, keep=None)) == []
        assert build_expire_schedules(app.settings) == []
        assert app.settings.keep is not None
        nightly = app.settings.keep.model_copy(update={"every": "0 3 * * *"})
        (schedule,) = build_expire_schedules(replace(app.settings, keep=nightly))
        assert schedule.cron_schedule == "0 3 * * *"


class TestSecondCopy:
    @pytest.fixture
    def settings(self, app: SimulatedApp, tmp_path: Path) -> ApplicationSettings:
        to = warehouse_at(tmp_path / "second").root
        return replace(app.settings, second_copy=SecondCopySettings(to=str(to), every="0 2 * * *"))

    def test_a_run_copies_and_the_metric_tells_when(
        self, app: SimulatedApp, settings: ApplicationSettings
    ) -> None:
        assert _copied_at(settings) is None
        (asset,) = build_second_copy_assets(settings)
        done = _run(asset)
        files = _told(done)["files_copied"]
        assert isinstance(files, int)
        assert files > len(app.windows)
        assert [check.passed for check in done.get_asset_check_evaluations()] == [True]
        assert settings.second_copy.place is not None
        copy = replace(app.settings, warehouse=Warehouse(settings.second_copy.place))
        assert restored_state(copy, app.points[-1]) == app.state(app.points[-1])
        assert (_copied_at(settings) or 0) > 1.7e9
        assert _told(_run(asset))["files_copied"] == 0
        (schedule,) = build_second_copy_schedules(settings)
        assert schedule.cron_schedule == "0 2 * * *"

    def test_what_the_source_cannot_give_is_named(self, settings: ApplicationSettings) -> None:
        records = on_disk(settings.warehouse.records(APPLICATION_ID))
        damaged = next(records.glob("*/*.parquet"))
        damaged.write_bytes(damaged.read_bytes()[:-1])
        (asset,) = build_second_copy_assets(settings)
        (check,) = _run(asset).get_asset_check_evaluations()
        assert (check.check_name, check.passed) == (COMPLETE, False)
        assert damaged.name in str(check.description)

    def test_a_place_that_cannot_be_read_is_down_by_itself(
        self, settings: ApplicationSettings
    ) -> None:
        assert settings.second_copy.place is not None
        settings.second_copy.place.mkdir(parents=True)
        (settings.second_copy.place / MARK).write_text("{")
        up = _values(settings, "kstreams_up", "warehouse")
        assert up["second_copy"] == 0
        assert up["warehouse"] == 1


def _values(settings: ApplicationSettings, name: str, source: str) -> dict[str, float]:
    found = when_up(partial(Exposed.of, Scrape([settings], timeout_s=4)), source=source)
    return {
        sample.labels.get("source", ""): sample.value
        for family in found.families.values()
        if family.name == name
        for sample in family.samples
    }


def _copied_at(settings: ApplicationSettings) -> float | None:
    name = "kstreams_second_copy_timestamp_seconds"
    return _values(settings, name, "second_copy").get("")
