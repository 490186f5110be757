"""Commands that documents contain, and whether the programs on this machine accept them."""

import importlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Final

import click

from kstreams_assets.cli.main import cli
from tests.docs.documents import CHECKOUT, parse_command

SHELL_BLOCKS: Final = ("bash", "cron", "ini", "sh")
OWN: Final = cli.with_all()
_ASSIGNMENT = re.compile(r"(\w+)=(.*)", re.DOTALL)
_SCHEDULE = re.compile(r"^(?:[\d*/,-]+\s+){5}")
_SEPARATORS = frozenset({"&&", "||", "|", ";", ">", "(", ")", "{", "}"})
_NOT_INSTALLED: Final = frozenset(
    {".", "aws", "cd", "confluent", "curl", "docker", "export", "git", "kafka-acls.sh", "sleep"}
    | {"venv-pack"}
)
"""Programs of others that no test can ask. The ACLs are applied by tests/examples/platforms."""
_OUR_FILE = re.compile(
    r"(?:deploy/(?:image|kubernetes|helm|dagster)|examples|tests|scripts)/[\w./-]+|constraints\.txt"
)


class WrongCommandError(Exception):
    """A document contains a command that its program does not accept."""


def commands(language: str, text: str) -> Iterator[list[str]]:
    """The commands of a fenced block, as words; variables of the block are replaced."""
    variables: dict[str, str] = {}
    for line in text.replace("\\\n", " ").splitlines():
        if re.match(r"\w+\(\)", line):
            continue  # A function; its calls are part of other words.
        if language == "cron":
            line = _SCHEDULE.sub("", line)
        if language == "ini":
            line = line.removeprefix("ExecStart=") if line.startswith("ExecStart=") else ""
        yield from _commands_of_line(line, variables)


def _commands_of_line(line: str, variables: dict[str, str]) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;>")
    lexer.whitespace_split = True
    command: list[str] = []
    is_file = False
    for word in [*lexer, ";"]:
        if is_file:
            is_file = False
        elif word in _SEPARATORS:
            is_file = word == ">"
            if command:
                yield command
            command = []
        elif not command and (match := _ASSIGNMENT.fullmatch(word)):
            variables[match[1]] = match[2]
        elif not command and word.startswith("$"):
            command = shlex.split(variables[word.removeprefix("$")])
        else:
            command.append(word)


def check_command(words: Sequence[str], *, is_complete: bool = True) -> None:
    """Let the program of a command parse it, without running it.

    Args:
        words: The command.
        is_complete: Whether options and arguments that the program requires must be there.

    Raises:
        WrongCommandError: The program is unknown, or does not accept these words.
    """
    program = words[0].rpartition("/")[2]
    for word in words:
        if _OUR_FILE.fullmatch(word) and not (CHECKOUT / word).exists():
            raise WrongCommandError(f"{word} does not exist")
    if program in _NOT_INSTALLED:
        return
    if program not in _PROGRAMS:
        raise WrongCommandError(f"{program} is not a program that tests know")
    try:
        if program == "python":
            _python(words[1:], is_complete=is_complete)
        else:
            _PROGRAMS[program](words[1:])
    except click.ClickException as error:
        raise WrongCommandError(error.format_message()) from error


def check_mention(words: Sequence[str], command: click.Command = OWN) -> None:
    """Check the subcommands, options and choices of a command that may be incomplete.

    Raises:
        WrongCommandError: A subcommand, option or choice does not exist.
    """
    rest = [*words]
    while rest:
        word = rest.pop(0)
        name, _, value = word.strip("[]").partition("=")
        if word == "[OPTIONS]" or name.startswith(("--…", "--...")):
            continue
        if name.startswith("-"):
            option = _option(command, name)
            if not option.is_flag and not value and rest:
                value = rest.pop(0)
            _check_value(option, value)
        elif isinstance(command, click.Group):
            inner = [command.commands.get(each) for each in word.split("|")]
            if inner[0] is None or None in inner:
                raise WrongCommandError(f"{command.name} has no command {word}")
            command = inner[0]


def _option(command: click.Command, name: str) -> click.Option:
    # Click keeps the option of help that it makes here: it must be the one of every command.
    for one in command.get_params(click.Context(command, **cli.context_settings)):
        if isinstance(one, click.Option) and name in (*one.opts, *one.secondary_opts):
            return one
    raise WrongCommandError(f"{command.name} has no option {name}")


def check_option(words: Sequence[str]) -> None:
    """Check an option that a document names without its command.

    Raises:
        WrongCommandError: No command has this option, or none accepts this value.
    """
    errors: list[WrongCommandError] = []
    tools = [main for module in _TOOLS if (main := _main_of(module))]
    for command in (*_leaves(OWN), *(leaf for tool in tools for leaf in _leaves(tool))):
        try:
            check_mention(words, command)
        except WrongCommandError as error:
            errors.append(error)
        else:
            return
    if words[0] not in _OPTIONS_OF_OTHERS and not _is_a_test_option(words[0]):
        raise next((e for e in errors if "no option" not in str(e)), errors[0])


