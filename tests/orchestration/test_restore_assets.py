"""Restores as Dagster assets, of a simulated application to a simulated target."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.definitions.assets.graph.asset_graph_subset import AssetGraphSubset
from dagster._core.definitions.events import AssetKeyPartitionKey
from dagster._core.execution.asset_backfill import AssetBackfillData
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.snap.job_snapshot import JobSnap
from dagster._core.snap.snap_to_yaml import default_values_yaml_from_type_snap

from kstreams_assets.app.model import AppTopic, TopicRole, TopicRoles
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.drill.run import DrillJob
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.model.restorability import Restorability
from kstreams_assets.model.restores import RestoreMode, RestoreState, StoredRestore
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.orchestration import restore as assets
from kstreams_assets.orchestration.component import build_application_definitions
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore.request import ChangelogSource, InputsExtent, RestoreRequest
from kstreams_assets.restore.result import RestoreResult
from kstreams_assets.secret import Secret
from kstreams_assets.settings import DrillSettings, TargetSettings, VerifyExtent
from spark_resources.partition_records import Difference
from tests.orchestration.default_keys import drill_key, group_offsets_key, restore_key
from tests.orchestration.restoring import GROUP_OFFSETS_STEP, NAMES, DagsterShop, NoSpark, Run
from tests.restore import outcomes
from tests.restore.restored_app import Requests
from tests.upkeep.simulated_app import FLIGHT, INPUT, OUTPUT, PARTITIONS, STATE

MATCHES, OFFSETS = "restored_matches_backup", "offsets_match"
WRONG = TopicPartitionId(STATE, 0)


class TestDryRun:
    """What happens without any configuration."""

    def test_nothing_looks_restored_and_group_offsets_are_skipped(self, shop: DagsterShop) -> None:
        run = shop()
        assert run.success
        assert (shop.of.target.did, shop.of.target.topics) == ([], {})
        assert (run.materialised, run.evaluations) == ({}, {})
        assert run.steps(dg.DagsterEventType.STEP_SKIPPED) == [GROUP_OFFSETS_STEP]
        assert not shop.of.table.all()

    def test_the_plan_is_on_every_topic(self, shop: DagsterShop) -> None:
        observed = shop().observed
        assert observed.keys() == set(NAMES)
        assert all(shop.of.point.id in values["plan"] for values in observed.values())
        first = TopicPartitionId(INPUT, 0)
        rows = [shop.of.rows(replace(first, partition=number)) for number in range(PARTITIONS)]
        assert observed[INPUT]["records"] == sum(map(len, rows))
        assert observed[INPUT]["target_topic"] == INPUT
        cut = shop.of.point.cut(first)
        assert cut is not None
        row = observed[INPUT]["partitions"].records[0].data
        assert row.pop("bytes") > 0
        assert row == {
            "partition": 0,
            "start": 0,
            "end": cut.end,
            "records": len(rows[0]),
            "saved_records": 0,
            "committed": str(shop.of.committed[first]),
        }

    @pytest.mark.parametrize("name", [INPUT, STATE, "group_offsets"])
    def test_one_selected_asset_shows_the_plan_of_all(self, shop: DagsterShop, name: str) -> None:
        run = shop(name)
        assert run.success
        assert run.observed.keys() == {name}
        assert all(f"`{topic}`" in run.observed[name]["plan"] for topic in NAMES)
        assert run.partitions(dg.DagsterEventType.ASSET_OBSERVATION) == {shop.window}
        refused = shop.restore(name)
        assert not refused.success
        assert refused.failure.startswith(f"{name} cannot be restored alone: ")
        assert "Launch job shop_restore" in refused.failure
        assert "\n" not in refused.failure
        for done in (run, refused):
            assert (done.materialised, done.evaluations) == ({}, {})
        assert shop.of.target.did == []
        assert not shop.of.table.all()

    def test_all_that_stands_against_it_is_listed(self, shop: DagsterShop, tmp_path: Path) -> None:
        target = shop.of.target
        target.stopped = tmp_path / "stopped"
        target.create_topics([TopicSpec(INPUT, PARTITIONS, 1)])
        target.topics[INPUT].logs[0].append({"offset": 0})
        for dry_run in (True, False):
            run = shop(dry_run=dry_run)
            assert not run.success
            assert "group shop: " in run.failure
            assert f"topic {INPUT}" in run.failure
            assert run.observed.keys() == set(NAMES)
            assert (run.materialised, target.did) == ({}, [])


class TestRun:
    """A restore, its check, its group offsets."""

    def test_topics_then_group_offsets(self, shop: DagsterShop) -> None:
        run = shop(dry_run=False)
        assert run.success
        shop.of.assert_restored()
        assert shop.of.stored.run_id == run.done.run_id
        assert shop.of.target.connection.bootstrap_servers == "target:1"
        found = run.materialised
        assert found.keys() == {*NAMES, "group_offsets"}
        values, first = found[INPUT], TopicPartitionId(INPUT, 0)
        assert values["produce_s"] >= 0
        assert values["recovery_point"].startswith(f"{shop.of.point.id}, 20")
        assert values["recovery_point_age_s"] > 0
        records = len(shop.of.rows(first))
        row = values["partitions"].records[0].data
        assert (row["resumed"], row["map_runs"], row["compared"]) == (0, 1, records)
        assert (row["target_start"], row["target_end"]) == (0, records)
        assert {key: e.passed for key, e in run.evaluations.items()} == {
            **{(name, MATCHES): True for name in NAMES},
            ("group_offsets", OFFSETS): True,
        }
        offsets = {
            (r.data["topic"], r.data["partition"]): r.data["offset"]
            for r in found["group_offsets"]["offsets"].records
        }
        assert offsets == {(o.topic, o.partition): o.offset for o in shop.of.stored.committed or ()}
        assert "remove `<state.dir>/shop` on **every** instance" in found["group_offsets"]["next"]

    def test_a_difference_is_named_and_no_offsets_are_committed(self, shop: DagsterShop) -> None:
        shop.of.target.spoiled = WRONG
        run = shop(dry_run=False)
        assert not run.success
        assert {key: e.passed for key, e in run.evaluations.items()} == {
            (name, MATCHES): name != STATE for name in NAMES
        }
        red = run.evaluations[STATE, MATCHES]
        assert (red.blocking, red.severity) == (True, dg.AssetCheckSeverity.ERROR)
        assert red.description == f"- {WRONG} offset 4: the value differs"
        assert shop.of.target.offsets == {}
        assert GROUP_OFFSETS_STEP not in run.steps(dg.DagsterEventType.STEP_START)
        assert "group_offsets" not in run.materialised

    def test_a_difference_of_a_topic_that_no_asset_shows_blocks_too(
        self, shop: DagsterShop
    ) -> None:
        elsewhere = Difference(TopicPartitionId("elsewhere", 3), None, "is not there")
        shop.of.target.differs_besides = (elsewhere,)
        evaluations = shop(dry_run=False).evaluations
        assert not any(evaluations[name, MATCHES].passed for name in NAMES)
        assert evaluations[INPUT, MATCHES].description == "- elsewhere-3: is not there"
        assert shop.of.target.offsets == {}

    def test_topics_that_the_mode_leaves_out_do_not_hold_up_the_offsets(
        self, shop: DagsterShop
    ) -> None:
        run = shop(dry_run=False, mode="rebuild")
        assert run.success
        found = run.materialised
        assert found[INPUT]["records"] > found[STATE]["records"] == 0
        assert "Not part of this restore (mode rebuild)" in found[STATE]["note"]
        assert shop.of.target.topics.keys() == {INPUT, OUTPUT}
        assert shop.of.stored.state is RestoreState.COMMITTED

    def test_logs_leave_the_group_without_offsets(self, shop: DagsterShop) -> None:
        run = shop(dry_run=False, mode="logs")
        assert run.success
        found = run.materialised
        assert "Not part of this restore (mode logs)" in found[STATE]["note"]
        assert found[OUTPUT]["records"] > 0
        assert shop.of.target.topics.keys() == {INPUT, OUTPUT}
        assert shop.of.target.offsets == {}
        assert (shop.of.stored.state, shop.of.stored.committed) == (RestoreState.COMMITTED, ())
        assert "No offset of group `shop` was committed." in found["group_offsets"]["next"]

    def test_only_the_selected_topics(self, shop: DagsterShop, requests: Requests) -> None:
        run = shop(INPUT, FLIGHT, STATE, dry_run=False, exclude=["sum*"])
        assert run.success
        assert requests[0][0].exclude == ("sum*", OUTPUT)
        assert run.materialised.keys() == shop.of.target.topics.keys() == {INPUT, FLIGHT, STATE}
        assert shop.of.target.offsets == {}

    def test_the_target_of_the_run_is_that_of_the_offsets(
        self, shop: DagsterShop, requests: Requests
    ) -> None:
        assert shop(dry_run=False, target="other:2,another:2").success
        assert {servers for _, servers in requests} == {"other:2,another:2"}
        assert shop.of.target.connection.bootstrap_servers == "other:2,another:2"
        shop.of.assert_restored()


class TestWindows:
    """Each partition restores the last restorable point of its window."""

    def test_the_point_is_that_of_the_window(self, shop: DagsterShop) -> None:
        first = shop.of.app.windows[0].key
        observed = shop(window=first).observed
        (older,) = {values["plan"] for values in observed.values()}
        assert shop.of.app.points[0].id in older
        assert shop.of.point.id not in older

    def test_a_dry_run_is_an_observation_of_the_partition(self, shop: DagsterShop) -> None:
        run = shop()
        assert run.materialised == {}
        assert run.partitions(dg.DagsterEventType.ASSET_OBSERVATION) == {shop.window}

    def test_a_restore_materialises_the_partition(self, shop: DagsterShop) -> None:
        run = shop(dry_run=False)
        assert run.partitions(dg.DagsterEventType.ASSET_MATERIALIZATION) == {shop.window}
        assert {e.partition for e in run.evaluations.values()} == {shop.window}

    def test_a_window_without_a_point_says_why_and_which_are_near(self, shop: DagsterShop) -> None:
        calendar = WindowCalendar(shop.settings.windows)
        open_window = calendar.closes_next().key
        failure = shop(window=open_window).failure
        assert f"No recovery point of window {open_window} is recorded." in failure
        assert f"window {shop.window} with point {shop.of.point.id} before it" in failure

    def test_without_a_window_nothing_is_written(self, shop: DagsterShop) -> None:
        job = shop.job(*NAMES)
        for dry_run in (True, False):
            config = {"ops": {"restore_shop": {"config": {"dry_run": dry_run}}}}
            run = Run(
                job.execute_in_process(
                    instance=shop.instance, run_config=config, raise_on_error=False
                )
            )
            assert run.success == dry_run
        assert "This run has no partition, and restores are partitioned" in run.failure
        assert shop.of.target.did == []

    @pytest.mark.parametrize("several", ["range", "backfill of assets", "backfill of the job"])
    def test_several_windows_onto_one_target_are_refused_in_one_line(
        self, shop: DagsterShop, several: str
    ) -> None:
        shop.configure(
            target="many",
            targets={
                "one": TargetSettings(connection=KafkaConnection(bootstrap_servers="target:1")),
                "many": TargetSettings(
                    connection=KafkaConnection(bootstrap_servers="target:1"), prefix="{window}."
                ),
            },
        )
        windows = [window.key for window in shop.of.app.windows[:2]]
        tags = several_windows(shop, several, windows)
        run = shop.launched(windows, tags, target="one", dry_run=False)
        refused = "2 windows cannot be restored onto the same topics of target 'one'. Select one"
        assert run.failure.startswith(refused)
        assert "\n" not in run.failure
        assert (shop.of.target.did, run.observed) == ([], {})
        assert shop.launched(windows, tags, target="one").success  # only a plan
        if several != "range":
            assert shop.launched(windows, tags, dry_run=False).success
            names = {f"{windows[0].replace(':', '-')}.{name}" for name in (INPUT, OUTPUT)}
            assert names < shop.of.target.topics.keys()
            assert shop.of.stored.group == f"{windows[0].replace(':', '-')}.shop"


def several_windows(shop: DagsterShop, several: str, windows: list[str]) -> dict[str, str]:
    """The tags of a run that is one of several windows."""
    if several == "range":
        first, last = windows
        return {
            "dagster/asset_partition_range_start": first,
            "dagster/asset_partition_range_end": last,
        }
    keys = [restore_key("shop", name) for name in NAMES]
    facts: dict[str, Any] = {
        "backfill_id": "several",
        "status": BulkActionStatus.REQUESTED,
        "from_failure": False,
        "tags": {},
        "backfill_timestamp": 1.0,
    }
    if several == "backfill of assets":
        graph = shop.definitions().resolve_asset_graph()
        pairs = [AssetKeyPartitionKey(key, window) for key in keys for window in windows]
        subset = AssetGraphSubset.from_asset_partition_set({*pairs}, graph)
        data = AssetBackfillData.empty(subset, 1.0, dynamic_partitions_store=shop.instance)
        facts |= {"asset_selection": keys, "asset_backfill_data": data}
    else:
        facts |= {"partition_names": windows}
    shop.instance.add_backfill(PartitionBackfill(**facts))
    return {"dagster/backfill": "several"}


def test_a_secret_of_a_target_reaches_no_configuration_event_or_log(
    shop: DagsterShop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TARGET_PASSWORD", "hunter2")
    password = Secret(env="TARGET_PASSWORD")
    assert password.resolve("sasl.password") == "hunter2"
    connection = KafkaConnection.model_validate(
        {
            "bootstrap_servers": "target:1",
            "security_protocol": "SASL_PLAINTEXT",
            "sasl": {"mechanism": "PLAIN", "username": "restorer", "password": password},
        }
    )
    shop.configure(
        target="dr",
        targets={"dr": TargetSettings(connection=connection, after_command="echo hunter2")},
    )
    run = shop.restore()
    assert run.success
    logs = shop.instance.all_logs(run.done.run_id)
    assert len(logs) > len(NAMES)
    stored = [*map(str, logs), str(run.done.dagster_run), caplog.text]
    assert not [text for text in stored if "hunter2" in text]
    assert "restorer" not in str(run.done.dagster_run.run_config)
    shown = str(shop.definitions().resolve_job_def("shop_restore").partitioned_config)
    assert "hunter2" not in shown


def test_materialize_all_writes_to_no_cluster(
    shop: DagsterShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Restores and drills with the configuration that they have by default."""
    monkeypatch.setattr(DrillJob, "require_possible", lambda _: None)  # whatever this machine has
    command = DrillSettings(command=("run", "{client_properties}", "{state_dir}"))
    definitions = dg.Definitions.merge(
        build_application_definitions(replace(shop.settings, drill=command)),
        dg.Definitions(resources={"spark": NoSpark()}, executor=dg.in_process_executor),
    )
    writing = {restore_key("shop", name) for name in NAMES} | {
        group_offsets_key("shop"),
        drill_key("shop"),
    }
    kinds = {spec.key for spec in definitions.resolve_all_asset_specs() if "restore" in spec.kinds}
    assert kinds == writing - {drill_key("shop")}
    run = Run(
        definitions.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=shop.instance,
            asset_selection=sorted(writing),
            partition_key=shop.window,
        )
    )
    assert run.materialised == {}
    assert run.observed.keys() == {*NAMES, "drill"}
    assert run.observed["drill"]["ready"] in ("yes", "no")
    assert shop.of.target.did == []
    assert not shop.of.table.all()
    assert Repository.open(shop.settings).drills.newest() is None


