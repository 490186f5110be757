"""Where a backup reads Kafka: in its own process, or on Spark."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from kstreams_assets.backup.report import TOPIC, WindowReport
from kstreams_assets.backup.result import Executor
from kstreams_assets.layout import Warehouse
from kstreams_assets.orchestration.metadata import metadata
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ExecutorSettings
from spark_resources.jars import JARS_VARIABLE
from tests.backup.writing import write
from tests.cli.application import document
from tests.streams.workbench import NoSpark, Workbench

pytestmark = pytest.mark.kafka

RECORDS = 10


def _back_up_without_jars(
    workbench: Workbench, folder: Path, **more: Any
) -> subprocess.CompletedProcess[str]:
    """A backup of ten records by the command, on a machine without jars and Java."""
    topic = workbench.topic("orders")
    write(workbench, topic, RECORDS)
    app = document(
        workbench.application_id,
        connection={"bootstrap_servers": workbench.bootstrap_servers},
        warehouse=str(folder / "warehouse"),
        windows={"every": "minute", "start": "2026-01-01"},
        topics={topic: {"roles": ["input"]}},
        **more,
    )
    (file := folder / "defs.yaml").write_text(yaml.safe_dump(app))
    (no_jars := folder / "jars").mkdir()
    return subprocess.run(
        [sys.executable, "-m", "kstreams_assets.cli.main", "backup", "--app", file, "--json"],
        env={
            "HOME": str(folder),
            "PATH": str(folder),
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "JAVA_HOME": str(folder / "no-java"),
            JARS_VARIABLE: str(no_jars),
        },
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_small_backup_needs_neither_java_nor_jars(workbench: Workbench, tmp_path: Path) -> None:
    done = _back_up_without_jars(workbench, tmp_path)
    assert done.returncode == 0, done.stderr
    topics = [one for found in json.loads(done.stdout)["windows"] for one in found["topics"]]
    assert sum(one["records"] for one in topics) == RECORDS
    assert {one["executor"] for one in topics} == {"python"}


def test_a_large_backup_without_jars_takes_no_point(workbench: Workbench, tmp_path: Path) -> None:
    done = _back_up_without_jars(workbench, tmp_path, spark={"from_offsets": RECORDS})
    assert done.returncode != 0
    assert "kstreams-assets jars fetch spark" in done.stderr
    warehouse = Warehouse.at(str(tmp_path / "warehouse"))
    assert not Repository(warehouse, workbench.application_id).points.newest()


@pytest.mark.spark
@pytest.mark.parametrize(
    ("from_offsets", "executor"),
    [(RECORDS + 1, Executor.PYTHON), (RECORDS, Executor.SPARK), (0, Executor.SPARK)],
)
def test_from_offsets_decides_where_it_runs(
    workbench: Workbench, from_offsets: int, executor: Executor
) -> None:
    topic = workbench.topic("orders")
    write(workbench, topic, RECORDS)
    workbench.close_window()
    workbench.executor = ExecutorSettings(from_offsets=from_offsets)
    if executor is Executor.PYTHON:
        workbench.spark = NoSpark()
    (backup,) = workbench.back_up()
    (reported,) = WindowReport.of(backup, workbench.application).topics
    assert (reported.backup.records, backup.executor) == (RECORDS, executor)
    assert TOPIC.document(reported)["executor"] == executor.value
    assert metadata(TOPIC, reported)["executor"].value == executor.value
