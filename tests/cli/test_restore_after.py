"""`restore watch`, `finish`, `previous-offsets`, `group-offsets`, `serve`: output, exit codes."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest

from kstreams_assets.app_file.read import load_settings
from kstreams_assets.checks import Finding
from kstreams_assets.cli import restore_after
from kstreams_assets.cli.restore_options import chosen_restore
from kstreams_assets.drill.report import stored_drill
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.groups import ConsumerGroup, GroupOffset
from kstreams_assets.model.restores import PartitionProduced, RestoreState, StoredRestore
from kstreams_assets.offsets import CommittedOffset, OffsetRun, TopicPartitionId
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.restore.watch import Assessment, Health, Limits, Observation, Sign, diagnosis
from kstreams_assets.settings import ApplicationSettings
from tests.backup.samples import point
from tests.cli.application import Program, document, write
from tests.cli.shop import Shop
from tests.drill.reports import REPORT
from tests.restore import outcomes
from tests.upkeep.simulated_app import FLIGHT, INPUT, OUTPUT


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
    monkeypatch.setattr(restore_after, "KafkaCluster", _Cluster)
    Repository(Warehouse(tmp_path / "warehouse"), "shop").restores.append(_restore())
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
            Repository.open(settings).restores.append(restore)
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
        Repository(warehouse, "shop").drills.record(
            stored_drill(replace(REPORT, run_id="drill-run"))
        )
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
    """`restore finish --force`."""

    def test_table(self, shop: Shop) -> None:
        assert shop("run").exit_code == 0
        del shop.target.topics[OUTPUT]
        shop.target.retention_ms = 1000
        result = shop("finish", "--force")
        assert result.exit_code == 0
        assert f"Restore {shop.stored.restore_id} is finished" in result.out
        assert "retention.ms" in result.out
        assert "(default)" in result.out
        records = sum(map(len, shop.target.topics[INPUT].logs))
        assert f"deletes {records} of {records} restored records" in result.err
        assert (
            f"Not changed, because deleted or recreated since the restore: {OUTPUT}." in result.err
        )
        assert shop.stored.state is RestoreState.FINISHED
        assert "retention.ms" not in shop.target.topics[INPUT].configs
        assert "is already finished" in shop("finish", "--force").out

    def test_json(self, shop: Shop) -> None:
        assert shop("run").exit_code == 0
        found = shop.json("finish", "--force")
        assert (found["restore_id"], found["state"]) == (shop.stored.restore_id, "finished")
        assert (found["was_finished"], found["left_alone"], found["seen"]) == (False, [], None)
        assert found["put_back"][INPUT]["retention.ms"] is None
        assert found["retention"] == []

    def test_not_before_the_application_is_seen(self, shop: Shop) -> None:
        shop("run")
        assert shop("finish").exit_code == 2
        assert shop.stored.state is RestoreState.COMMITTED


class TestPreviousOffsets:
    """`restore previous-offsets` of a group that had offsets, one of them in a deleted topic."""

    @pytest.fixture
    def restored(self, shop: Shop) -> Shop:
        """The application, whose group has continued since."""
        former = {TopicPartitionId(INPUT, 0): 7, TopicPartitionId("gone", 2): 8}
        shop.target.groups["shop"] = {
            id_: CommittedOffset(offset, "") for id_, offset in former.items()
        }
        assert shop("run").exit_code == 0
        shop.target.offsets[TopicPartitionId(INPUT, 1)] = CommittedOffset(1, "")
        del shop.target.offsets[TopicPartitionId("gone", 2)]  # as brokers do with the topic
        return shop

    def test_table(self, restored: Shop) -> None:
        result = restored("previous-offsets")
        assert result.exit_code == 0
        title = f"Restore {restored.stored.restore_id}: group shop has its previous offsets"
        assert title in result.out
        deleted = f"{INPUT}-1, {FLIGHT}-0, {FLIGHT}-1"
        assert f"Deleted, because the group had no offset before: {deleted}." in result.out
        assert f"The group had committed other offsets since the restore: {INPUT}-1." in result.err
        assert "no longer exist on the target: gone-2." in result.err

    def test_json(self, restored: Shop) -> None:
        assert restored.json("previous-offsets") == {
            "restore_id": restored.stored.restore_id,
            "state": "rolled_back",
            "put_back": [{"topic": INPUT, "partition": 0, "offset": 7}],
            "deleted": [
                {"topic": topic, "partition": number}
                for topic, number in ((INPUT, 1), (FLIGHT, 0), (FLIGHT, 1))
            ],
            "absent": [{"topic": "gone", "partition": 2, "offset": 8}],
            "moved": [{"topic": INPUT, "partition": 1}],
        }
        assert restored.stored.state is RestoreState.ROLLED_BACK
        assert {id_: one.offset for id_, one in restored.target.offsets.items()} == {
            TopicPartitionId(INPUT, 0): 7
        }

    def test_the_former_name_asks_for_yes(self, restored: Shop) -> None:
        before = dict(restored.target.offsets)
        refused = restored("rollback")
        assert (refused.exit_code, refused.out) == (2, "")
        assert "rollback is the old name of restore previous-offsets" in refused.err
        assert "add --yes" in refused.err
        assert restored.target.offsets == before
        done = restored("rollback", "--yes")
        assert done.exit_code == 0
        assert "restore rollback is now restore previous-offsets" in done.err
        assert restored.stored.state is RestoreState.ROLLED_BACK


class TestGroupOffsets:
    """`restore group-offsets`, from a file: the source cluster is gone."""

    @pytest.fixture
    def file(self, app_file: Path) -> Path:
        """Offsets of a group, and the map of one of the two partitions."""
        source, target = TopicPartitionId("out", 0), TopicPartitionId("new-out", 0)
        runs = (OffsetRun(10, 0, 5),)
        made = PartitionProduced(source, target, runs, records=5, resumed=0, end=5)
        Repository(Warehouse(app_file.parent / "warehouse"), "shop").offset_maps.record(
            "first", [made]
        )
        path = app_file.with_name("offsets.csv")
        path.write_text("topic,partition,offset\nout,0,12\nout,1,3\n")
        return path

    def test_shown(self, program: Program, app_file: Path, file: Path) -> None:
        options = ["--app", app_file, "--from-file", file]
        result = program("restore", "group-offsets", *options, "report")
        assert result.exit_code == 0
        assert "not committed (add --commit to commit)" in result.out
        assert "No offset, because not restored: out-1." in result.err
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

    @pytest.mark.usefixtures("file")
    def test_from_the_recovery_point(self, program: Program, app_file: Path) -> None:
        report = ConsumerGroup(
            "report", (GroupOffset("out", 0, 13, ""), GroupOffset("out", 1, 3, ""))
        )
        taken = point(1, point_id=_restore().point_id, application_id="shop")
        table = Repository(Warehouse(app_file.parent / "warehouse"), "shop").points
        table.append(replace(taken, other_groups=(report,)))
        options = ["--app", app_file, "--from-point", "--json"]
        found = json.loads(program("restore", "group-offsets", *options, "report").out)
        assert [(one["source_offset"], one["offset"]) for one in found["offsets"]] == [(13, 3)]
        assert found["not_restored"] == [{"topic": "out", "partition": 1}]
        unknown = program("restore", "group-offsets", *options, "other")
        assert unknown.exit_code == 2
        assert f"Recovery point {taken.id} has no offsets of group other." in unknown.err

    def test_one_source_of_offsets(self, program: Program, app_file: Path, file: Path) -> None:
        options = ["--app", app_file, "--from-point", "--from-file", file]
        result = program("restore", "group-offsets", *options, "report")
        assert result.exit_code == 2
        assert "cannot be combined" in result.err

    def test_committed(self, shop: Shop) -> None:
        assert shop("run").exit_code == 0
        file = shop.file.with_name("offsets.csv")
        file.write_text(f"{OUTPUT},0,12\n")
        options = ("--from-file", file, "--commit", "--target-group", "report-2")
        result = shop("group-offsets", *options, "report")
        assert result.exit_code == 0
        assert "Group report-2 on target:1: committed and read back" in result.out
        read = TopicPartitionId(OUTPUT, 0)
        restored = sum(row.offset < 12 for row in shop.rows(read))
        assert shop.target.groups["report-2"] == {read: CommittedOffset(restored, "")}
        shop.assert_restored()


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
        Repository(Warehouse(tmp_path / "warehouse"), "shop").restores.append(
            _restore(RestoreState.PLANNED)
        )
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
        found = Repository(settings.warehouse, "shop").restores.newest("first")
        assert found is not None
        assert found.state is RestoreState.PLANNED
