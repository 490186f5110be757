"""The place of a problem in the YAML of an application: line, key, and similar names."""

import difflib
import re
import types
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from kstreams_assets.app_file.model import ApplicationModel
from kstreams_assets.block import CONTRADICTS, REFUSED, keys_of

_TAGS: Final = frozenset({"str", "int", "float", "bool", "KafkaConnection"})
_LEADING = re.compile(r"[a-z_]+(?:\.[\w-]+)*")
CORRECT: Final = "Correct the file."
_OF_BLOCK: Final = re.compile(r"[a-z_]+(?=[: ])")
_OF_KEY: Final = re.compile(r"\.[a-z_]+")
_OUT_OF_BOUNDS: Final = frozenset(
    {"greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number"}
)
_WORDS: Final = {"gt": "above", "ge": "of at least", "lt": "below", "le": "at most"}
"""Pydantic's names of bounds, in the order of the message."""


def problems_in(root: Node | None, error: ValidationError) -> tuple[str, str]:
    """The problem with its place, and the remedy; without values, which may be secrets.

    Values are shown only of numbers out of bounds, and if a check of a block shows them itself.
    """
    found = [_problem(root, item) for item in error.errors(include_url=False)]
    if len(found) == 1 and found[0][1]:
        return found[0]
    texts = [f"{problem} {remedy}".rstrip(". ") for problem, remedy in found]
    return "; ".join(dict.fromkeys(texts)) + ".", CORRECT


def place(root: Node | None, location: str) -> str:
    """`line 7, windows.every` for a location, as far as the YAML contains it."""
    path, line, _ = _follow(root, location)
    return _place_text(path, line)


def leading_place(root: Node | None, text: str) -> str:
    """The place of the setting at the start of a text; empty if there is none."""
    leading = _LEADING.match(text)
    if leading is None or root is None:
        return ""
    keys = {key.value for key, _ in _items(root)}
    if leading[0].split(".")[0] not in keys:
        return ""
    path, line, _ = _follow(root, leading[0])
    return _place_text(path, line)


def place_below(root: Node | None, keys: Sequence[str], value: str) -> str:
    """The place of a value below one of these keys, else of the first existing key, or empty."""
    there = [found for key in keys if (found := _follow(root, key)).node is not None]
    for path, _, node in there:
        lines = [n.start_mark.line + 1 for n in _values(node) if n.value == value]
        if lines:
            return _place_text(path, lines[0])
    return _place_text(there[0].path, there[0].line) if there else ""


def _place_text(path: Sequence[str], line: int | None) -> str:
    keys = ".".join(path)
    return keys if line is None else f"line {line}, {keys}" if keys else f"line {line}"


def _problem(root: Node | None, item: ErrorDetails) -> tuple[str, str]:
    """The problem with its place, and its own remedy, if any."""
    location, kind, context = ".".join(map(str, item["loc"])), item["type"], item.get("ctx", {})
    path, line, _ = _follow(root, location)
    keys = ".".join(path)
    if kind == CONTRADICTS:
        key = _OF_BLOCK.match(context["problem"])
        where = leading_place(root, context["problem"]) or place(
            root, location if key is None else f"{location}.{key[0]}"
        )
        return at_place(where, context["problem"]), context["remedy"]
    if kind == REFUSED:
        leading = _OF_KEY.match(context["problem"])
        _, line, _ = _follow(root, location if leading is None else f"{location}{leading[0]}")
        return _in_line(line, f"{keys}{context['problem']}"), context["remedy"]
    if kind in _OUT_OF_BOUNDS:
        value, bounds = item["input"], _bounds(tuple(path))
        shown = f"{value:g}" if isinstance(value, float) else value
        return _in_line(line, f"{keys} is {shown}."), f"Give {bounds}."
    where = _place_text(path, line)
    if kind == "missing":
        return f"{where}: is missing.", ""
    if kind != "extra_forbidden":
        message = item["msg"].replace("valid tuple", "valid list").rstrip(".")
        return f"{where}: {message}.", ""
    known = sorted(_names(tuple(path[:-1])))
    near = difflib.get_close_matches(path[-1], known, n=3)
    names = f" (near: {', '.join(near)})" if near else f" (known: {', '.join(known)})"
    return f"{where}: unknown key{names if known else ''}.", ""


