"""The asset `<app>/verification`, its checks and its schedules."""

from pathlib import Path

import dagster as dg
import pytest

from kstreams_assets.app_file.read import application_model
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.orchestration.upkeep import (
    READ,
    SOUND,
    VerificationConfig,
    build_verification_asset,
    build_verification_schedules,
)
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings, VerifySettings
from tests.orchestration.default_keys import verification_key
from tests.orchestration.project import attributes
from tests.repository.test_damage import settings as backed_up
from tests.upkeep.test_verify import _flip
from tests.upkeep.test_verify import settings as whole

__all__ = ["backed_up", "whole"]

KEY = verification_key("shop")


def _materialised(settings: ApplicationSettings, **config: object) -> dg.ExecuteInProcessResult:
    asset = build_verification_asset(settings)
    op = KEY.to_python_identifier()
    return dg.materialize(
        [asset],
        run_config=dg.RunConfig({op: VerificationConfig(**config)}),  # type: ignore[arg-type]
        selection=[asset],
    )


def _checks(done: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    return {found.check_name: found for found in done.get_asset_check_evaluations()}


def test_sound_and_damaged(settings: ApplicationSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kstreams_assets.upkeep.verify.SETTLE_S", 0.2)
    checks = _checks(_materialised(settings))
    assert checks[SOUND].passed
    assert not checks[READ].passed, "a quick look reads nothing"
    assert checks[READ].severity is dg.AssetCheckSeverity.WARN
    checks = _checks(_materialised(settings, full=True))
    assert checks[SOUND].passed
    assert checks[READ].passed
    _flip(settings, 0)
    done = _materialised(settings, full=True)
    found = _checks(done)[SOUND]
    assert not found.passed
    assert found.severity is dg.AssetCheckSeverity.ERROR
    assert "log-0" in str(found.description)
    (materialised,) = done.get_asset_materialization_events()
    assert materialised.materialization.metadata["errors"].value == 1
    newest, *_ = Repository(settings.warehouse, "shop").verifications.all()
    assert newest.run_id == done.run_id


@pytest.fixture
def settings(whole: ApplicationSettings) -> ApplicationSettings:
    return whole


def test_schedules(tmp_path: Path) -> None:
    def made(**block: object) -> list[dg.ScheduleDefinition]:
        said = attributes(verify=block) if block else attributes()
        return build_verification_schedules(application_model(said).settings(tmp_path))

    assert made() == []
    quick, full = made(every="0 4 * * *", full_every="0 5 * * 0")
    assert (quick.cron_schedule, full.cron_schedule) == ("0 4 * * *", "0 5 * * 0")
    assert quick.name == "shop_verification"
    (sampled,) = made(every="0 4 * * *", sample=0.1)
    assert sampled.default_status is dg.DefaultScheduleStatus.STOPPED


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ({"every": "hourly"}, "verify.every is 'hourly'"),
        ({"full_every": "x"}, "verify.full_every"),
        ({"sample": 1.5}, "verify.sample is 1.5"),
        ({"bytes_per_second": 1}, "verify.bytes_per_second is 1"),
    ],
)
def test_what_is_refused(block: dict[str, object], told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=told):
        application_model(attributes(verify=block)).settings(tmp_path)


def test_settings(tmp_path: Path) -> None:
    said = {"every": "0 4 * * *", "sample": 0.1, "bytes_per_second": 20_000}
    settings = application_model(attributes(verify=said)).settings(tmp_path)
    assert settings.verify == VerifySettings(every="0 4 * * *", sample=0.1, bytes_per_second=20_000)
