"""`restore plan`, `run`, `list` and `map`: what goes in, what comes out, how it ends.

`plan` and `run` restore a simulated application to a simulated target.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kstreams_assets.drill.report import stored_drill
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.restorability import Restorability
from kstreams_assets.model.restores import (
    OriginalHeaders,
    PartitionProduced,
    RestoreMode,
    RestoreState,
    StoredRestore,
)
from kstreams_assets.offsets import OffsetRun, TopicPartitionId
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.restores import RestoresTable
from kstreams_assets.restore.request import ChangelogSource, InputsExtent, RestoreRequest
from kstreams_assets.settings import VerifyExtent
from tests.cli.application import Program, document, nothing_written, write
from tests.cli.shop import Shop
from tests.drill.reports import REPORT
from tests.repository.forging import forge_column
from tests.restore import outcomes
from tests.restore.outcomes import ORDERS
from tests.restore.restored_app import Requests
from tests.upkeep.simulated_app import STATE

COMMITTED = ["produce", "verify", "commit"]
WRONG = TopicPartitionId(STATE, 0)


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
    return Repository(Warehouse(app_file.parent / "warehouse"), "shop").restores


class TestPlan:
    """`restore plan`."""

    def test_the_report(self, shop: Shop) -> None:
        with nothing_written(shop.file.parent):
            result = shop("plan")
        assert (result.exit_code, result.err) == (0, "")
        assert "Restore of shop" in result.out
        assert "No blockers." in result.out
        assert "**" not in result.out
        assert (shop.target.did, shop.target.topics) == ([], {})

    def test_json(self, shop: Shop) -> None:
        found = shop.json("plan")
        assert (found["point"]["id"], found["can_run"]) == (shop.point.id, True)
        assert found["restore_id"].startswith(shop.point.id)

    @pytest.mark.parametrize("command", ["plan", "run"])
    def test_refused(self, shop: Shop, command: str) -> None:
        shop.target.stopped = shop.file.with_name("stopped")
        result = shop(command)
        assert result.exit_code == 1
        (line,) = result.err.splitlines()
        assert line.startswith("REFUSED group shop: ")
        assert (shop.target.did, shop.target.topics) == ([], {})
        found = shop.json(command)
        planned = found if command == "plan" else found["plan"]
        assert len(planned["refusals"]) == 1
        assert not planned["can_run"]
        assert command == "plan" or found["state"] == "refused"

    def test_every_option_arrives(self, shop: Shop, requests: Requests) -> None:
        options = (
            "--target other:2 --as-of 2026-11-21T14:30:00.25Z --mode inputs_until --inputs tail"
            " --target-application-id shop-2 --prefix copy- --topic-name a=b --topic-name c=d=e"
            " --exclude x* --exclude y --accept at_least_once --verify counts"
            " --original-headers offset --original-headers timestamp --accept-replaced-timestamps"
            " --replication-factor 2 --before-command true --after-command date"
            " --command-timeout 9.5"
        )
        for command in ("plan", "run"):
            shop(command, *options.split())
        expected = RestoreRequest(
            target="other:2",
            mode=RestoreMode.INPUTS_UNTIL,
            as_of_ms=1_795_271_400_250,
            accept=Restorability.AT_LEAST_ONCE,
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
        assert requests == [(expected, "other:2")] * 2

    def test_changelogs_from_snapshots(self, shop: Shop, requests: Requests) -> None:
        found = shop.json("plan", "--changelog-source", "snapshot")
        assert requests[0][0].changelog_source is ChangelogSource.SNAPSHOT
        assert (found["changelog_source"], found["can_run"]) == ("snapshot", False)

    def test_without_options(self, shop: Shop, requests: Requests) -> None:
        shop.configure(restore={"target": {"bootstrap_servers": "target:1"}, "verify": "sample"})
        shop("plan")
        shop("plan", "--point", "p-7")
        assert requests == [
            (RestoreRequest(verify=VerifyExtent.SAMPLE), "target:1"),
            (RestoreRequest(verify=VerifyExtent.SAMPLE, point_id="p-7"), "target:1"),
        ]

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            (["--as-of", "2026-11-21T14:30"], "without a time zone. Add Z for UTC"),
            (["--as-of", "2026-11-21T14:30Z", "--point", "p"], "Both as_of"),
            (["--topic-name", "a"], "--topic-name 'a' is not SOURCE=TARGET"),
            (["--topic-name", "a=b", "--topic-name", "a=c"], "names a again"),
            (["--target", "nowhere"], "'nowhere' is not host:port"),
        ],
    )
    def test_wrong_values(
        self, program: Program, app_file: Path, options: list[str], text: str
    ) -> None:
        with nothing_written(app_file.parent):
            result = program("restore", "run", "--app", app_file, *options)
        assert result.exit_code == 2
        assert text in result.err
        assert result.err.count("\n") == 1

    def test_no_target(self, program: Program, tmp_path: Path) -> None:
        path = write(tmp_path / "defs.yaml", document(warehouse=str(tmp_path / "warehouse")))
        result = program("restore", "plan", "--app", path)
        assert result.exit_code == 2
        assert "No target cluster is given for the restore of shop." in result.err


class TestRun:
    """`restore run`."""

    def test_restored_verified_committed(self, shop: Shop) -> None:
        result = shop("run", "--target", "other:2", "--verify", "sample")
        assert (result.exit_code, result.err) == (0, "")
        assert shop.target.did == COMMITTED
        shop.assert_restored()
        assert "records (verify: sample)" in result.out
        assert "4 offsets of group shop committed and read back." in result.out
        assert "remove <state.dir>/shop on every instance" in result.out
        assert shop.stored.target_bootstrap_servers == "other:2"

    def test_json(self, shop: Shop) -> None:
        result = shop("run", "--json")
        assert (result.exit_code, result.err) == (0, "")
        found = json.loads(result.out)
        assert (found["state"], found["group"], found["target"]) == (
            "committed",
            "shop",
            "target:1",
        )
        assert found["committed"] == [
            {"topic": o.topic, "partition": o.partition, "offset": o.offset}
            for o in shop.stored.committed or ()
        ]
        records = sum(len(log) for topic in shop.target.topics.values() for log in topic.logs)
        assert (found["compared_records"], found["differences"]) == (records, [])
        assert found["plan"]["records"] == records
        assert found["recovery_point_age_s"] > 0
        assert found["took_s"].keys() == {"check", "topics", "produce", "verify", "all"}
        assert found["plan"]["restore_id"] == found["restore_id"]
        assert found["from_snapshots"] == []

    def test_a_difference_exits_1_and_commits_nothing(self, shop: Shop) -> None:
        shop.target.spoiled = WRONG
        result = shop("run")
        assert result.exit_code == 1
        assert shop.target.did == COMMITTED[:2]
        assert "The target differs from the backup; no group offsets are committed." in result.out
        assert f"{WRONG} offset 4: the value differs" in result.out
        assert "After the restore" not in result.out
        assert shop.target.offsets == {}
        result = shop("run", "--json")
        assert result.exit_code == 1
        found = json.loads(result.out)
        assert (found["state"], found["committed"]) == ("failed_verification", [])
        difference = {**WRONG_PLACE, "offset": 4, "what": "the value differs"}
        assert found["differences"] == [difference]

    @pytest.mark.parametrize("step", ["produce", "verify", "commit"])
    def test_killed_and_run_again(self, shop: Shop, step: str) -> None:
        shop.killed(step)
        assert shop.target.offsets == {}
        assert shop("run").exit_code == 0
        shop.assert_restored()
        assert shop.states[-1] is RestoreState.COMMITTED

    @pytest.mark.parametrize("step", ["produce", "verify", "commit"])
    def test_a_killed_second_run_leaves_it_committed(self, shop: Shop, step: str) -> None:
        """Its application may continue from it: nothing that the run found says otherwise."""
        assert shop("run").exit_code == 0
        first = shop.stored
        shop.killed(step)
        assert (shop.stored.state, shop.stored.committed) == (first.state, first.committed)
        assert shop("run").exit_code == 0
        shop.assert_restored()
        assert set(shop.states[-3:]) == {RestoreState.COMMITTED}

    def test_a_second_run_that_finds_a_difference_is_not_committed(self, shop: Shop) -> None:
        assert shop("run").exit_code == 0
        shop.target.spoiled = WRONG
        assert shop("run").exit_code == 1
        failed = RestoreState.FAILED_VERIFICATION
        assert (shop.stored.state, shop.stored.committed) == (failed, None)


WRONG_PLACE = {"topic": STATE, "partition": 0}


class TestCommands:
    """`restore run` with a command before it, and one after it."""

    def test_one_before_and_one_after(self, shop: Shop) -> None:
        shop.target.stopped = shop.file.with_name("stopped")
        result = shop(
            *("run", "--json"),
            *("--before-command", f"cp '{shop.file}' '{shop.target.stopped}'"),
            *("--after-command", f"cp '{shop.target.stopped}' '{shop.file}.after'"),
        )
        assert result.exit_code == 0
        assert shop.file.with_name("defs.yaml.after").is_file()
        assert shop.target.did == COMMITTED
        assert json.loads(result.out)["state"] == "committed"  # what commands say is not in it
        begun = [line.partition(" runs:")[0] for line in result.err.splitlines()]
        assert [line for line in begun if "command" in line and "done" not in line] == [
            "The before command",
            "The after command",
        ]

    def test_those_of_the_yaml_run_where_no_option_names_others(
        self, shop: Shop, requests: Requests
    ) -> None:
        block = {
            "target": {"bootstrap_servers": "target:1"},
            "before_command": f"touch '{shop.file}.before'",
            "after_command": "false",
            "command_timeout_seconds": 70,
        }
        shop.configure(restore=block)
        assert shop("run", "--after-command", f"touch '{shop.file}.after'").exit_code == 0
        assert shop.file.with_name("defs.yaml.before").is_file()
        assert shop.file.with_name("defs.yaml.after").is_file()
        assert requests[0][0].command_timeout_s == 70
        shop("plan", "--command-timeout", "300")
        assert requests[-1][0].command_timeout_s == 300

    def test_a_restore_that_another_operator_started_with_a_command(self, shop: Shop) -> None:
        shop.killed("commit", "--after-command", f"touch '{shop.file}.evil'")
        result = shop("run")
        assert result.exit_code == 0
        assert not shop.file.with_name("defs.yaml.evil").exists()
        said = " ".join(result.out.split())
        assert "names after_command, and this run names none" in said
        assert "Give --after-command, or set restore.after_command in the YAML" in said

    def test_the_plan_shows_them_and_runs_none(self, shop: Shop) -> None:
        given = ("--before-command", "no-such-program now", "--after-command", "false")
        result = shop("plan", *given)
        assert (result.exit_code, result.err) == (0, "")
        assert "runs no-such-program now" in result.out
        assert "runs false" in result.out

    def test_of_a_refused_restore_none_runs(self, shop: Shop) -> None:
        given = ("--before-command", f"touch {shop.file}.ran", "--after-command", "false")
        result = shop("run", "--point", "no-such-point", *given)
        assert result.exit_code == 1
        assert not shop.file.with_name("defs.yaml.ran").exists()
        assert "NOTE The after command was not run" in result.err
        assert "REFUSED recovery point no-such-point: " in result.err

    def test_members_that_stay_are_a_refusal(self, shop: Shop) -> None:
        shop.target.stopped = shop.file.with_name("never")
        result = shop("run", "--before-command", "true", "--command-timeout", "1")
        assert result.exit_code == 1
        assert "Group shop is still Stable; waiting until it is empty." in result.err
        assert "REFUSED group shop: " in result.err
        assert (shop.target.did, shop.target.topics) == ([], {})

    def test_a_before_command_that_fails_stops_it(self, shop: Shop) -> None:
        result = shop("run", "--before-command", "false")
        assert result.exit_code == 2
        assert (shop.target.did, shop.target.topics) == ([], {})
        last = result.err.splitlines()[-1]
        assert last.startswith("Error: The before command ended with exit code 1: false. No record")

    def test_an_after_command_that_fails_is_an_error_of_a_restore_that_is_done(
        self, shop: Shop
    ) -> None:
        result = shop("run", "--after-command", "false")
        assert result.exit_code == 2
        shop.assert_restored()
        assert "4 offsets of group shop committed and read back." in result.out
        last = result.err.splitlines()[-1]
        assert "The after command ended with exit code 1: false. Restore " in last
        assert f"{shop.stored.restore_id} is complete: its group offsets are committed" in last

    def test_a_restore_that_takes_too_long_starts_nothing(self, shop: Shop) -> None:
        shop.target.slow = "verify"
        command = f"touch {shop.file}.ran"
        given = ("--before-command", "true", "--after-command", command, "--deadline", "3")
        result = shop("run", *given)
        assert result.exit_code == 2
        assert "commit" not in shop.target.did
        assert not shop.file.with_name("defs.yaml.ran").exists()
        assert "was not verified within 3 s (--deadline)" in result.err.splitlines()[-1]

    def test_the_commit_and_the_commands_are_never_cut_off(self, shop: Shop) -> None:
        given = ("--before-command", "sleep 1.5", "--after-command", "sleep 1.5")
        assert shop("run", *given, "--deadline", "90").exit_code == 0
        left_s = shop.target.timers
        assert 0 < left_s["verify"] < left_s["produce"] < 90
        assert not 0 < left_s["commit"] < 90  # only what another timer of the process has left

    def test_nothing_starts_on_a_target_that_differs(self, shop: Shop) -> None:
        shop.target.spoiled = WRONG
        result = shop("run", "--after-command", f"touch {shop.file}.ran")
        assert result.exit_code == 1
        assert not shop.file.with_name("defs.yaml.ran").exists()
        assert (
            "NOTE The after command was not run because no group offset was committed."
            in result.err
        )

    def test_a_program_that_is_not_there_is_found_before_all_else(
        self, shop: Shop, requests: Requests
    ) -> None:
        result = shop("run", "--after-command", "no-such-program")
        assert result.exit_code == 2
        assert "program 'no-such-program' is missing" in result.err
        assert requests == []


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
        Repository(Warehouse(app_file.parent / "warehouse"), "shop").drills.record(
            stored_drill(replace(REPORT, run_id="drill-run"))
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
        table = Repository(Warehouse(app_file.parent / "warehouse"), "shop").offset_maps
        table.record("first", [made])

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
