"""Whatever stands in the way is one clear error in bounded time, and nothing is half-written."""

import contextlib
import json
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclOperation,  # pyright: ignore[reportPrivateImportUsage]
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
)
from deltalake import DeltaTable

from kstreams_assets.app.model import TopicRole, TopicRoles
from kstreams_assets.backup.commits import SpanReader
from kstreams_assets.errors import (
    AuthenticationFailedError,
    AuthorizationFailedError,
    ClusterUnavailableError,
    JarsMissingError,
    KStreamsAssetsError,
    TopicNotFoundError,
    WarehouseError,
)
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import (
    CONTROL_LAYOUT_VERSION,
    LAYOUT_PROPERTY,
    NewerLayoutError,
    Warehouse,
)
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.point import Guarantee
from kstreams_assets.model.spans import Window
from kstreams_assets.settings import BackupSettings
from kstreams_assets.store import StorePath
from kstreams_assets.store.locks import WarehouseLockedError
from spark_resources.jars import JARS_VARIABLE
from spark_resources.resource import SparkSessionResource
from tests.backup.acls import Acls
from tests.backup.reading import offsets, stored
from tests.backup.writing import producer, write
from tests.repository.disk import on_disk
from tests.streams.cluster import unique_name
from tests.streams.guarded import PASSWORDS, connection_of
from tests.streams.workbench import ON_SPARK, NoSpark, Workbench

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("on_spark")]

ALICE = PASSWORDS["alice"]
WRONG = "not-her-password"
TIMEOUT_S = 4.0


@contextlib.contextmanager
def refused(
    workbench: Workbench, error: type[KStreamsAssetsError], match: str, *, within_s: float
) -> Iterator[None]:
    """The block raises the error in time, leaves the warehouse as it was, and tells no secret."""
    before, began = _files(workbench.warehouse), time.monotonic()
    with pytest.raises(error, match=match) as caught:
        yield
    assert time.monotonic() - began < within_s
    assert _files(workbench.warehouse) == before
    told = "".join(traceback.format_exception(caught.value))
    for secret in (ALICE, WRONG, json.dumps(ALICE)[1:-1]):
        assert secret not in told


def _files(warehouse: Warehouse) -> dict[StorePath, int]:
    """Every file of the warehouse's tables with its size, but for empty records and ledger."""
    creation = f"{0:020}"
    return {
        path: path.stat().st_size
        for path in warehouse.root.rglob("*")
        if path.is_file()
        and ".locks" not in path.parts
        and not (creation in path.name and {"records", "windows"} & {*path.parts[-4:-2]})
    }


@pytest.fixture
def secured(
    guarded_cluster: LocalCluster, spark: SparkSessionResource, tmp_path: Path
) -> Iterator[Callable[..., Workbench]]:
    """A workbench whose topics anyone may make, as one of the users; one warehouse for all."""
    application_id = unique_name("app")
    with contextlib.ExitStack() as stack:

        def make(user: str, password: str = "") -> Workbench:
            connection = connection_of(
                guarded_cluster,
                user,
                password=password,
                request_timeout_seconds=TIMEOUT_S,
                extra_java={"default.api.timeout.ms": 10_000, "request.timeout.ms": 8_000},
            )
            return Workbench(
                cluster=stack.enter_context(KafkaCluster(connection)),
                warehouse=Warehouse(tmp_path / "warehouse"),
                spark=spark,
                application_id=application_id,
                executor=ON_SPARK,
            )

        yield make


@pytest.fixture
def window(workbench: Workbench) -> str:
    """A closed window with ten records that nobody has backed up; the topic's name."""
    topic = workbench.topic("records")
    write(workbench, topic, 10)
    workbench.close_window()
    return topic