class TestJob:
    """`<app>_restore` writes, to declared targets only."""

    def test_it_restores_with_its_own_configuration(self, shop: DagsterShop) -> None:
        assert shop.restore().success
        shop.of.assert_restored()

    def test_it_takes_no_cluster_that_is_not_declared(self, shop: DagsterShop) -> None:
        failure = shop.restore(target="other:2").failure
        assert "Job shop_restore writes to declared targets only" in failure
        assert "'other:2' is not declared. Choose one of default, local" in failure
        shop.configure(target=None)
        assert "none is declared as the default" in shop.restore().failure
        assert shop.of.target.did == []

    def test_the_launchpad_shows_these_keys(self, shop: DagsterShop) -> None:
        shown = {"as_of": "", "mode": "state", "point": "", "target": "default"}
        of_job = shop.definitions().resolve_job_def("shop_restore")
        op = {"restore_shop": {"config": {**shown, "dry_run": False}}}
        assert of_job.partitioned_config is not None
        launched = of_job.partitioned_config.get_run_config_for_partition_key(shop.window)
        assert launched == {"ops": op}
        assert scaffold(shop.job(*NAMES))["ops"] == {
            "restore_shop": {"config": {**shown, "dry_run": True}}
        }


def scaffold(job: dg.JobDefinition) -> Any:
    """What the launchpad is filled with."""
    snap = JobSnap.from_job_def(job)
    schema = snap.config_schema_snapshot
    key = snap.mode_def_snaps[0].root_config_key
    assert key is not None
    root = schema.get_config_snap(key)
    return yaml.safe_load(default_values_yaml_from_type_snap(schema, root))


