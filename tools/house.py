"""Prints how large the house is and how its rooms are joined: `python -m tools.house`."""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("kstreams_assets", "spark_resources")


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
        return (
            ".".join(self.name.split(".")[:2]) if self.name.startswith(PACKAGES[0]) else PACKAGES[1]
        )


@click.command()
def main() -> None:
    """Print lines, files, modules with a single caller, and packages that import each other."""
    modules = read_modules(ROOT)
    rooms = defaultdict(list)
    for module in modules.values():
        rooms[module.room].append(module)
    for room, inside in sorted(rooms.items()):
        click.echo(f"{sum(m.lines for m in inside):7,} lines {len(inside):4} files  {room}")
    lines = sum(module.lines for module in modules.values())
    classes = sum(module.classes for module in modules.values())
    click.echo(f"{lines:7,} lines {len(modules):4} files  in all, {classes} classes")
    tests = [*(ROOT / "tests").rglob("*.py")]
    click.echo(f"{sum(map(_lines, tests)):7,} lines {len(tests):4} files  tests")
    single = single_callers(modules)
    click.echo(f"{len(single)} modules have a single caller")
    for one, other in mutual_imports(modules):
        click.echo(f"{one} and {other} import each other")
    dagster = sorted({m.room for m in modules.values() if _imports(m, "dagster")})
    click.echo(f"dagster is imported in: {', '.join(dagster)}")


def read_modules(root: Path) -> dict[str, Module]:
    """Every module of the packages below `root`, by its dotted name."""
    files = {
        ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): file
        for package in PACKAGES
        for file in sorted((root / package).rglob("*.py"))
    }
    return {name: _module(name, file, files) for name, file in files.items()}


def single_callers(modules: dict[str, Module]) -> list[str]:
    """Modules that one other module imports, and no more."""
    callers = Counter(name for module in modules.values() for name in module.imports)
    return sorted(name for name, count in callers.items() if count == 1)


def mutual_imports(modules: dict[str, Module]) -> list[tuple[str, str]]:
    """Pairs of packages that import each other, at the top of a module or in a function."""
    arrows = {
        (module.room, modules[name].room)
        for module in modules.values()
        for name in module.imports
        if name in modules
    }
    return sorted((a, b) for a, b in arrows if a < b and (b, a) in arrows)


def _module(name: str, file: Path, files: dict[str, Path]) -> Module:
    tree = ast.parse(file.read_text("utf-8"))
    found = frozenset(_imported(tree, files)) - {name}
    classes = sum(isinstance(node, ast.ClassDef) for node in ast.walk(tree))
    return Module(name, _lines(file), classes, found)


def _imported(tree: ast.AST, files: dict[str, Path]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                below = f"{node.module}.{alias.name}"
                yield below if below in files else node.module


def _imports(module: Module, package: str) -> bool:
    return any(name.split(".")[0] == package for name in module.imports)


def _lines(file: Path) -> int:
    return file.read_text("utf-8").count("\n")


if __name__ == "__main__":
    main()
