"""The text of `Topology.describe()` as frozen dataclasses.

Grammar: `InternalTopologyBuilder` (`toString` of Source, Processor, Sink, Subtopology, GlobalStore
and TopologyDescription), the same in Kafka Streams 2.x to 4.x. Indentation differs between the
first block and the others and is lost in YAML, so lines are recognised by their trimmed start only.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kstreams_assets.app.topology_text import (
    REMEDY,
    decoded_text,
    not_understood,
    numbered_lines,
    unwrapped,
)
from kstreams_assets.errors import ConfigurationError

_SUBTOPOLOGY = re.compile(
    r"Sub-topology: (\d+)( for global store \(will not generate tasks\))?", re.ASCII
)
_NAMED_HEADER = re.compile(r"Topology: (.+):")
# The name part is greedy: Kafka wrote the last " (topics: " of the line.
_SOURCE = re.compile(r"Source: (.*) \(topics: (.*)\)")
_PROCESSOR = re.compile(r"Processor: (.*) \(stores: \[(.*)\]\)")
_SINK = re.compile(r"Sink: (.*) \((topic|extractor class): (.*)\)")
_TOPIC_LIST = re.compile(r"\[([a-zA-Z0-9._-]+(?:, [a-zA-Z0-9._-]+)*)\]")
_LAMBDA = re.compile(r"\$\$Lambda.*")
_IDENTITY_HASH = re.compile(r"@[0-9a-f]+$")


@dataclass(frozen=True, slots=True)
class Source:
    """A node that reads topics: those of `topics`, or all that match the Java regex `pattern`."""

    name: str
    topics: tuple[str, ...]
    pattern: str | None
    successors: tuple[str, ...]

    @property
    def predecessors(self) -> tuple[str, ...]:
        """Always empty."""
        return ()


@dataclass(frozen=True, slots=True)
class Processor:
    """A node that transforms records and may use stores."""

    name: str
    stores: tuple[str, ...]
    successors: tuple[str, ...]
    predecessors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sink:
    """A node that writes to `topic`, or to topics that `extractor` (a Java toString) selects."""

    name: str
    topic: str | None
    extractor: str | None
    predecessors: tuple[str, ...]

    @property
    def successors(self) -> tuple[str, ...]:
        """Always empty."""
        return ()


Node = Source | Processor | Sink


@dataclass(frozen=True, slots=True)
class SubTopology:
    """Nodes that run in one task (or, global, in the global thread); task ids start with `id`."""

    id: int
    is_global: bool
    nodes: tuple[Node, ...]

    def node(self, name: str) -> Node:
        """The node of this name; KeyError if there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)

    @property
    def sources(self) -> tuple[Source, ...]:
        """The source nodes, in the order of the text."""
        return tuple(node for node in self.nodes if isinstance(node, Source))

    @property
    def processors(self) -> tuple[Processor, ...]:
        """The processor nodes, in the order of the text."""
        return tuple(node for node in self.nodes if isinstance(node, Processor))

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """The sink nodes, in the order of the text."""
        return tuple(node for node in self.nodes if isinstance(node, Sink))


