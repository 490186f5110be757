"""Figures of the house: size, layers, how far the repository leaks: `python -m tools.house`.

Goals stand beside the figures; a figure that is met by denser lines or by moving code is not met.
"""

import ast
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click

from tools.ways import ways_of

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("kstreams_assets", "spark_resources")
GOALS: Final[Mapping[str, int]] = {
    "lines": 57_000,
    "test_lines": 66_000,
    "repository_names_used_outside": 40,
    "tables_built_outside_the_repository": 0,
    "path_kind_tests": 10,
    "dagster_private_imports": 0,
    "dialect_words": 60,
}

LAYERS: Final = (
    ("texts", "closing", "cron", "process_log"),
    ("aws", "errors", "public_form"),
    ("block", "checks", "home", "private", "offsets", "secrets_manager"),
    ("secret",),
    ("app", "kafka", "store"),
    ("model",),
    ("copy_mark",),
    ("layout", "lease"),
    ("settings",),
    ("calendar", "rules"),
    ("repository",),
    ("app_file", "recovery", "spark_resources"),
    ("local", "backup", "governance", "ktables"),
    ("restore", "upkeep"),
    ("completeness",),
    ("drill",),
    ("metrics", "orchestration"),
    ("cli", "components"),
)
"""From below to above. A package imports from layers below its own only."""

DIALECT: Final = re.compile(
    r"\b(told|tells?|stands?|anew|mend(?:ed|s)?|obstacles?|worth|half.?seen|thin(?:ned|s)? out"
    r"|(?<!there )(?:is|are) no|judged?|lacks?|whoever|as it was written|put together)\b",
    re.IGNORECASE,
)
_PATH_KIND = re.compile(r"isinstance\([^)]*\b(?:ObjectPath|Path)\b")
_TABLE = re.compile(r"\b(?:RecoveryPointTable|Ledger|[A-Z]\w+Table)\(")


@dataclass(frozen=True, slots=True)
class Module:
    """One source file: its dotted name, lines, number of classes, and the modules it imports."""

    name: str
    lines: int
    classes: int
    imports: frozenset[str]

    @property
    def room(self) -> str:
        """The package below the top one, or the module at the top."""
        parts = self.name.split(".")
        if parts[0] != PACKAGES[0]:
            return parts[0]
        return parts[1] if len(parts) > 1 else PACKAGES[0]


@dataclass(frozen=True, slots=True)
class Figures:
    """What is asked of the house, see `GOALS`."""

    lines: int
    test_lines: int
    repository_names_used_outside: int
    tables_built_outside_the_repository: int
    path_kind_tests: int
    dagster_private_imports: int
    dialect_words: int


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.pass_context
def main(context: click.Context, as_json: bool) -> None:
    """Print lines, files, and the figures that have a goal."""
    if context.invoked_subcommand is not None:
        return
    modules = read_modules(ROOT)
    figures = asdict(figures_of(ROOT))
    if as_json:
        click.echo(json.dumps(figures))
        return
    rooms = defaultdict(list)
    for module in modules.values():
        rooms[module.room].append(module)
    for room, inside in sorted(rooms.items()):
        click.echo(f"{sum(m.lines for m in inside):7,} lines {len(inside):4} files  {room}")
    click.echo(f"{len(single_callers(modules))} modules have a single caller")
    for upper, lower in upward_imports(modules):
        click.echo(f"{upper} imports {lower}, which is not below it")
    click.echo(f"{'figure':38} {'now':>8} {'goal':>8}")
    for name, goal in GOALS.items():
        click.echo(f"{name:38} {figures[name]:8,} {goal:8,}")


@main.command()
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    default=ROOT,
    help="Another checkout; by default this one.",
)
def ways(root: Path) -> None:
    """Print through how many files a backup, a follower, a restore and an expiry go.

    Two minutes, with a broker of its own.
    """
    found = ways_of(root)
    for way in found:
        click.echo(f"{len(way.files):5} files  {way.name}")
    click.echo(f"{len(frozenset().union(*(way.files for way in found))):5} files  in all")


def read_modules(root: Path) -> dict[str, Module]:
    """Every module of the packages below `root`, by its dotted name."""
    files = {
        ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): file
        for package in PACKAGES
        for file in sorted((root / package).rglob("*.py"))
    }
    return {name: _module(name, file, files) for name, file in files.items()}


def figures_of(root: Path) -> Figures:
    """The figures of a checkout."""
    sources = {
        path: path.read_text("utf-8")
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
    }
    names, built = _repository_use(root / PACKAGES[0] / "repository", sources)
    words: Counter[str] = Counter()
    for text in sources.values():
        words.update(word.lower() for word in DIALECT.findall(text))
    return Figures(
        lines=sum(text.count("\n") for text in sources.values()),
        test_lines=sum(map(_lines, (root / "tests").rglob("*.py"))),
        repository_names_used_outside=names,
        tables_built_outside_the_repository=built,
        path_kind_tests=sum(len(_PATH_KIND.findall(text)) for text in sources.values()),
        dagster_private_imports=sum("dagster._" in text for text in sources.values()),
        dialect_words=sum(words.values()),
    )


def single_callers(modules: Mapping[str, Module]) -> list[str]:
    """Modules that one other module imports, and no more."""
    callers = Counter(name for module in modules.values() for name in module.imports)
    return sorted(name for name, count in callers.items() if count == 1)


def upward_imports(modules: Mapping[str, Module]) -> list[tuple[str, str]]:
    """Imports against the order of `LAYERS`, at the top of a module or in a function."""
    place = {room: level for level, layer in enumerate(LAYERS) for room in layer}
    arrows = {
        (module.room, modules[name].room)
        for module in modules.values()
        for name in module.imports
        if name in modules and modules[name].room not in (module.room, PACKAGES[0])
    }
    return sorted((a, b) for a, b in arrows if place[a] <= place[b])


def _repository_use(package: Path, sources: Mapping[Path, str]) -> tuple[int, int]:
    """Names of the repository that are used outside it, and tables that are made there."""
    module = f"{PACKAGES[0]}.{package.name}"
    names: set[str] = set()
    built = 0
    for path, text in sources.items():
        if package in path.parents:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{module}."):
                names.update(alias.name for alias in node.names)
        built += len(_TABLE.findall(text))
    return len(names), built


def _module(name: str, file: Path, files: Mapping[str, Path]) -> Module:
    tree = ast.parse(file.read_text("utf-8"))
    found = frozenset(_imported(tree, files)) - {name}
    classes = sum(isinstance(node, ast.ClassDef) for node in ast.walk(tree))
    return Module(name, _lines(file), classes, found)


def _imported(tree: ast.AST, files: Iterable[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                below = f"{node.module}.{alias.name}"
                yield below if below in files else node.module


def _lines(file: Path) -> int:
    return file.read_text("utf-8").count("\n")


if __name__ == "__main__":
    main()
