"""Every command in a document is accepted by its program."""

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kstreams_assets.cli.main import cli
from tests.docs.commands import (
    OWN,
    PROGRAMS,
    SHELL_BLOCKS,
    WrongCommandError,
    check_command,
    check_mention,
    check_option,
    commands,
)
from tests.docs.documents import CHECKOUT, blocks, documents, parse_command, prose

TOPOLOGY = CHECKOUT / "examples" / "defs" / "order_processor" / "topology.txt"
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_OWN = re.compile(r"(?<![\w./-])kstreams-assets ([a-z][^\n`|>&;#\"]*)")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a topology text, as the current one."""
    shutil.copy(TOPOLOGY, tmp_path / "topology.txt")
    for name in ("deploy", "examples", "constraints.txt"):
        (tmp_path / name).symlink_to(CHECKOUT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _block_commands() -> Iterator[tuple[str, list[str]]]:
    for block in blocks(*SHELL_BLOCKS):
        for words in commands(block.language, block.text):
            yield f"{block.file.relative_to(CHECKOUT)}: {shlex.join(words)[:60]}", words


@pytest.mark.parametrize("words", [pytest.param(w, id=name) for name, w in _block_commands()])
def test_commands_of_blocks_are_accepted(words: list[str], folder: Path) -> None:
    check_command(words)


@pytest.mark.parametrize("file", documents(), ids=lambda f: str(f.relative_to(CHECKOUT)))
def test_commands_and_options_named_in_prose_exist(file: Path) -> None:
    for span in _SPAN.findall(prose(file)):
        words = span.replace("\\|", "|").split()
        if words[0] == "kstreams-assets":
            check_mention(words[1:])
        elif words[0].startswith("--"):
            check_option(words)
        elif len(words) > 1 and words[0] in PROGRAMS:
            check_command(shlex.split(span), is_complete=False)
        elif len(words) > 1 and words[0] in OWN.commands:
            check_mention(words)


def test_commands_are_in_blocks_of_the_shell() -> None:
    for block in blocks("text", ""):
        assert not re.search(r"(?m)^(?:\$ )?(?:kstreams-assets|make) ", block.text), str(block)


def test_commands_named_in_examples_and_manifests_exist() -> None:
    found = 0
    for folder in ("deploy", "examples"):
        for file in (CHECKOUT / folder).rglob("*"):
            if file.suffix in {".yaml", ".txt", ".py", ".json", ".tpl", ""} and file.is_file():
                for mention in _OWN.findall(file.read_text("utf-8")):
                    check_mention(mention.split())
                    found += 1
    assert found > 5


def test_a_wrong_command_would_not_parse(folder: Path) -> None:
    for wrong in ("restore", "backup --app a.yaml --windows x", "backup", "discover --topology no"):
        with pytest.raises(click.ClickException):
            parse_command(cli, shlex.split(wrong))


@pytest.mark.parametrize(
    "wrong",
    [
        "kstreams-assets backup --app a.yaml --windows x",
        "make everything",
        "python -m scripts.no_such_module",
        "python -m scripts.release prepare",
        "python -m pytest tests/no_such_test.py",
        "python -m pytest tests --no-such-option",
        "dagster dev --no-such-option",
        "dg check everything",
        "kubectl apply --no-such-option",
        "kubectl -n a exec b -- kstreams-assets restore watch",
        "pip install --no-such-option",
        "kubectl apply -f examples/no_such_file.yaml",
        "no-such-program",
    ],
)
def test_a_wrong_command_in_a_block_is_found(wrong: str, folder: Path) -> None:
    (words,) = commands("bash", wrong)
    with pytest.raises(WrongCommandError):
        check_command(words)


@pytest.mark.parametrize(
    "wrong",
    ["restore --mode state", "restore run --mode everything", "points list", "backup --windows"],
)
def test_a_wrong_command_in_prose_is_found(wrong: str) -> None:
    with pytest.raises(WrongCommandError):
        check_mention(wrong.split())


@pytest.mark.parametrize("wrong", ["--windows", "--mode everything"])
def test_a_wrong_option_in_prose_is_found(wrong: str) -> None:
    with pytest.raises(WrongCommandError):
        check_option(wrong.split())


def test_the_shell_is_read_as_a_shell_reads_it() -> None:
    text = """
acl="tool --add"
$acl --topic a   # why
A=1 make demo && make dev > log.txt
kubectl get pods | kubectl apply -f -
"""
    assert [*commands("bash", text)] == [
        ["tool", "--add", "--topic", "a"],
        ["make", "demo"],
        ["make", "dev"],
        ["kubectl", "get", "pods"],
        ["kubectl", "apply", "-f", "-"],
    ]
    assert [*commands("cron", "5 * * * *  make demo")] == [["make", "demo"]]
    assert [*commands("ini", "[Service]\nExecStart=/opt/bin/make demo")] == [
        ["/opt/bin/make", "demo"]
    ]
