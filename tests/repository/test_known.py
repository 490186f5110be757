"""What was read belongs to a Repository: two of them share nothing, and one reads nothing twice."""

import ast
from pathlib import Path
from typing import Final

import pytest

import kstreams_assets.repository as package
from kstreams_assets.layout import Warehouse
from kstreams_assets.repository.known import Recent
from kstreams_assets.repository.repository import Repository

_OF_THE_PROCESS: Final = {
    ("chain", "_private_key"): "the key with which this process signs",
    ("delta_log", "_commits"): "counts this process's commits to a store, to tidy its log at times",
    ("delta_log", "_settled"): "which entries of a log are on the disk, whoever reads them",
    ("repository", "_held"): "the locks that each thread of this process holds",
}
"""Module-level state that is not about what was read, each with the reason."""

_CACHES: Final = {"lru_cache", "cache"}
_MADE: Final = {
    "dict",
    "list",
    "set",
    "local",
    "Lock",
    "defaultdict",
    "Recent",
    "Known",
    "Verified",
}


def _name(node: ast.expr) -> str:
    match node:
        case ast.Call(func=function):
            return _name(function)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def _is_state(name: str, value: ast.expr | None) -> bool:
    """Whether a module-level name holds what changes: constants are upper case or frozen."""
    if isinstance(value, ast.Call):
        return _name(value) in _MADE
    is_collection = isinstance(value, ast.Dict | ast.List | ast.Set)
    return is_collection and not name.strip("_").isupper()


def _module_state(path: Path) -> set[tuple[str, str]]:
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), value=value) if _is_state(name, value):
                found.add(name)
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_state(name, value):
                found.add(name)
            case ast.FunctionDef(name=name) if _CACHES & {*map(_name, node.decorator_list)}:
                found.add(name)
            case ast.ClassDef():
                for one in node.body:
                    if isinstance(one, ast.FunctionDef) and (
                        _CACHES & {*map(_name, one.decorator_list)}
                    ):
                        found.add(f"{node.name}.{one.name}")
            case _:
                pass
    return {(path.stem, name) for name in found}


def test_no_module_remembers_what_was_read() -> None:
    modules = Path(next(iter(package.__path__))).glob("*.py")
    assert set[tuple[str, str]]().union(*map(_module_state, modules)) == _OF_THE_PROCESS.keys()


@pytest.mark.parametrize(
    "text",
    [
        "_seen: dict[str, int] = {}",
        "_seen = dict()",
        "@lru_cache(maxsize=2)\ndef _seen(): ...",
        "@functools.cache\ndef _seen(): ...",
        "_seen = threading.Lock()",
    ],
)
def test_such_state_is_found(tmp_path: Path, text: str) -> None:
    (tmp_path / "module.py").write_text(text)
    assert _module_state(tmp_path / "module.py") == {("module", "_seen")}


def test_whoever_opens_it_with_the_same_warehouse_gets_what_was_read(tmp_path: Path) -> None:
    warehouse, other = Warehouse(tmp_path), Warehouse(tmp_path)
    repo = Repository.of(warehouse, "shop")
    assert Repository.of(warehouse, "shop") is repo
    assert Repository.of(warehouse, "mill").known is repo.known  # the tables are the same
    assert warehouse == other
    assert Repository.of(other, "shop").known is not repo.known
    assert Repository(warehouse, "shop").known is not repo.known


def test_only_what_was_stored_last_is_kept() -> None:
    recent = Recent[str, int](2)
    for number, key in enumerate("abac"):
        recent.put(key, number)
    assert [recent.get(key) for key in "abc"] == [2, None, 3]
    recent.drop("a")
    assert recent.get("a") is None
