"""The block `governance` of the YAML: names are known, numbers within bounds; and its assets."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kstreams_assets.app.governance import Governance, Limits
from kstreams_assets.app_file.read import application_model
from kstreams_assets.checks import Outcome
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.governance.findings import GovernanceReport
from kstreams_assets.governance.judge import CHECKS, judge
from kstreams_assets.orchestration import governance as assets_module
from kstreams_assets.orchestration.component import build_application_definitions
from kstreams_assets.orchestration.keys import governance_key
from kstreams_assets.settings import ApplicationSettings
from tests.components.project import attributes
from tests.governance.samples import CHANGELOG, configs, declared, healthy

HOUR_MS = 3_600_000
KEY = governance_key("shop")


def settings_of(governance: dict[str, Any] | None, **more: Any) -> ApplicationSettings:
    """The settings of a small application with such a block."""
    said = attributes(**more)
    if governance is not None:
        said["governance"] = governance
    return application_model(said).settings(Path("/nowhere"))


def test_everything() -> None:
    said = settings_of(
        {
            "inputs": ["in"],
            "outputs": ["out"],
            "stores": ["s"],
            "internal_topics": ["s-changelog"],
            "partitions": {"in": 4, "s-changelog": 4},
            "replication_factor": 3,
            "min_insync_replicas": 2,
            "rebuild_hours": 0.5,
            "limits": {
                "max_lag_records": 5,
                "max_tombstone_share": None,
                "max_store_growth": 2,
                "max_partition_share": 0.5,
            },
            "every": "0 6 * * *",
        }
    ).governance
    assert said == Governance(
        inputs=frozenset({"in"}),
        outputs=frozenset({"out"}),
        stores=frozenset({"s"}),
        internal_topics=frozenset({"shop-s-changelog"}),
        partitions=(("in", 4), ("shop-s-changelog", 4)),
        replication_factor=3,
        min_insync_replicas=2,
        rebuild_ms=HOUR_MS // 2,
        limits=Limits(5, None, 2, 0.5),
        every="0 6 * * *",
        declared=True,
    )


def test_nothing_declared() -> None:
    assert settings_of(None).governance == Governance()
    assert settings_of({}).governance == Governance(declared=True)


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
        ({"outputs": ["outt"]}, "output", "outt"),
        ({"stores": ["t"]}, "store", "t"),
        ({"internal_topics": ["in"]}, "internal topic", "in"),
        ({"internal_topics": ["t-changelog"]}, "internal topic", "t-changelog"),
        ({"partitions": {"im": 4}}, "topic of governance.partitions", "im"),
    ],
)
def test_unknown_names_are_errors(governance: dict[str, Any], kind: str, name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        settings_of(governance)
    assert f"The declared {kind} {name!r} is not in" in str(caught.value)


@pytest.mark.parametrize(
    ("governance", "text"),
    [
        ({"partitions": {"in": 0}}, "governance.partitions is 0. Give a number of at least 1."),
        ({"replication_factor": 0}, "governance.replication_factor is 0."),
        ({"min_insync_replicas": 0}, "governance.min_insync_replicas is 0."),
        ({"rebuild_hours": -1}, "governance.rebuild_hours is -1."),
        ({"rebuild_hours": float("inf")}, "governance.rebuild_hours is inf."),
        ({"limits": {"max_lag_records": -1}}, "governance.limits.max_lag_records is -1."),
        (
            {"limits": {"max_tombstone_share": 1.1}},
            "governance.limits.max_tombstone_share is 1.1. Give a number of at least 0 and at most"
            " 1.",
        ),
        ({"limits": {"max_partition_share": -0.1}}, "governance.limits.max_partition_share"),
        ({"limits": {"max_store_growth": -0.1}}, "governance.limits.max_store_growth is -0.1."),
        ({"every": "daily"}, "governance.every is 'daily'. Give a cron schedule of five fields"),
    ],
)
def test_numbers_out_of_bounds(governance: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        settings_of(governance)
    assert text in str(caught.value)


def test_an_unknown_key_is_an_error() -> None:
    with pytest.raises(Exception, match="retention_hours"):
        settings_of({"retention_hours": 1})


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

    def test_a_run_shows_findings(self, monkeypatch: pytest.MonkeyPatch) -> None:
        said = declared("orders_count_v1")
        facts = configs(CHANGELOG, cleanup_policy="delete")(healthy(said))

        def look(_: ApplicationSettings, *, run_id: str) -> Any:
            verdicts = judge(facts, said)
            return GovernanceReport("shop", run_id, "c", facts.taken_at_ms, verdicts), facts

        monkeypatch.setattr(assets_module, "check_governance", look)
        example = said.application
        settings = settings_of(None)
        asset = assets_module.build_governance_asset(
            ApplicationSettings(
                application=example,
                topics=example.topics,
                connection=settings.connection,
                warehouse=settings.warehouse,
                windows=settings.windows,
            )
        )
        result = dg.materialize([asset])
        assert result.success
        checks = {e.check_name: e for e in result.get_asset_check_evaluations()}
        assert (
            set(checks)
            == {v.check for v in judge(facts, said) if v.outcome is not Outcome.NOT_VERIFIABLE}
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
