"""The block `governance` of the YAML: names are known, numbers within bounds; and its assets."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kstreams_assets.app.governance import Governance
from kstreams_assets.app_file.read import application_model, load_settings
from kstreams_assets.checks import Outcome
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.governance.evaluation import CHECKS, evaluate
from kstreams_assets.governance.run import declared_of
from kstreams_assets.orchestration import governance as assets_module
from kstreams_assets.orchestration.component import build_application_definitions
from kstreams_assets.settings import ApplicationSettings
from tests.governance.samples import CHANGELOG, V1_FILE, configs, declared, facts_are, healthy
from tests.orchestration.default_keys import governance_key
from tests.orchestration.project import attributes

KEY = governance_key("shop")


def settings_of(governance: dict[str, Any] | None, **more: Any) -> ApplicationSettings:
    """The settings of a small application with such a block."""
    said = attributes(**more)
    if governance is not None:
        said["governance"] = governance
    return application_model(said).settings(Path("/nowhere"))


def test_internal_topics_go_without_the_application_id_too() -> None:
    topics = {"internal_topics": ["s-changelog"], "partitions": {"in": 4, "s-changelog": 4}}
    said = settings_of(topics).governance
    assert said.internal_topics == ("shop-s-changelog",)
    assert said.partitions == {"in": 4, "shop-s-changelog": 4}


def test_nothing_declared() -> None:
    assert settings_of(None).governance == Governance()
    assert settings_of({}).governance == Governance()


def test_whose_names_fit_but_are_others_is_known_of_the_application() -> None:
    said = settings_of(
        None, not_mine=["shop-x-changelog"], other_application_ids=["shop-eu"]
    ).application
    there = ["shop-x-changelog", "shop-eu-y-changelog", "shop-z-changelog", "other-z-changelog"]
    assert said.undeclared_internal(there) == {"shop-z-changelog"}


@pytest.mark.parametrize(
    ("governance", "kind", "name"),
    [
        ({"inputs": ["out"]}, "input", "out"),
        ({"internal_topics": ["in"]}, "internal topic", "in"),
    ],
)
def test_unknown_names_are_errors(governance: dict[str, Any], kind: str, name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        settings_of(governance)
    assert f"The declared {kind} {name!r} is not in" in str(caught.value)


class TestAssets:
    """What Dagster gets."""

    def test_the_asset_and_its_checks(self) -> None:
        built = build_application_definitions(settings_of(None, owners=["team:shop"]))
        graph = dg.Definitions.merge(
            built, dg.Definitions(resources={"spark": dg.ResourceDefinition.none_resource()})
        ).resolve_asset_graph()
        node = graph.get(KEY)
        assert node.group_name == "shop/governance"
        assert node.owners == ["team:shop"]
        assert {key.name for key in node.check_keys} == set(CHECKS)
        assert {key.to_user_string() for key in node.parent_keys} == {
            "kafka/in",
            "kafka/out",
            "kafka/shop-s-changelog",
        }

    @pytest.mark.parametrize(
        ("sensors", "status"),
        [
            ("running", dg.DefaultScheduleStatus.RUNNING),
            ("stopped", dg.DefaultScheduleStatus.STOPPED),
        ],
    )
    def test_the_schedule(self, sensors: str, status: dg.DefaultScheduleStatus) -> None:
        said = settings_of({"every": "0 6 * * *"}, sensors=sensors)
        found = {s.name: s for s in build_application_definitions(said).schedules or ()}
        schedule = found["shop_governance"]
        assert isinstance(schedule, dg.ScheduleDefinition)
        assert schedule.cron_schedule == "0 6 * * *"
        assert schedule.default_status is status
        without = build_application_definitions(settings_of({}))
        assert "shop_governance" not in {s.name for s in without.schedules or ()}

    def test_a_run_shows_findings(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        settings = load_settings(V1_FILE, warehouse=str(tmp_path))
        facts = configs(CHANGELOG, cleanup_policy="delete")(healthy(declared("orders_count_v1")))
        facts_are(facts, monkeypatch)
        verdicts = evaluate(facts, declared_of(settings))
        asset = assets_module.build_governance_asset(settings)
        result = dg.materialize([asset])
        assert result.success
        checks = {e.check_name: e for e in result.get_asset_check_evaluations()}
        assert (
            set(checks)
            == {v.check for v in verdicts if v.outcome is not Outcome.NOT_VERIFIABLE}
            < set(CHECKS)
        )
        red = [name for name, check in checks.items() if not check.passed]
        assert red == ["cleanup_policies_fit"]
        assert CHANGELOG in (checks[red[0]].description or "")
        assert checks[red[0]].severity is dg.AssetCheckSeverity.ERROR
        shown = checks[red[0]].metadata["findings"]
        assert isinstance(shown, dg.TableMetadataValue)
        (finding,) = shown.records
        assert "--add-config cleanup.policy=compact" in str(finding.data["remedy"])
        (made,) = result.asset_materializations_for_node("orders_count_v1__governance")
        assert made.metadata["errors"].value == 1
        assert made.metadata["offset_lag"].value == 0

    def test_a_cluster_that_is_down_fails_the_run_with_its_message(self) -> None:
        connection = {"bootstrap_servers": "127.0.0.1:1", "request_timeout_seconds": 1}
        asset = assets_module.build_governance_asset(settings_of(None, connection=connection))
        with pytest.raises(dg.Failure, match=r"Kafka at 127\.0\.0\.1:1 did not answer within 1 s"):
            dg.materialize([asset])
