"""A class of errors is there for who catches it; what nobody tells apart is raised as its base."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TREES = [
    ast.parse(file.read_text("utf-8"))
    for package in ("kstreams_assets", "spark_resources")
    for file in (ROOT / package).rglob("*.py")
]
NODES = [node for tree in TREES for node in ast.walk(tree)]


def test_every_class_of_errors_is_caught_somewhere() -> None:
    bases = {
        node.name: {ast.unparse(base) for base in node.bases}
        for node in NODES
        if isinstance(node, ast.ClassDef)
    }
    ours = {"KStreamsAssetsError"}
    while more := {name for name, of_it in bases.items() if of_it & ours} - ours:
        ours |= more
    assert ours - {*_named_as_values()} == set()


def _named_as_values() -> Iterator[str]:
    """Names that are in an `except`, in `isinstance`, or in a tuple for one of them."""
    for node in NODES:
        if isinstance(node, ast.ExceptHandler) and node.type is not None:
            yield from _names(node.type)
        elif isinstance(node, ast.Call):
            yield from (name for value in node.args for name in _names(value, deep=False))
        elif isinstance(node, ast.Tuple):
            yield from _names(node)


def _names(node: ast.expr, *, deep: bool = True) -> Iterator[str]:
    found = ast.walk(node) if deep or isinstance(node, ast.BinOp | ast.Tuple) else [node]
    yield from (one.id for one in found if isinstance(one, ast.Name))
