"""Each package that the platform is built on is used: without it, a named feature does not work."""

import ast
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Package:
    """A package of the platform.

    `module` of the product imports `imported`. `probe` uses `feature` on the product's own path,
    without a broker and without a JVM; it fails where the package cannot be imported. `tests` is
    where the feature is tried for real.
    """

    requirement: str
    imported: str
    feature: str
    module: str
    probe: str
    tests: str


PACKAGES: Final = (
    Package(
        requirement="dagster",
        imported="dagster",
        feature="an application in YAML is a Dagster component",
        module="kstreams_assets.orchestration.component",
        probe="import kstreams_assets.components",
        tests="tests/orchestration/test_kafka_streams_app.py",
    ),
    Package(
        requirement="dagster-pyspark",
        imported="dagster_pyspark",
        feature="runs share the session of the host's engine",
        module="spark_resources.resource",
        probe="from spark_resources.resource import SparkSessionResource; SparkSessionResource()",
        tests="tests/e2e/test_dagster_run.py",
    ),
    Package(
        requirement="dagster-aws",
        imported="dagster_aws",
        feature="assets of users share the S3Resource of a warehouse",
        module="kstreams_assets.orchestration.object_store",
        probe="""
from kstreams_assets.app_file.read import application_model
from kstreams_assets.orchestration.object_store import store_resources
from pathlib import Path
model = application_model({
    "application_id": "shop",
    "connection": {"bootstrap_servers": "localhost:1"},
    "warehouse": "s3://backups/shop",
    "windows": {"every": "hour", "start": "2026-11-01"},
    "topics": {"in": {"roles": ["input"]}},
})
assert [*store_resources(model.settings(Path()))] == ["warehouse_store"]
""",
        tests="tests/orchestration/test_object_store.py",
    ),
    Package(
        requirement="confluent-kafka",
        imported="confluent_kafka",
        feature="topics are described, created, altered and deleted",
        module="kstreams_assets.kafka.admin_calls",
        probe="""
from kstreams_assets.kafka.admin_calls import AdminConnection
from kstreams_assets.kafka.connection import KafkaConnection
AdminConnection(KafkaConnection(bootstrap_servers="127.0.0.1:1"))
""",
        tests="tests/kafka/test_topics.py",
    ),
    Package(
        requirement="pyspark",
        imported="pyspark",
        feature="backups, snapshots, rules and restores run as Spark tasks",
        module="spark_resources.session",
        probe="import spark_resources.session",
        tests="tests/spark_resources/test_partition_tasks.py",
    ),
    Package(
        requirement="delta-spark",
        imported="delta",
        feature="rules and snapshots read tables of a warehouse through Delta Lake",
        module="spark_resources.jars",
        probe="from spark_resources.jars import require_delta_jar; require_delta_jar()",
        tests="tests/spark_resources/test_table_scans.py",
    ),
)
_WITHOUT: Final = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {imported!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


@pytest.fixture(params=PACKAGES, ids=lambda package: package.requirement)
def package(request: pytest.FixtureRequest) -> Package:
    return request.param


def test_all_are_run_time_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = {Requirement(text).name for text in project["dependencies"]}
    assert {package.requirement for package in PACKAGES} <= named


def test_the_product_imports_it_and_tests_try_it(package: Package) -> None:
    file = ROOT / f"{package.module.replace('.', '/')}.py"
    names = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
        )
    }
    assert package.imported in names
    assert (ROOT / package.tests).is_file()


def test_its_feature_works_and_without_it_does_not(package: Package) -> None:
    assert (done := _run(package.probe)).returncode == 0, done.stderr
    without = _run(_WITHOUT.format(imported=package.imported) + package.probe)
    assert without.returncode != 0, f"without {package.requirement}: {package.feature}"
    error = without.stderr.strip().splitlines()[-1]
    assert error.startswith("ModuleNotFoundError: No module named ")
    assert package.imported in error


def _run(program: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
