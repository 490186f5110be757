"""When the points of a follower wait for commits, if the YAML does not say so."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from kstreams_assets.app.model import AppTopic, TopicRole, TopicRoles
from kstreams_assets.backup import watching
from kstreams_assets.backup.watching import PAUSE_S, QUICK_S, TRIES, CommitWatch
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.point import Guarantee
from kstreams_assets.recovery.recorder import Awaited, Recorder
from kstreams_assets.settings import ApplicationSettings, RecoveryPointSettings, WindowSchedule
from tests.backup.samples import application, point

TOPICS = (AppTopic("t", TopicRoles({TopicRole.INPUT})),)
AT_LEAST_ONCE = replace(point(1_000), runs_at=Guarantee.AT_LEAST_ONCE)


class Clock:
    """Stands for the clock of the follower; each wait records how long it was to last."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.waits: list[float] = []

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(watching, "time", SimpleNamespace(monotonic=found.monotonic))

    def wait_for_commits(*given: object, **_: object) -> Awaited:
        found.waits.append(float(str(given[2])))
        return {}

    monkeypatch.setattr(Recorder, "wait_for_commits", wait_for_commits)
    return found


@pytest.fixture
def watch(tmp_path: Path, clock: Clock) -> Iterator[CommitWatch]:
    settings = ApplicationSettings(
        application=application(*TOPICS),
        topics=TOPICS,
        connection=KafkaConnection(bootstrap_servers="127.0.0.1:1"),
        warehouse=Warehouse(tmp_path),
        windows=WindowSchedule.every("hour", start="2026-10-20"),
    )
    with closing(CommitWatch(settings, new_lineage=False, check=lambda: None)) as found:
        yield found


def cuts_take(monkeypatch: pytest.MonkeyPatch, seconds: float | None) -> list[float | None]:
    asked: list[float | None] = []

    def takes_s(_: CommitWatch) -> float | None:
        asked.append(seconds)
        return seconds

    monkeypatch.setattr(CommitWatch, "takes_s", takes_s)
    return asked


def taken(watch: CommitWatch, monkeypatch: pytest.MonkeyPatch, guarantee: Guarantee) -> None:
    """Let the watch take a point with this guarantee."""
    monkeypatch.setattr(
        Recorder, "take", lambda *_, **__: replace(AT_LEAST_ONCE, guarantee=guarantee)
    )
    point = None
    while point is None:
        point = watch.point({})
    assert point.guarantee is guarantee


def test_points_wait_for_frequent_commits(
    watch: CommitWatch, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts_take(monkeypatch, 3.6)
    assert watch.is_due(AT_LEAST_ONCE)
    taken(watch, monkeypatch, Guarantee.EXACT)
    assert clock.waits == [TRIES * 3.6]
    assert watch.is_due(AT_LEAST_ONCE)


@pytest.mark.parametrize("seconds", [QUICK_S + 0.1, None])
def test_points_do_not_wait_for_rare_or_unknown_commits(
    watch: CommitWatch, clock: Clock, monkeypatch: pytest.MonkeyPatch, seconds: float | None
) -> None:
    asked = cuts_take(monkeypatch, seconds)
    assert not watch.is_due(AT_LEAST_ONCE)
    assert not watch.is_due(AT_LEAST_ONCE)
    assert len(asked) == 1
    clock.now_s += PAUSE_S
    cuts_take(monkeypatch, 1.0)
    assert watch.is_due(AT_LEAST_ONCE)


@pytest.mark.parametrize("runs_at", [Guarantee.EXACT, None])
def test_points_of_other_applications_cost_no_question(
    watch: CommitWatch, monkeypatch: pytest.MonkeyPatch, runs_at: Guarantee | None
) -> None:
    asked = cuts_take(monkeypatch, 1.0)
    assert not watch.is_due(None)
    assert not watch.is_due(replace(AT_LEAST_ONCE, runs_at=runs_at))
    assert asked == []


def test_after_points_without_proof_the_pauses_get_longer(
    watch: CommitWatch, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts_take(monkeypatch, 1.0)
    for pause_s in (PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S):
        assert watch.is_due(AT_LEAST_ONCE)
        taken(watch, monkeypatch, Guarantee.AT_LEAST_ONCE)
        clock.now_s += pause_s - 1
        assert not watch.is_due(AT_LEAST_ONCE)
        clock.now_s += 1
    assert watch.is_due(AT_LEAST_ONCE)
    taken(watch, monkeypatch, Guarantee.EXACT)
    assert watch.is_due(AT_LEAST_ONCE)


@pytest.mark.parametrize(("seconds", "is_due"), [(0.0, False), (30.0, True)])
def test_the_yaml_decides_if_it_says_so(
    watch: CommitWatch, monkeypatch: pytest.MonkeyPatch, seconds: float, is_due: bool
) -> None:
    asked = cuts_take(monkeypatch, 1.0)
    told = RecoveryPointSettings(commit_wait_seconds=seconds)
    watch.settings = replace(watch.settings, recovery_points=told)
    assert watch.is_due(None) is is_due
    assert asked == []
