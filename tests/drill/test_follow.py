"""From the application's start to caught up, or to the reason why not; never without end."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from kstreams_assets.drill import application as follow_module
from kstreams_assets.drill.application import DrilledApplication, Follower
from kstreams_assets.drill.report import Phase
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.model.restores import StoredRestore
from kstreams_assets.restore.watch import Assessment, Health, Observation, Sign, diagnosis
from kstreams_assets.settings import DrillSettings
from tests.restore.after_commit import settings_of

_OBSERVATION = Observation(
    at_s=0.0,
    at_ms=0,
    group_type="classic",
    group_state="Stable",
    members=1,
    topic_ids={},
    partitions={},
)


def _seen(health: Health, left: int, *, counted: bool = True, state: str = "Stable") -> Assessment:
    return Assessment(
        health=health,
        observation=replace(_OBSERVATION, group_state=state),
        watched_s=0.0,
        records_left=left,
        counted=counted,
        moved=0,
        partitions=1,
        troubles=(),
    )


@dataclass
class FakeApplication:
    """An application of which a test says how it does."""

    started_s: float = field(default_factory=time.monotonic)
    running_s: float | None = None
    exit_code: int | None = None
    lines: tuple[str, ...] = ()

    def last_lines(self) -> tuple[str, ...]:
        return self.lines

    @property
    def real(self) -> DrilledApplication:
        return cast("DrilledApplication", self)


@pytest.fixture
def follower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Follower]:
    """Makes one that sees these assessments, each list in one call of `follow`; then the last."""

    def make(*looks: Sequence[Assessment], **drill: Any) -> Follower:
        settings = settings_of("shop", KafkaConnection(bootstrap_servers="h:1"), tmp_path)
        calls = iter(looks)

        def follow(*_: object, **__: object) -> Iterator[Assessment]:
            mine = list(next(calls, looks[-1]))
            yield from mine
            while not mine[-1].has_ended:
                time.sleep(0.01)
                yield mine[-1]
            time.sleep(0.01)

        monkeypatch.setattr(follow_module, "follow", follow)
        return Follower(
            settings=replace(settings, drill=DrillSettings(**drill)),
            restore=cast("StoredRestore", None),
            cluster=cast("KafkaCluster", None),
            log=lambda _: None,
        )

    return make


def test_what_waits_is_counted_before_the_start(follower: Callable[..., Follower]) -> None:
    found = follower([_seen(Health.WAITING, 7, counted=False)])
    found.before_start()
    assert (found.waiting, found.waiting_counted) == (7, False)


def test_caught_up_is_when_nothing_was_left_for_the_first_time(
    follower: Callable[..., Follower],
) -> None:
    zero = _seen(Health.CATCHING_UP, 0)
    looks = [_seen(Health.CATCHING_UP, 5), zero, _seen(Health.CATCHING_UP, 2), zero, zero]
    found = follower([*looks, _seen(Health.HEALTHY, 0)])
    application = FakeApplication(running_s=0.0)
    assert found.until_caught_up(application.real) is None
    assert [sample.records for sample in found.lag] == [5, 0, 2, 0, 0, 0]
    assert found.caught_up_s == found.lag[3].at_s


def test_healthy_with_records_left_is_not_caught_up(follower: Callable[..., Follower]) -> None:
    found = follower(
        [_seen(Health.HEALTHY, 3)],
        [_seen(Health.HEALTHY, 0, counted=False)],
        [_seen(Health.HEALTHY, 0)],
    )
    assert found.until_caught_up(FakeApplication(running_s=0.0).real) is None
    assert len(found.lag) == 3


def test_lag_of_a_group_that_is_not_stable_does_not_count(
    follower: Callable[..., Follower],
) -> None:
    rebalancing = _seen(Health.CATCHING_UP, 0, state="PreparingRebalance")
    found = follower([rebalancing, _seen(Health.HEALTHY, 0)])
    assert found.until_caught_up(FakeApplication(running_s=0.0).real) is None
    assert found.caught_up_s == found.lag[1].at_s


def test_never_running(follower: Callable[..., Follower]) -> None:
    found = follower([_seen(Health.HEALTHY, 0)], start_timeout_seconds=0.1, running_line="^UP$")
    began = time.monotonic()
    failure = found.until_running(FakeApplication().real)
    assert time.monotonic() - began < 60  # by default it is ten minutes
    assert failure is not None
    assert failure.phase is Phase.START
    assert "not RUNNING within 0.1 s: no line of its output matched '^UP$'" in failure.reason


def test_never_caught_up(follower: Callable[..., Follower]) -> None:
    found = follower([_seen(Health.CATCHING_UP, 12)], catch_up_timeout_seconds=0.1)
    began = time.monotonic()
    failure = found.until_caught_up(FakeApplication(running_s=0.0).real)
    assert time.monotonic() - began < 60
    assert failure is not None
    assert failure.phase is Phase.CATCH_UP
    assert "had not caught up within 0.1 s of RUNNING" in failure.reason
    assert "12 records left" in failure.reason


@pytest.mark.parametrize(
    ("code", "told"), [(3, "ended with exit code 3"), (-9, "was killed by signal 9")]
)
def test_an_end(follower: Callable[..., Follower], code: int, told: str) -> None:
    application = FakeApplication(running_s=0.0, exit_code=code, lines=("one", "why", " "))
    failure = follower([_seen(Health.CATCHING_UP, 1)]).until_caught_up(application.real)
    assert failure is not None
    assert f"{told} before it had caught up. Its last line: why." in failure.reason


def test_an_end_without_a_word(follower: Callable[..., Follower]) -> None:
    application = FakeApplication(exit_code=1)
    failure = follower([_seen(Health.WAITING, 1)]).until_running(application.real)
    assert failure is not None
    assert "before it was RUNNING. It wrote nothing." in failure.reason


def test_signs_that_do_not_pass(follower: Callable[..., Follower]) -> None:
    trouble = diagnosis(Sign.OFFSETS_RESET, "Offsets went back.", "Stop it.")
    bad = replace(_seen(Health.UNHEALTHY, 1), troubles=(trouble,))
    failure = follower([bad]).until_running(FakeApplication().real)
    assert failure is not None
    assert failure.reason == "The application is not well: Offsets went back. Stop it."
