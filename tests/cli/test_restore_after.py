"""`restore watch`, `finish`, `rollback`, `group-offsets`, `serve`: what is said, how it ends."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

from kstreams_assets.app_file.read import load_settings
from kstreams_assets.checks import Finding
from kstreams_assets.cli import restore_after, restore_groups
from kstreams_assets.cli.restore_options import chosen_restore
from kstreams_assets.drill.report import DrillsTable
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.offsets import CommittedOffset, OffsetRun, TopicPartitionId
from kstreams_assets.restore.finish import Finished, RetentionEffect
from kstreams_assets.restore.group_offsets import MappedGroup, RolledBack
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.restore.watch import (
    Assessment,
    Health,
    Limits,
    Observation,
    Sign,
    diagnosis,
)
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.point import GroupOffset
from kstreams_assets.warehouse.restores import (
    OffsetMapsTable,
    PartitionProduced,
    RestoresTable,
    RestoreState,
    StoredRestore,
)
from tests.cli.application import Program, document, write
from tests.drill.reports import REPORT
from tests.restore import outcomes


class _Cluster:
    """Stands in for the target: it only knows its address."""

    opened: str = ""

    def __init__(self, connection: KafkaConnection) -> None:
        self.connection = connection

    def __enter__(self) -> Self:
        _Cluster.opened = self.connection.bootstrap_servers
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def app_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The YAML of `shop`, which was restored to target:1."""
    for module in (restore_after, restore_groups):
        monkeypatch.setattr(module, "KafkaCluster", _Cluster)
    RestoresTable(Warehouse(tmp_path / "warehouse")).append(_restore())
    return write(tmp_path / "defs.yaml", document(warehouse=str(tmp_path / "warehouse")))


def _restore(state: RestoreState = RestoreState.COMMITTED) -> StoredRestore:
    return replace(outcomes.stored(outcomes.plan(RestoreRequest()), state), restore_id="first")


def _assessment(health: Health, *troubles: Finding) -> Assessment:
    seen = Observation(
        at_s=1,
        at_ms=1,
        group_type="classic",
        group_state="Stable",
        members=2,
        topic_ids={},
        partitions={},
    )
    return Assessment(
        health=health,
        observation=seen,
        watched_s=12.5,
        records_left=3,
        counted=True,
        moved=1,
        partitions=4,
        troubles=troubles,
    )


STUCK = diagnosis(Sign.NOT_MOVING, "Offsets do not move.", "Delete state.dir.")


class TestWhichRestore:
    """`watch` and `finish` follow the one that the application goes on from."""

    def _chosen(self, app_file: Path, *others: StoredRestore) -> str:
        settings = load_settings(app_file)
        for restore in others:
            RestoresTable(settings.warehouse).append(restore)
        return chosen_restore(settings, None, live=True).restore_id

    def test_not_those_that_were_begun_and_never_committed(self, app_file: Path) -> None:
        begun = replace(_restore(RestoreState.VERIFIED), restore_id="b", created_at_ms=10**13)
        assert self._chosen(app_file, begun) == "first"

    def test_the_newest_of_a_group(self, app_file: Path) -> None:
        newer = replace(_restore(), restore_id="newer", created_at_ms=10**13)
        assert self._chosen(app_file, newer) == "newer"

    def test_no_drill(self, app_file: Path) -> None:
        kept = replace(
            _restore(),
            restore_id="kept",
            run_id="drill-run",
            created_at_ms=10**13,
            target_cluster_id="throwaway",
        )
        warehouse = load_settings(app_file).warehouse
        DrillsTable(warehouse).record(replace(REPORT, run_id="drill-run"))
        assert self._chosen(app_file, kept) == "first"

    def test_two_clusters_have_to_be_told_apart(self, app_file: Path) -> None:
        other = replace(_restore(), restore_id="other", target_cluster_id="other")
        with pytest.raises(ConfigurationError, match="2 restores"):
            self._chosen(app_file, other)