class TestShown:
    """What cannot happen to the simulated application is shown all the same."""

    def test_changelogs_from_snapshots(self) -> None:
        planned = outcomes.plan(RestoreRequest(changelog_source=ChangelogSource.SNAPSHOT))
        done = RestoreResult(planned, outcomes.result(planned))
        shown = {
            topic.source: {n: v.value for n, v in assets.restored(done, topic).items()}
            for topic in planned.topics
        }
        totals, orders = shown[outcomes.TOTALS], shown[outcomes.ORDERS]
        assert totals["changelog_source"] == "KTable snapshot of store totals, window w-7"
        assert (totals["records"], totals["raw_log_records"]) == (9, 40)
        assert (totals["bytes"], totals["raw_log_bytes"]) == (900, 4100)
        assert "9 records, 900 B; raw log 40, about 4.1 kB" in str(totals["report"])
        assert "raw_log_records" not in orders
        assert assets.planned(planned, outcomes.TOTALS)["raw_log_records"].value == 40

    def test_a_failed_verification_without_a_difference_blocks(self) -> None:
        planned = outcomes.plan(RestoreRequest())
        failed = outcomes.result(planned, state=RestoreState.FAILED_VERIFICATION)
        for topic in planned.topics:
            key = restore_key("shop", topic.source)
            assert not assets.verdict(key, topic, failed, []).passed