@dataclass(frozen=True, slots=True)
class Topology:
    """A whole topology; topic names as in the text, internal ones without their prefix."""

    subtopologies: tuple[SubTopology, ...]
    name: str | None = None
    """Name of a named topology (`Topology: <name>:`), None for the usual `Topologies:`."""

    @property
    def fingerprint(self) -> str:
        """16 hex digits that change exactly when the topology changes.

        The order inside lists (a set order in Java) and names that a JVM generates per run (lambda
        names, identity hashes of extractors) do not count.
        """
        blocks = sorted(self.subtopologies, key=lambda block: block.id)
        canonical = [self.name, [_canonical_block(block) for block in blocks]]
        text = json.dumps(canonical, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_topology(file: Path) -> Topology:
    """Read a file with the output of `Topology.describe().toString()`: see `parse_topology`.

    UTF-8 or UTF-16, with or without a byte order mark.

    Raises ConfigurationError.
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"The topology file {file} cannot be read: {error.strerror}.",
            remedy="Check the path, and the rights of the user of this process.",
        ) from None
    return parse_topology(decoded_text(data, file))


def parse_topology(text: str) -> Topology:
    """Read the output of `Topology.describe().toString()`.

    Text that a logger, a Markdown document or a JSON document has added around it is removed (see
    `kstreams_assets.app.topology_text`).

    Raises ConfigurationError, with line number and line, for any other text. A text with missing
    lines is an error, too, because a node would then name a neighbour that does not exist.

    Two texts are ambiguous in Kafka's grammar: a pattern that consists of one character class of
    letters (`[abc]`) is read as a list of topics, and node names must not contain ", ".
    """
    try:
        return _parsed(_Lines(numbered_lines(text)))
    except ConfigurationError as error:
        found = [_parsed(_Lines(lines)) for lines in unwrapped(text)]
        if not found:
            raise
        if len({topology.fingerprint for topology in found}) > 1:
            raise ConfigurationError(
                f"The topology text contains {len(found)} different topologies.",
                remedy="Keep only the newest one that the application runs with.",
            ) from error
        return found[0]


def _parsed(lines: "_Lines") -> Topology:
    name = _header(lines)
    blocks: list[SubTopology] = []
    while lines.current is not None:
        block = _block(lines)
        if any(block.id == other.id for other in blocks):
            raise lines.error("every sub-topology id once", back=True)
        blocks.append(block)
    if not blocks:
        raise lines.error("at least one 'Sub-topology: <id>'")
    return Topology(subtopologies=tuple(blocks), name=name)


class _Lines:
    """The non-blank lines, trimmed, with their numbers."""

    def __init__(self, lines: Sequence[tuple[int, str]]) -> None:
        self._lines = lines
        self._next = 0

    @property
    def current(self) -> str | None:
        return self._lines[self._next][1] if self._next < len(self._lines) else None

    @property
    def position(self) -> int:
        return self._next

    def take(self) -> str:
        line = self._lines[self._next][1]
        self._next += 1
        return line

    def error(
        self, expected: str, *, back: bool = False, position: int | None = None
    ) -> ConfigurationError:
        """The error at the current line, the one before it (`back`), or the one at `position`."""
        at = position if position is not None else self._next - (1 if back else 0)
        if at < len(self._lines):
            number, line = self._lines[at]
        else:  # the text ended too early: name the line after its last one
            number, line = (self._lines[-1][0] + 1 if self._lines else 1), ""
        return not_understood(number, line, expected)

    def refuse_partial(self, what: str) -> None:
        """Raise ConfigurationError: the previous line hides a topic."""
        number, _ = self._lines[self._next - 1]
        raise ConfigurationError(
            f"Line {number} of the topology text {what}: kafka-streams-groups.sh reports neither"
            " input patterns nor outputs chosen per record.",
            remedy=REMEDY,
        )


def _header(lines: _Lines) -> str | None:
    line = lines.current
    if line == "Topologies:":
        lines.take()
        return None
    named = _NAMED_HEADER.fullmatch(line) if line is not None else None
    if named is None:
        raise lines.error("'Topologies:' or 'Topology: <name>:'")
    lines.take()
    return named.group(1)


def _block(lines: _Lines) -> SubTopology:
    head = _SUBTOPOLOGY.fullmatch(lines.current or "")
    if head is None:
        raise lines.error("'Sub-topology: <id>', 'Source:', 'Processor:' or 'Sink:'")
    lines.take()
    nodes: dict[str, Node] = {}
    positions: dict[str, int] = {}
    while lines.current is not None and not lines.current.startswith("Sub-topology: "):
        position = lines.position
        node = _node(lines)
        if node.name in nodes:
            raise lines.error("every node name once in a sub-topology", position=position)
        nodes[node.name], positions[node.name] = node, position
    if not nodes:
        raise lines.error("a node of the sub-topology")
    _check_neighbours(nodes, positions, lines)
    return SubTopology(
        id=int(head.group(1)), is_global=head.group(2) is not None, nodes=tuple(nodes.values())
    )


def _node(lines: _Lines) -> Node:
    line = lines.current or ""
    if match := _SOURCE.fullmatch(line):
        lines.take()
        if match.group(2) == "[]":
            lines.refuse_partial(f"names no topic of source {match.group(1)}")
        listed = _TOPIC_LIST.fullmatch(match.group(2))
        return Source(
            name=match.group(1),
            topics=tuple(listed.group(1).split(", ")) if listed else (),
            pattern=None if listed else match.group(2),
            successors=_names(lines, "-->"),
        )
    if match := _PROCESSOR.fullmatch(line):
        lines.take()
        return Processor(
            name=match.group(1),
            stores=tuple(match.group(2).split(", ")) if match.group(2) else (),
            successors=_names(lines, "-->"),
            predecessors=_names(lines, "<--"),
        )
    if match := _SINK.fullmatch(line):
        lines.take()
        is_topic = match.group(2) == "topic"
        if is_topic and match.group(3) == "null":
            lines.refuse_partial(f"names no topic of sink {match.group(1)}")
        return Sink(
            name=match.group(1),
            topic=match.group(3) if is_topic else None,
            extractor=None if is_topic else match.group(3),
            predecessors=_names(lines, "<--"),
        )
    raise lines.error("'Sub-topology: <id>', 'Source:', 'Processor:' or 'Sink:'")


def _names(lines: _Lines, arrow: str) -> tuple[str, ...]:
    line = lines.current
    if line is None or not line.startswith(arrow + " "):
        raise lines.error(f"'{arrow} <names>' or '{arrow} none'")
    lines.take()
    listed = line[len(arrow) + 1 :]
    return () if listed == "none" else tuple(listed.split(", "))


def _check_neighbours(nodes: dict[str, Node], positions: dict[str, int], lines: _Lines) -> None:
    for name, node in nodes.items():
        for successor in node.successors:
            if successor not in nodes or name not in nodes[successor].predecessors:
                raise lines.error(
                    f"successor {successor!r} in the same sub-topology, naming {name!r} as its"
                    " predecessor",
                    position=positions[name],
                )
        for predecessor in node.predecessors:
            if predecessor not in nodes or name not in nodes[predecessor].successors:
                raise lines.error(
                    f"predecessor {predecessor!r} in the same sub-topology, naming {name!r} as its"
                    " successor",
                    position=positions[name],
                )


def _canonical_block(block: SubTopology) -> list[object]:
    return [block.id, block.is_global, sorted(list(_canonical_node(node)) for node in block.nodes)]


def _canonical_node(node: Node) -> Iterator[object]:
    # The name comes first and is unique, so sorting never compares the other parts.
    yield node.name
    yield type(node).__name__
    yield sorted(node.successors)
    yield sorted(node.predecessors)
    match node:
        case Source():
            yield [sorted(node.topics), node.pattern]
        case Processor():
            yield sorted(node.stores)
        case Sink():
            yield [node.topic, _stable_extractor(node.extractor)]


def _stable_extractor(extractor: str | None) -> str | None:
    if extractor is None:
        return None
    return _IDENTITY_HASH.sub("", _LAMBDA.sub("$$Lambda", extractor))
