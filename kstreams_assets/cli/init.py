"""`kstreams-assets init`: create a Dagster project for backups."""

import re
import shlex
import sys
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Final

import click

from kstreams_assets.cli.help import Command, option
from kstreams_assets.errors import ConfigurationError

_PYPROJECT: Final = """\
[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "{module}"
registry_modules = ["kstreams_assets.components"]
"""
_WORKSPACE: Final = """\
load_from:
  - python_module:
      module_name: {module}.definitions
      location_name: {module}
      working_directory: .
"""
_DEFINITIONS: Final = """\
from kstreams_assets.orchestration.location import load_applications

defs = load_applications(__file__)
"""
DAGSTER_YAML: Final = """\
telemetry:
  enabled: false
nux:
  enabled: false

concurrency:
  runs:
    max_concurrent_runs: 4
  pools:
    # Only one process at a time writes the tables of an application.
    default_limit: 1
    granularity: run

sensors:
  # Recovery points of one application must not wait for those of another.
  use_threads: true
  num_workers: 4

run_retries:
  enabled: true
  max_retries: 2
  # Retry runs whose process died. A failed step reports its reason and is not retried.
  retry_on_asset_or_op_failure: false

run_monitoring:
  enabled: true
  start_timeout_seconds: 300

python_logs:
  managed_python_loggers:
    - kstreams_assets
    - spark_resources
  python_log_level: INFO

retention:
  sensor:
    purge_after_days:
      skipped: 3
      failure: 30
"""


@click.command(cls=Command, epilog="kstreams-assets init backups")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@option(
    "--module",
    section="Output",
    metavar="NAME",
    help="Python module of the code location (default: derived from the folder name).",
)
def init(folder: Path, module: str | None) -> None:
    """Create a Dagster project for backups

    The project is a code location: a Python folder that Dagster loads. The command changes no
    existing file. Each application is a folder below MODULE/defs with a defs.yaml file.
    `kstreams-assets discover` writes this file.
    """
    module = module or re.sub(r"[^A-Za-z0-9]+", "_", folder.resolve().name)
    if not module.isidentifier():
        raise ConfigurationError(
            f"{module!r} cannot be the name of a Python module.",
            remedy="Give one with --module, such as --module backups.",
        )
    files = {
        "pyproject.toml": _PYPROJECT.format(module=module),
        "workspace.yaml": _WORKSPACE.format(module=module),
        "dagster.yaml": DAGSTER_YAML,
        f"{module}/__init__.py": "",
        f"{module}/definitions.py": _DEFINITIONS,
        f"{module}/defs/__init__.py": "",
    }
    there = [name for name in files if (folder / name).exists()]
    if there:
        raise ConfigurationError(
            f"{folder} already has {', '.join(there)}.",
            remedy="Choose another folder, or another --module.",
        )
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    click.echo(f"Created {folder} with the code location {module}. Next:")
    for line in _next_steps(folder, module):
        click.echo(f"  {line}")


def _next_steps(folder: Path, module: str) -> Iterator[str]:
    """Yield the next commands for the programs that are installed here."""
    yaml = f"{module}/defs/APP/defs.yaml"
    yield f"cd {shlex.quote(str(folder))}"
    yield (
        f"{_program('kstreams-assets')} discover --application-id ID --bootstrap HOST:PORT"
        f" --output {yaml}"
    )
    yield f"{_program('kstreams-assets')} follow --app {yaml}"
    if find_spec("dagster_webserver") is None:
        yield (
            f"pip install dagster-webserver=={version('dagster')}"
            "  # Dagster's web interface: the extra [ui] of kstreams-assets"
        )
    yield f"DAGSTER_HOME=$PWD {_program('dagster')} dev"


def _program(name: str) -> str:
    """Return a command for a program of this environment, also if it is not on the PATH."""
    if which(name) is None and (beside := Path(sys.executable).with_name(name)).exists():
        return shlex.quote(str(beside))
    return name
