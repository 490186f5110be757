"""Python functions as Spark tasks: results in order, failures as they were raised."""

import os
import signal
import time
from pathlib import Path

import pytest
from pyspark import cloudpickle

from kstreams_assets.errors import KafkaRequestError
from kstreams_assets.offsets import TopicPartitionId
from spark_resources import partition_tasks
from spark_resources.failures import SparkJobError
from spark_resources.partition_tasks import check_stop, run_partition_tasks
from spark_resources.resource import SparkSessionResource

pytestmark = pytest.mark.spark


def test_results_come_in_order_of_items(spark: SparkSessionResource) -> None:
    items = [TopicPartitionId("orders", number) for number in (3, 1, 2, 0, 4)]

    def task(item: TopicPartitionId) -> tuple[str, int]:
        time.sleep(item.partition / 20)
        return str(item), os.getpid()

    results = run_partition_tasks(spark.spark_session, items, task)
    assert [name for name, _ in results] == [str(item) for item in items]
    assert os.getpid() not in {pid for _, pid in results}


@pytest.mark.parametrize("at_a_time", [1, 2])
def test_no_more_run_at_a_time_than_asked_for(
    spark: SparkSessionResource, tmp_path: Path, at_a_time: int
) -> None:
    def task(item: int) -> tuple[int, float, float]:
        began = time.time()
        (tmp_path / str(item)).touch()
        while len([*tmp_path.iterdir()]) < at_a_time:  # until the others run as well
            time.sleep(0.01)
        time.sleep(0.2)
        return item, began, time.time()

    found = run_partition_tasks(spark.spark_session, range(5), task, at_a_time=at_a_time)
    assert [item for item, _, _ in found] == [*range(5)]
    most = max(sum(b <= began < e for _, b, e in found) for _, began, _ in found)
    assert most == at_a_time


def test_nothing_to_do_starts_nothing() -> None:
    assert run_partition_tasks(None, [], str) == []  # pyright: ignore[reportArgumentType]


def test_an_error_of_ours_arrives_with_its_facts(spark: SparkSessionResource) -> None:
    def task(item: int) -> int:
        if item == 1:
            raise KafkaRequestError(operation="produce", resource="orders-1", reason="no")
        return item

    with pytest.raises(KafkaRequestError, match=r"^Kafka refused produce on orders-1: no\.") as it:
        run_partition_tasks(spark.spark_session, [0, 1], task)
    assert (it.value.operation, it.value.resource) == ("produce", "orders-1")
    assert "Java" not in str(it.value)
    assert it.value.remedy.startswith("Check the log")


def test_any_other_error_is_one_line(spark: SparkSessionResource) -> None:
    def task(item: int) -> float:
        return 1 / item

    with pytest.raises(SparkJobError, match=r"^ZeroDivisionError") as it:
        run_partition_tasks(spark.spark_session, [0], task)
    assert str(it.value) == "ZeroDivisionError: division by zero"
    assert "return 1 / item" in "".join(it.value.__notes__)


def test_the_first_failure_ends_the_others_and_starts_no_more(
    spark: SparkSessionResource, tmp_path: Path
) -> None:
    def task(item: int) -> int:
        (tmp_path / f"began-{item}").touch()
        if item == 0:
            deadline = time.monotonic() + 60  # until the other one runs
            while not (tmp_path / "began-1").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            raise ValueError("first")
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            time.sleep(0.01)
            check_stop()
        (tmp_path / f"ended-{item}").touch()
        return item

    began = time.monotonic()
    with pytest.raises(SparkJobError, match=r"^ValueError: first"):
        run_partition_tasks(spark.spark_session, range(6), task)
    assert time.monotonic() - began < 100
    assert sorted(path.name for path in tmp_path.iterdir()) == ["began-0", "began-1"]


def test_a_killed_worker_is_told_once_no_other_task_runs(
    spark: SparkSessionResource, tmp_path: Path
) -> None:
    def task(item: int) -> int:
        if item == 0:
            while not (tmp_path / "pid").exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        (tmp_path / "pid").write_text(str(os.getpid()))
        time.sleep(120)
        return item

    with pytest.raises(SparkJobError, match=r"^A Python worker of Spark died"):
        run_partition_tasks(spark.spark_session, [0, 1], task)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_what_the_task_of_a_lost_executor_stops_is_run_again(
    spark: SparkSessionResource, tmp_path: Path
) -> None:
    """It fails, where nobody waits for it, and so stops the tasks beside it."""

    def task(item: int) -> int:
        is_first = not (tmp_path / str(item)).exists()
        (tmp_path / str(item)).touch()
        if is_first and item == 1:
            signals = partition_tasks._signals
            assert signals is not None
            Path(signals.stop).touch()
        check_stop()
        return item

    assert run_partition_tasks(spark.spark_session, range(4), task) == [0, 1, 2, 3]


def test_a_task_fails_on_a_machine_that_shares_the_lock_and_not_the_folder_of_signals(
    tmp_path: Path,
) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    signals = partition_tasks._Signals(str(lock), str(tmp_path / "elsewhere" / "stop"))

    def task(item: int) -> float:
        check_stop()
        return 1 / item

    told = cloudpickle.loads(partition_tasks._outcome(cloudpickle.dumps(0), task, signals))
    assert isinstance(told, partition_tasks._Failure)
    assert str(told.error()) == "ZeroDivisionError: division by zero"
