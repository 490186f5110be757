"""The text of a topology as people have it: logged, copied, redirected."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kstreams_assets.app.topology import Topology, parse_topology, read_topology
from kstreams_assets.errors import ConfigurationError

Texts = Callable[[str], str]
NAMES = ["repartitioned_count", "pattern_and_extractor", "global_table_session"]


def _prefixed(text: str, prefix: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


LOG = "10:02:17.331 [main] INFO  Desk - "
WRAPPINGS: dict[str, Callable[[str], str]] = {
    "a logger": lambda text: f"10:01:00 INFO up\n{LOG}{text}10:02:17.402 [main] INFO  Desk - up\n",
    "a logger, glued": lambda text: f"[Desk]{text}up\n",
    "every line of a pod": lambda text: _prefixed(text, "pod-7c9 | "),
    "every line logged": lambda text: _prefixed(text, f"2026-11-27T{LOG}"),
    "a comment": lambda text: _prefixed(text, "// "),
    "a quotation": lambda text: _prefixed(text, "> "),
    "a fence": lambda text: f"# Topology\n\nIt reads orders:\n\n```text\n{text}```\n\nAnd so on.\n",
    "a heading": lambda text: f"Processing topology\n-------------------\n{text}",
    "JSON": lambda text: json.dumps([text]),
    "JSON of an actuator": lambda text: json.dumps({"a": {"topology": text}, "n": 1}),
    "an escaped line": lambda text: text.replace("\n", "\\n"),
    "entities": lambda text: text.replace(">", "&gt;").replace("<", "&lt;"),
    "colours": lambda text: f"\x1b[32mINFO\x1b[0m {text}",
    "Windows": lambda text: text.replace("\n", "\r\n"),
    "another thread's lines": lambda text: text.replace(
        "\n    Processor", "\n10:02:17.9 [other] WARN x - late\n    Processor", 1
    ),
    "twice": lambda text: f"{LOG}{text}\n{LOG}{text}",
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_what_is_around_the_text_does_not_matter(
    wrapping: str, name: str, topology_text: Texts
) -> None:
    text = topology_text(name)
    assert parse_topology(WRAPPINGS[wrapping](text)) == parse_topology(text)


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"]
)
def test_files_in_unicode(encoding: str, tmp_path: Path, topology_text: Texts) -> None:
    text = topology_text("repartitioned_count").replace("Topologies:", "Topologies:")
    assert _read(tmp_path, text.encode(encoding)) == parse_topology(text)


def test_other_files_are_named(tmp_path: Path, topology_text: Texts) -> None:
    text = topology_text("repartitioned_count").replace("KSTREAM-SOURCE", "b\xfcro")
    with pytest.raises(ConfigurationError, match=r"topology\.txt is not text in UTF-8.*iconv"):
        _read(tmp_path, text.encode("latin-1"))
    with pytest.raises(ConfigurationError, match=r"none\.txt cannot be read"):
        read_topology(tmp_path / "none.txt")


def _read(folder: Path, data: bytes) -> Topology:
    file = folder / "topology.txt"
    file.write_bytes(data)
    return read_topology(file)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrapping", ["a logger", "every line of a pod", "a fence"])
def test_a_wrapped_text_that_lacks_a_line_is_refused(
    wrapping: str, name: str, topology_text: Texts
) -> None:
    lines = topology_text(name).splitlines()
    for at, line in enumerate(lines):
        if line.strip() and not line.strip().startswith("Sub-topology"):
            missing = "\n".join(lines[:at] + lines[at + 1 :]) + "\n"
            with pytest.raises(ConfigurationError):
                parse_topology(WRAPPINGS[wrapping](missing))


@pytest.mark.parametrize("name", NAMES)
def test_a_text_that_was_cut_is_refused(name: str, topology_text: Texts) -> None:
    text = topology_text(name).rstrip()
    whole = parse_topology(text)
    last = text.rindex("Sub-topology")
    for end in range(last + 1, len(text)):
        try:
            assert parse_topology(f"{LOG}{text[:end]}") == whole
        except ConfigurationError:
            continue


def test_a_line_that_may_be_of_the_topology_is_never_left_out(topology_text: Texts) -> None:
    text = f"{LOG}{topology_text('repartitioned_count')}"
    lines = text.splitlines()
    for noise in ("    Gateway: x (topics: [a])", "   Sub-topology", "    Source x", "  Router: y"):
        with pytest.raises(ConfigurationError, match="is not understood"):
            parse_topology("\n".join([*lines[:3], noise, *lines[3:]]))


def test_topologies_that_differ_are_refused(topology_text: Texts) -> None:
    one, other = map(topology_text, NAMES[:2])
    with pytest.raises(ConfigurationError, match="contains 2 different topologies"):
        parse_topology(f"{LOG}{one}\n{LOG}{other}")


def test_a_long_line_is_shortened() -> None:
    with pytest.raises(ConfigurationError) as found:
        parse_topology("x" * 5_000)
    assert len(str(found.value)) < 500


@pytest.mark.parametrize(("topics", "topic"), [("[]", "out"), ("[in]", "null")])
def test_what_the_command_line_of_kafka_does_not_tell(topics: str, topic: str) -> None:
    text = (
        f"Topologies:\n Sub-topology: 0\n Source: s (topics: {topics})\n --> t\n"
        f" Sink: t (topic: {topic})\n <-- s\n"
    )
    with pytest.raises(ConfigurationError, match=r"kafka-streams-groups\.sh reports neither"):
        parse_topology(text)
