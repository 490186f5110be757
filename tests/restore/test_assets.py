"""Restores as Dagster assets, with planning and running replaced: what Dagster is told and does."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kstreams_assets.app.model import AppTopic, TopicRole, TopicRoles
from kstreams_assets.checks import Finding
from kstreams_assets.errors import GroupOffsetsDifferError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.orchestration import restore as assets
from kstreams_assets.orchestration.keys import CollidingNamesError, group_offsets_key, restore_key
from kstreams_assets.restore import commands
from kstreams_assets.restore.plan import RestorePlan
from kstreams_assets.restore.request import ChangelogSource, InputsExtent, RestoreRequest
from kstreams_assets.restore.run import RestoreResult
from kstreams_assets.settings import ApplicationSettings, CommandSettings, VerifyExtent
from kstreams_assets.warehouse.judge import Restores
from kstreams_assets.warehouse.restores import (
    RestoreMode,
    RestoresTable,
    RestoreState,
    StoredRestore,
)
from spark_resources.partition_records import Difference
from spark_resources.resource import SparkSessionResource
from tests.restore import outcomes
from tests.restore.outcomes import BETWEEN, ORDERS, TARGET, TOPICS, TOTALS

NAMES = (ORDERS, BETWEEN, TOTALS)
WRONG = Difference(TopicPartitionId(f"new-{TOTALS}", 0), 4, "the value differs")


@dataclass
class _Restore:
    """Stands in for planning, running and committing; the table `restores` is a real one."""

    refusals: tuple[Finding, ...] = ()
    topics: tuple[AppTopic, ...] = TOPICS
    differences: tuple[Difference, ...] = ()
    state: RestoreState = RestoreState.VERIFIED
    commit_error: Exception | None = None
    requests: list[tuple[RestoreRequest, KafkaConnection]] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    committed: list[tuple[str, KafkaConnection]] = field(default_factory=list)

    def plan(
        self, settings: ApplicationSettings, request: RestoreRequest, target: KafkaConnection
    ) -> RestorePlan:
        self.requests.append((request, target))
        chosen = [topic for topic in self.topics if topic.name not in request.exclude]
        return outcomes.plan(
            request, *self.refusals, topics=chosen, target=target.bootstrap_servers
        )

    def run(
        self,
        settings: ApplicationSettings,
        planned: RestorePlan,
        target: KafkaConnection,
        *,
        spark: SparkSessionResource,
        run_id: str,
        log: Callable[[str], None],
    ) -> RestoreResult:
        log("half of it is done")
        self.ran.append(run_id)
        made = outcomes.result(planned, *self.differences, state=self.state, run_id=run_id)
        RestoresTable(settings.warehouse).append(made.restore)
        return made

    def commit(
        self,
        settings: ApplicationSettings,
        restore: StoredRestore,
        target: KafkaConnection,
        *,
        gate: object,
    ) -> StoredRestore:
        self.committed.append((restore.run_id, target))
        if self.commit_error is not None:
            raise self.commit_error
        return replace(
            restore,
            state=RestoreState.COMMITTED,
            former_offsets=(),
            committed=restore.to_commit,
        )


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> _Restore:
    """What the assets call."""
    made = _Restore()
    monkeypatch.setattr(assets, "plan_restore", made.plan)
    monkeypatch.setattr(assets, "run_restore", made.run)
    monkeypatch.setattr(assets, "commit_group_offsets", made.commit)
    return made


@pytest.fixture
def settings(tmp_path: Path, fake: _Restore) -> ApplicationSettings:
    """The application `shop`."""
    return outcomes.settings(tmp_path / "warehouse")


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def _job(settings: ApplicationSettings, *names: str) -> dg.JobDefinition:
    keys = [restore_key("shop", name) for name in names]
    return dg.Definitions(
        assets=assets.build_restore_assets(settings),
        jobs=[dg.define_asset_job("job", keys)],
        resources={"spark": SparkSessionResource()},
        executor=dg.in_process_executor,
    ).resolve_job_def("job")


def _materialise(
    settings: ApplicationSettings,
    instance: dg.DagsterInstance,
    *names: str,
    **config: Any,
) -> dg.ExecuteInProcessResult:
    job = _job(settings, *(names or (*NAMES, "group_offsets")))
    return job.execute_in_process(
        instance=instance,
        run_config={"ops": {"restore_shop": {"config": config}}} if config else None,
        raise_on_error=False,
    )


def _materialised(done: dg.ExecuteInProcessResult) -> dict[str, dict[str, Any]]:
    return {
        event.asset_key.path[-1]: {
            name: value.value for name, value in event.materialization.metadata.items()
        }
        for event in done.all_events
        if event.is_step_materialization and event.asset_key is not None
    }


def _steps(done: dg.ExecuteInProcessResult, kind: dg.DagsterEventType) -> list[str | None]:
    return [event.step_key for event in done.all_events if event.event_type is kind]


def _observed(done: dg.ExecuteInProcessResult) -> dict[str, dict[str, Any]]:
    return {
        event.asset_key.path[-1]: {
            name: value.value
            for name, value in event.asset_observation_data.asset_observation.metadata.items()
        }
        for event in done.all_events
        if event.event_type is dg.DagsterEventType.ASSET_OBSERVATION and event.asset_key is not None
    }


def _evaluations(done: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    return {e.asset_key.path[-1]: e for e in done.get_asset_check_evaluations()}


def _failure(done: dg.ExecuteInProcessResult) -> str:
    (failure,) = done.get_step_failure_events()
    data = failure.step_failure_data
    assert data.user_failure_data is not None, data.error
    return data.user_failure_data.description or ""


GROUP_OFFSETS_STEP = "shop__restore__group_offsets"


class TestDryRun:
    """What happens without any configuration."""

    def test_nothing_looks_restored_and_group_offsets_are_skipped(
        self, settings: ApplicationSettings, fake: _Restore, instance: dg.DagsterInstance
    ) -> None:
        done = _materialise(settings, instance)
        assert done.success
        assert (fake.ran, fake.committed) == ([], [])
        assert _materialised(done) == {}
        assert _evaluations(done) == {}
        assert _steps(done, dg.DagsterEventType.STEP_SKIPPED) == [GROUP_OFFSETS_STEP]
        assert not RestoresTable(settings.warehouse).all("shop")

    def test_the_plan_is_on_every_topic(
        self, settings: ApplicationSettings, fake: _Restore, instance: dg.DagsterInstance
    ) -> None:
        observed = _observed(_materialise(settings, instance))
        assert observed.keys() == set(NAMES)
        assert all("point-1" in values["plan"] for values in observed.values())
        assert (observed[ORDERS]["records"], observed[ORDERS]["bytes"]) == (90, 9000)
        assert observed[ORDERS]["target_topic"] == f"new-{ORDERS}"
        (row,) = observed[ORDERS]["partitions"].records
        assert row.data == {
            "partition": 0,
            "start": 10,
            "end": 100,
            "records": 90,
            "bytes": 9000,
            "saved_records": 1,
            "committed": "80",
        }

    def test_all_that_stands_against_it_is_listed(
        self, settings: ApplicationSettings, fake: _Restore, instance: dg.DagsterInstance
    ) -> None:
        fake.refusals = (
            Finding("Group shop", "is active.", action="Stop the application."),
            Finding("Topic new-orders", "holds 4 records.", action="Delete it."),
        )
        for dry_run in (True, False):
            done = _materialise(settings, instance, dry_run=dry_run)
            assert not done.success
            text = _failure(done)
            assert "Group shop: is active. Stop the application." in text
            assert "Topic new-orders: holds 4 records. Delete it." in text
            assert _observed(done).keys() == set(NAMES)
            assert (_materialised(done), fake.ran, fake.committed) == ({}, [], [])


class TestRun:
    """A restore, its check, its group offsets."""

    def test_topics_then_group_offsets(
        self, settings: ApplicationSettings, fake: _Restore, instance: dg.DagsterInstance
    ) -> None:
        done = _materialise(settings, instance, dry_run=False)
        assert done.success
        assert fake.ran == [done.run_id]
        assert [run_id for run_id, _ in fake.committed] == [done.run_id]
        found = _materialised(done)
        assert found.keys() == {*NAMES, "group_offsets"}
        orders = found[ORDERS]
        assert (orders["records"], orders["bytes"], orders["produce_s"]) == (90, 9000, 2.0)
        assert orders["recovery_point"] == "point-1, 2025-10-09T08:53:20.000+00:00"
        assert orders["recovery_point_age_s"] > 3_000_000
        (row,) = orders["partitions"].records
        assert row.data["resumed"] == 5
        assert (row.data["target_start"], row.data["target_end"]) == (0, 90)
        assert (row.data["map_runs"], row.data["compared"]) == (1, 90)
        evaluations = _evaluations(done)
        assert {name: e.check_name for name, e in evaluations.items()} == {
            **dict.fromkeys(NAMES, "restored_matches_backup"),
            "group_offsets": "offsets_match",
        }
        assert all(e.passed for e in evaluations.values())
        (offset,) = found["group_offsets"]["offsets"].records
        assert (offset.data["topic"], offset.data["offset"]) == (f"new-{ORDERS}", 70)
        assert "delete `<state.dir>/shop` on **every** instance" in found["group_offsets"]["next"]

    def test_changelogs_from_snapshots(
        self, settings: ApplicationSettings, fake: _Restore, instance: dg.DagsterInstance
    ) -> None:
        done = _materialise(settings, instance, dry_run=False, changelog_source="snapshot")
        assert done.success
        assert fake.requests[0][0].changelog_source is ChangelogSource.SNAPSHOT
        totals, orders = (_materialised(done)[name] for name in (TOTALS, ORDERS))
        assert totals["changelog_source"] == "KTable snapshot of store totals, window w-7"
        assert (totals["records"], totals["raw_log_records"]) == (9, 40)
        assert (totals["bytes"], totals["raw_log_bytes"]) == (900, 4100)
        assert "9 records, 900 B; raw log 40, about 4.1 kB" in totals["report"]
        assert "raw_log_records" not in orders
        assert _observed(done)[TOTALS]["raw_log_records"] == 40

    def test_a_difference_is_named_and_no_offsets_are_committed(
        self, settings: ApplicationSettings, fake: _Restore, instance: dg.DagsterInstance
    ) -> None:
        fake.differences = (WRONG,)
        done = _materialise(settings, instance, dry_run=False)
        assert not done.success
        evaluations = _evaluations(done)
        assert {name: e.passed for name, e in evaluations.items()} == {
            ORDERS: True,
            BETWEEN: True,
            TOTALS: False,
        }
        red = evaluations[TOTALS]
        assert red.blocking
        assert red.severity is dg.AssetCheckSeverity.ERROR
        assert red.description == f"- new-{TOTALS}-0 offset 4: the value differs"
        assert fake.committed == []
        assert GROUP_OFFSETS_STEP not in _steps(done, dg.DagsterEventType.STEP_START)
        assert "group_offsets" not in _materialised(done)

    def test_a_difference_of_a_topic_that_no_asset_shows_blocks_too(
        self, settings: ApplicationSettings, fake: _Restore, instance: dg.DagsterInstance
    ) -> None:
        fake.differences = (Difference(TopicPartitionId("elsewhere", 3), None, "is not there"),)
        done = _materialise(settings, instance, dry_run=False)
        evaluations = _evaluations(done)
        assert not any(evaluations[name].passed for name in NAMES)
        assert evaluations[ORDERS].description == "- elsewhere-3: is not there"
        assert fake.committed == []

    def test_a_failed_verification_without_a_difference_blocks(
        self, settings: ApplicationSettings, fake: _Restore, instance: dg.DagsterInstance
    ) -> None:
        fake.state = RestoreState.FAILED_VERIFICATION
        done = _materialise(settings, instance, dry_run=False)
        assert not any(_evaluations(done)[name].passed for name in NAMES)
        assert fake.committed == []

    def test_topics_that_the_mode_leaves_out_do_not_hold_up_the_offsets(
        self, settings: ApplicationSettings, fake: _Restore, instance: dg.DagsterInstance
    ) -> None:
        fake.topics = TOPICS[:1]
        done = _materialise(settings, instance, dry_run=False, mode="rebuild")
        assert done.success
        found = _materialised(done)
        assert (found[ORDERS]["records"], found[TOTALS]["records"]) == (90, 0)
        assert "Not part of this restore (mode rebuild)" in found[TOTALS]["note"]
        assert len(fake.committed) == 1

    def test_only_the_selected_topics(
        self, settings: ApplicationSettings, fake: _Restore, instance: dg.DagsterInstance
    ) -> None:
        done = _materialise(settings, instance, ORDERS, dry_run=False, exclude=["x*"])
        assert done.success
        ((request, _),) = fake.requests
        assert request.exclude == ("x*", BETWEEN, TOTALS)
        assert _materialised(done).keys() == {ORDERS}
        assert fake.committed == []

    def test_the_target_of_the_run_is_that_of_the_offsets(
        self, settings: ApplicationSettings, fake: _Restore, instance: dg.DagsterInstance
    ) -> None:
        _materialise(settings, instance, dry_run=False)
        _materialise(settings, instance, dry_run=False, target="other:2,another:2")
        planned = [target.bootstrap_servers for _, target in fake.requests]
        assert planned == [TARGET, "other:2,another:2"]
        assert [target.bootstrap_servers for _, target in fake.committed] == planned


class TestCommands:
    """A command before the restore of a run, and one after it."""

    @pytest.fixture(autouse=True)
    def planned_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(commands, "plan_again", lambda settings, plan, target: plan)
        monkeypatch.setattr(commands, "_await_empty_group", lambda *_: None)

    @staticmethod
    def _with(settings: ApplicationSettings, **commands: Any) -> ApplicationSettings:
        """The same with these commands in its YAML."""
        given = CommandSettings(**commands)
        return replace(settings, restore=replace(settings.restore, commands=given))

    def test_a_dry_run_runs_none(
        self, settings: ApplicationSettings, fake: _Restore, instance: dg.DagsterInstance
    ) -> None:
        settings = self._with(settings, before="false", after="false")
        assert _materialise(settings, instance).success

    def test_before_the_topics_and_after_the_offsets(
        self,
        settings: ApplicationSettings,
        fake: _Restore,
        instance: dg.DagsterInstance,
        tmp_path: Path,
    ) -> None:
        settings = self._with(
            settings,
            before=f"mkdir {tmp_path}/stopped",
            after=f"mv {tmp_path}/stopped {tmp_path}/started",
        )
        done = _materialise(settings, instance, dry_run=False)
        assert done.success
        assert (tmp_path / "started").is_dir()

    def test_a_restore_to_another_cluster_runs_none(
        self, settings: ApplicationSettings, fake: _Restore, instance: dg.DagsterInstance
    ) -> None:
        settings = self._with(settings, before="false", after="false")
        assert _materialise(settings, instance, dry_run=False, target="staging:1").success

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
        settings: ApplicationSettings,
        fake: _Restore,
        instance: dg.DagsterInstance,
        tmp_path: Path,
        dry_run: bool,
        field: str,
        key: str,
    ) -> None:
        evil = tmp_path / "evil"
        given: Any = 900.0 if field == "command_timeout_s" else f"touch {evil}"
        done = _materialise(settings, instance, dry_run=dry_run, **{field: given})
        assert not done.success
        assert f"The configuration of this run sets {field}" in _failure(done)
        assert f"Set {key} in the YAML" in _failure(done)
        assert (evil.exists(), fake.requests) == (False, [])

    def test_a_configuration_that_an_earlier_release_stored_still_runs(
        self, settings: ApplicationSettings, fake: _Restore, instance: dg.DagsterInstance
    ) -> None:
        done = _materialise(
            settings,
            instance,
            dry_run=False,
            before_command=None,
            after_command=None,
            command_timeout_s=300.0,
        )
        assert done.success

    def test_a_row_that_was_changed_meanwhile_names_no_program(
        self,
        settings: ApplicationSettings,
        fake: _Restore,
        instance: dg.DagsterInstance,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        evil = tmp_path / "evil"
        commit = fake.commit

        def changed(*args: Any, **more: Any) -> StoredRestore:
            asked = json.dumps({"after_command": f"touch {evil}"})
            return replace(commit(*args, **more), request=asked)

        monkeypatch.setattr(assets, "commit_group_offsets", changed)
        assert _materialise(settings, instance, dry_run=False).success
        assert not evil.exists()

    def test_a_before_command_that_fails(
        self, settings: ApplicationSettings, fake: _Restore, instance: dg.DagsterInstance
    ) -> None:
        done = _materialise(self._with(settings, before="false"), instance, dry_run=False)
        assert "The before command ended with exit code 1" in _failure(done)
        assert (fake.ran, fake.committed) == ([], [])

    def test_after_an_after_command_that_fails_the_offsets_are_there(
        self, settings: ApplicationSettings, fake: _Restore, instance: dg.DagsterInstance
    ) -> None:
        done = _materialise(self._with(settings, after="false"), instance, dry_run=False)
        assert "The after command ended with exit code 1" in _failure(done)
        assert "is done all the same" in _failure(done)
        assert "group_offsets" in _materialised(done)
        assert _evaluations(done)["group_offsets"].passed


class TestGroupOffsets:
    """The last step, when it does not follow the others as it should."""

    def test_alone_they_have_no_restore(
        self, settings: ApplicationSettings, fake: _Restore, instance: dg.DagsterInstance
    ) -> None:
        assert _materialise(settings, instance, dry_run=False).success
        fake.committed.clear()
        done = _materialise(settings, instance, "group_offsets")
        assert "No restore of shop belongs to this run" in _failure(done)
        assert fake.committed == []

    def test_offsets_that_differ_when_read_back(
        self, settings: ApplicationSettings, fake: _Restore, instance: dg.DagsterInstance
    ) -> None:
        fake.commit_error = GroupOffsetsDifferError(problem="not as committed", partitions=["t-3"])
        done = _materialise(settings, instance, dry_run=False)
        assert _failure(done) == str(fake.commit_error)
        red = _evaluations(done)["group_offsets"]
        assert (red.check_name, red.passed) == ("offsets_match", False)
        assert red.description == str(fake.commit_error)
        assert "group_offsets" not in _materialised(done)

    def test_a_retry_from_the_failure_takes_the_restore_of_the_first_run(
        self,
        settings: ApplicationSettings,
        fake: _Restore,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setitem(_RECONSTRUCTED, "settings", settings)
        config = {"ops": {"restore_shop": {"config": {"dry_run": False}}}}
        fake.commit_error = GroupOffsetsDifferError(problem="not as committed", partitions=["t-3"])
        with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
            job = dg.reconstructable(whole_job)
            with dg.execute_job(job, instance, run_config=config) as first:
                assert not first.success
            fake.commit_error = None
            for _ in range(2):
                retry = dg.ReexecutionOptions.from_failure(first.run_id, instance)
                with dg.execute_job(job, instance, reexecution_options=retry) as again:
                    assert again.success
        assert len(fake.ran) == 1
        assert [run_id for run_id, _ in fake.committed] == [first.run_id] * 3


_RECONSTRUCTED: dict[str, ApplicationSettings] = {}


def whole_job() -> dg.JobDefinition:
    """All assets in one job, for Dagster to import."""
    return _job(_RECONSTRUCTED["settings"], *NAMES, "group_offsets")


class TestConfig:
    """What is written in the launchpad arrives."""

    def test_everything(
        self, settings: ApplicationSettings, fake: _Restore, instance: dg.DagsterInstance
    ) -> None:
        done = _materialise(
            settings,
            instance,
            as_of="2026-11-21T15:30:00.2509+01:00",
            mode="inputs_until",
            inputs="tail",
            application_id="shop-2",
            prefix="copy-",
            topics={"orders": "orders.v2"},
            replication_factor=2,
            original_headers={"offset": True, "partition": True},
            accept="unproven",
            accept_replaced_timestamps=True,
            verify="counts",
        )
        assert done.success
        ((request, _),) = fake.requests
        assert request == RestoreRequest(
            mode=RestoreMode.INPUTS_UNTIL,
            as_of_ms=1_795_271_400_250,
            accept=Restores.UNPROVEN,
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

    def test_without_any_it_is_the_default_request_with_what_the_yaml_says(
        self, settings: ApplicationSettings, fake: _Restore, instance: dg.DagsterInstance
    ) -> None:
        said = replace(settings, restore=replace(settings.restore, verify=VerifyExtent.SAMPLE))
        _materialise(said, instance)
        ((request, _),) = fake.requests
        assert request == RestoreRequest(verify=VerifyExtent.SAMPLE)

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
            ({"target": "nowhere"}, "'nowhere' is not host:port"),
        ],
    )
    def test_wrong_values_fail_in_words(
        self,
        settings: ApplicationSettings,
        fake: _Restore,
        instance: dg.DagsterInstance,
        config: dict[str, Any],
        text: str,
    ) -> None:
        done = _materialise(settings, instance, **config)
        assert text in _failure(done)
        assert fake.requests == []

    def test_without_a_target(
        self, settings: ApplicationSettings, fake: _Restore, instance: dg.DagsterInstance
    ) -> None:
        nowhere = replace(settings, restore=replace(settings.restore, target=None))
        assert "No target cluster is given for the restore of shop" in _failure(
            _materialise(nowhere, instance)
        )


def test_keys_edges_and_pool(settings: ApplicationSettings) -> None:
    topics, offsets = assets.build_restore_assets(settings)
    specs = {spec.key.to_user_string(): spec for spec in (*topics.specs, *offsets.specs)}
    deps = {
        key: {dep.asset_key.to_user_string() for dep in spec.deps} for key, spec in specs.items()
    }
    points = "shop/recovery_points"
    assert deps == {
        f"shop/restore/{ORDERS}": {f"shop/backup/{ORDERS}", points},
        f"shop/restore/{TOTALS}": {f"shop/backup/{TOTALS}", points},
        f"shop/restore/{BETWEEN}": {points},
        "shop/restore/group_offsets": {f"shop/restore/{name}" for name in NAMES},
    }
    assert {spec.group_name for spec in specs.values()} == {"shop/restore"}
    assert all(spec.kinds == {"kafka", "restore"} for spec in specs.values())
    assert all(spec.partitions_def is None for spec in specs.values())
    assert {topics.op.pool, offsets.op.pool} == {"kstreams_restore_shop"}
    assert topics.op.name == "restore_shop"
    assert group_offsets_key("shop") == offsets.key


@pytest.mark.parametrize("name", ["group_offsets", "group-offsets"])
def test_a_topic_with_the_name_of_the_group_offsets(
    settings: ApplicationSettings, name: str
) -> None:
    topic = AppTopic(name, TopicRoles({TopicRole.REPARTITION}))
    application = replace(settings.application, topics=(topic,))
    with pytest.raises(CollidingNamesError, match=rf"'{name}' and 'group_offsets'"):
        assets.build_restore_assets(replace(settings, application=application, topics=(topic,)))
