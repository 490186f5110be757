import dataclasses
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kstreams_assets.app.topology import (
    Processor,
    Sink,
    Source,
    SubTopology,
    Topology,
    parse_topology,
)
from kstreams_assets.errors import ConfigurationError
from tests.app.generated import render, topologies

ALL_TEXTS = (
    "filter",
    "foreign_key_join",
    "foreign_key_join_named",
    "global_table_session",
    "intermediate_topic",
    "materialised_table_join",
    "pattern_and_extractor",
    "processor_api",
    "repartitioned_count",
    "stream_joins",
    "stream_table_join",
    "stream_table_join_named",
    "suppressed_count",
    "table_join",
    "writes_its_own_input",
)

Texts = Callable[[str], str]


@given(topologies())
@settings(max_examples=150, deadline=None)
def test_a_rendered_topology_parses_back_to_itself(topology: Topology) -> None:
    assert parse_topology(render(topology)) == topology


@pytest.mark.parametrize("name", ALL_TEXTS)
def test_real_text_renders_back_character_by_character(name: str, topology_text: Texts) -> None:
    text = topology_text(name)
    assert render(parse_topology(text)) == text


def test_stateless_filter_is_parsed_in_full(topology_text: Texts) -> None:
    source, filter_, sink = (
        "KSTREAM-SOURCE-0000000000",
        "KSTREAM-FILTER-0000000001",
        "KSTREAM-SINK-0000000002",
    )
    assert parse_topology(topology_text("filter")) == Topology(
        (
            SubTopology(
                0,
                False,
                (
                    Source(source, ("in",), None, (filter_,)),
                    Processor(filter_, (), (sink,), (source,)),
                    Sink(sink, "out", None, (filter_,)),
                ),
            ),
        )
    )


def test_global_block_is_told_apart(topology_text: Texts) -> None:
    parsed = parse_topology(topology_text("global_table_session"))
    assert [(block.id, block.is_global) for block in parsed.subtopologies] == [
        (0, True),
        (1, False),
    ]
    (processor,) = parsed.subtopologies[0].processors
    assert processor.stores == ("users-STATE-STORE-0000000000",)
    assert processor.successors == ()  # "none"


def test_pattern_several_topics_and_extractor(topology_text: Texts) -> None:
    (block,) = parse_topology(topology_text("pattern_and_extractor")).subtopologies
    by_pattern, listed = block.sources
    assert (by_pattern.topics, by_pattern.pattern) == ((), r"(eu|us)-orders\.[a-z]+(-v[0-9])?")
    assert listed.pattern is None
    assert set(listed.topics) == {"orders.replayed", "late-orders"}
    assert block.sinks[0].topic is None
    assert "$$Lambda" in (block.sinks[0].extractor or "")


def test_odd_names_of_the_processor_api(topology_text: Texts) -> None:
    block = parse_topology(topology_text("processor_api")).subtopologies[0]
    assert {node.name for node in block.nodes} == {
        "read: a,b (main)",
        "read c",
        "left:one,two",
        "right (stores: [])",
        "Sink: write",
    }
    assert set(block.node("Sink: write").predecessors) == {"left:one,two", "right (stores: [])"}
    read_c = block.node("read c")
    assert isinstance(read_c, Source)
    assert read_c.pattern == r"c \(topics: x\)|c[0-9]+"


@pytest.mark.parametrize(
    ("printed", "topics", "pattern"),
    [
        ("[a]", ("a",), None),
        ("[a.b-c_d, E]", ("a.b-c_d", "E"), None),
        ("[a-z]+", (), "[a-z]+"),
        ("[a].*[b]", (), "[a].*[b]"),
        ("[a,b]", (), "[a,b]"),
        (".*", (), ".*"),
    ],
)
def test_topic_list_and_pattern(printed: str, topics: tuple[str, ...], pattern: str | None) -> None:
    text = f"Topologies:\n Sub-topology: 0\n Source: s (topics: {printed})\n --> none\n"
    (source,) = parse_topology(text).subtopologies[0].sources
    assert (source.topics, source.pattern) == (topics, pattern)


def test_header_of_a_named_topology() -> None:
    text = "Topology: billing:\n   Sub-topology: 0\n Source: s (topics: [a])\n --> none\n"
    assert parse_topology(text).name == "billing"


@pytest.mark.parametrize("name", ALL_TEXTS)
def test_indentation_blank_lines_and_line_ends_do_not_matter(
    name: str, topology_text: Texts
) -> None:
    text = topology_text(name)
    flat = "\r\n\r\n".join(line.strip() for line in text.splitlines())
    assert parse_topology(flat) == parse_topology(text)


