"""`restore plan`, `run`, `list` and `map`: what goes in, what comes out, how it ends."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from kstreams_assets.checks import Finding
from kstreams_assets.cli import restore as restore_module
from kstreams_assets.drill.report import DrillsTable
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.offsets import OffsetRun, TopicPartitionId
from kstreams_assets.restore import commands
from kstreams_assets.restore.plan import RestorePlan
from kstreams_assets.restore.request import ChangelogSource, InputsExtent, RestoreRequest
from kstreams_assets.restore.run import RestoreResult
from kstreams_assets.settings import ApplicationSettings, VerifyExtent
from kstreams_assets.warehouse.judge import Restores
from kstreams_assets.warehouse.point import GroupOffset
from kstreams_assets.warehouse.restores import (
    OffsetMapsTable,
    OriginalHeaders,
    PartitionProduced,
    RestoreMode,
    RestoresTable,
    RestoreState,
    StoredRestore,
)
from spark_resources.partition_records import Difference
from spark_resources.resource import SparkSessionResource
from tests.cli.application import Program, document, nothing_written, write
from tests.drill.reports import REPORT
from tests.restore import outcomes
from tests.restore.outcomes import ORDERS, TOTALS
from tests.warehouse.forging import forge_column

WRONG = Difference(TopicPartitionId(f"new-{TOTALS}", 0), 4, "the value differs")


@pytest.fixture
def app_file(tmp_path: Path) -> Path:
    """The YAML of `shop`, with a target."""
    more = {
        "warehouse": str(tmp_path / "warehouse"),
        "restore": {"target": {"bootstrap_servers": "target:1"}, "verify": "sample"},
    }
    return write(tmp_path / "defs.yaml", document(**more))


@pytest.fixture
def restores(app_file: Path) -> RestoresTable:
    """The table `restores`."""
    return RestoresTable(Warehouse(app_file.parent / "warehouse"))


@dataclass
class _Restore:
    """Stands in for planning, running and committing."""

    refusals: tuple[Finding, ...] = ()
    differences: tuple[Difference, ...] = ()
    requests: list[tuple[RestoreRequest, str]] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    committed: list[str] = field(default_factory=list)

    def plan(
        self,
        settings: ApplicationSettings,
        request: RestoreRequest,
        target: KafkaConnection,
        *,
        look_s: float = 0.0,
    ) -> RestorePlan:
        del settings, look_s
        self.requests.append((request, target.bootstrap_servers))
        return outcomes.plan(request, *self.refusals, target=target.bootstrap_servers)

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
        self.ran.append(target.bootstrap_servers)
        return outcomes.result(planned, *self.differences, run_id=run_id)

    def commit(
        self,
        settings: ApplicationSettings,
        restore: StoredRestore,
        target: KafkaConnection,
        *,
        gate: object,
    ) -> StoredRestore:
        self.committed.append(target.bootstrap_servers)
        return replace(restore, state=RestoreState.COMMITTED, committed=restore.to_commit)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> _Restore:
    """What the commands call."""
    made = _Restore()
    monkeypatch.setattr(restore_module, "plan_restore", made.plan)
    monkeypatch.setattr(restore_module, "run_restore", made.run)
    monkeypatch.setattr(restore_module, "commit_group_offsets", made.commit)
    return made


class TestPlan:
    """`restore plan`."""

    def test_the_report(self, program: Program, app_file: Path, fake: _Restore) -> None:
        with nothing_written(app_file.parent):
            result = program("restore", "plan", "--app", app_file)
        assert (result.exit_code, result.err) == (0, "")
        assert "Restore of shop" in result.out
        assert "Nothing stands against it." in result.out
        assert "**" not in result.out
        assert fake.ran == fake.committed == []

    def test_json(self, program: Program, app_file: Path, fake: _Restore) -> None:
        result = program("restore", "plan", "--app", app_file, "--json")
        found = json.loads(result.out)
        assert (found["restore_id"], found["can_run"]) == ("point-1-0123abcd", True)

    @pytest.mark.parametrize("command", ["plan", "run"])
    def test_refused(self, program: Program, app_file: Path, fake: _Restore, command: str) -> None:
        fake.refusals = (
            Finding("Group shop", "is active.", action="Stop the application."),
            Finding("Topic new-orders", "holds 4 records.", action="Delete it."),
        )
        result = program("restore", command, "--app", app_file)
        assert result.exit_code == 1
        assert result.err.splitlines() == [
            "REFUSED Group shop: is active. Stop the application.",
            "REFUSED Topic new-orders: holds 4 records. Delete it.",
        ]
        assert fake.ran == fake.committed == []
        found = json.loads(program("restore", command, "--app", app_file, "--json").out)
        planned = found if command == "plan" else found["plan"]
        assert len(planned["refusals"]) == 2
        assert not planned["can_run"]

    def test_every_option_arrives(
        self,
        program: Program,
        app_file: Path,
        fake: _Restore,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        options = (
            "--target other:2 --as-of 2026-11-21T14:30:00.25Z --mode inputs_until --inputs tail"
            " --target-application-id shop-2 --prefix copy- --topic-name a=b --topic-name c=d=e"
            " --exclude x* --exclude y --accept at_least_once --verify counts"
            " --original-headers offset --original-headers timestamp --accept-replaced-timestamps"
            " --replication-factor 2 --before-command true --after-command date"
            " --command-timeout 9.5"
        )
        monkeypatch.setattr(commands, "plan_again", lambda settings, plan, target: plan)
        monkeypatch.setattr(commands, "_await_empty_group", lambda *_: None)
        for command in ("plan", "run"):
            assert program("restore", command, "--app", app_file, *options.split()).exit_code == 0
        expected = RestoreRequest(
            target="other:2",
            mode=RestoreMode.INPUTS_UNTIL,
            as_of_ms=1_795_271_400_250,
            accept=Restores.AT_LEAST_ONCE,
            inputs=InputsExtent.TAIL,
            application_id="shop-2",
            prefix="copy-",
            topics={"a": "b", "c": "d=e"},
            exclude=("x*", "y"),
            replication_factor=2,
            original_headers=OriginalHeaders(offset=True, timestamp=True),
            accept_replaced_timestamps=True,
            verify=VerifyExtent.COUNTS,
            before_command="true",
            after_command="date",
            command_timeout_s=9.5,
        )
        assert fake.requests == [(expected, "other:2")] * 2

    def test_changelogs_from_snapshots(
        self, program: Program, app_file: Path, fake: _Restore
    ) -> None:
        options = ("--changelog-source", "snapshot", "--json")
        result = program("restore", "plan", "--app", app_file, *options)
        assert fake.requests[0][0].changelog_source is ChangelogSource.SNAPSHOT
        found = json.loads(result.out)
        assert found["changelog_source"] == "snapshot"
        snapshots = {topic["source"]: topic["snapshot"] for topic in found["topics"]}
        assert (snapshots[TOTALS]["store"], snapshots[TOTALS]["raw_records"]) == ("totals", 40)
        assert snapshots[ORDERS] is None

    def test_without_options(self, program: Program, app_file: Path, fake: _Restore) -> None:
        program("restore", "plan", "--app", app_file)
        program("restore", "plan", "--app", app_file, "--point", "p-7")
        assert fake.requests == [
            (RestoreRequest(verify=VerifyExtent.SAMPLE), "target:1"),
            (RestoreRequest(verify=VerifyExtent.SAMPLE, point_id="p-7"), "target:1"),
        ]

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            (["--as-of", "2026-11-21T14:30"], "without a time zone. Add Z for UTC"),
            (["--as-of", "2026-11-21T14:30Z", "--point", "p"], "Both as_of"),
            (["--topic-name", "a"], "--topic-name 'a' is no SOURCE=TARGET"),
            (["--topic-name", "a=b", "--topic-name", "a=c"], "of a new source"),
            (["--target", "nowhere"], "'nowhere' is not host:port"),
        ],
    )
    def test_wrong_values(
        self, program: Program, app_file: Path, fake: _Restore, options: list[str], text: str
    ) -> None:
        with nothing_written(app_file.parent):
            result = program("restore", "run", "--app", app_file, *options)
        assert result.exit_code == 2
        assert text in result.err
        assert result.err.count("\n") == 1

    def test_no_target(self, program: Program, tmp_path: Path, fake: _Restore) -> None:
        path = write(tmp_path / "defs.yaml", document(warehouse=str(tmp_path / "warehouse")))
        result = program("restore", "plan", "--app", path)
        assert result.exit_code == 2
        assert "No target cluster is given for the restore of shop." in result.err


class TestRun:
    """`restore run`."""

    def test_restored_verified_committed(
        self, program: Program, app_file: Path, fake: _Restore
    ) -> None:
        result = program("restore", "run", "--app", app_file, "--target", "other:2")
        assert (result.exit_code, result.err) == (0, "")
        assert fake.ran == fake.committed == ["other:2"]
        assert "100 records (verify: sample)" in result.out
        assert "1 offsets of group shop committed and read back." in result.out
        assert "delete <state.dir>/shop on every instance" in result.out

    def test_json(self, program: Program, app_file: Path, fake: _Restore) -> None:
        result = program("restore", "run", "--app", app_file, "--json")
        assert result.exit_code == 0
        found = json.loads(result.out)
        assert (found["state"], found["group"], found["target"]) == (
            "committed",
            "shop",
            "target:1",
        )
        assert found["committed"] == [{"topic": f"new-{ORDERS}", "partition": 0, "offset": 70}]
        assert (found["compared_records"], found["differences"]) == (100, [])
        assert found["recovery_point_age_s"] > 3_000_000
        assert found["took_s"].keys() == {"topics", "produce", "verify", "all"}
        assert found["plan"]["restore_id"] == found["restore_id"]

    def test_what_snapshots_gave_stands_beside_the_raw_logs(
        self, program: Program, app_file: Path, fake: _Restore
    ) -> None:
        command = ("restore", "run", "--app", app_file)
        found = json.loads(program(*command, "--changelog-source", "snapshot", "--json").out)
        assert found["from_snapshots"] == [
            {
                "topic": f"new-{TOTALS}",
                "store": "totals",
                "window": "w-7",
                "records": 9,
                "bytes": 900,
                "raw_log_records": 40,
                "raw_log_bytes": 4100,
            }
        ]
        text = program(*command, "--changelog-source", "snapshot").out
        assert "9 records, 900 B; raw log 40, about 4.1 kB" in " ".join(text.split())
        assert json.loads(program(*command, "--json").out)["from_snapshots"] == []
        assert "raw log" not in program(*command).out

    def test_a_difference_exits_1_and_commits_nothing(
        self, program: Program, app_file: Path, fake: _Restore
    ) -> None:
        fake.differences = (WRONG,)
        result = program("restore", "run", "--app", app_file)
        assert result.exit_code == 1
        assert fake.committed == []
        assert "The target differs from the backup; no group offsets are committed." in result.out
        assert f"new-{TOTALS}-0 offset 4: the value differs" in result.out
        assert "After the restore" not in result.out
        result = program("restore", "run", "--app", app_file, "--json")
        assert result.exit_code == 1
        found = json.loads(result.out)
        assert (found["state"], found["committed"]) == ("failed_verification", [])
        assert found["differences"] == [
            {
                "topic": f"new-{TOTALS}",
                "partition": 0,
                "offset": 4,
                "what": "the value differs",
            }
        ]


class TestCommands:
    """`restore run` with a command before it, and one after it."""

    @pytest.fixture
    def planned_again(self, monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
        """What stands against the restore once the before command has run."""
        against: list[Finding] = []

        def again(
            settings: ApplicationSettings, plan: RestorePlan, target: KafkaConnection
        ) -> RestorePlan:
            return replace(plan, refusals=tuple(against))

        monkeypatch.setattr(commands, "plan_again", again)
        monkeypatch.setattr(commands, "_await_empty_group", lambda *_: None)
        return against

    def test_one_before_and_one_after(
        self, program: Program, app_file: Path, fake: _Restore, planned_again: list[Finding]
    ) -> None:
        result = program(
            *("restore", "run", "--app", app_file, "--json"),
            *("--before-command", f"cp '{app_file}' '{app_file}.before'"),
            *("--after-command", f"mv '{app_file}.before' '{app_file}.after'"),
        )
        assert result.exit_code == 0
        assert app_file.with_name("defs.yaml.after").is_file()
        assert fake.ran == fake.committed == ["target:1"]
        assert json.loads(result.out)["state"] == "committed"  # what commands say is not in it
        begun = [line.partition(" runs:")[0] for line in result.err.splitlines()]
        assert [line for line in begun if "command" in line and "done" not in line] == [
            "The before command",
            "The after command",
        ]

    def test_those_of_the_yaml_run_where_no_option_names_others(
        self, program: Program, app_file: Path, fake: _Restore, planned_again: list[Finding]
    ) -> None:
        block = {
            "target": {"bootstrap_servers": "target:1"},
            "before_command": f"touch '{app_file}.before'",
            "after_command": "false",
            "command_timeout_seconds": 70,
        }
        write(app_file, document(warehouse=str(app_file.parent / "warehouse"), restore=block))
        given = ("--after-command", f"touch '{app_file}.after'")
        assert program("restore", "run", "--app", app_file, *given).exit_code == 0
        assert app_file.with_name("defs.yaml.before").is_file()
        assert app_file.with_name("defs.yaml.after").is_file()
        assert fake.requests[0][0].command_timeout_s == 70
        asked = ("--command-timeout", "300")
        assert program("restore", "plan", "--app", app_file, *asked).exit_code == 0
        assert fake.requests[1][0].command_timeout_s == 300

    def test_a_restore_that_another_operator_began_with_a_command(
        self, program: Program, app_file: Path, fake: _Restore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        commit = fake.commit

        def began_with_one(*args: Any, **more: Any) -> StoredRestore:
            asked = json.dumps({"after_command": f"touch {app_file}.evil"})
            return replace(commit(*args, **more), request=asked)

        monkeypatch.setattr(restore_module, "commit_group_offsets", began_with_one)
        result = program("restore", "run", "--app", app_file)
        assert result.exit_code == 0
        assert not app_file.with_name("defs.yaml.evil").exists()
        assert "names after_command, and this run names none" in result.err
        assert "Give --after-command, or set restore.after_command in the YAML" in result.err

    def test_the_plan_shows_them_and_runs_none(
        self, program: Program, app_file: Path, fake: _Restore
    ) -> None:
        given = ("--before-command", "no-such-program now", "--after-command", "false")
        result = program("restore", "plan", "--app", app_file, *given)
        assert (result.exit_code, result.err) == (0, "")
        assert "runs no-such-program now" in result.out
        assert "runs false" in result.out

    def test_of_a_refused_restore_none_runs(
        self, program: Program, app_file: Path, fake: _Restore
    ) -> None:
        fake.refusals = (Finding("Topic new-orders", "holds 4 records.", action="Delete it."),)
        given = ("--before-command", f"touch {app_file}.ran", "--after-command", "false")
        result = program("restore", "run", "--app", app_file, *given)
        assert result.exit_code == 1
        assert not app_file.with_name("defs.yaml.ran").exists()
        assert "NOTE The after command is not run" in result.err
        assert "REFUSED Topic new-orders: holds 4 records." in result.err

    def test_members_that_stay_are_a_refusal(
        self, program: Program, app_file: Path, fake: _Restore, planned_again: list[Finding]
    ) -> None:
        planned_again.append(Finding("group shop", "It is in use.", action="Stop it."))
        result = program("restore", "run", "--app", app_file, "--before-command", "true")
        assert result.exit_code == 1
        assert "REFUSED group shop: It is in use. Stop it." in result.err
        assert fake.ran == fake.committed == []

    def test_a_before_command_that_fails_stops_it(
        self, program: Program, app_file: Path, fake: _Restore
    ) -> None:
        result = program("restore", "run", "--app", app_file, "--before-command", "false")
        assert result.exit_code == 2
        assert fake.ran == fake.committed == []
        last = result.err.splitlines()[-1]
        assert last.startswith("Error: The before command ended with exit code 1: false. No record")

    def test_an_after_command_that_fails_is_an_error_of_a_restore_that_is_done(
        self, program: Program, app_file: Path, fake: _Restore
    ) -> None:
        result = program("restore", "run", "--app", app_file, "--after-command", "false")
        assert result.exit_code == 2
        assert fake.committed == ["target:1"]
        assert "1 offsets of group shop committed and read back." in result.out
        last = result.err.splitlines()[-1]
        assert (
            "The after command ended with exit code 1: false. Restore point-1-0123abcd is" in last
        )

    def test_a_restore_that_takes_too_long_starts_nothing(
        self,
        program: Program,
        app_file: Path,
        fake: _Restore,
        planned_again: list[Finding],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def slow(*args: Any, **more: Any) -> RestoreResult:
            time.sleep(60)
            return fake.run(*args, **more)

        monkeypatch.setattr(restore_module, "run_restore", slow)
        command = f"touch {app_file}.ran"
        given = ("--before-command", "true", "--after-command", command, "--deadline", "0.5")
        result = program("restore", "run", "--app", app_file, *given)
        assert result.exit_code == 2
        assert fake.committed == []
        assert not app_file.with_name("defs.yaml.ran").exists()
        assert "was not verified within 0.5 s (--deadline)" in result.err.splitlines()[-1]

    def test_the_commit_and_the_command_after_it_are_never_cut_off(
        self,
        program: Program,
        app_file: Path,
        fake: _Restore,
        planned_again: list[Finding],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        commit = fake.commit

        def slow(*args: Any, **more: Any) -> StoredRestore:
            time.sleep(1.5)
            return commit(*args, **more)

        monkeypatch.setattr(restore_module, "commit_group_offsets", slow)
        given = ("--before-command", "sleep 1.5", "--after-command", "sleep 1.5")
        result = program("restore", "run", "--app", app_file, *given, "--deadline", "1")
        assert (result.exit_code, fake.committed) == (0, ["target:1"])

    def test_nothing_starts_on_a_target_that_differs(
        self, program: Program, app_file: Path, fake: _Restore
    ) -> None:
        fake.differences = (WRONG,)
        command = f"touch {app_file}.ran"
        result = program("restore", "run", "--app", app_file, "--after-command", command)
        assert result.exit_code == 1
        assert not app_file.with_name("defs.yaml.ran").exists()
        assert "NOTE The after command is not run: no group offset is committed." in result.err

    def test_a_program_that_is_not_there_is_found_before_all_else(
        self, program: Program, app_file: Path, fake: _Restore
    ) -> None:
        result = program("restore", "run", "--app", app_file, "--after-command", "no-such-program")
        assert result.exit_code == 2
        assert "there is no program 'no-such-program'" in result.err
        assert fake.requests == []


def _stored(restore_id: str, state: RestoreState, **changes: object) -> StoredRestore:
    made = outcomes.stored(outcomes.plan(RestoreRequest()), state)
    return replace(made, restore_id=restore_id, **changes)  # pyright: ignore[reportArgumentType]


class TestList:
    """`restore list`."""

    def test_json(self, program: Program, app_file: Path, restores: RestoresTable) -> None:
        restores.append(_stored("first", RestoreState.PLANNED))
        committed = (GroupOffset("new-orders", 0, 70, "AgAB"),)
        restores.append(_stored("first", RestoreState.COMMITTED, committed=committed))
        restores.append(_stored("second", RestoreState.PRODUCED, created_at_ms=2 * 10**12))
        result = program("restore", "list", "--app", app_file, "--json")
        assert (result.exit_code, result.err) == (0, "")
        second, first = json.loads(result.out)["restores"]
        assert (second["restore_id"], second["state"]) == ("second", "produced")
        assert (first["restore_id"], first["state"]) == ("first", "committed")
        assert first["committed"] == [{"topic": "new-orders", "partition": 0, "offset": 70}]
        assert first["topics"][0] == {"source": ORDERS, "target": f"new-{ORDERS}", "records": 90}

    def test_drills_stand_apart(
        self, program: Program, app_file: Path, restores: RestoresTable
    ) -> None:
        restores.append(_stored("live", RestoreState.COMMITTED))
        restores.append(_stored("of-a-drill", RestoreState.FINISHED, run_id="drill-run"))
        DrillsTable(Warehouse(app_file.parent / "warehouse")).record(
            replace(REPORT, run_id="drill-run")
        )
        told = program("restore", "list", "--app", app_file).out
        assert told.index("live") < told.index("Drills of shop") < told.index("of-a-drill")
        found = json.loads(program("restore", "list", "--app", app_file, "--json").out)
        assert {r["restore_id"]: r["drill"] for r in found["restores"]} == {
            "live": False,
            "of-a-drill": True,
        }

    def test_table(self, program: Program, app_file: Path, restores: RestoresTable) -> None:
        failed = RestoreState.FAILED_VERIFICATION
        restores.append(_stored("first", failed, problem="t-0 offset 4: the value differs"))
        result = program("restore", "list", "--app", app_file)
        (row,) = [line for line in result.out.splitlines() if "failed_verification" in line]
        cells = [cell.strip() for cell in row.strip("│|").split("│")]
        assert cells == [
            "first",
            "failed_verification",
            "2025-10-09T08:55:00.000+00:00",
            "point-1",
            "state",
            "target:1",
            "shop",
            "100",
        ]
        assert result.err == "first: t-0 offset 4: the value differs\n"

    def test_none(self, program: Program, app_file: Path) -> None:
        result = program("restore", "list", "--app", app_file, "--json")
        assert json.loads(result.out) == {"restores": []}


class TestMap:
    """`restore map`: a partition with a gap of 5 source offsets."""

    @pytest.fixture(autouse=True)
    def _maps(self, app_file: Path, restores: RestoresTable) -> None:
        restores.append(_stored("first", RestoreState.COMMITTED))
        source, target = TopicPartitionId("orders", 3), TopicPartitionId("new-orders", 3)
        runs = (OffsetRun(10, 0, 5), OffsetRun(20, 5, 2))
        made = PartitionProduced(source, target, runs, records=7, resumed=0, end=7)
        table = OffsetMapsTable(Warehouse(app_file.parent / "warehouse"))
        table.record("shop", "first", [made])

    def _map(self, program: Program, app_file: Path, *arguments: str) -> list[dict[str, int]]:
        result = program("restore", "map", "--app", app_file, "--json", *arguments)
        assert (result.exit_code, result.err) == (0, "")
        found = json.loads(result.out)
        assert found["target"] == {"topic": "new-orders", "partition": 3}
        assert found["target_end"] == 7
        return found["offsets"]

    def test_offsets(self, program: Program, app_file: Path) -> None:
        assert self._map(program, app_file, "orders", "3", "0", "14", "17", "99") == [
            {"source": 0, "target": 0, "records": 0},
            {"source": 14, "target": 4, "records": 4},
            {"source": 17, "target": 5, "records": 5},
            {"source": 99, "target": 7, "records": 7},
        ]

    def test_reverse(self, program: Program, app_file: Path) -> None:
        assert self._map(program, app_file, "--reverse", "orders", "3", "4", "5", "7") == [
            {"source": 14, "target": 4, "records": 4},
            {"source": 20, "target": 5, "records": 5},
            {"source": None, "target": 7, "records": None},
        ]

    def test_all_runs(self, program: Program, app_file: Path) -> None:
        assert self._map(program, app_file, "orders", "3") == [
            {"source": 10, "target": 0, "records": 5},
            {"source": 20, "target": 5, "records": 2},
        ]
        table = program("restore", "map", "--app", app_file, "orders", "3").out
        assert "orders-3 -> new-orders-3 (end 7), restore first" in table

    @pytest.mark.parametrize("column", ["source_start", "target_start"])
    @pytest.mark.parametrize("offsets", [(), ("14",), ("--reverse", "4")])
    def test_a_shifted_map_gives_no_answer(
        self, program: Program, app_file: Path, column: str, offsets: tuple[str, ...]
    ) -> None:
        path = app_file.parent / "warehouse" / "offset_maps"
        forge_column(
            path, column, lambda found: [None if one is None else one + 7 for one in found]
        )
        result = program("restore", "map", "--app", app_file, "orders", "3", *offsets)
        assert (result.exit_code, result.out, result.err.count("\n")) == (2, "", 1)
        assert "The offset map of orders-3 in restore first" in result.err
        assert "from a copy of the warehouse" in result.err

    @pytest.mark.parametrize("pattern", ["_delta_log/*", "*/*.parquet"])
    @pytest.mark.parametrize("content", [b"garbage{", b"", None])
    def test_a_damaged_table(
        self, program: Program, app_file: Path, pattern: str, content: bytes | None
    ) -> None:
        for file in (app_file.parent / "warehouse" / "offset_maps").glob(pattern):
            if content is None:
                file.unlink()
            else:
                file.write_bytes(content)
        result = program("restore", "map", "--app", app_file, "orders", "3", "14")
        assert (result.exit_code, result.out, result.err.count("\n")) == (2, "", 1)
        assert "offset_maps" in result.err
        assert "from a copy" in result.err

    def test_unknown(self, program: Program, app_file: Path) -> None:
        result = program("restore", "map", "--app", app_file, "orders", "4", "0")
        assert result.exit_code == 2
        assert "The restore first has no offset map of orders-4." in result.err


class TestWhichRestore:
    """What commands on a restore do with and without --restore."""

    def _map(self, program: Program, app_file: Path, *options: str) -> str:
        result = program("restore", "map", "--app", app_file, *options, "orders", "3")
        assert result.exit_code == 2
        return result.err

    def test_none(self, program: Program, app_file: Path) -> None:
        assert "shop has no restore in" in self._map(program, app_file)
        assert "shop has no restore 'x' in" in self._map(program, app_file, "--restore", "x")

    def test_the_only_unfinished_one(
        self, program: Program, app_file: Path, restores: RestoresTable
    ) -> None:
        restores.append(_stored("first", RestoreState.FINISHED, committed=()))
        assert "The restore first has no" in self._map(program, app_file)
        restores.append(_stored("second", RestoreState.COMMITTED, created_at_ms=1))
        assert "The restore second has no" in self._map(program, app_file)
        named = self._map(program, app_file, "--restore", "first")
        assert "The restore first has no" in named

    def test_several(self, program: Program, app_file: Path, restores: RestoresTable) -> None:
        restores.append(_stored("first", RestoreState.COMMITTED))
        restores.append(_stored("second", RestoreState.PLANNED, created_at_ms=1))
        text = self._map(program, app_file)
        assert "shop has 2 restores: first, second. Choose one with --restore." in text