class TestCluster:
    """The cluster does not answer, or not as wanted."""

    def test_nobody_listens(self, workbench: Workbench, window: str) -> None:
        workbench.spark = NoSpark()
        connection = KafkaConnection(bootstrap_servers="127.0.0.1:1", request_timeout_seconds=1)
        with KafkaCluster(connection) as workbench.cluster:
            for action in (workbench.back_up, workbench.take_point):
                with refused(workbench, ClusterUnavailableError, "127.0.0.1:1", within_s=40):
                    action()

    def test_missing_topic(self, workbench: Workbench, window: str) -> None:
        workbench.spark = NoSpark()
        missing = unique_name("never-there")
        workbench.roles[missing] = TopicRoles({TopicRole.INPUT})
        with refused(workbench, TopicNotFoundError, missing, within_s=40):
            workbench.back_up()
        # A recorder goes on, with less of a guarantee.
        point = workbench.take_point()
        assert point.guarantee is Guarantee.AT_LEAST_ONCE
        assert point.absent_topics == (missing,)
        assert missing in point.reason

    def test_wrong_password(self, secured: Callable[..., Workbench]) -> None:
        bench = secured("alice")
        topic = bench.topic("secret")
        bench.close_window()
        wrong = secured("alice", WRONG)
        wrong.roles, wrong.windows, wrong.spark = bench.roles, bench.windows, NoSpark()
        for action in (wrong.back_up, wrong.take_point):
            with refused(wrong, AuthenticationFailedError, "refused the cred.*SCRAM", within_s=40):
                action()
        assert topic in wrong.roles

    def test_each_missing_right_is_named_and_with_all_of_them_it_works(
        self,
        secured: Callable[..., Workbench],
        guarded_cluster: LocalCluster,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        bench = secured("alice")
        topic = bench.topic("guarded")
        group = bench.application_id
        bob = secured("bob")
        bob.roles, bob.windows = bench.roles, bench.windows
        acls = Acls(guarded_cluster.internal_bootstrap_servers)
        session, bob.spark = bob.spark, NoSpark()
        with refused(bob, TopicNotFoundError, topic, within_s=40):
            bob.take_point()
        acls.allow(ResourceType.TOPIC, topic, AclOperation.DESCRIBE)
        with refused(bob, AuthorizationFailedError, f"DESCRIBE on group {group}", within_s=40):
            bob.take_point()
        acls.allow(ResourceType.GROUP, group, AclOperation.DESCRIBE)
        _write(guarded_cluster, topic)
        bob.close_window()
        with refused(bob, AuthorizationFailedError, f"DESCRIBE_CONFIGS on.*{topic}", within_s=40):
            bob.back_up()
        acls.allow(ResourceType.TOPIC, topic, AclOperation.DESCRIBE_CONFIGS)
        with refused(bob, AuthorizationFailedError, f"READ on topic {topic}", within_s=40):
            bob.back_up()
        acls.allow(ResourceType.TOPIC, topic, AclOperation.READ)
        bob.spark = session

        def without_right(*arguments):
            acls.withdraw(topic, AclOperation.READ)
            return write_spans(*arguments)

        write_spans = SpanReader._write
        monkeypatch.setattr(SpanReader, "_write", without_right)
        with refused(bob, AuthorizationFailedError, f"READ on topic {topic}", within_s=90):
            bob.back_up()
        monkeypatch.undo()
        acls.allow(ResourceType.TOPIC, topic, AclOperation.READ)
        bob.back_up()
        assert offsets(stored(bob, topic)) == [*range(10)]

    def test_the_broker_dies_before_spark_reads(
        self,
        secured: Callable[..., Workbench],
        guarded_cluster: LocalCluster,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        bench = secured("alice")
        topic = bench.topic("dying")
        _write(guarded_cluster, topic)
        bench.close_window()

        def without_broker(*arguments):
            guarded_cluster.kill_node(0)
            return write_spans(*arguments)

        write_spans = SpanReader._write
        monkeypatch.setattr(SpanReader, "_write", without_broker)
        monkeypatch.setattr(BackupSettings, "read_stall_s", 8.0)
        try:
            with refused(bench, ClusterUnavailableError, "127.0.0.1", within_s=90):
                bench.back_up()
        finally:
            monkeypatch.undo()
            guarded_cluster.start_node(0)
        bench.back_up()
        assert offsets(stored(bench, topic)) == [*range(10)]


def _write(cluster: LocalCluster, topic: str) -> None:
    sender = producer(cluster.internal_bootstrap_servers)
    for number in range(10):
        sender.produce(topic, b"%d" % number)
    assert sender.flush(20) == 0


class TestBeforeThePoint:
    """What is missing shows before the point that a backup takes for a window without one."""

    def test_jars(
        self,
        workbench: Workbench,
        window: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        workbench.spark, workbench.executor = SparkSessionResource(), ON_SPARK
        monkeypatch.setenv(JARS_VARIABLE, str(tmp_path))
        with refused(workbench, JarsMissingError, "jars fetch spark", within_s=40):
            _back_up_a_window_without_a_point(workbench)

    def test_space(
        self, workbench: Workbench, window: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        workbench.spark = NoSpark()
        full = shutil.disk_usage(on_disk(workbench.warehouse.root))._replace(free=10 * 1024**2)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
        with refused(workbench, WarehouseError, "has 10 MiB left", within_s=40):
            _back_up_a_window_without_a_point(workbench)

    def test_rights(self, secured: Callable[..., Workbench], guarded_cluster: LocalCluster) -> None:
        bench = secured("alice")
        topic = bench.topic("unreadable")
        bench.close_window()
        bob = secured("bob")
        bob.roles, bob.windows, bob.spark = bench.roles, bench.windows, NoSpark()
        acls = Acls(guarded_cluster.internal_bootstrap_servers)
        acls.allow(ResourceType.TOPIC, topic, AclOperation.DESCRIBE)
        acls.allow(ResourceType.TOPIC, topic, AclOperation.DESCRIBE_CONFIGS)
        acls.allow(ResourceType.GROUP, bench.application_id, AclOperation.DESCRIBE)
        with refused(bob, AuthorizationFailedError, f"READ on topic {topic}", within_s=40):
            _back_up_a_window_without_a_point(bob)


def _back_up_a_window_without_a_point(bench: Workbench) -> None:
    last = bench.windows[-1]
    newest = Window(last.end_ms, last.end_ms + 1, "newest")
    bench.run().execute([newest], newest_closed=newest)


class TestWarehouse:
    """The tables or the lock are another's."""

    @pytest.mark.parametrize("table", ["recovery_points", "windows", "topics", "records"])
    def test_newer_layout(self, workbench: Workbench, window: str, table: str) -> None:
        workbench.back_up()
        write(workbench, window, 1)
        workbench.close_window()
        workbench.spark = NoSpark()
        path = workbench.records_path if table == "records" else workbench.warehouse.root / table
        newer = {LAYOUT_PROPERTY: str(CONTROL_LAYOUT_VERSION + 1)}
        DeltaTable(on_disk(path)).alter.set_table_properties(newer, raise_if_not_exists=False)
        with refused(workbench, NewerLayoutError, rf"{table}.* has layout", within_s=40):
            workbench.back_up()
        if table == "recovery_points":
            with refused(workbench, NewerLayoutError, table, within_s=40):
                workbench.take_point()

    @pytest.mark.parametrize("recorder", [False, True])
    def test_lock_of_another_process(
        self, workbench: Workbench, window: str, recorder: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        workbench.spark = NoSpark()
        workbench.settings = BackupSettings(lock_wait_seconds=1.0)
        monkeypatch.setattr("kstreams_assets.recovery.recorder._LOCK_WAIT_S", 1.0)
        name = workbench.application_id
        lock = workbench.warehouse.lock_file(f"recorder/{name}" if recorder else name)
        program = (
            "import sys, pathlib\n"
            "from kstreams_assets.lease import warehouse_lock\n"
            "with warehouse_lock(pathlib.Path(sys.argv[1]), purpose='test', wait_s=5):\n"
            "    print('held', flush=True)\n"
            "    sys.stdin.read()\n"
        )
        holder = subprocess.Popen(
            [sys.executable, "-c", program, str(lock)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            action = workbench.take_point if recorder else workbench.back_up
            held_by = rf"held by process {holder.pid} on .*test"
            with refused(workbench, WarehouseLockedError, held_by, within_s=20):
                action()
        finally:
            holder.kill()
            holder.wait(10)
        workbench.take_point()
