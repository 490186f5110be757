"""restore/next_steps.py: what the operator is told after the commit."""

from dataclasses import replace

import pytest

from kstreams_assets.app.model import TopicRole
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.restores import RestoreMode, RestoreState, StoredRestore, StoredTopic
from kstreams_assets.restore.after import next_steps
from kstreams_assets.texts import duration

POINT_AT_MS = 1_795_262_400_000  # 2026-11-21 12:00 UTC
RESTORE = StoredRestore(
    application_id="orders",
    restore_id="point-1-abcdef01",
    state=RestoreState.COMMITTED,
    changed_at_ms=POINT_AT_MS + 3_600_000,
    created_at_ms=POINT_AT_MS + 3_000_000,
    run_id="run",
    point_id="point-1",
    group="orders2",
    target_cluster_id="cluster",
    target_bootstrap_servers="new:9092",
    mode=RestoreMode.STATE,
    request="{}",
    topics=(
        StoredTopic(
            source="orders-totals-changelog",
            target="orders2-totals-changelog",
            target_topic_id="id",
            base_offsets=(0, 0),
            records=12_345,
            roles=(TopicRole.CHANGELOG.value,),
        ),
        StoredTopic("in", "in", "id", (0,), 777, (TopicRole.INPUT.value,)),
    ),
    former_offsets=(),
    committed=(GroupOffset("in", 0, 4_321, ""),),
)


def told(restore: StoredRestore = RESTORE) -> str:
    return next_steps(
        restore,
        point_taken_at_ms=POINT_AT_MS,
        now_ms=POINT_AT_MS + 3_725_000,
        stores={"orders-totals-changelog": ("totals",)},
    )


def test_what_to_do_in_order() -> None:
    text = told()
    steps = [
        "`<state.dir>/orders2` on **every** instance, including standbys",
        "`application.id=orders2` and `bootstrap.servers=new:9092` before 2026-11-28 13:00 UTC",
        "`kstreams-assets restore watch --app YAML --restore point-1-abcdef01`",
        "**Replay**",
        "`kstreams-assets restore finish --app YAML --restore point-1-abcdef01`",
        "`kstreams-assets restore previous-offsets --app YAML --restore point-1-abcdef01`",
    ]
    places = [text.index(step) for step in steps]
    assert places == sorted(places)


def test_how_long_ago_the_point_was() -> None:
    assert "taken at 2026-11-21 12:00:00 UTC, **1 h 2 min ago**" in told()


def test_what_healthy_looks_like_in_numbers() -> None:
    text = told()
    assert "| `orders2-totals-changelog` | totals | 12,345 |" in text
    assert "| `in-0` | 4,321 |" in text
    assert "777" not in text  # inputs are not restored by the application
    assert "transaction markers only" in text


def test_many_partitions_are_summed_up() -> None:
    many = tuple(GroupOffset("in", number, 5, "") for number in range(123))
    text = told(replace(RESTORE, committed=many))
    assert "| and 103 more | |" in text
    assert text.count("| 5 |") == 20


def test_an_application_that_recomputes_everything() -> None:
    text = told(replace(RESTORE, topics=RESTORE.topics[1:], committed=None))
    assert "restores its stores" not in text
    assert "offsets.retention.minutes" not in text
    assert "state.dir" in text


def test_a_local_cluster_is_only_looked_at() -> None:
    text = next_steps(RESTORE, local="drill")
    assert "`kstreams-assets restore serve --app YAML drill`" in text
    assert "finish" not in text


@pytest.mark.parametrize(
    ("length_ms", "words"),
    [(-5, "0 s"), (999, "0 s"), (61_000, "1 min 1 s"), (90_061_000, "1 d 1 h"), (3_600_000, "1 h")],
)
def test_durations(length_ms: int, words: str) -> None:
    assert duration(length_ms) == words


def test_after_logs_nothing_is_said_of_starting_the_application_as_restored() -> None:
    text = told(replace(RESTORE, mode=RestoreMode.LOGS, committed=()))
    assert "restore group-offsets --app YAML --restore point-1-abcdef01 GROUP --commit" in text
    assert "`kstreams-assets restore finish --app YAML --restore point-1-abcdef01`" in text
    assert "No offset of group `orders2` was committed." in text
    assert "Delete local state" not in text
    assert "restore watch" not in text
