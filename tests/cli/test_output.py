"""What is printed is what was meant: names with signs of Markdown, HTML or Rich stay whole."""

import json
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from kstreams_assets.backup.follow import FollowerStatus
from kstreams_assets.backup.result import WindowBackup
from kstreams_assets.backup.verdicts import evaluate
from kstreams_assets.cli import backup as backup_module
from kstreams_assets.cli import output as output_module
from kstreams_assets.cli.output import print_facts, print_markdown, print_table
from kstreams_assets.model.spans import SpanContent, SpanResult, TopicFacts, Window
from kstreams_assets.restore import report
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.texts import plain
from tests.backup.samples import backup, span, window_backup
from tests.cli.application import Program, document, write
from tests.restore.outcomes import TOPICS, plan

NAMES = ["[team:orders]", "<partition>", "__a__", "*star*", "a|b", "[red]x[/red]"]


@pytest.mark.parametrize("name", NAMES)
def test_tables_show_names_as_they_are(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_table(f"title {name}", [f"column {name}"], [[f"cell {name}"]])
    said = capsys.readouterr().out
    for what in ("title", "column", "cell"):
        assert f"{what} {name}" in said


@pytest.mark.parametrize("name", NAMES)
def test_plain_text_in_markdown_is_shown_as_it_is(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_markdown(f"# {plain(name)}\n\n- {plain(f'before {name} after')}\n")
    said = capsys.readouterr().out
    assert f"before {name} after" in said
    assert said.count(name) == 2


def test_what_looks_like_html_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    print_markdown("restoring changelog <partition> to store `<store>`")
    assert "changelog <partition> to store <store>" in capsys.readouterr().out


@pytest.mark.parametrize("width", [None, 60, 100])
def test_no_word_of_a_list_is_lost(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int | None
) -> None:
    if width is not None:
        _terminal(monkeypatch, width)
    words = [f"word-{number}" for number in range(200)]
    print_markdown(f"- {' '.join(words)}\n\n1. {' '.join(words)}\n\n{' '.join(words)}\n")
    said = capsys.readouterr().out
    assert re.findall(r"word-\d+", said) == words * 3


def test_names_side_by_side_are_not_glued(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_module, "_console", lambda: Console(width=240))
    print_markdown(report.markdown(plan(RestoreRequest())))
    said = capsys.readouterr().out
    names = [f"new-{topic.name}" for topic in TOPICS]
    for name in names:
        assert re.search(rf"(?<![\w-]){name}(?![\w-])", said.partition("Configs")[2])


def _window(hour: int, records: int) -> WindowBackup:
    window = Window(hour * 3_600_000, (hour + 1) * 3_600_000, f"2026-10-20-0{hour}:00")
    plan = replace(span(0, records), window=window)
    content = SpanContent(records=records, bytes=records)
    compacted = TopicFacts("life-1", 1, 1, (("cleanup.policy", "compact"),))
    topic = replace(
        backup(SpanResult(plan, content, ())),
        window=window,
        role="changelog",
        facts=compacted,
        previous_facts=None,
    )
    return window_backup(topic)


@pytest.fixture
def app_file(tmp_path: Path) -> Path:
    """The YAML of an application with one changelog."""
    topics = {"t": {"roles": ["changelog"]}}
    stores = {"s": {"changelog": "t"}}
    said = document(warehouse=str(tmp_path / "w"), topics=topics, stores=stores)
    return write(tmp_path / "defs.yaml", said)


def _backed_up(monkeypatch: pytest.MonkeyPatch, windows: Sequence[WindowBackup]) -> None:
    monkeypatch.setattr(backup_module, "_due", lambda *_: [w.window for w in windows])
    monkeypatch.setattr(backup_module, "_run", lambda *_, **__: list(windows))


def test_a_warning_is_a_warning_and_one_line_for_its_cause(
    program: Program, app_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = [_window(hour, records=5 if hour == 2 else 0) for hour in range(4)]
    _backed_up(monkeypatch, windows)
    result = program("backup", "--app", app_file)
    assert result.exit_code == 0
    assert "RED" not in result.out + result.err
    (row,) = [line for line in result.out.splitlines() if "│ 2026" in line]
    assert "02:00" in row
    assert "WARN: compaction_cannot_outrun_backup" in row
    assert "Windows without records: 3 windows, 2026-10-20-00:00 to 2026-10-20-03:00." in result.out
    (line,) = [line for line in result.err.splitlines() if line.startswith("WARN")]
    assert "in 4 windows" in line
    assert "kafka-configs.sh" in line
    assert "--entity-name t --add-config min.compaction.lag.ms=7200000" in line
    assert "Next: " in result.out


def test_what_is_red_stays_red(
    program: Program, app_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = _window(1, records=5)
    (topic,) = window.topics
    broken = replace(topic.spans[0], content=SpanContent(records=3))
    bad = replace(window, topics=(replace(topic, spans=(broken,)),))
    assert not all(v.passed for v in evaluate(bad, _application(app_file)))
    _backed_up(monkeypatch, [bad])
    result = program("backup", "--app", app_file)
    assert result.exit_code == 1
    assert "RED: every_offset_accounted; WARN: compaction_cannot_outrun_backup" in result.out
    assert any(line.startswith("ERROR t every_offset") for line in result.err.splitlines())
    found = json.loads(program("backup", "--app", app_file, "--json").out)
    assert found["passed"] is False


def _application(app_file: Path):
    from kstreams_assets.app_file.read import load_settings

    return load_settings(app_file).application


def test_when_nothing_is_due_it_says_when_the_next_window_closes(
    program: Program, app_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _backed_up(monkeypatch, [])
    result = program("backup", "--app", app_file)
    assert (result.exit_code, result.err) == (0, "")
    assert result.out.startswith("Nothing is due for shop. Window 20")
    assert " closes at 20" in result.out
    assert "nothing can be restored" in result.out


def test_discover_does_not_overwrite_in_silence(program: Program, app_file: Path) -> None:
    before = app_file.read_text()
    result = program(
        "discover", "--application-id", "x", "--bootstrap", "127.0.0.1:1", "--output", app_file
    )
    assert result.exit_code == 2
    assert "--force" in result.err
    assert result.err.count("\n") == 1
    assert app_file.read_text() == before


POINT = "2026-10-20T01:59:00.000-0b7f1a2c9d"
RESTORE = "0b7f1a2c-9d3e-4f5a-8b6c-7d8e9f0a1b2c"
SERVERS = "kafka-1.example.com:9092,kafka-2.example.com:9092"


def _terminal(monkeypatch: pytest.MonkeyPatch, width: int, *, is_terminal: bool = True) -> None:
    console = partial(Console, width=width, force_terminal=is_terminal, no_color=True)
    monkeypatch.setattr(output_module, "_console", console)


@pytest.mark.parametrize("width", [40, 80, 100, 120, 240])
@pytest.mark.parametrize("is_terminal", [True, False])
def test_no_id_is_broken_however_narrow_the_terminal(
    width: int,
    is_terminal: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _terminal(monkeypatch, width, is_terminal=is_terminal)
    why = "Not covered: orders-0: offsets 100 to 119 are not backed up, and more of it."
    columns = ["restore", "state", "point", "target", "reason"]
    print_table("title", columns, [[RESTORE, "planned", POINT, SERVERS, why]] * 2)
    said = capsys.readouterr().out
    for text in (RESTORE, POINT, SERVERS):
        assert said.count(text) == 2
    print_markdown(
        f"| restore | point | target | why |\n|---|---|---|---|\n"
        f"| `{RESTORE}` | `{POINT}` | {SERVERS} | {why} |\n\n"
        f"- See\n  1. `{POINT}{RESTORE}{SERVERS}`.\n"
    )
    said = capsys.readouterr().out
    for text in (RESTORE, POINT, SERVERS, f"{POINT}{RESTORE}{SERVERS}"):
        assert text in said


def test_a_table_stays_one_where_its_sentences_can_wrap(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _terminal(monkeypatch, 100)
    print_table("title", ["point", "reason"], [[POINT, "word " * 40]])
    said = capsys.readouterr().out
    assert "┏" in said
    assert max(map(len, re.sub(r"\x1b\[\d*m", "", said).splitlines())) <= 100


def test_ids_and_times_are_no_quantities(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _terminal(monkeypatch, 240)
    monkeypatch.setattr(output_module, "_now_ms", lambda: 1795724461221 + 299_000)
    print_facts(
        "Follower",
        {
            "pid": 29529,
            "started_at_ms": 1795724461221,
            "covered_at_ms": None,
            "records": 29529,
            "step_ms": 1500,
            "port": 41987,
        },
    )
    print_table("t", ["jvm_pid", "point_id", "took_at_ms", "bytes left"], [[12345] * 4])
    said = capsys.readouterr().out
    assert "29529 " in said
    assert "29,529" in said
    assert said.count("29,529") == 1
    assert "2026-11-26T20:21:01.221+00:00 (4 min 59 s ago)" in said
    assert "_ms" not in said
    assert "41987" in said
    assert said.count("12345") == 2
    assert said.count("12,345") == 1
    assert "covered_at" not in said


def test_the_status_of_a_follower_and_of_engines_is_printed_so() -> None:
    """Every integer of theirs that no name marks as counted is plain."""
    for name in [field.name for field in fields(FollowerStatus)]:
        if name.endswith("_ms"):
            assert "1,795" not in output_module.shown(name, 1795724461221)
    for name in ("pid", "jvm_pid", "port", "epoch", "generation", "partition", "version"):
        assert output_module.shown(name, 123456) == "123456"
