"""Keys that the store does not accept any more, while Spark tasks have them."""

import secrets
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kstreams_assets.errors import SparkJobError, StoreKeysEndedError
from kstreams_assets.store import ObjectPath, access, forget_keys
from spark_resources import partition_tasks
from spark_resources.engine import ENGINES_VARIABLE, engines, stop
from spark_resources.failures import again_with_new_keys
from spark_resources.partition_tasks import run_partition_tasks
from spark_resources.session import LazySession
from tests.store.seaweed import SeaweedFS, serving
from tests.streams.spark_cluster import StandaloneCluster

pytestmark = [pytest.mark.store, pytest.mark.spark]

_SOON_S = 300.0
"""A process asks again for keys that are valid for so short a time."""
_LONG_S = 3600.0


class Role:
    """A server whose keys a `credential_process` provides; `replace` gives both another key."""

    def __init__(self, server: SeaweedFS, folder: Path) -> None:
        self.server, self._program = server, folder / "role.sh"
        self.config = folder / "config"
        self.config.write_text(
            f"[default]\nregion = us-east-1\ncredential_process = {self._program}\n", "utf-8"
        )
        self.valid_for(_LONG_S)

    def valid_for(self, seconds: float) -> None:
        """The keys that are asked for from now on say that they end then."""
        until = datetime.fromtimestamp(time.time() + seconds, UTC).isoformat()
        self._program.write_text(
            f'#!/bin/sh\necho \'{{"Version": 1, "AccessKeyId": "{self.server.key}",'
            f' "SecretAccessKey": "{self.server.secret}", "Expiration": "{until}"}}\'\n',
            "utf-8",
        )
        self._program.chmod(0o700)

    def replace(self, key: str) -> None:
        self.server.replace_key(key)
        self.valid_for(_LONG_S)