@pytest.mark.parametrize(
    ("text", "number", "line"),
    [
        ("", 1, ""),
        ("  \n\n ", 1, ""),
        ("Topologies:\n ", 2, ""),
        ("Sub-topology: 0\n", 1, "Sub-topology: 0"),
        ("\nTopologies:\n  Sub-topology: x\n", 3, "Sub-topology: x"),
        ("Topologies:\n Sub-topology: 0\n", 3, ""),
        (
            "Topologies:\n Sub-topology: 0\n\n  Source s (topics: [a])\n",
            4,
            "Source s (topics: [a])",
        ),
        ("Topologies:\n Sub-topology: 0\n Source: s (topics: [a])\n", 4, ""),
        ("Topologies:\n Sub-topology: 0\n Source: s (topics: [a])\n <-- x\n", 4, "<-- x"),
        (
            "Topologies:\n Sub-topology: 0\n Source: s (topics: [a])\n --> gone\n",
            3,
            "Source: s (topics: [a])",
        ),
        (
            "Topologies:\n Sub-topology: 0\n Sink: s (topic: a)\n <-- gone\n",
            3,
            "Sink: s (topic: a)",
        ),
        (
            "Topologies:\n Sub-topology: 0\n Source: s (topics: [a])\n --> none\n"
            " Source: s (topics: [b])\n --> none\n",
            5,
            "Source: s (topics: [b])",
        ),
    ],
)
def test_error_names_line_number_and_line(text: str, number: int, line: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_topology(text)
    assert f"Line {number} of the topology text is not understood: {line!r}" in str(caught.value)


def test_two_sub_topologies_of_one_id_are_refused(topology_text: Texts) -> None:
    text = topology_text("repartitioned_count").replace("Sub-topology: 1", "Sub-topology: 0")
    with pytest.raises(ConfigurationError, match="every sub-topology id once"):
        parse_topology(text)


@pytest.mark.parametrize("name", ALL_TEXTS)
def test_a_text_that_lacks_any_node_line_is_refused(name: str, topology_text: Texts) -> None:
    lines = topology_text(name).splitlines()
    for at, line in enumerate(lines):
        if line.strip():
            missing = "\n".join(lines[:at] + lines[at + 1 :])
            # The head of the second and later blocks may be missed without a trace in the grammar.
            if not line.strip().startswith("Sub-topology"):
                with pytest.raises(ConfigurationError):
                    parse_topology(missing)


@given(topologies(), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_fingerprint_ignores_the_order_in_sets(topology: Topology, rng: random.Random) -> None:
    assert _shuffled(topology, rng).fingerprint == topology.fingerprint


def test_fingerprint_ignores_what_a_jvm_makes_up() -> None:
    first = _with_extractor("acme.Main$$Lambda$14/0x0000000800c9a440@5e91993f")
    assert first == _with_extractor("acme.Main$$Lambda/0x00007fe91c188d00@159e366")
    assert _with_extractor("acme.Route@1a2b") == _with_extractor("acme.Route@77ff0")
    assert _with_extractor("acme.Route@1a2b") != _with_extractor("acme.Other@1a2b")
    assert first != _with_extractor("acme.Other$$Lambda$14/0x0000000800c9a440@5e91993f")


def test_fingerprint_changes_with_every_fact(topology_text: Texts) -> None:
    text = topology_text("global_table_session")
    changed = [
        text.replace("[clicks]", "[clicks2]"),
        text.replace("(topic: session-counts)", "(topic: other)"),
        text.replace("[users-STATE-STORE-0000000000]", "[users]"),
        text.replace("KSTREAM-MAP-", "KSTREAM-MAPVALUES-"),
        text.replace(" for global store (will not generate tasks)", ""),
        text.replace("Sub-topology: 1", "Sub-topology: 2"),
        text.replace("Topologies:", "Topology: x:"),
    ]
    prints = {parse_topology(each).fingerprint for each in [text, *changed]}
    assert len(prints) == 1 + len(changed)
    assert all(len(each) == 16 and int(each, 16) >= 0 for each in prints)


def _with_extractor(extractor: str) -> str:
    source = Source("s", ("a",), None, ("t",))
    sink = Sink("t", None, extractor, ("s",))
    return Topology((SubTopology(0, False, (source, sink)),)).fingerprint


def _shuffled(topology: Topology, rng: random.Random) -> Topology:
    def mixed(items: tuple) -> tuple:
        return tuple(rng.sample(items, len(items)))

    blocks = []
    for block in topology.subtopologies:
        nodes = []
        for node in block.nodes:
            sets = {
                field.name: mixed(value)
                for field in dataclasses.fields(node)
                if isinstance(value := getattr(node, field.name), tuple)
            }
            nodes.append(dataclasses.replace(node, **sets))
        blocks.append(dataclasses.replace(block, nodes=mixed(tuple(nodes))))
    return dataclasses.replace(topology, subtopologies=mixed(tuple(blocks)))
