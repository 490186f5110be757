"""A follower outlives what may happen around it for two minutes, and is exact soon after it."""

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.lease import warehouse_lock
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.store import ObjectPath, locks
from spark_resources.engine import ENGINES_VARIABLE, engines, stop
from tests.backup import throttled_follower
from tests.backup.following import Following, new_following
from tests.kafka.test_quotas import quota
from tests.recovery.trial import (
    NO_PURGE,
    QUICK_SESSIONS,
    Trial,
    application_of,
    disturbance,
    new_trial,
    running,
    wrong_points,
)
from tests.store.seaweed import SeaweedFS, seaweed, serving, store
from tests.streams.cluster import unique_name

__all__ = ["seaweed", "store"]

pytestmark = [pytest.mark.kafka, pytest.mark.e2e, pytest.mark.drill, pytest.mark.alone]

_log = logging.getLogger(__name__)
_OUTAGE_S = 120.0
_BACK_S = 15.0
_RATE = 150.0
_DISK_BYTES = 192 * 1024**2


@dataclass(slots=True)
class _Judged(Trial):
    """A trial whose points a follower has taken into a warehouse of its own."""

    place: Warehouse = field(kw_only=True)

    @property
    def warehouse(self) -> Warehouse:
        """Where the points are."""
        return self.place


@dataclass(slots=True)
class _Followed:
    """An application and those that follow it, each into a warehouse of its own."""

    trial: Trial
    folder: Path
    followings: dict[str, Following] = field(default_factory=dict)

    def add(self, name: str, warehouse: str | None = None, **more: Any) -> Following:
        """Another follower, which does not run yet; `more` keys are of its YAML."""
        application = application_of(self.trial.topics, ticks=False)
        roles = {topic.name: role.value for topic in application.topics for role in topic.roles}
        folder = self.folder / name
        folder.mkdir()
        self.followings[name] = new_following(
            folder,
            self.trial.bootstrap_servers,
            application.application_id,
            roles,
            "hour",
            warehouse=warehouse,
            **more,
        )
        return self.followings[name]

    @contextmanager
    def load(self) -> "Iterator[None]":
        """The application under load."""
        apps = [self.trial.app("i0", threads=1, config={**QUICK_SESSIONS, **NO_PURGE})]
        with running(apps), self.trial.load(rate=_RATE):
            yield

    def outlive(self, *outages: Callable[[], AbstractContextManager[None]]) -> None:
        """All run through these, and points taken after them are covered soon."""
        for following in self.followings.values():
            following.wait_until_it_has_all(240)  # its engine may have to start
        with ExitStack() as stack:
            for outage in outages:
                stack.enter_context(outage())
            time.sleep(_OUTAGE_S)
        over_ms = time.time_ns() // 1_000_000
        over = time.monotonic()
        deadline = over + _BACK_S
        for name, following in self.followings.items():
            following.wait_for(
                lambda s: s.covered_at_ms is not None and s.covered_at_ms > over_ms,
                max(0.1, deadline - time.monotonic()),
            )
            _log.info("%s: covered again after %.1f s", name, time.monotonic() - over)

    def end(self) -> None:
        """Stop all; every covered point of each is what it says."""
        self.trial.settle()
        history = self.trial.history()
        for name, following in self.followings.items():
            following.wait_until_it_has_all()
            assert following.end() == 0, following.log.read_text()
            covered = following.covered_points()
            assert covered, name
            trial = self.trial
            place = following.settings.warehouse
            judged = _Judged(trial.bootstrap_servers, trial.folder, trial.topics, place=place)
            assert wrong_points(judged, history, covered) == {}, name


@pytest.fixture
def followed(kafka_cluster: LocalCluster, tmp_path: Path) -> "Iterator[_Followed]":
    """Its topics are there; nothing runs."""
    trial = new_trial(kafka_cluster.bootstrap_servers, tmp_path)
    trial.create_topics()
    found = _Followed(trial, tmp_path)
    yield found
    for following in found.followings.values():
        following.end_if_it_runs()


@contextmanager
def _down(server: SeaweedFS, following: Following) -> "Iterator[None]":
    server.stop()
    yield
    server.start()
    # It listens before it can serve what it holds (HTTP 500).
    deadline = time.monotonic() + 60
    while True:
        try:
            _ = following.status
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        else:
            return


@contextmanager
def _full(disk: Path) -> "Iterator[None]":
    filler = disk / "filler"
    with filler.open("wb") as file, pytest.raises(OSError, match="No space left"):  # noqa: PT012
        while True:
            os.write(file.fileno(), bytes(1024**2))
    yield
    filler.unlink()


