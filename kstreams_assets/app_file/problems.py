"""Where in the YAML of an application something is wrong: line, key, and names that are near."""

import difflib
import re
import types
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from kstreams_assets.app_file.model import ApplicationModel

_TAGS: Final = frozenset({"str", "int", "float", "bool"})
_LEADING = re.compile(r"[a-z_]+(?:\.[\w-]+)*")
_MOST: Final = 20


def problems_in(root: Node | None, error: ValidationError) -> str:
    """Where and what, without the values, which may be secrets."""
    items = error.errors(include_input=False, include_url=False, include_context=False)
    texts = [
        _problem(root, ".".join(map(str, item["loc"])), item["type"], item["msg"]) for item in items
    ]
    return "; ".join(dict.fromkeys(texts)) + "."


def place(root: Node | None, location: str) -> str:
    """`line 7, windows.every` of a location, as far as it is in the YAML."""
    path, line = _follow(root, location)
    return _said(path, line)


def leading_place(root: Node | None, text: str) -> str:
    """The place of the setting that a text begins with, empty if it begins with none."""
    leading = _LEADING.match(text)
    if leading is None or root is None:
        return ""
    keys = {key.value for key, _ in _items(root)}
    if leading[0].split(".")[0] not in keys:
        return ""
    path, line = _follow(root, leading[0])
    return _said(path, line)


def place_of_text(root: Node | None, text: str) -> str:
    """The place of the first key or value that is this text, empty if there is none."""
    found = None if root is None else next(_holders(root, text, ()), None)
    return "" if found is None else _said(*found)


def _said(path: Sequence[str], line: int | None) -> str:
    keys = ".".join(path)
    return keys if line is None else f"line {line}, {keys}" if keys else f"line {line}"


def _problem(root: Node | None, location: str, kind: str, message: str) -> str:
    path, line = _follow(root, location)
    where = _said(path, line)
    if kind == "missing":
        return f"{where}: is missing"
    if kind != "extra_forbidden":
        return f"{where}: {message.rstrip('.')}"
    known = sorted(_names(ApplicationModel, tuple(path[:-1])))
    near = difflib.get_close_matches(path[-1], known, n=3)
    if near:
        return f"{where}: unknown key (near: {', '.join(near)})"
    return f"{where}: unknown key (known: {', '.join(known)})" if known else f"{where}: unknown key"


def _follow(root: Node | None, location: str) -> tuple[list[str], int | None]:
    """The keys of a location and the line of the deepest that is there.

    Pydantic puts names of types between the keys, and joins all with dots, also keys with dots.
    """
    node, line, path, rest = root, None, [], location
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
    return path, line


def _token(location: str) -> tuple[str, str]:
    """What stands before the first dot that is in no brackets, and the rest."""
    depth = 0
    for index, character in enumerate(location):
        depth += (character == "[") - (character == "]")
        if character == "." and depth == 0:
            return location[:index], location[index + 1 :]
    return location, ""


def _is_tag(token: str) -> bool:
    return "[" in token or token in _TAGS or token.endswith("Model")


def _items(node: Node | None) -> Iterator[tuple[ScalarNode, Node]]:
    if isinstance(node, MappingNode):
        yield from ((key, value) for key, value in node.value if isinstance(key, ScalarNode))


def _holders(node: Node, text: str, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    if isinstance(node, ScalarNode) and node.value == text:
        yield path, node.start_mark.line + 1
    if isinstance(node, SequenceNode):
        for each in node.value:
            yield from _holders(each, text, path)
    for key, value in _items(node):
        below = (*path, key.value)
        if key.value == text:
            yield below, key.start_mark.line + 1
        yield from _holders(value, text, below)


def _names(kind: Any, path: tuple[str, ...]) -> set[str]:  # noqa: ANN401
    """The keys that may stand below a path of a block of this type."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        if not path:
            return set(kind.model_fields)
        field = kind.model_fields.get(path[0])
        return set() if field is None else _names(field.annotation, path[1:])
    arguments = get_args(kind)
    origin = get_origin(kind)
    if origin is Annotated:
        return _names(arguments[0], path)
    if origin in (Union, types.UnionType):
        return {name for each in arguments for name in _names(each, path)}
    if origin in (dict, list, tuple) and path:
        return {name for each in arguments[-2:] for name in _names(each, path[1:])}
    return set()
