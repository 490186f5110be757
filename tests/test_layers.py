"""Imports go downwards only: what is low can be read, tested and changed without what is above."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from kstreams_assets.cli.main import COMMANDS
from tools.house import Module, mutual_imports, read_modules

ROOT = Path(__file__).parents[1]

_DAGSTER: Final = {"spark_resources.resource"}


@pytest.fixture(scope="module")
def modules() -> dict[str, Module]:
    return read_modules(ROOT)


def test_no_two_packages_import_each_other(modules: dict[str, Module]) -> None:
    assert list(mutual_imports(modules)) == []


def test_only_orchestration_imports_dagster(modules: dict[str, Module]) -> None:
    found = {name for name, module in modules.items() if _imports(module, "dagster")}
    outside = {name for name in found if not name.startswith("kstreams_assets.orchestration")}
    assert outside == _DAGSTER


def test_spark_is_loaded_where_it_is_used() -> None:
    found = [
        str(file.relative_to(ROOT))
        for file in (ROOT / "kstreams_assets").rglob("*.py")
        if "pyspark" in _loaded_with(file)
    ]
    assert found == []


@pytest.mark.parametrize("command", sorted({*COMMANDS} - {"init"}))
def test_a_command_loads_no_dagster_and_no_spark(command: str) -> None:
    """But for `init`, which makes a project of Dagster's."""
    loaded = _loaded_by_help_of(command)
    assert not {"dagster", "dagster_pyspark", "pyspark", "pandas"} & loaded


def test_taking_a_recovery_point_loads_little() -> None:
    ours = [
        name
        for name in _loaded_by_help_of("recovery-points", "take")
        if name.startswith(("kstreams_assets", "spark_resources"))
    ]
    assert len(ours) <= 120


def _loaded_by_help_of(*words: str) -> set[str]:
    program = (
        "import sys\n"
        "from kstreams_assets.cli.main import cli\n"
        "from click.testing import CliRunner\n"
        f"done = CliRunner().invoke(cli, {[*words, '--help']!r})\n"
        "assert done.exit_code == 0, done.output\n"
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
    return any(name.split(".")[0] == package for name in module.imports)