def _in_line(line: int | None, problem: str) -> str:
    return problem if line is None else f"line {line}: {problem}"


def at_place(where: str, problem: str) -> str:
    """The problem with its place; a key at its start is not repeated."""
    line, _, keys = where.partition(", ")
    if keys and re.match(rf"{re.escape(keys)}\b", problem):
        return f"{line}: {problem}"
    *_, last = keys.split(".")
    if last:
        problem = problem.removeprefix(f"{last}: ")
    return f"{where}: {problem}" if where else problem


def _bounds(path: tuple[str, ...]) -> str:
    """The allowed numbers at a path, in words."""
    found: dict[str, object] = {}
    for part in _parts(ApplicationModel, path):
        found |= {
            name: value for name in _WORDS if (value := getattr(part, name, None)) is not None
        }
    if "gt" in found and path[-1].endswith("_seconds"):
        return f"a number of seconds above {found['gt']}"
    words = [f"{_WORDS[name]} {found[name]}" for name in _WORDS if name in found]
    return f"a number {' and '.join(words)}" if words else "a finite number"


class _Followed(NamedTuple):
    """The keys of a location, the line of the deepest existing one, and its node if all exist."""

    path: list[str]
    line: int | None
    node: Node | None


def _follow(root: Node | None, location: str) -> _Followed:
    """Follow the keys of a location.

    Pydantic inserts names of types between the keys, and joins everything with dots, even keys that
    contain dots.
    """
    node, line, path, rest, is_there = root, None, [], location, True
    while rest:
        for key, value in sorted(_items(node), key=lambda item: -len(item[0].value)):
            if rest == key.value or rest.startswith(f"{key.value}."):
                node, line = value, key.start_mark.line + 1
                path.append(key.value)
                rest = rest[len(key.value) + 1 :]
                break
        else:
            token, rest = _token(rest)
            if isinstance(node, SequenceNode) and token.isdigit() and int(token) < len(node.value):
                node = node.value[int(token)]
                line = node.start_mark.line + 1
                path.append(token)
            elif not _is_tag(token):
                path.append(token)
                is_there = False
    return _Followed(path, line, node if is_there else None)


def _token(location: str) -> tuple[str, str]:
    """The part before the first dot outside brackets, and the rest."""
    depth = 0
    for index, character in enumerate(location):
        depth += (character == "[") - (character == "]")
        if character == "." and depth == 0:
            return location[:index], location[index + 1 :]
    return location, ""


def _is_tag(token: str) -> bool:
    return "[" in token or token in _TAGS


def _items(node: Node | None) -> Iterator[tuple[ScalarNode, Node]]:
    if isinstance(node, MappingNode):
        yield from ((key, value) for key, value in node.value if isinstance(key, ScalarNode))


def _values(node: Node | None) -> Iterator[ScalarNode]:
    """A value, or those of a list, or the keys of a block."""
    yield from (key for key, _ in _items(node))
    values = node.value if isinstance(node, SequenceNode) else [node]
    yield from (value for value in values if isinstance(value, ScalarNode))


def _names(path: tuple[str, ...]) -> set[str]:
    """The allowed keys below a path."""
    models = [p for p in _parts(ApplicationModel, path) if isinstance(p, type)]
    return {n for one in models if issubclass(one, BaseModel) for n in keys_of(one)}


def _parts(kind: Any, path: tuple[str, ...]) -> Iterator[Any]:  # noqa: ANN401
    """The types, with their bounds, of the values that are allowed at a path."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        yield from _parts(arguments[0], path)
        for each in () if path else arguments[1:]:
            yield from getattr(each, "metadata", (each,))
    elif origin in (Union, types.UnionType):
        for each in arguments:
            yield from _parts(each, path)
    elif not path:
        yield kind
    elif origin in (dict, list, tuple):
        for each in arguments[-2:]:
            yield from _parts(each, path[1:])
    elif isinstance(kind, type) and issubclass(kind, BaseModel) and path[0] in keys_of(kind):
        field = keys_of(kind)[path[0]]
        yield from _parts(field.annotation, path[1:])
        if len(path) == 1:
            yield from field.metadata
