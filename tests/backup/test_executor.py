"""Where a backup reads Kafka: in its own process, or on Spark."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kstreams_assets.backup.report import TOPIC, WindowReport
from kstreams_assets.backup.result import Executor
from kstreams_assets.orchestration.metadata import metadata
from kstreams_assets.settings import ExecutorSettings
from spark_resources.jars import JARS_VARIABLE
from tests.backup.writing import write
from tests.cli.application import document
from tests.streams.workbench import NoSpark, Workbench

pytestmark = pytest.mark.kafka

RECORDS = 10


def test_a_small_backup_needs_neither_java_nor_jars(workbench: Workbench, tmp_path: Path) -> None:
    topic = workbench.topic("orders")
    write(workbench, topic, RECORDS)
    app = document(
        workbench.application_id,
        connection={"bootstrap_servers": workbench.bootstrap_servers},
        warehouse=str(tmp_path / "warehouse"),
        windows={"every": "minute", "start": "2026-01-01"},
        topics={topic: {"roles": ["input"]}},
    )
    (file := tmp_path / "defs.yaml").write_text(yaml.safe_dump(app))
    (no_jars := tmp_path / "jars").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "kstreams_assets.cli.main", "backup", "--app", file, "--json"],
        env={
            "HOME": str(tmp_path),
            "PATH": str(tmp_path),
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "JAVA_HOME": str(tmp_path / "no-java"),
            JARS_VARIABLE: str(no_jars),
        },
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    topics = [one for found in json.loads(done.stdout)["windows"] for one in found["topics"]]
    assert sum(one["records"] for one in topics) == RECORDS
    assert {one["executor"] for one in topics} == {"python"}


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
