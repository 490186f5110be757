"""The code location as it is shipped: the examples, loaded without a broker and a JVM."""

import importlib
import itertools
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._core.instance.ref import InstanceRef
from syrupy.assertion import SnapshotAssertion

from examples.definitions import defs

ROOT = Path(__file__).parents[2]

_LOAD = """
import pathlib
import pyspark
started = []
pyspark.SparkContext._ensure_initialized = classmethod(lambda *a, **k: started.append(a))
import socket
socket.socket.connect = lambda *a: started.append(a)
from examples.definitions import defs
import dagster as dg
loaded = defs()
dg.Definitions.validate_loadable(loaded)
assert len({spec.tags["kstreams/app"] for spec in loaded.resolve_all_asset_specs()}) == 7
commands = []
for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
    try:
        fields = status.read_text().rpartition(")")[2].split()
        if fields[1] == str(__import__("os").getpid()):
            commands.append(status.read_text())
    except OSError:
        pass
print(started, commands)
"""


@pytest.fixture(scope="module")
def definitions() -> Iterator[dg.Definitions]:
    """The definitions of the code location."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("KSTREAMS_BOOTSTRAP_SERVERS", "localhost:1")
        environment.setenv("KSTREAMS_WAREHOUSE", "/data/warehouse")
        environment.setenv("KSTREAMS_WINDOWS_START", "2026-11-21")
        yield defs()


def _described(definitions: dg.Definitions) -> str:
    """Every asset of the order processor with all that the UI shows of it, as text."""
    graph = definitions.resolve_asset_graph()
    lines: list[str] = []
    for key in sorted(graph.get_all_asset_keys()):
        node = graph.get(key)
        if node.tags["kstreams/app"] != "order-processor":
            continue
        lines += [
            key.to_user_string(),
            f"  group     {node.group_name}",
            f"  kinds     {', '.join(sorted(node.kinds))}",
            f"  owners    {', '.join(node.owners)}",
            f"  external  {node.is_external}",
            f"  pools     {', '.join(sorted(node.pools or ()))}",
            f"  windows   {node.partitions_def or ''}",
            f"  backfill  {node.backfill_policy or ''}",
            *(f"  after     {parent.to_user_string()}" for parent in sorted(node.parent_keys)),
            *(
                f"  tag       {name}={value}"
                for name, value in sorted(node.tags.items())
                if not name.startswith("dagster/kind/")
            ),
            *(f"  metadata  {name}" for name in sorted(node.metadata)),
            *(
                f"  check     {check.name} ({graph.get(check).partitions_def or ''})"
                for check in sorted(node.check_keys, key=lambda check: check.name)
            ),
            *(f"  | {line}".rstrip() for line in (node.description or "").splitlines()),
            "",
        ]
    return "\n".join(lines)


def test_every_asset_edge_and_check(
    definitions: dg.Definitions, snapshot: SnapshotAssertion
) -> None:
    assert _described(definitions) == snapshot


def test_edges_say_where_data_flows(definitions: dg.Definitions) -> None:
    graph = definitions.resolve_asset_graph()
    chain = [
        "kafka/orders",
        "kafka/order-processor-orders-by-customer-repartition",
        "kafka/order-processor-order-totals-changelog",
        "kafka/customer-totals",
        "order-processor/backup/customer-totals",
    ]
    keys = [dg.AssetKey.from_user_string(key) for key in chain]
    for above, below in itertools.pairwise(keys):
        assert above in graph.get(below).parent_keys


def test_one_step_and_one_jvm_for_all_backups(definitions: dg.Definitions) -> None:
    graph = definitions.resolve_asset_graph()
    backups = [k for k in graph.get_all_asset_keys() if k.path[:2] == ["order-processor", "backup"]]
    makers = {id(graph.get(key).assets_def) for key in backups}
    assert len(backups) == 5
    assert len(makers) == 1
    assert graph.get(backups[0]).assets_def.can_subset
    assert definitions.executor is dg.in_process_executor


def test_it_loads_without_a_jvm_and_a_broker(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _LOAD],
        cwd=tmp_path,
        env={"PATH": "", "JAVA_HOME": "", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "[] []\n"), done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.e2e
def test_dg_check_defs_passes(tmp_path: Path) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("dg"), "check", "defs"],
        cwd=ROOT,
        env={"PATH": "/nowhere", "JAVA_HOME": "", "HOME": str(tmp_path), "DAGSTER_HOME": ""},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All definitions loaded successfully" in done.stdout + done.stderr


def test_every_way_in_names_the_same_module() -> None:
    workspace = yaml.safe_load((ROOT / "workspace.yaml").read_text())
    (location,) = workspace["load_from"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["dg"]["project"]
    module = project.get("code_location_target_module", f"{project['root_module']}.definitions")
    assert location["python_module"]["module_name"] == module
    assert importlib.import_module(module).defs is defs
    assert location["python_module"]["location_name"] == project["code_location_name"]


def test_dagster_accepts_the_instance_settings(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text((ROOT / "dagster.yaml").read_text())
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert instance.run_retries_enabled
        assert not instance.telemetry_enabled
        assert instance.run_monitoring_enabled
        assert instance.get_concurrency_config().pool_config.default_pool_limit == 1
    retries = InstanceRef.from_dir(str(tmp_path)).settings["run_retries"]
    assert isinstance(retries, dict)
    assert retries["max_retries"] == 2