def _check_value(option: click.Option, value: str) -> None:
    value = value.strip("'\"[],.")
    is_placeholder = not value or not re.fullmatch(r"[\w|.-]+", value) or value.isupper()
    if isinstance(option.type, click.Choice) and not is_placeholder:
        for each in value.split("|"):
            if each not in option.type.choices:
                raise WrongCommandError(f"{option.opts[-1]} has no value {each}")


def _leaves(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            yield from _leaves(inner)


def _own(words: Sequence[str]) -> None:
    parse_command(cli, words)


def _make(words: Sequence[str]) -> None:
    makefile = (CHECKOUT / "Makefile").read_text("utf-8")
    for word in words:
        if not re.search(rf"(?m)^{re.escape(word)}:", makefile):
            raise WrongCommandError(f"make {word}: no such target")


def _python(words: Sequence[str], *, is_complete: bool = True) -> None:
    if words[0] != "-m":
        raise WrongCommandError("python is called without -m")
    module, *rest = words[1:]
    if module == "pytest":
        _pytest(rest)
    elif find_spec(module) is None:
        raise WrongCommandError(f"there is no module {module}")
    elif (main := _main_of(module)) is not None:
        if is_complete:
            parse_command(main, rest)
        else:
            check_mention(rest, main)


def _main_of(module: str) -> click.Command | None:
    """The click command of a module of this checkout, or None if it has none."""
    if module.partition(".")[0] not in {"bench", "scripts", "tools", "examples"}:
        return None
    is_package = (CHECKOUT / module.replace(".", "/")).is_dir()
    source = importlib.import_module(f"{module}.__main__" if is_package else module)
    main = vars(source).get("main")
    return main if isinstance(main, click.Command) else None


def _pytest(words: Sequence[str]) -> None:
    for word in words:
        name = word.partition("=")[0]
        if name.startswith("--") and not _is_a_test_option(name):
            raise WrongCommandError(f"pytest has no option {name}")
        if (
            name.startswith("-")
            and not name.startswith("--")
            and name not in {"-k", "-m", "-q", "-x"}
        ):
            raise WrongCommandError(f"pytest {name} is not known to tests")


def _is_a_test_option(name: str) -> bool:
    """Whether a plugin or conftest.py of the tests declares this option of pytest."""
    return name == "--snapshot-update" or any(
        f'"{name}"' in file.read_text("utf-8")
        for file in (CHECKOUT / "tests").rglob("*.py")
        if "pytest_addoption" in file.read_text("utf-8")
    )


def _installed(program: str) -> Callable[[Sequence[str]], None]:
    """A Python program whose commands click parses."""

    def check(words: Sequence[str]) -> None:
        (script,) = entry_points(group="console_scripts", name=program)
        script.load()
        parse_command(sys.modules[script.module].cli, words)

    return check


def _pip(words: Sequence[str]) -> None:
    for word in words[1:]:
        if word.startswith("-") and not re.search(rf"{re.escape(word)}\b", _help_of_pip(words[0])):
            raise WrongCommandError(f"pip {words[0]} has no option {word}")


@cache
def _help_of_pip(command: str) -> str:
    asked = [sys.executable, "-m", "pip", command, "--help"]
    return subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout


def _asked_for_help(*program: str) -> Callable[[Sequence[str]], None]:
    """A program that reports wrong commands and options also when it is asked for its help."""

    def check(words: Sequence[str]) -> None:
        if shutil.which(program[0]) is None:
            return
        end = words.index("--") if "--" in words else len(words)
        asked = [*program, *words[:end], "--help"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise WrongCommandError(done.stderr.strip())
        if words[end + 1 :]:
            check_command(words[end + 1 :])

    return check


def _helm(words: Sequence[str]) -> None:
    _asked_for_help(shutil.which("helm") or str(CHECKOUT / ".helm" / "helm"))(words)


_TOOLS: Final = ("bench", "scripts.release", "scripts.generate_reference", "tools.house")
_OPTIONS_OF_OTHERS: Final = frozenset({"--jars", "--replicas=3"})
_PROGRAMS: Final[Mapping[str, Callable[[Sequence[str]], None]]] = {
    "kstreams-assets": _own,
    "make": _make,
    "python": _python,
    "pytest": _pytest,
    "dagster": _installed("dagster"),
    "dg": _installed("dg"),
    "kubectl": _asked_for_help("kubectl"),
    "helm": _helm,
    "pip": _pip,
}
PROGRAMS: Final = frozenset(_PROGRAMS)