class TestWatch:
    """`restore watch`."""

    def _follows(self, monkeypatch: pytest.MonkeyPatch, *seen: Assessment) -> list[Limits]:
        asked: list[Limits] = []

        def follow(
            settings: ApplicationSettings,
            restore: StoredRestore,
            target: _Cluster,
            *,
            limits: Limits,
            report: Callable[[Assessment], None] | None,
        ) -> Assessment:
            assert (restore.restore_id, settings.application_id) == ("first", "shop")
            asked.append(limits)
            for assessment in seen:
                if report is not None:
                    report(assessment)
            return seen[-1]

        monkeypatch.setattr(restore_after, "watch_restored", follow)
        return asked

    def test_healthy(
        self, program: Program, app_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps = (_assessment(Health.CATCHING_UP), _assessment(Health.HEALTHY))
        limits = self._follows(monkeypatch, *steps)
        result = program("restore", "watch", "--app", app_file, "--timeout", "33")
        assert (result.exit_code, result.err) == (0, "")
        assert [limit.timeout_s for limit in limits] == [33]
        assert _Cluster.opened == "target:1"
        first, second, *rest = result.out.splitlines()
        assert first == (
            "    12 s  catching up: classic group Stable with 2 members; 3 records left; offsets"
            " moved in 1 of 4 partitions"
        )
        assert "healthy: classic group Stable" in second
        assert "old state.dir" in " ".join(rest)

    @pytest.mark.parametrize("health", [Health.UNHEALTHY, Health.TIMED_OUT])
    def test_not_healthy(
        self, program: Program, app_file: Path, monkeypatch: pytest.MonkeyPatch, health: Health
    ) -> None:
        self._follows(monkeypatch, _assessment(health, STUCK))
        result = program("restore", "watch", "--app", app_file, "--target", "moved:3")
        assert result.exit_code == 1
        assert result.err == "NOT_MOVING Offsets do not move. Delete state.dir.\n"
        assert _Cluster.opened == "moved:3"

    def test_json(self, program: Program, app_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._follows(monkeypatch, _assessment(Health.UNHEALTHY, STUCK))
        result = program("restore", "watch", "--app", app_file, "--json")
        assert (result.exit_code, result.err) == (1, "")
        assert json.loads(result.out) == {
            "restore_id": "first",
            "health": "unhealthy",
            "watched_s": 12.5,
            "group": {"type": "classic", "state": "Stable", "members": 2},
            "records_left": 3,
            "counted": True,
            "moved": 1,
            "partitions": 4,
            "troubles": [
                {
                    "sign": "not_moving",
                    "problem": "Offsets do not move.",
                    "remedy": "Delete state.dir.",
                }
            ],
        }


class TestFinish:
    """`restore finish`."""

    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
        """What `finish` was called with."""
        made: list[dict[str, Any]] = []
        effect = RetentionEffect("new-orders", 1000, False, 0, restored=90, deleted=80)

        def finish(
            settings: ApplicationSettings,
            restore: StoredRestore,
            target: _Cluster,
            **options: Any,
        ) -> Finished:
            made.append(options)
            options["warn"](effect)
            put_back = {"new-orders": {"retention.ms": "1000", "segment.ms": None}}
            done = replace(restore, state=RestoreState.FINISHED)
            return Finished(done, put_back, (effect,), ("gone",), None)

        monkeypatch.setattr(restore_after, "finish_restore", finish)
        return made

    def test_table(self, program: Program, app_file: Path, calls: list[dict[str, Any]]) -> None:
        result = program("restore", "finish", "--app", app_file)
        assert result.exit_code == 0
        assert not calls[0]["force"]
        assert "Restore first is finished" in result.out
        assert "retention.ms" in result.out
        assert "(default)" in result.out
        assert "deletes 80 of 90 restored records" in result.err
        assert "Deleted or made anew, left alone: gone." in result.err

    def test_json_and_force(
        self, program: Program, app_file: Path, calls: list[dict[str, Any]]
    ) -> None:
        result = program("restore", "finish", "--app", app_file, "--json", "--force")
        assert calls[0]["force"]
        found = json.loads(result.out)
        assert (found["state"], found["left_alone"]) == ("finished", ["gone"])
        assert found["put_back"] == {"new-orders": {"retention.ms": "1000", "segment.ms": None}}


class TestRollback:
    """`restore rollback`."""

    @pytest.fixture(autouse=True)
    def _rolls_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def roll_back(
            settings: ApplicationSettings, restore: StoredRestore, target: _Cluster
        ) -> RolledBack:
            return RolledBack(
                replace(restore, state=RestoreState.ROLLED_BACK),
                put_back=(GroupOffset("new-orders", 0, 7, ""),),
                deleted=(TopicPartitionId("new-orders", 1),),
                absent=(GroupOffset("gone", 2, 8, ""),),
                moved=(TopicPartitionId("new-orders", 0),),
            )

        monkeypatch.setattr(restore_after, "roll_back", roll_back)

    def test_table(self, program: Program, app_file: Path) -> None:
        result = program("restore", "rollback", "--app", app_file)
        assert result.exit_code == 0
        assert "Restore first is rolled back; group shop has these offsets" in result.out
        assert "Deleted, there were none before: new-orders-1." in result.out
        assert "The group had gone on since the restore: new-orders-0." in result.err
        assert "no offset put back: gone-2." in result.err

    def test_json(self, program: Program, app_file: Path) -> None:
        result = program("restore", "rollback", "--app", app_file, "--json")
        assert json.loads(result.out) == {
            "restore_id": "first",
            "state": "rolled_back",
            "put_back": [{"topic": "new-orders", "partition": 0, "offset": 7}],
            "deleted": [{"topic": "new-orders", "partition": 1}],
            "absent": [{"topic": "gone", "partition": 2, "offset": 8}],
            "moved": [{"topic": "new-orders", "partition": 0}],
        }


class TestGroupOffsets:
    """`restore group-offsets`, from a file: the source cluster is gone."""

    @pytest.fixture
    def file(self, app_file: Path) -> Path:
        """Offsets of a group, and the map of one of the two partitions."""
        source, target = TopicPartitionId("out", 0), TopicPartitionId("new-out", 0)
        runs = (OffsetRun(10, 0, 5),)
        made = PartitionProduced(source, target, runs, records=5, resumed=0, end=5)
        OffsetMapsTable(Warehouse(app_file.parent / "warehouse")).record("shop", "first", [made])
        path = app_file.with_name("offsets.csv")
        path.write_text("topic,partition,offset\nout,0,12\nout,1,3\n")
        return path

    def test_shown(self, program: Program, app_file: Path, file: Path) -> None:
        options = ["--app", app_file, "--from-file", file]
        result = program("restore", "group-offsets", *options, "report")
        assert result.exit_code == 0
        assert "would be committed (--commit does it)" in result.out
        assert "Not restored, no offset: out-1." in result.err
        found = json.loads(program("restore", "group-offsets", *options, "--json", "report").out)
        assert (found["group"], found["committed"]) == ("report", False)
        assert found["offsets"] == [
            {
                "source": {"topic": "out", "partition": 0},
                "source_offset": 12,
                "target": {"topic": "new-out", "partition": 0},
                "offset": 2,
                "unread": 3,
                "first_unread": 12,
                "is_beyond": False,
            }
        ]
        assert found["not_restored"] == [{"topic": "out", "partition": 1}]

    def test_committed(
        self, program: Program, app_file: Path, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[tuple[str, dict[TopicPartitionId, CommittedOffset]]] = []

        def commit(
            settings: ApplicationSettings,
            restore: StoredRestore,
            target: _Cluster,
            *,
            group: str,
            offsets: dict[TopicPartitionId, CommittedOffset],
        ) -> MappedGroup:
            asked.append((group, offsets))
            return MappedGroup((), ())

        monkeypatch.setattr(restore_groups, "commit_other_group", commit)
        options = ["--from-file", file, "--commit", "--target-group", "report-2"]
        result = program("restore", "group-offsets", "--app", app_file, *options, "report")
        assert result.exit_code == 0
        assert "Group report-2 on target:1: committed and read back" in result.out
        ((group, offsets),) = asked
        assert group == "report-2"
        assert offsets[TopicPartitionId("out", 0)].offset == 12


class TestServe:
    """`restore serve`, without a cluster."""

    def test_list(self, program: Program, app_file: Path) -> None:
        folder = app_file.parent / "warehouse" / "local_clusters" / "shop" / "noon"
        folder.mkdir(parents=True)
        (folder / "cluster.id").write_text("x" * 22)
        found = json.loads(program("restore", "serve", "--app", app_file, "--json").out)
        assert found == {
            "local_clusters": [{"name": "noon", "directory": str(folder), "bytes": 22}]
        }
        result = program("restore", "serve", "--app", app_file, "--remove", "noon")
        assert (result.exit_code, result.out) == (0, f"Removed {folder}, 22 bytes.\n")
        assert not folder.exists()

    def test_unknown(self, program: Program, app_file: Path) -> None:
        for option in ([], ["--remove"]):
            result = program("restore", "serve", "--app", app_file, *option, "noon")
            assert result.exit_code == 2
            assert "noon" in result.err


class TestStates:
    """No command takes a restore for done whose group offsets were not committed."""

    @pytest.fixture
    def planned(self, tmp_path: Path, app_file: Path) -> Path:
        """The restore was started again since, and broke off before its first record."""
        RestoresTable(Warehouse(tmp_path / "warehouse")).append(_restore(RestoreState.PLANNED))
        return app_file

    def test_watch(self, program: Program, planned: Path) -> None:
        done = program("restore", "watch", "--app", planned)
        assert done.exit_code == 1
        assert "is planned: restore watch is refused" in done.err
        assert "restore run with the same options" in done.err
        told = program("restore", "watch", "--app", planned, "--json")
        assert told.exit_code == 1
        found = json.loads(told.out)
        assert (found["health"], found["state"]) == ("unhealthy", "planned")

    @pytest.mark.parametrize(
        "command",
        [
            ("finish",),
            ("finish", "--force"),
            ("map", "orders", "0"),
            ("group-offsets", "readers"),
        ],
    )
    def test_others(self, program: Program, planned: Path, command: tuple[str, ...]) -> None:
        name, *more = command
        done = program("restore", name, "--app", planned, *more)
        assert done.exit_code == 2
        assert f"is planned: restore {name} is refused" in done.err
        settings = load_settings(planned)
        found = RestoresTable(settings.warehouse).newest("shop", "first")
        assert found is not None
        assert found.state is RestoreState.PLANNED