@pytest.fixture(scope="module")
def shared_role(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Role]:
    """With an engine of its own, which knows where the keys of the role come from."""
    folder = tmp_path_factory.mktemp("role")
    with pytest.MonkeyPatch.context() as patched, serving() as server:
        names = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE", "ENDPOINT_URL")
        for name in names:
            patched.delenv(f"AWS_{name}", raising=False)
        made = Role(server, folder)
        patched.setenv("AWS_CONFIG_FILE", str(made.config))
        patched.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patched.setenv(ENGINES_VARIABLE, str(folder / "engines"))
        patched.setenv("KSTREAMS_ASSETS_SPARK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
        yield made
        for engine in engines():
            stop(engine)
    forget_keys()


@pytest.fixture
def role(shared_role: Role) -> Role:
    """With keys of which this process has none yet."""
    shared_role.replace(f"first-{secrets.token_hex(3)}")
    forget_keys()
    return shared_role


@pytest.fixture(scope="module")
def spark(shared_role: Role) -> Iterator[LazySession]:
    session = LazySession()
    yield session
    session.stop()


def _places(role: Role, count: int) -> list[ObjectPath]:
    found = [role.server.place() / str(number) for number in range(count)]
    for number, place in enumerate(found):
        place.write_text(str(number))
    return found


def _replaced_meanwhile(role: Role, gate: Path) -> threading.Thread:
    """Replace the key once a task has begun, then let tasks continue."""

    def replace() -> None:
        while not (gate / "begun").exists():
            time.sleep(0.05)
        role.replace("second-key")
        (gate / "replaced").touch()

    thread = threading.Thread(target=replace)
    thread.start()
    return thread


def _reading(gate: Path):
    def task(place: ObjectPath) -> tuple[str, str]:
        (gate / "begun").touch()
        while not (gate / "replaced").exists():
            time.sleep(0.05)
        return place.read_text(), place.access.keys().key

    return task


def test_tasks_whose_keys_were_replaced_are_repeated_with_new_ones(
    role: Role, spark: LazySession, tmp_path: Path
) -> None:
    """As on an executor without a role: nothing but the keys of the task can be used there."""
    places = _places(role, 3)
    thread = _replaced_meanwhile(role, tmp_path)
    found = run_partition_tasks(spark.spark_session, places, _reading(tmp_path))
    thread.join(60)
    assert found == [(str(number), "second-key") for number in range(3)]


@pytest.mark.drill
def test_on_executors_that_have_no_role(
    role: Role, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that are about to expire: each task looks for a role in vain, and uses what it has."""
    places = _places(role, 3)
    forget_keys()
    role.valid_for(_SOON_S)
    cluster = StandaloneCluster(tmp_path / "cluster")
    monkeypatch.setenv(ENGINES_VARIABLE, str(tmp_path / "engines"))
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    spark = LazySession()
    try:
        thread = _replaced_meanwhile(role, tmp_path)
        found = run_partition_tasks(spark.spark_session, places, _reading(tmp_path))
        thread.join(60)
    finally:
        spark.stop()
        for engine in engines():
            stop(engine)
        cluster.close()
    assert found == [(str(number), "second-key") for number in range(3)]


def test_a_task_on_this_host_asks_for_keys_itself(
    role: Role, spark: LazySession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own end soon: it looks where the engine's environment says, and is not repeated."""
    places = _places(role, 3)
    forget_keys()
    role.valid_for(_SOON_S)
    monkeypatch.setattr(partition_tasks, "forget_keys", lambda: pytest.fail("a task was repeated"))
    thread = _replaced_meanwhile(role, tmp_path)
    found = run_partition_tasks(spark.spark_session, places, _reading(tmp_path))
    thread.join(60)
    assert found == [(str(number), "second-key") for number in range(3)]


def test_keys_that_never_become_valid_end_the_job(role: Role, spark: LazySession) -> None:
    places = _places(role, 2)
    role.server.replace_key("unknown-to-the-role")
    with pytest.raises(StoreKeysEndedError, match="does not know the access key") as caught:
        run_partition_tasks(spark.spark_session, places, lambda place: place.read_text())
    assert "give the executors a role" in str(caught.value)
    assert role.server.secret not in str(caught.value)


@pytest.mark.parametrize("denied_first", [True, False])
def test_another_failure_beside_it_is_what_is_reported(
    role: Role, spark: LazySession, tmp_path: Path, denied_first: bool
) -> None:
    """A job that cannot succeed is not repeated, whichever of its tasks fails first."""
    denied, broken = _places(role, 2)
    role.server.replace_key("second-key")
    order = [denied, broken] if denied_first else [broken, denied]

    def task(place: ObjectPath) -> str:
        (tmp_path / f"begun-{place.name}-{time.monotonic_ns()}").touch()
        ended = [tmp_path / f"ended-{one.name}" for one in order]
        if place.name == order[1].name:
            until = time.monotonic() + 60
            while not ended[0].exists() and time.monotonic() < until:
                time.sleep(0.05)
            time.sleep(0.5)  # the other one is on its way out
        try:
            if place.name == broken.name:
                raise ValueError("no")
            return place.read_text()
        finally:
            (tmp_path / f"ended-{place.name}").touch()

    with pytest.raises(SparkJobError, match="ValueError: no"):
        run_partition_tasks(spark.spark_session, order, task)
    assert len(list(tmp_path.glob("begun-*"))) <= 2


def test_rows_of_files_are_planned_again_with_new_keys(role: Role, spark: LazySession) -> None:
    """The plan of a DataFrame contains the keys of its files, so another plan is made."""
    import pyarrow as pa

    from kstreams_assets.store import write_parquet
    from spark_resources.failures import spark_failures
    from spark_resources.stored_files import read_files

    place = role.server.place() / "rows.parquet"
    write_parquet(pa.table({"n": [1, 2, 3]}), place)
    plans: list[int] = []

    def job() -> int:
        plans.append(len(plans))
        with spark_failures():
            rows = read_files(spark.spark_session, [place], "n BIGINT")
            if len(plans) == 1:
                role.replace("second-key")
            return rows.groupBy().sum("n").collect()[0][0]

    assert again_with_new_keys(job) == 6
    assert plans == [0, 1]


def test_a_request_of_this_process_is_denied_once(role: Role) -> None:
    (place,) = _places(role, 1)
    assert place.read_text() == "0"
    role.replace("second-key")
    with pytest.raises(OSError, match="does not know the access key"):
        place.read_text()
    assert place.read_text() == "0"
    assert len(access._known.found) == 1