@contextmanager
def _killed_again_and_again() -> "Iterator[None]":
    killed, last = 0, time.monotonic() + _OUTAGE_S - _BACK_S

    def kill(over: threading.Event) -> None:
        nonlocal killed
        while not over.wait(25):
            if time.monotonic() > last:  # the next one needs some seconds to start
                return
            for engine in engines():
                os.kill(engine.jvm_pid, signal.SIGKILL)
                killed += 1

    with disturbance(kill):
        yield
    assert killed >= 2


@contextmanager
def unnoticed_processes() -> "Iterator[None]":
    """Leases are seen as from another machine."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(locks, "_machine", lambda: "another machine")
        yield


@contextmanager
def _small_disk(place: Path) -> "Iterator[Path]":
    place.mkdir()
    options = f"size={_DISK_BYTES}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.store
def test_the_store_is_down_for_two_minutes(
    followed: _Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        following = followed.add("store", str(server.place()))
        with followed.load():
            following.start()
            followed.outlive(lambda: _down(server, following))
        followed.end()
    assert "Trying again" in following.log.read_text()


@pytest.mark.spark
@pytest.mark.skipif(os.getuid() != 0, reason="mounts a small disk, which only root can")
def test_a_disk_is_full_and_an_engine_killed_for_two_minutes(
    followed: _Followed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _small_disk(tmp_path / "small") as disk:
        monkeypatch.setenv(ENGINES_VARIABLE, str(tmp_path / "engines"))
        on_disk = followed.add("disk", str(disk / "warehouse"))
        on_spark = followed.add("engine", spark={"from_offsets": 0})
        try:
            with followed.load():
                on_disk.start()
                on_spark.start()
                followed.outlive(lambda: _full(disk), _killed_again_and_again)
            followed.end()
        finally:
            for engine in engines():
                stop(engine)
    assert "No space left" in on_disk.log.read_text()
    assert "another one starts" in on_spark.log.read_text()


def test_the_brokers_are_down_for_two_minutes(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster") as local:
        trial = new_trial(local.bootstrap_servers, tmp_path)
        trial.create_topics()
        followed = _Followed(trial, tmp_path)
        following = followed.add("follower")
        try:
            with followed.load():
                following.start()
                following.wait_until_it_has_all()

            @contextmanager
            def down() -> "Iterator[None]":
                local.stop_node(0)
                yield
                local.start_node(0)

            followed.outlive(down)
            with followed.load():
                following.wait_until_it_has_all()
            followed.end()
        finally:
            following.end_if_it_runs()


def test_a_quota_throttles_for_two_minutes(
    followed: _Followed, kafka_cluster: LocalCluster
) -> None:
    """It lets through less than is written."""
    following = followed.add("throttled")
    following.program = throttled_follower.__name__
    most = {"consumer_byte_rate": 10_000.0, "request_percentage": 0.1}
    with followed.load():
        following.start()
        followed.outlive(lambda: quota(kafka_cluster, throttled_follower.CLIENT, **most))
    followed.end()
    assert f"delays answers to client {throttled_follower.CLIENT}" in following.log.read_text()


@pytest.mark.store
def test_a_follower_that_was_stopped_ends_when_another_has_taken_over(
    kafka_cluster: LocalCluster, store: ObjectPath, tmp_path: Path
) -> None:
    topic = unique_name("orders")
    servers = kafka_cluster.bootstrap_servers
    with KafkaCluster(KafkaConnection(bootstrap_servers=servers)) as cluster:
        cluster.create_topics([TopicSpec(topic, 1)])
    following = new_following(
        tmp_path, servers, unique_name("app"), {topic: "input"}, "hour", warehouse=str(store)
    )
    following.environment = {"KSTREAMS_ASSETS_S3_LEASE_S": "6"}
    lock = following.settings.warehouse.lock_file(f"followers/{following.settings.application_id}")
    try:
        following.start()
        following.wait_until_it_has_all()
        following.send(signal.SIGSTOP)
        # As from another machine, which cannot see that the process is still there.
        with (
            unnoticed_processes(),
            warehouse_lock(lock, purpose="the next follower", wait_s=60),
        ):
            following.send(signal.SIGCONT)
            assert following.ended_with(within_s=30) == 2
    finally:
        following.end_if_it_runs()
    assert "the next follower" in following.log.read_text()
    assert "has taken it over" in following.log.read_text()
