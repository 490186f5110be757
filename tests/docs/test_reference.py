"""The reference says what the code says."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.machine import RESULTS
from kstreams_assets.metrics.catalogue import METRICS
from scripts import generate_reference
from scripts.generate_reference import main
from scripts.reference.benchmark_table import table
from scripts.reference.pages import pages, stale_pages
from scripts.reference.releases_page import stored
from tests.docs.documents import CHECKOUT
from tests.restore.releases import CASES


def test_the_committed_pages_are_up_to_date() -> None:
    assert stale_pages() == [], "run: python -m scripts.generate_reference"


def test_every_supported_release_was_drilled_as_it_is_now() -> None:
    drilled = {case.ran for case in CASES}
    assert set(stored()) == drilled, "run: pytest tests/restore/test_releases.py"
    releases = {release for one in drilled for release in (one.broker, one.clients)}
    readme_text = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    assert [release for release in releases if release not in readme_text] == []


def test_check_fails_for_a_page_that_differs_or_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in pages().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert stale_pages(tmp_path) == []
    (tmp_path / "cli.md").write_text("old", encoding="utf-8")
    (tmp_path / "yaml.md").unlink()
    assert stale_pages(tmp_path) == ["yaml.md", "cli.md"]

    monkeypatch.setattr(generate_reference, "stale_pages", lambda: ["cli.md"])
    result = CliRunner().invoke(main, ["--check"])
    assert result.exit_code == 1
    assert "cli.md" in result.output


def test_nested_blocks_commands_and_columns_are_there() -> None:
    texts = pages()
    assert "## connection.ssl" in texts["yaml.md"]
    assert "## connection.sasl (OAUTHBEARER)" in texts["yaml.md"]
    assert "`stable_wait_seconds`" in texts["yaml.md"]
    assert "## kstreams-assets recovery-points take" in texts["cli.md"]
    assert "## kstreams-assets follow\n" in texts["cli.md"]
    assert "## kstreams-assets follow status\n" in texts["cli.md"]
    assert "## kstreams-assets engine\n" not in texts["cli.md"]
    assert "`-h, --help`" in texts["cli.md"]
    assert "| `closes_window_end_ms` | `int64` |" in texts["tables.md"]
    headers = "array<struct<key: string, value: binary, key_bytes: binary>>"
    assert f"| `headers` | `{headers}` |" in texts["tables.md"]
    assert "`no_source_loss`" in texts["checks.md"]


def test_ktables_are_there() -> None:
    texts = pages()
    assert "## schema_registry" in texts["yaml.md"]
    assert "| `key` | text or mapping |" in texts["yaml.md"]
    assert "| `short` | `smallint` | 2 bytes. |" in texts["yaml.md"]
    assert "| `session` | `session_start_ms`, `session_end_ms` |" in texts["yaml.md"]
    assert "## kstreams-assets ktables make" in texts["cli.md"]
    assert "## kstreams-assets state" in texts["cli.md"]
    assert "## ktables/<application id>/<store>" in texts["tables.md"]
    assert "| `sequence_number` | `int` | Only of kind window, join_window." in texts["tables.md"]
    assert "`every_row_decodes`" in texts["checks.md"]


def test_completeness_governance_and_drills_are_there() -> None:
    texts = pages()
    assert "## completeness" in texts["yaml.md"]
    assert "## governance.limits" in texts["yaml.md"]
    assert "| `objective_seconds` | number |" in texts["yaml.md"]
    assert "## kstreams-assets completeness check" in texts["cli.md"]
    assert "## kstreams-assets ready" in texts["cli.md"]
    assert "| `sample_rows` | `list<list<string>>` |" in texts["tables.md"]
    assert "## drills" in texts["tables.md"]
    assert "| `recovery_objective_met` |" in texts["checks.md"]
    assert "| `not_verifiable` | a warning |" in texts["checks.md"]


def test_every_metric_is_there() -> None:
    text = pages()["metrics.md"]
    assert [name for name in METRICS if f"| `{name}` | {METRICS[name].kind} |" not in text] == []
    assert "| `topic`, `partition`, `role` | Committed offset of the group. |" in text
    assert "`kafka.streams:type=stream-thread-metrics,thread-id=*` | `commit-latency-avg`" in text


def test_benchmarks_are_those_of_the_results() -> None:
    assert table(RESULTS) in pages()["benchmarks.md"]