class TestCommands:
    """A command before the restore of a run, and one after it."""

    def test_a_dry_run_runs_none(self, shop: DagsterShop) -> None:
        shop.configure(before_command="false", after_command="false")
        assert shop().success

    def test_before_the_topics_and_after_the_offsets(
        self, shop: DagsterShop, tmp_path: Path
    ) -> None:
        shop.of.target.stopped = tmp_path / "stopped"
        shop.configure(
            before_command=f"mkdir {tmp_path}/stopped",
            after_command=f"mv {tmp_path}/stopped {tmp_path}/started",
        )
        # The group has members until the command has run: nothing may be refused for them.
        assert shop(dry_run=False).success
        assert (tmp_path / "started").is_dir()
        shop.of.assert_restored()

    def test_a_restore_to_another_cluster_runs_none(self, shop: DagsterShop) -> None:
        shop.configure(before_command="false", after_command="false")
        assert shop(dry_run=False, target="staging:1").success

    @pytest.mark.parametrize("dry_run", [True, False])
    @pytest.mark.parametrize(
        ("field", "key"),
        [
            ("before_command", "restore.before_command"),
            ("after_command", "restore.after_command"),
            ("command_timeout_s", "restore.command_timeout_seconds"),
        ],
    )
    def test_the_launchpad_names_no_program(
        self,
        shop: DagsterShop,
        requests: Requests,
        tmp_path: Path,
        dry_run: bool,
        field: str,
        key: str,
    ) -> None:
        evil = tmp_path / "evil"
        given: Any = 900.0 if field == "command_timeout_s" else f"touch {evil}"
        run = shop(dry_run=dry_run, **{field: given})
        assert not run.success
        assert f"The configuration of this run sets {field}" in run.failure
        assert f"Set {key} in the YAML" in run.failure
        assert (evil.exists(), requests) == (False, [])

    def test_a_configuration_that_an_earlier_release_stored_still_runs(
        self, shop: DagsterShop
    ) -> None:
        none: dict[str, Any] = {"before_command": None, "after_command": None}
        assert shop(dry_run=False, **none, command_timeout_s=300.0).success

    def test_a_row_that_was_changed_meanwhile_names_no_program(
        self, shop: DagsterShop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        evil = tmp_path / "evil"
        commit = assets.commit_group_offsets

        def changed(*args: Any, **more: Any) -> StoredRestore:
            asked = json.dumps({"after_command": f"touch {evil}"})
            return replace(commit(*args, **more), request=asked)

        monkeypatch.setattr(assets, "commit_group_offsets", changed)
        assert shop(dry_run=False).success
        assert not evil.exists()

    def test_a_before_command_that_fails(self, shop: DagsterShop) -> None:
        shop.configure(before_command="false")
        assert "The before command ended with exit code 1" in shop(dry_run=False).failure
        assert (shop.of.target.did, shop.of.target.topics) == ([], {})

    def test_after_an_after_command_that_fails_the_offsets_are_there(
        self, shop: DagsterShop
    ) -> None:
        shop.configure(after_command="false")
        run = shop(dry_run=False)
        assert "The after command ended with exit code 1" in run.failure
        assert "is complete: its group offsets are committed" in run.failure
        assert "group_offsets" in run.materialised
        assert run.evaluations["group_offsets", OFFSETS].passed
        shop.of.assert_restored()


class TestGroupOffsets:
    """The last step, when it does not follow the others as it should."""

    def test_a_later_click_shows_the_plan(self, shop: DagsterShop) -> None:
        assert shop(dry_run=False).success
        shop.of.target.did.clear()
        run = shop("group_offsets")
        assert run.success
        assert (run.observed.keys(), run.materialised) == ({"group_offsets"}, {})
        assert shop.of.target.did == []

    def test_offsets_that_differ_when_read_back(self, shop: DagsterShop) -> None:
        shop.of.target.forgets = True
        run = shop(dry_run=False)
        red = run.evaluations["group_offsets", OFFSETS]
        assert not red.passed
        assert red.description == run.failure
        assert f"{INPUT}-0" in run.failure
        assert "group_offsets" not in run.materialised

    def test_a_retry_from_the_failure_takes_the_restore_of_the_first_run(
        self, shop: DagsterShop, tmp_path: Path, reconstructed: None
    ) -> None:
        config = {"ops": {"restore_shop": {"config": {"dry_run": False}}}}
        shop.of.target.forgets = True
        with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
            job = dg.reconstructable(whole_job)
            tags = {"dagster/partition": shop.window}
            with dg.execute_job(job, instance, run_config=config, tags=tags) as first:
                assert not first.success
            shop.of.target.forgets = False
            for _ in range(2):
                retry = dg.ReexecutionOptions.from_failure(first.run_id, instance)
                with dg.execute_job(job, instance, reexecution_options=retry, tags=tags) as again:
                    assert again.success
        assert shop.of.target.did.count("produce") == 1
        assert shop.of.stored.run_id == first.run_id
        shop.of.assert_restored()

    @pytest.fixture
    def reconstructed(self, shop: DagsterShop) -> Iterator[None]:
        """Lets `whole_job` find the application."""
        _RECONSTRUCTED.append(shop)
        yield
        _RECONSTRUCTED.clear()


_RECONSTRUCTED: list[DagsterShop] = []


def whole_job() -> dg.JobDefinition:
    """All assets in one job, for Dagster to import."""
    return _RECONSTRUCTED[0].job(*NAMES, "group_offsets")


class TestConfig:
    """What is written in the launchpad arrives."""

    def test_everything(self, shop: DagsterShop, requests: Requests) -> None:
        shop(
            as_of="2026-11-21T15:30:00.2509+01:00",
            mode="inputs_until",
            target="other:2",
            options={
                "inputs": "tail",
                "target_application_id": "shop-2",
                "prefix": "copy-",
                "topic_name": {"orders": "orders.v2"},
                "replication_factor": 2,
                "original_headers": ["offset", "partition"],
                "accept": "unproven",
                "accept_replaced_timestamps": True,
                "verify": "counts",
            },
        )
        self._assert_everything(shop, requests, target="other:2")

    def test_the_keys_of_earlier_releases(self, shop: DagsterShop, requests: Requests) -> None:
        shop(
            as_of="2026-11-21T15:30:00.2509+01:00",
            point_id=None,
            target=None,
            mode="inputs_until",
            inputs="tail",
            application_id="shop-2",
            prefix="copy-",
            topics={"orders": "orders.v2"},
            exclude=[],
            inputs_are_at="restored",
            replication_factor=2,
            original_headers={"offset": True, "timestamp": False, "partition": True},
            accept="unproven",
            accept_replaced_timestamps=True,
            verify="counts",
            skip_completeness=False,
        )
        self._assert_everything(shop, requests, target=None)

    def test_words_for_what_was_not_chosen(self, shop: DagsterShop, requests: Requests) -> None:
        shop.configure(verify=VerifyExtent.SAMPLE)
        shop(accept="as_the_application", verify="as_configured", inputs_are_at="restored")
        expected = RestoreRequest(target="default", verify=VerifyExtent.SAMPLE, window=shop.window)
        assert requests == [(expected, "target:1")]

    @staticmethod
    def _assert_everything(shop: DagsterShop, requests: Requests, *, target: str | None) -> None:
        ((request, _),) = requests
        assert request == RestoreRequest(
            target=target,
            window=shop.window,
            mode=RestoreMode.INPUTS_UNTIL,
            as_of_ms=1_795_271_400_250,
            accept=Restorability.UNPROVEN,
            inputs=InputsExtent.TAIL,
            application_id="shop-2",
            prefix="copy-",
            topics={"orders": "orders.v2"},
            replication_factor=2,
            original_headers=replace(request.original_headers, offset=True, partition=True),
            accept_replaced_timestamps=True,
            verify=VerifyExtent.COUNTS,
        )
        assert not request.original_headers.timestamp

    def test_changelogs_from_snapshots(self, shop: DagsterShop, requests: Requests) -> None:
        shop(changelog_source="snapshot")
        assert requests[0][0].changelog_source is ChangelogSource.SNAPSHOT

    def test_without_any_it_is_the_default_request_with_what_the_yaml_says(
        self, shop: DagsterShop, requests: Requests
    ) -> None:
        shop.configure(verify=VerifyExtent.SAMPLE)
        shop()
        expected = RestoreRequest(verify=VerifyExtent.SAMPLE, window=shop.window)
        assert requests == [(expected.model_copy(update={"target": "default"}), "target:1")]

    @pytest.mark.parametrize(
        ("config", "text"),
        [
            ({"as_of": "yesterday"}, "as_of is 'yesterday'. Write an ISO 8601 time"),
            ({"as_of": "2026-11-21T15:30:00"}, "without a time zone. Add Z for UTC"),
            (
                {"as_of": "2026-11-21T15:30:00Z", "point_id": "p"},
                "Both as_of (2026-11-21T15:30:00Z) and point_id (p) are given.",
            ),
            ({"replication_factor": 0}, "replication_factor is 0."),
            ({"options": {"replication_factor": 0}}, "replication_factor is 0."),
            ({"options": {"accept": "nothing"}}, "accept is 'nothing'"),
            ({"options": {"original_headers": ["ofset"]}}, "original_headers"),
            ({"topics": "orders"}, "topics: Input should be"),
            ({"target": "nowhere"}, "'nowhere' is not host:port"),
            ({"as_off": "x"}, "has an unknown key 'as_off'. Near are as_of"),
            ({"target_application_id": "x"}, "has an unknown key 'target_application_id'"),
        ],
    )
    def test_wrong_values_fail_in_words(
        self, shop: DagsterShop, requests: Requests, config: dict[str, Any], text: str
    ) -> None:
        assert text in shop(**config).failure
        assert requests == []

    def test_without_a_target(self, shop: DagsterShop) -> None:
        shop.configure(target=None)
        assert "No target cluster is given for the restore of shop" in shop().failure


def test_keys_edges_and_pool(tmp_path: Path) -> None:
    # Of shop-by-customer-repartition there is no backup.
    topics, offsets = assets.build_restore_assets(outcomes.settings(tmp_path))
    specs = {spec.key.to_user_string(): spec for spec in (*topics.specs, *offsets.specs)}
    deps = {
        key: {dep.asset_key.to_user_string() for dep in spec.deps} for key, spec in specs.items()
    }
    points, names = "shop/recovery_points", [topic.name for topic in outcomes.TOPICS]
    assert deps == {
        f"shop/restore/{outcomes.ORDERS}": {f"shop/backup/{outcomes.ORDERS}", points},
        f"shop/restore/{outcomes.TOTALS}": {f"shop/backup/{outcomes.TOTALS}", points},
        f"shop/restore/{outcomes.BETWEEN}": {points},
        "shop/restore/group_offsets": {f"shop/restore/{name}" for name in names},
    }
    assert {spec.group_name for spec in specs.values()} == {"shop/restore"}
    on_spark = {key for key, spec in specs.items() if "spark" in spec.kinds}
    assert on_spark == specs.keys() - {"shop/restore/group_offsets"}
    assert all({"kafka", "restore"} <= spec.kinds for spec in specs.values())
    (windows,) = {spec.partitions_def for spec in specs.values()}
    assert isinstance(windows, dg.TimeWindowPartitionsDefinition)
    assert (windows.start.hour, windows.end_offset) == (0, 1)
    assert {topics.op.pool, offsets.op.pool} == {"kstreams_restore_shop"}
    assert topics.op.name == "restore_shop"
    assert group_offsets_key("shop") == offsets.key


@pytest.mark.parametrize("name", ["group_offsets", "group-offsets"])
def test_a_topic_with_the_name_of_the_group_offsets(tmp_path: Path, name: str) -> None:
    settings = outcomes.settings(tmp_path)
    topic = AppTopic(name, TopicRoles({TopicRole.REPARTITION}))
    application = replace(settings.application, topics=(topic,))
    with pytest.raises(ConfigurationError, match=rf"'{name}' and 'group_offsets'"):
        assets.build_restore_assets(replace(settings, application=application, topics=(topic,)))
