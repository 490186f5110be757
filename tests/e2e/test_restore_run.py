"""Restores as Dagster runs: real instance, real broker, real Spark."""

import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from confluent_kafka import Producer
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import InProcessWorkspaceLoadTarget
from dagster._daemon.backfill import execute_backfill_iteration
from dagster_graphql.schema import create_schema

from kstreams_assets.app.model import TopicRole
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.restores import RestoreState
from kstreams_assets.model.spans import Window
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore import records as records_module
from tests.backup.reading import consume
from tests.e2e import restore_location
from tests.orchestration.default_keys import group_offsets_key, restore_key
from tests.streams.workbench import Workbench

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.e2e,
    pytest.mark.on_store,
]

LAUNCH = """
mutation Launch($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
  }
}
"""


class Application:
    """An application on the workbench, stopped, with ten orders of which it has read seven.

    Its point belongs to the window before the present one, of a minute.
    """

    def __init__(
        self,
        bench: Workbench,
        monkeypatch: pytest.MonkeyPatch,
        *,
        changelog: str = "totals-changelog",
    ) -> None:
        self.bench = bench
        self.orders = bench.topic("orders")
        self.changelog = bench.topic(changelog, role=TopicRole.CHANGELOG)
        self.group = f"{bench.application_id}-copy"
        self.produce(self.orders, 10)
        self.produce(self.changelog, 3)
        committed = CommittedOffset(7, "AgAB")
        partition = TopicPartitionId(self.orders, 0)
        bench.cluster.commit_group_offsets(bench.application_id, {partition: committed})
        minute_ms = time.time_ns() // 60_000_000_000 * 60_000
        bench.take_point(closes_window_end_ms=minute_ms)
        bench.windows.append(Window(minute_ms - 60_000, minute_ms, "w0000"))
        bench.back_up()
        told = {
            "bootstrap_servers": bench.bootstrap_servers,
            "warehouse": str(bench.warehouse.root),
            "application_id": bench.application_id,
            "topics": {name: sorted(roles) for name, roles in bench.roles.items()},
        }
        monkeypatch.setenv("RESTORE_TEST_APPLICATION", json.dumps(told))

    def produce(self, topic: str, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.bench.bootstrap_servers})
        for number in range(count):
            producer.produce(topic, f"{number}")
        assert producer.flush(20) == 0

    def window_of(self, point: RecoveryPoint) -> str:
        """The key of the window that a point belongs to."""
        calendar = WindowCalendar(restore_location.settings().windows)
        return calendar.key_at(point.effective_at_ms)

    @property
    def window(self) -> str:
        """The window of the newest point."""
        return self.window_of(self.bench.points()[-1])

    @property
    def topics(self) -> tuple[str, ...]:
        return (self.orders, self.changelog)

    def asset_keys(self) -> list[dg.AssetKey]:
        app = self.bench.application_id
        return [*(restore_key(app, topic) for topic in self.topics), group_offsets_key(app)]

    def config(self, **more: Any) -> dict[str, Any]:
        """Everything beside the originals, under other names."""
        names = {"application_id": self.group, "prefix": "copy-"}
        targets = {topic: f"copy-{topic}" for topic in self.topics}
        # Nothing in the logs of this hand-made application shows exactly-once.
        accept = {"accept": "at_least_once"}
        config = {"dry_run": False, **accept, **names, "topics": targets, **more}
        op = f"restore_{self.bench.application_id.replace('-', '_')}"
        return {"ops": {op: {"config": config}}}

    def restored_names(self, windows: Sequence[str]) -> set[str]:
        """Topics whose names begin with a window."""
        begins = tuple(window.replace(":", "-") for window in windows)
        return {name for name in self.bench.cluster.topics() if name.startswith(begins)}

    def offsets(self) -> dict[TopicPartitionId, CommittedOffset]:
        """What the restored group has committed."""
        return dict(self.bench.cluster.group_offsets(self.group))

    def restored(self, topic: str) -> list[Any]:
        """The records of a restored topic."""
        return consume(self.bench.bootstrap_servers, f"copy-{topic}")


@pytest.fixture
def application(workbench: Workbench, monkeypatch: pytest.MonkeyPatch) -> Application:
    return Application(workbench, monkeypatch)


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    launcher = {
        "module": "dagster._core.launcher.sync_in_memory_run_launcher",
        "class": "SyncInMemoryRunLauncher",
    }
    coordinator = {"module": "dagster._core.run_coordinator", "class": "DefaultRunCoordinator"}
    overrides = {"run_launcher": launcher, "run_coordinator": coordinator}
    with dg.instance_for_test(temp_dir=str(tmp_path), overrides=overrides) as instance:
        yield instance


