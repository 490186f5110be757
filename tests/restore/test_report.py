"""What people and machines are shown of a plan."""

import json
from dataclasses import replace
from unittest import mock

import pytest

from kstreams_assets.checks import Finding
from kstreams_assets.model.restorability import Restorability
from kstreams_assets.model.restores import RestoreMode
from kstreams_assets.repository.contents import PartitionContents
from kstreams_assets.restore import report
from kstreams_assets.restore.after import outcome
from kstreams_assets.restore.plan import RestorePlan, SnapshotSource
from kstreams_assets.restore.planner import make_plan, plan_topics
from kstreams_assets.restore.preconditions import Facts
from kstreams_assets.restore.report import bytes_text, document, markdown, result_document
from kstreams_assets.restore.request import ChangelogSource, InputsExtent, RestoreRequest
from kstreams_assets.restore.result import RestoreResult
from kstreams_assets.restore.selection import Selection
from tests.restore import outcomes
from tests.restore.planning_samples import findings, partition_of, point, target, there

TAKEN_MS = point().taken_at_ms


def _plan(found: Facts | None = None, *blockers: Finding) -> RestorePlan:
    found = found or findings()
    return make_plan(found, plan_topics(found)[0], blockers=blockers)


def _report(found: Facts | None = None, *blockers: Finding, age_ms: int = 65_400) -> str:
    return markdown(_plan(found, *blockers), now_ms=TAKEN_MS + age_ms)


class TestMarkdown:
    def test_point_guarantee_age_and_target(self) -> None:
        text = _report()
        assert text.startswith("# Restore of shop\n\n**No blockers.**")
        assert f"| Recovery point | `{point().id}`, taken 1970-01-01T00:16:40.000+00:00 |" in text
        assert "| RPO | 1 min 5 s: later records are not restored |" in text
        assert "| Guarantee | `exact` |" in text
        assert "| Target | there:9092 (cluster target-cluster) |" in text
        assert "| Records | 35, about 350 B |" in text

    @pytest.mark.parametrize(
        ("age_s", "words"),
        [(0, "0 s"), (600, "10 min"), (7_200 * 2, "4 h"), (86_400 * 3, "3 d")],
    )
    def test_ages(self, age_s: int, words: str) -> None:
        assert f"| RPO | {words}:" in _report(age_ms=age_s * 1000)

    def test_every_topic_with_roles_windows_records_and_its_name_there(self) -> None:
        held = {
            **findings().holdings,
            partition_of("shop-sums-repartition"): PartitionContents(
                records=1_200, saved_records=1_100
            ),
        }
        found = findings(
            RestoreRequest(application_id="shop-b"), target=target(there("orders")), holdings=held
        )
        text = _report(found)
        assert "| `names` | `names` (new) | changelog+input | 1 | 2 | 5 | 50 B |" in text
        assert "| `orders` | `orders` (exists) | input | 1 | 2 | 5 | 50 B |" in text
        repartition = "| `shop-sums-repartition` | `shop-b-sums-repartition` (new) | repartition"
        assert f"{repartition} | 1 | 0 | 1,200 (1,100 saved with points) | 0 B |" in text

    def test_a_changelog_from_a_snapshot_beside_its_raw_log(self) -> None:
        request = RestoreRequest(changelog_source=ChangelogSource.SNAPSHOT)
        source = SnapshotSource("sums", "w1", raw_records=1_200, raw_bytes=5_500)
        text = _report(findings(request, snapshots={"shop-sums-changelog": source}))
        assert "| Changelogs | from KTable `snapshot`s, one record per key |" in text
        assert "| 5 (raw log: 1,200) | 50 B (raw log: 5.5 kB) |" in text
        assert text.count("raw log") == 2
        assert "Changelogs" not in _report()

    def test_configs_created_with_and_put_back(self) -> None:
        text = _report()
        row = next(line for line in text.splitlines() if "retention.bytes" in line)
        assert "`orders`, " in row
        created, back = row.split(" | ")[2:4]
        assert "`retention.ms=-1`" in created
        assert "`retention.ms=1000`" in back
        assert "`retention.bytes=(default)`" in back

    def test_what_stands_against_it_with_what_to_do(self) -> None:
        text = _report(None, Finding("topic orders", "It is not empty.", action="Delete it."))
        assert "**1 blocker(s). The restore cannot run; nothing was written.**" in text
        assert "- **topic orders**: It is not empty. Delete it." in text
        assert "Fix the blockers above" in text
        assert "state.dir" not in text

    def test_notes(self) -> None:
        found = replace(findings(), notes=("A thing to know.",))
        assert "- A thing to know." in _report(found)

    def test_what_comes_next(self) -> None:
        text = _report(findings(RestoreRequest(application_id="shop-b")))
        assert "Delete `state.dir/shop-b` on every instance" in text
        assert "from offset 0 of the changelogs (10 records)" in text
        assert "kstreams-assets restore finish" in text
        rebuilt = _report(findings(RestoreRequest(mode=RestoreMode.REBUILD)))
        assert "recomputes everything" in rebuilt
        assert "recomputed from the inputs" in rebuilt
        logs = _report(findings(RestoreRequest(mode=RestoreMode.LOGS)))
        assert "It commits no group offsets." in logs
        assert "no state is restored (state at the point: `exact`)" in logs
        assert "state.dir" not in logs

    def test_modes_and_inputs(self) -> None:
        assert "full restore with state" in _report()
        assert "`tail`" in _report(findings(RestoreRequest(inputs=InputsExtent.TAIL)))
        until = RestoreRequest(mode=RestoreMode.INPUTS_UNTIL)
        assert "rebuild from input up to the point" in _report(findings(until))

    def test_without_a_point(self) -> None:
        nothing = {"selection": Selection(), "holdings": {}, "facts": {}}
        found = replace(findings(), point=None, status=None, **nothing)
        text = _report(found, Finding("recovery point", "There is none.", action="Take one."))
        assert "Recovery point |" not in text
        assert "## Topics" not in text

    def test_a_bar_in_a_name_does_not_break_the_table(self) -> None:
        found = replace(findings(), target=replace(target(), bootstrap_servers="a|b"))
        assert "a\\|b" in _report(found)


