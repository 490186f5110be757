"""Find the lines of rules in the YAML, for error messages. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from kstreams_assets.errors import ConfigurationError

_TEXTS: Final = ("sql", "balance")
_TYPE_ENDING: Final = "KafkaStreamsAppComponent"
_LITERAL: Final = "|"


@dataclass(frozen=True, slots=True)
class RuleLines:
    """Lines count from 1. `text` is the first line of `sql` or `balance`.

    `is_literal`: each line of the text is one line of the YAML (a block scalar `|`), so messages
    can name a line of the text.
    """

    rule: int
    text: int | None = None
    is_literal: bool = False

    def of_text(self, line: int | None) -> int | None:
        """The line of the YAML with this line of the text, as precisely as possible."""
        if self.text is None or line is None or not self.is_literal:
            return self.text
        return self.text + line - 1


@dataclass(frozen=True, slots=True)
class YamlLines:
    """The lines of the rules (in order) and of the blocks `recompute` (by store) of a file."""

    file: Path | None = None
    rules: tuple[RuleLines, ...] = ()
    recomputed: Mapping[str, RuleLines] = field(default_factory=dict)

    def of_rule(self, number: int) -> RuleLines | None:
        """The lines of the rule with this number, from 0; None if unknown."""
        return self.rules[number] if number < len(self.rules) else None


NO_LINES: Final = YamlLines()


def yaml_lines(file: Path, application_id: str) -> YamlLines:
    """Find the lines of the rules of an application in its YAML; nothing if that is not possible.

    If a file has several documents, the one with this application id counts, or the only one.
    """
    attributes = attributes_node(file, application_id)
    return NO_LINES if attributes is None else _of_attributes(file, attributes)


def attributes_node(file: Path, application_id: str | None) -> Node | None:
    """The node of an application's attributes in its YAML; None if it is not unique.

    Without an id, those of the only application in the file.

    Raises:
        ConfigurationError: A block contains a key twice; YAML readers would use the last one.
    """
    try:
        documents = list(yaml.compose_all(file.read_text(encoding="utf-8"), yaml.SafeLoader))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return None
    found = [
        attributes
        for document in documents
        if _text(_child(document, "type")).endswith(_TYPE_ENDING)
        and (attributes := _child(document, "attributes")) is not None
    ]
    named = [each for each in found if _text(_child(each, "application_id")) == application_id]
    if len(named or found) != 1:
        return None
    node = (named or found)[0]
    _refuse_repeated_keys(file, node)
    return node


def _refuse_repeated_keys(file: Path, node: Node) -> None:
    if isinstance(node, SequenceNode):
        for value in node.value:
            _refuse_repeated_keys(file, value)
    if not isinstance(node, MappingNode):
        return
    first: dict[str, Node] = {}
    for key, value in node.value:
        name = _text(key)
        if name and name in first:
            raise ConfigurationError(
                f"{file}: line {_line(key)}: the key {name} occurs twice, first in line"
                f" {_line(first[name])}.",
                remedy="Keep one of them.",
            )
        first[name] = key
        _refuse_repeated_keys(file, value)


def _of_attributes(file: Path, attributes: Node) -> YamlLines:
    rules = _child(attributes, "completeness")
    stores = _child(attributes, "stores")
    return YamlLines(
        file=file,
        rules=tuple(_of_rule(rule) for rule in rules.value)
        if isinstance(rules, SequenceNode)
        else (),
        recomputed={
            name: RuleLines(_line(block))
            for name, store in _children(stores)
            if (block := _child(store, "recompute")) is not None
        },
    )


def _of_rule(rule: Node) -> RuleLines:
    for name in _TEXTS:
        text = _child(rule, name)
        if isinstance(text, ScalarNode):
            is_literal = text.style == _LITERAL
            # The mark of a literal is its `|`; the text starts below.
            return RuleLines(_line(rule), _line(text) + is_literal, is_literal)
    return RuleLines(_line(rule))


def _line(node: Node) -> int:
    return node.start_mark.line + 1


def _children(node: Node | None) -> Iterator[tuple[str, Node]]:
    if isinstance(node, MappingNode):
        for key, value in node.value:
            yield _text(key), value


def _child(node: Node | None, name: str) -> Node | None:
    return next((value for key, value in _children(node) if key == name), None)


def _text(node: Node | None) -> str:
    return node.value if isinstance(node, ScalarNode) else ""