def _run(
    application: Application, instance: dg.DagsterInstance, **config: Any
) -> dg.ExecuteInProcessResult:
    job = restore_location.defs().resolve_implicit_global_asset_job_def()
    return job.execute_in_process(
        instance=instance,
        asset_selection=application.asset_keys(),
        run_config=application.config(**config),
        partition_key=application.window,
        raise_on_error=False,
    )


def test_a_red_check_keeps_the_group_offsets_away(
    application: Application, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = records_module.verify

    def with_one_more(*arguments: Any, **options: Any) -> Any:
        application.produce(f"copy-{application.changelog}", 1)
        return verify(*arguments, **options)

    monkeypatch.setattr(records_module, "verify", with_one_more)
    done = _run(application, instance)
    assert not done.success
    evaluations = {e.asset_key.path[-1]: e for e in done.get_asset_check_evaluations()}
    assert evaluations[application.orders].passed
    red = evaluations[application.changelog]
    assert not red.passed
    assert f"copy-{application.changelog}-0 offset 3" in (red.description or "")
    steps = [e.step_key for e in done.all_events if e.is_step_start]
    assert len(steps) == 1, steps
    assert application.offsets() == {}
    (restore,) = Repository(
        application.bench.warehouse, application.bench.application_id
    ).restores.all()
    assert restore.state is RestoreState.FAILED_VERIFICATION


def _backfill(
    application: Application,
    instance: dg.DagsterInstance,
    windows: Sequence[str],
    config: Mapping[str, Any],
) -> list[dg.DagsterRun]:
    """The runs of a titled backfill of these windows."""
    origin = InProcessCodeLocationOrigin(
        LoadableTargetOrigin(
            executable_path=sys.executable, module_name="tests.e2e.restore_location"
        ),
        location_name="restores",
    )
    parameters = {
        "assetSelection": [{"path": list(key.path)} for key in application.asset_keys()],
        "partitionNames": [*windows],
        "title": "Back in time",
        "runConfigData": json.dumps(config),
    }
    load = InProcessWorkspaceLoadTarget(origin)
    with WorkspaceProcessContext(instance, load) as workspace:
        launched = create_schema().execute(
            LAUNCH,
            context_value=workspace.create_request_context(),
            variables={"params": parameters},
        )
        assert launched.data is not None, launched.errors
        answer = launched.data["launchPartitionBackfill"]
        assert answer["__typename"] == "LaunchBackfillSuccess", answer
        for _ in range(3):
            list(execute_backfill_iteration(workspace, logging.getLogger("backfill of a test")))
        backfill = instance.get_backfill(answer["backfillId"])
    assert backfill is not None
    assert backfill.title == "Back in time"
    runs = instance.get_runs(dg.RunsFilter(tags={"dagster/backfill": answer["backfillId"]}))
    return sorted(runs, key=lambda run: run.tags["dagster/partition"])


def _two_windows(application: Application) -> list[str]:
    """Four more orders, of which the application has read two, in the present window."""
    bench = application.bench
    application.produce(application.orders, 4)
    partition = TopicPartitionId(application.orders, 0)
    committed = CommittedOffset(9, "AgAB")
    bench.cluster.commit_group_offsets(bench.application_id, {partition: committed})
    bench.close_window()
    bench.back_up()
    first, second = sorted({application.window_of(point) for point in bench.points()})
    return [first, second]


def test_a_titled_backfill_restores_the_last_point_of_an_older_window(
    application: Application, instance: dg.DagsterInstance
) -> None:
    point = application.bench.points()[0]
    first, _ = _two_windows(application)
    (run,) = _backfill(application, instance, [first], application.config())
    assert run.status is dg.DagsterRunStatus.SUCCESS
    assert len(application.restored(application.orders)) == 10
    partition = TopicPartitionId(f"copy-{application.orders}", 0)
    assert application.offsets() == {partition: CommittedOffset(7, "AgAB")}
    (restore,) = Repository(
        application.bench.warehouse, application.bench.application_id
    ).restores.all()
    assert (restore.state, restore.run_id) == (RestoreState.COMMITTED, run.run_id)
    assert restore.point_id == point.id


def _failure(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str:
    """Why the steps of a run failed, in our words; empty if none did."""
    texts: list[str] = []
    for entry in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE):
        assert entry.dagster_event is not None
        data = entry.dagster_event.step_failure_data
        told = data.user_failure_data
        texts.append((told.description if told else None) or str(data.error))
    return "\n".join(texts)


def test_two_windows_side_by_side(
    workbench: Workbench, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Onto one set of topics they are refused; with a prefix each has its own."""
    bench, internal = workbench, f"{workbench.application_id}-totals-changelog"
    application = Application(bench, monkeypatch, changelog=internal)
    windows = _two_windows(application)
    op = f"restore_{bench.application_id.replace('-', '_')}"
    shown = {"dry_run": False, "options": {"accept": "at_least_once"}}

    refused = _backfill(
        application, instance, windows, {"ops": {op: {"config": {**shown, "target": "default"}}}}
    )
    assert [run.status for run in refused] == [dg.DagsterRunStatus.FAILURE] * 2
    for failure in (_failure(instance, run) for run in refused):
        assert failure.startswith("2 windows cannot be restored onto the same topics")
    assert not Repository(bench.warehouse, bench.application_id).restores.all()

    both = _backfill(
        application, instance, windows, {"ops": {op: {"config": {**shown, "target": "many"}}}}
    )
    assert [_failure(instance, run) for run in both] == ["", ""]
    assert [run.status for run in both] == [dg.DagsterRunStatus.SUCCESS] * 2
    for window, orders, offset in zip(windows, (10, 14), (7, 9), strict=True):
        prefix = window.replace(":", "-") + "."
        restored = f"{prefix}{application.orders}"
        assert len(consume(bench.bootstrap_servers, restored)) == orders
        group = dict(bench.cluster.group_offsets(f"{prefix}{bench.application_id}"))
        assert group == {TopicPartitionId(restored, 0): CommittedOffset(offset, "AgAB")}
    assert application.restored_names(windows) == {
        f"{window.replace(':', '-')}.{topic}" for window in windows for topic in application.topics
    }


def test_a_second_run_finds_everything_done(
    application: Application, instance: dg.DagsterInstance
) -> None:
    assert _run(application, instance).success
    done = _run(application, instance)
    assert done.success
    assert len(application.restored(application.orders)) == 10
    records = {
        event.asset_key.path[-1]: event.materialization.metadata["records"].value
        for event in done.all_events
        if event.is_step_materialization
        and event.asset_key is not None
        and "records" in event.materialization.metadata
    }
    assert records == {application.orders: 10, application.changelog: 3}


def test_into_a_local_cluster(application: Application, instance: dg.DagsterInstance) -> None:
    done = _run(application, instance, target="local:look", verify="full")
    assert done.success, [e.message for e in done.get_step_failure_events()]
    (restore,) = Repository(
        application.bench.warehouse, application.bench.application_id
    ).restores.all()
    assert restore.state is RestoreState.COMMITTED
    assert restore.target_cluster_id != application.bench.cluster.cluster_id()
    assert application.offsets() == {}
    next_ = next(
        event.materialization.metadata["next"].value
        for event in done.all_events
        if event.is_step_materialization and "next" in event.materialization.metadata
    )
    assert "restore serve --app YAML look" in str(next_)


def test_dg_launch_with_config(application: Application, tmp_path: Path) -> None:
    bench = application.bench
    module = f"restores_{tmp_path.name.replace('-', '_')}"
    folder = tmp_path / module / "defs" / "shop"
    folder.mkdir(parents=True)
    for package in (folder.parents[1], folder.parent):
        (package / "__init__.py").touch()
    (tmp_path / module / "definitions.py").write_text(
        "from pathlib import Path\n\nimport dagster as dg\n\n"
        "from spark_resources.resource import SparkSessionResource\n\n"
        "@dg.definitions\ndef defs():\n"
        "    loaded = dg.load_from_defs_folder(path_within_project=Path(__file__).parent)\n"
        "    spark = dg.Definitions(resources={'spark': SparkSessionResource()},\n"
        "        executor=dg.in_process_executor)\n"
        "    return dg.Definitions.merge(loaded, spark)\n"
    )
    (tmp_path / "pyproject.toml").write_text(
        f'[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "{module}"\n'
    )
    attributes = {
        "application_id": bench.application_id,
        "connection": {"bootstrap_servers": bench.bootstrap_servers},
        "warehouse": str(bench.warehouse.root),
        "windows": {"every": "minute", "start": "2026-01-01"},
        "topics": {
            name: {"roles": [role.value for role in roles]} for name, roles in bench.roles.items()
        },
        "restore": {"target": {"bootstrap_servers": bench.bootstrap_servers}},
    }
    kind = "kstreams_assets.components.KafkaStreamsAppComponent"
    (folder / "defs.yaml").write_text(yaml.safe_dump({"type": kind, "attributes": attributes}))
    names = {topic: f"looked-at-{topic}" for topic in application.topics}
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("dg")),
            "launch",
            "--assets",
            f'key:"{bench.application_id}/restore/*"',
            "--partition",
            application.window,
            "--config-json",
            json.dumps(application.config(dry_run=True, topics=names)),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout + done.stderr
    assert "No blockers." in said
    assert f"looked-at-{application.orders}" in said
    assert f"{application.group}" in said
    assert not Repository(bench.warehouse, bench.application_id).restores.all()