class TestDocument:
    def test_is_json_with_all_that_is_planned(self) -> None:
        plan = _plan(findings(RestoreRequest(as_of_ms=5)))
        with mock.patch.object(report, "_now_ms", return_value=TAKEN_MS + 1_500):
            found = json.loads(json.dumps(document(plan)))
        assert found["restore_id"] == plan.restore_id
        assert found["can_run"] is True
        assert (found["mode"], found["as_of_ms"], found["gives"]) == ("state", 5, "exact")
        assert found["point"]["age_s"] == 1.5
        assert (found["records"], found["bytes"]) == (35, 350)
        topic = next(t for t in found["topics"] if t["source"] == "orders")
        assert topic["put_back"]["retention.bytes"] is None
        assert topic["partitions"] == [
            {
                "partition": 0,
                "topic_id": "orders-id",
                "ranges": [[10, 100]],
                "records": 5,
                "bytes": 50,
                "saved_records": 0,
                "files": 0,
                "base_offset": 0,
                "committed": {"offset": 60, "metadata": "metadata of orders"},
            }
        ]

    def test_refused(self) -> None:
        blocker = Finding("topic orders", "It is not empty.", action="Delete it.")
        found = document(_plan(None, blocker))
        assert found["can_run"] is False
        assert found["refusals"] == [
            {"subject": "topic orders", "problem": "It is not empty.", "remedy": "Delete it."}
        ]

    def test_without_a_point(self) -> None:
        nothing = {"selection": Selection(), "holdings": {}, "facts": {}}
        found = document(_plan(replace(findings(), point=None, status=None, **nothing)))
        assert (found["point"], found["gives"]) == (None, Restorability.NOTHING)


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.0 kB"),
        (967_000_000, "967.0 MB"),
        (10**16, "10000.0 TB"),
    ],
)
def test_sizes(count: int, words: str) -> None:
    assert bytes_text(count) == words


def test_what_snapshots_gave_is_shown_beside_the_raw_logs() -> None:
    asked = RestoreRequest(changelog_source=ChangelogSource.SNAPSHOT)
    plan = outcomes.plan(asked)
    done = RestoreResult(plan, outcomes.result(plan))
    assert result_document(done)["from_snapshots"] == [
        {
            "topic": f"new-{outcomes.TOTALS}",
            "store": "totals",
            "window": "w-7",
            "records": 9,
            "bytes": 900,
            "raw_log_records": 40,
            "raw_log_bytes": 4100,
        }
    ]
    assert done.records is not None
    text = outcome(plan, done.records)
    assert "9 records, 900 B; raw log 40, about 4.1 kB" in text
