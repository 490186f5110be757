"""Levels of topologies: readers first; what has no order names its reason."""

from pathlib import Path

import pytest

from kstreams_assets.app.model import (
    AppTopic,
    StreamsApplication,
    TopicEdge,
    TopicRole,
    TopicRoles,
)
from kstreams_assets.app.roles import application_from_topology
from kstreams_assets.app.topology import parse_topology
from kstreams_assets.recovery.levels import NoOrder, levels_of
from tests.streams.vector_app import VectorTopics

IN, REPARTITION = TopicRole.INPUT, TopicRole.REPARTITION
CHANGELOG, OUT = TopicRole.CHANGELOG, TopicRole.OUTPUT


def application(
    topics: dict[str, tuple[set[TopicRole], tuple[int, ...]]],
    edges: list[tuple[str, str]],
    omitted: list[tuple[str, str]] | None = None,
) -> StreamsApplication:
    return StreamsApplication(
        "app",
        tuple(
            AppTopic(name, TopicRoles(roles), subtopologies=blocks)
            for name, (roles, blocks) in sorted(topics.items())
        ),
        edges=tuple(TopicEdge(*edge) for edge in edges),
        omitted_edges=tuple(TopicEdge(*edge) for edge in omitted or ()),
    )


def reason(one: StreamsApplication) -> str:
    found = levels_of(one)
    assert isinstance(found, NoOrder)
    return found.reason


TWO_BRANCHES = {
    "a": ({IN}, (0,)),
    "b": ({IN}, (1,)),
    "r": ({REPARTITION}, (2,)),
    "out": ({OUT}, ()),
}


TEXTS = sorted((Path(__file__).parents[1] / "app/topologies").glob("*.txt"))
HAVE_NO_ORDER = {
    "foreign_key_join": "(a cycle)",
    "foreign_key_join_named": "(a cycle)",
    "writes_its_own_input": "writes back to poll",
}


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.stem)
def test_texts_of_kafka_streams_have_levels_unless_they_are_cyclic(text: Path) -> None:
    """The lineage of an output may lead through a store; its sub-topology writes the output."""
    application = application_from_topology("app", parse_topology(text.read_text()))
    expected = HAVE_NO_ORDER.get(text.stem)
    if expected is not None:
        assert expected in reason(application)
        return
    levels = levels_of(application)
    assert not isinstance(levels, NoOrder), levels.reason
    written = {topic for level in levels for topic in level.written}
    assert written >= {t.name for t in application.topics if t.roles.is_output}
    for number, level in enumerate(levels):
        later = {topic for one in levels[number:] for topic in one.written}
        assert level.reads <= later | {t.name for t in application.topics if t.roles.is_source}


def test_readers_come_before_writers() -> None:
    topics = VectorTopics("app")
    levels = levels_of(topics.application)
    assert not isinstance(levels, NoOrder)
    assert [level.reads for level in levels] == [
        {topics.by_group},
        {topics.by_customer},
        {topics.orders},
    ]
    assert levels[1].writes == {topics.customer_totals, topics.by_group}
    assert levels[1].changelogs == {topics.totals: {topics.by_customer}}


def test_two_branches_of_one_level() -> None:
    found = levels_of(
        application(
            TWO_BRANCHES,
            [("a", "r"), ("b", "r"), ("r", "out")],
        )
    )
    assert not isinstance(found, NoOrder)
    assert [level.reads for level in found] == [{"r"}, {"a", "b"}]


def test_writers_of_one_topic_are_moved_to_one_level() -> None:
    found = levels_of(
        application(
            {**TWO_BRANCHES, "both": ({OUT}, ())},
            [("a", "r"), ("a", "both"), ("b", "both"), ("r", "out")],
        )
    )
    assert not isinstance(found, NoOrder)
    assert [level.reads for level in found] == [{"r"}, {"a", "b"}]


def test_a_topic_that_two_levels_write_has_no_order() -> None:
    assert "two levels write out" in reason(
        application(
            {"a": ({IN}, (0,)), "r": ({REPARTITION}, (1,)), "out": ({OUT}, ())},
            [("a", "r"), ("a", "out"), ("r", "out")],
        )
    )


def test_a_cycle_of_sub_topologies_has_no_order() -> None:
    """As a foreign-key join makes it: no topic leads back to itself."""
    assert "(a cycle)" in reason(
        application(
            {
                "a": ({IN}, (0,)),
                "asked": ({REPARTITION}, (1,)),
                "answered": ({REPARTITION}, (0,)),
                "out": ({OUT}, ()),
            },
            [("a", "asked"), ("asked", "answered"), ("answered", "out")],
        )
    )


def test_an_omitted_edge_has_no_order() -> None:
    assert "writes back to a" in reason(
        application({"a": ({IN, OUT}, (0,))}, [], omitted=[("a", "a")])
    )


def test_unknown_readers_and_writers_have_no_order() -> None:
    assert "reads a is unknown" in reason(application({"a": ({IN}, ())}, []))
    assert "writes out is unknown" in reason(
        application({"a": ({IN}, (0,)), "out": ({OUT}, ())}, [])
    )
