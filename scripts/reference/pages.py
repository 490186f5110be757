"""Every page of the reference, and which of them are stale."""

from pathlib import Path

from scripts.reference.benchmark_table import benchmark_lines
from scripts.reference.checks_page import check_lines
from scripts.reference.cli_page import cli_lines
from scripts.reference.markdown import page
from scripts.reference.metrics_page import metric_lines
from scripts.reference.releases_page import release_lines
from scripts.reference.tables_page import table_lines
from scripts.reference.yaml_page import yaml_lines

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"


def pages() -> dict[str, str]:
    """Every page, by file name."""
    return {
        "yaml.md": page("YAML of an application", yaml_lines()),
        "cli.md": page("Command line", cli_lines()),
        "tables.md": page("Tables", table_lines()),
        "checks.md": page("Checks", check_lines()),
        "metrics.md": page("Metrics", metric_lines()),
        "releases.md": page("Releases of Kafka", release_lines()),
        "benchmarks.md": page("Benchmarks", benchmark_lines()),
    }


def stale_pages(folder: Path = FOLDER) -> list[str]:
    """Names of the pages whose file is missing or says something else than the code."""
    return [
        name
        for name, text in pages().items()
        if not (folder / name).is_file() or (folder / name).read_text(encoding="utf-8") != text
    ]
