"""Imports go downwards only: what is low can be read, tested and changed without what is above."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from kstreams_assets.cli.main import COMMANDS
from tools.house import LAYERS, PACKAGES, Module, figures_of, read_modules, upward_imports

ROOT = Path(__file__).parents[1]

_DAGSTER: Final = {"spark_resources.resource"}
_HEAVY: Final = {
    *("dagster", "dagster_aws", "dagster_pyspark", "pyspark", "pandas"),
    *("boto3", "botocore", "confluent_kafka", "httpx2"),
}


@pytest.fixture(scope="module")
def modules() -> dict[str, Module]:
    return read_modules(ROOT)


def test_packages_import_from_the_layers_below_their_own_only(modules: dict[str, Module]) -> None:
    assert upward_imports(modules) == []


def test_every_package_has_a_layer(modules: dict[str, Module]) -> None:
    placed = [room for layer in LAYERS for room in layer]
    assert sorted(placed) == sorted({module.room for module in modules.values()} - {PACKAGES[0]})


def test_nothing_outside_the_repository_makes_a_table() -> None:
    assert figures_of(ROOT).tables_built_outside_the_repository == 0


def test_an_import_of_a_package_above_is_found(modules: dict[str, Module]) -> None:
    upper = Module("kstreams_assets.model.point", 1, 0, frozenset({"kstreams_assets.cli.main"}))
    assert upward_imports({**modules, upper.name: upper}) == [("model", "cli")]


def test_only_orchestration_imports_dagster(modules: dict[str, Module]) -> None:
    found = {name for name, module in modules.items() if _imports(module, "dagster")}
    outside = {name for name in found if not name.startswith("kstreams_assets.orchestration")}
    assert outside == _DAGSTER


def test_nothing_imports_a_private_module_of_dagster() -> None:
    assert figures_of(ROOT).dagster_private_imports == 0


def test_one_module_knows_kafka_python_from_inside(modules: dict[str, Module]) -> None:
    found = {name for name, module in modules.items() if _imports(module, "kafka.net")}
    assert found == {"kstreams_assets.kafka.wire"}


def test_librdkafka_is_known_to_few_and_loaded_where_it_is_used(modules: dict[str, Module]) -> None:
    found = {name for name, module in modules.items() if _imports(module, "confluent_kafka")}
    names = ("admin", "admin_calls", "control", "registry")
    assert found == {f"kstreams_assets.kafka.{name}" for name in names}
    files = [ROOT / f"{name.replace('.', '/')}.py" for name in found]
    assert [file for file in files if "confluent_kafka" in _loaded_with(file)] == []


def test_spark_is_loaded_where_it_is_used() -> None:
    found = [
        str(file.relative_to(ROOT))
        for file in (ROOT / "kstreams_assets").rglob("*.py")
        if "pyspark" in _loaded_with(file)
    ]
    assert found == []


def test_only_a_store_asks_what_a_path_is() -> None:
    """Others call a method of `store_at(path)`, so that a third kind of store is one class."""
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for package in ("kstreams_assets", "spark_resources")
        for file in (ROOT / package).rglob("*.py")
        if file.parent.name != "store"
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "isinstance"
        and {"Path", "ObjectPath"}
        & {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
    ]
    assert found == []


@pytest.mark.parametrize("command", sorted({*COMMANDS} - {"init"}))
def test_a_command_loads_no_dagster_and_no_spark(command: str) -> None:
    """But for `init`, which makes a project of Dagster's; nor AWS's SDK."""
    loaded = _loaded_by_help_of(command)
    assert not _HEAVY & loaded


def test_taking_a_recovery_point_loads_little() -> None:
    ours = [
        name
        for name in _loaded_by_help_of("recovery-points", "take")
        if name.startswith(("kstreams_assets", "spark_resources"))
    ]
    assert len(ours) <= 130  # of which a dozen are the values of `model`


_APPLICATION: Final = """
type: kstreams_assets.components.KafkaStreamsAppComponent
attributes:
  application_id: shop
  connection:
    bootstrap_servers: 127.0.0.1:1
    security_protocol: SASL_PLAINTEXT
    sasl:
      mechanism: PLAIN
      username: backup
      password: {env: SHOP_PASSWORD}
    request_timeout_seconds: 1
  warehouse: %s
  windows: {every: hour, start: "2026-11-01"}
  topics:
    in: {roles: [input]}
"""


@pytest.mark.parametrize(
    "words", [("windows",), ("ready",), ("info",), ("recovery-points", "take")], ids=" ".join
)
def test_a_command_that_runs_loads_them_neither(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a disk, with a password of the environment: AWS's SDK is for buckets and AWS secrets."""
    monkeypatch.setenv("SHOP_PASSWORD", "hunter2")
    file = tmp_path / "defs.yaml"
    file.write_text(_APPLICATION % (tmp_path / "warehouse"), "utf-8")
    loaded = _loaded_by(*words, "--app", str(file))
    assert "kstreams_assets.app_file.model" in loaded
    assert not _HEAVY & loaded


def _loaded_by_help_of(*words: str) -> set[str]:
    return _loaded_by(*words, "--help", succeeds=True)


def _loaded_by(*words: str, succeeds: bool = False) -> set[str]:
    program = (
        "import sys\n"
        "from kstreams_assets.cli.main import cli\n"
        "from click.testing import CliRunner\n"
        f"done = CliRunner().invoke(cli, {[*words]!r})\n"
        f"assert done.exit_code == 0 or not {succeeds}, done.output\n"
        "print(*sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(done.stdout.split())


def _loaded_with(file: Path) -> set[str]:
    """The packages that importing a file imports: not those of functions, nor of annotations."""
    found: set[str] = set()
    for node in ast.parse(file.read_text("utf-8")).body:
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def _imports(module: Module, package: str) -> bool:
    return any(f"{name}.".startswith(f"{package}.") for name in module.imports)
