"""A simulated application that is backed up, and restored to a simulated target."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kstreams_assets.app.rules import Place
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.restores import RestoreState, StoredRestore
from kstreams_assets.model.rule_results import Outcome, RuleResult
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.restores import RestoresTable
from kstreams_assets.restore import job
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.settings import ApplicationSettings, KeepSettings
from spark_resources.work import Spark
from tests.completeness.outcomes import result
from tests.restore.simulated_target import SimulatedTarget, restores_go_to
from tests.upkeep.simulated_app import APPLICATION_ID, PARTITIONS, Row, SimulatedApp

LOST, TOLD = "nothing_lost", "told_only"
Requests = list[tuple[RestoreRequest, str]]


@dataclass(frozen=True, slots=True)
class RestoredApp:
    """The application, a warehouse with its backups, and the target of its restores."""

    app: SimulatedApp
    warehouse: Warehouse
    target: SimulatedTarget

    @property
    def point(self) -> RecoveryPoint:
        """The newest, which is restored."""
        return self.app.points[-1]

    @property
    def table(self) -> RestoresTable:
        """The restores."""
        return Repository(self.warehouse, APPLICATION_ID).restores

    @property
    def stored(self) -> StoredRestore:
        """The only restore, as it stands."""
        (restore,) = self.table.all()
        return restore

    @property
    def states(self) -> list[RestoreState]:
        """The states of the only restore, oldest first."""
        history = self.table.history(self.stored.restore_id)
        return [one.state for one in history]

    def rows(self, id_: TopicPartitionId) -> list[Row]:
        """What a restore of the point has to write of a partition."""
        cut = self.point.cut(id_)
        assert cut is not None
        in_flight = self.app.roles[id_.topic].in_flight_only
        low = self.committed[id_] if in_flight else 0
        return [row for row in self.app.logs[id_] if row.offset >= low and cut.holds(row.offset)]

    @property
    def committed(self) -> dict[TopicPartitionId, int]:
        """The offsets of the group at the point."""
        return {offset.id: offset.offset for offset in self.point.group_offsets}

    def assert_restored(self) -> None:
        """Each topic holds the records of the point, and the group goes on at the same ones."""
        expected: dict[TopicPartitionId, int] = {}
        for topic in self.app.roles:
            for number in range(PARTITIONS):
                id_ = TopicPartitionId(topic, number)
                rows, there = self.rows(id_), self.target.topics[topic].logs[number]
                assert [(r["key"], r["value"], r["timestamp_ms"]) for r in there] == [
                    (r.key, r.value, r.timestamp_ms) for r in rows
                ]
                if id_ in self.committed:
                    expected[id_] = sum(row.offset < self.committed[id_] for row in rows)
        assert {id_: o.offset for id_, o in self.target.offsets.items()} == expected


@pytest.fixture(scope="session")
def backed_up(tmp_path_factory: pytest.TempPathFactory) -> SimulatedApp:
    """The application, two windows of which are backed up."""
    warehouse = Warehouse(tmp_path_factory.mktemp("shop") / "warehouse")
    app = SimulatedApp.at(warehouse, seed=1, windows=2, keep=KeepSettings(all="2h", minimum=1))
    app.run(app.windows)
    return app


@pytest.fixture
def restored_app(
    backed_up: SimulatedApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> RestoredApp:
    """The application with a warehouse and a target of its own."""
    source = backed_up.settings.warehouse.root
    assert isinstance(source, Path)
    shutil.copytree(source, tmp_path / "warehouse")
    target = SimulatedTarget()
    restores_go_to(target, monkeypatch)
    return RestoredApp(backed_up, Warehouse(tmp_path / "warehouse"), target)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    """What is asked of the planner, and for which servers."""
    asked: Requests = []
    plan = job.plan_restore

    def recorded(
        settings: ApplicationSettings,
        request: RestoreRequest,
        target: KafkaConnection,
        **more: Any,
    ) -> Any:
        asked.append((request, target.bootstrap_servers))
        return plan(settings, request, target, **more)

    monkeypatch.setattr(job, "plan_restore", recorded)
    return asked


@dataclass
class Rules:
    """Stands in for the evaluation of rules, which needs Spark; its results are stored.

    `LOST` blocks, `TOLD` does not.
    """

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    error: Exception | None = None
    evaluated: int = 0

    def evaluate(
        self,
        settings: ApplicationSettings,
        restore: StoredRestore,
        target: KafkaConnection,
        *,
        spark: Spark,
        log: Callable[[str], None],
    ) -> list[RuleResult]:
        """The outcomes."""
        assert restore.state is RestoreState.VERIFIED
        self.evaluated += 1
        if self.error is not None:
            raise self.error
        found = [
            result(
                self.outcomes.get(name, Outcome.PASSED),
                rule=name,
                place=Place.RESTORE,
                blocking=name == LOST,
                point_id=restore.point_id,
                run_id=restore.run_id,
            )
            for name in (LOST, TOLD)
        ]
        Repository.open(settings).results.record(found)
        return found
