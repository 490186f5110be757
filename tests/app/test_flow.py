import graphlib
import re
from collections.abc import Callable, Iterable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kstreams_assets.app.declarations import ApplicationDraft, Declarations, StoreDeclaration
from kstreams_assets.app.flow import without_cycles
from kstreams_assets.app.model import StreamsApplication, TopicEdge, TopicRole
from kstreams_assets.app.roles import application_from_topology
from kstreams_assets.app.topology import Processor, Sink, Source, SubTopology, Topology
from tests.app.generated import topologies

Topologies = Callable[[str], Topology]

COUNT = "app-KSTREAM-AGGREGATE-STATE-STORE-0000000002"
SESSIONS = "app-KSTREAM-AGGREGATE-STATE-STORE-0000000005-changelog"
LEFT = "app-left-STATE-STORE-0000000000-changelog"
RIGHT = "app-right-STATE-STORE-0000000003-changelog"
USERS = "app-users-STATE-STORE-0000000000-changelog"
CLICKS = "app-clicks-per-user-changelog"
ORDERS = "app-orders-STATE-STORE-0000000000-changelog"
PRODUCTS = "app-products-STATE-STORE-0000000003-changelog"
FK = "app-KTABLE-FK-JOIN-SUBSCRIPTION"
THIS, OTHER, SHARED = (
    f"app-match-outer-{side}-join-store-changelog" for side in ("this", "other", "shared")
)
THIS_12 = "app-KSTREAM-JOINTHIS-0000000012-store-changelog"
OTHER_13 = "app-KSTREAM-JOINOTHER-0000000013-store-changelog"

STREAM_TABLE_JOIN = {
    ("clicks", "user-clicks"),  # the join reads the table, it does not write its store
    ("clicks", CLICKS),
    ("users", USERS),
    (USERS, "user-clicks"),
    (USERS, CLICKS),
    (USERS, "click-counts"),
    (CLICKS, "click-counts"),
}

EDGES = {
    "filter": {("in", "out")},
    "repartitioned_count": {
        ("in", f"{COUNT}-repartition"),
        (f"{COUNT}-repartition", f"{COUNT}-changelog"),
        (f"{COUNT}-changelog", "counts"),
    },
    "global_table_session": {("clicks", SESSIONS), (SESSIONS, "session-counts")},
    "table_join": {("left", LEFT), ("right", RIGHT), (LEFT, "joined"), (RIGHT, "joined")},
    "materialised_table_join": {
        ("left", LEFT),
        ("right", RIGHT),
        *(
            (source, f"app-{s}-changelog")
            for source in ("left", "right")
            for s in ("pairs", "upper")
        ),
        *((log, f"app-{s}-changelog") for log in (LEFT, RIGHT) for s in ("pairs", "upper")),
        ("app-pairs-changelog", "app-upper-changelog"),
        *((log, "joined") for log in (LEFT, RIGHT, "app-pairs-changelog", "app-upper-changelog")),
    },
    "stream_table_join": STREAM_TABLE_JOIN,
    "stream_table_join_named": STREAM_TABLE_JOIN,
    "stream_joins": {
        ("ads", THIS),
        ("clicks", OTHER),
        *((source, SHARED) for source in ("ads", "clicks", THIS, OTHER)),
        *((log, "matches") for log in (THIS, OTHER, SHARED)),
        ("bids", THIS_12),
        ("asks", OTHER_13),
        (THIS_12, "deals"),
        (OTHER_13, "deals"),
    },
    "foreign_key_join": {
        ("orders", ORDERS),
        ("products", PRODUCTS),
        (ORDERS, f"{FK}-REGISTRATION-0000000006-topic"),
        (
            f"{FK}-REGISTRATION-0000000006-topic",
            f"{FK}-STATE-STORE-0000000010-changelog",
        ),
        (f"{FK}-STATE-STORE-0000000010-changelog", f"{FK}-RESPONSE-0000000014-topic"),
        (PRODUCTS, f"{FK}-RESPONSE-0000000014-topic"),
        (f"{FK}-RESPONSE-0000000014-topic", "enriched-orders"),
        (ORDERS, "enriched-orders"),
    },
    "foreign_key_join_named": {
        ("orders", ORDERS),
        ("products", PRODUCTS),
        (ORDERS, "app-enrich-subscription-registration-topic"),
        (
            "app-enrich-subscription-registration-topic",
            "app-enrich-subscription-store-changelog",
        ),
        ("app-enrich-subscription-store-changelog", "app-enrich-subscription-response-topic"),
        (PRODUCTS, "app-enrich-subscription-response-topic"),
        ("app-enrich-subscription-response-topic", "app-enriched-changelog"),
        (ORDERS, "app-enriched-changelog"),
        (ORDERS, "enriched-orders"),
        ("app-enriched-changelog", "enriched-orders"),
    },
    "suppressed_count": {
        ("in", "app-per-minute-repartition"),
        ("app-per-minute-repartition", "app-per-minute-changelog"),
        ("app-per-minute-repartition", "app-final-store-changelog"),
        ("app-per-minute-changelog", "app-final-store-changelog"),
        ("app-per-minute-changelog", "final-counts"),
        ("app-final-store-changelog", "final-counts"),
    },
    "intermediate_topic": {
        ("raw", "clean"),
        ("clean", "app-by-value-repartition"),
        ("app-by-value-repartition", "app-totals-changelog"),
        ("app-totals-changelog", "totals-out"),
    },
    "pattern_and_extractor": set(),
}


def _edges(app: StreamsApplication) -> set[tuple[str, str]]:
    return {(edge.source, edge.target) for edge in app.edges}


@pytest.mark.parametrize("name", EDGES)
def test_edges_of_real_topologies(name: str, topology: Topologies) -> None:
    app = application_from_topology("app", topology(name))
    assert _edges(app) == EDGES[name]
    assert list(app.edges) == sorted(app.edges, key=lambda edge: (edge.source, edge.target))


def test_source_topic_as_changelog_leads_to_what_is_downstream(topology: Topologies) -> None:
    declared = Declarations(stores={LEFT[4:-10]: StoreDeclaration(source_topic="left")})
    app = application_from_topology("app", topology("table_join"), declarations=declared)
    assert _edges(app) == {("left", "joined"), ("right", RIGHT), (RIGHT, "joined")}


def test_a_store_without_changelog_is_passed_through(topology: Topologies) -> None:
    declared = Declarations(stores={COUNT[4:]: StoreDeclaration(logging_disabled=True)})
    app = application_from_topology("app", topology("repartitioned_count"), declarations=declared)
    assert _edges(app) == {("in", f"{COUNT}-repartition"), (f"{COUNT}-repartition", "counts")}


def test_a_topic_left_out_takes_its_edges_along(topology: Topologies) -> None:
    declared = Declarations(not_mine=frozenset({"raw"}))
    app = application_from_topology("app", topology("intermediate_topic"), declarations=declared)
    assert _edges(app) == EDGES["intermediate_topic"] - {("raw", "clean")}


def test_expanded_pattern_has_edges(topology: Topologies) -> None:
    cluster = {"a": 1, "b": 1, "c7": 1, "d": 1, "fx-rates": 1, "app-shared-changelog": 1}
    app = application_from_topology("app", topology("processor_api"), cluster_topics=cluster)
    assert _edges(app) == {
        *((name, "app-shared-changelog") for name in ("a", "b", "c7")),
        ("app-shared-changelog", "d"),
    }
    told = [finding for finding in app.findings if finding.subject == "shared"]
    assert "does not say which of them write it" in told[0].found


def test_user_code_in_a_row_that_shares_stores_gives_them_no_direction() -> None:
    block = SubTopology(
        0,
        False,
        (
            Source("read", ("a",), None, ("first",)),
            Processor("first", ("s", "t"), ("second",), ("read",)),
            Processor("second", ("s", "t"), ("write",), ("first",)),
            Sink("write", "b", None, ("second",)),
        ),
    )
    app = application_from_topology("app", Topology((block,)))
    logs = ("app-s-changelog", "app-t-changelog")
    assert _edges(app) == {*(("a", log) for log in logs), *((log, "b") for log in logs)}
    assert not any("writes back" in finding.found for finding in app.findings)


def test_own_input_is_written_without_a_cycle(topology: Topologies) -> None:
    app = application_from_topology("app", topology("writes_its_own_input"))
    assert _edges(app) == {
        ("jobs", "app-attempts-changelog"),
        ("retries", "app-attempts-changelog"),
        ("app-attempts-changelog", "done"),
    }
    assert {finding.subject for finding in app.findings} == {"retries", "poll"}
    assert all("writes back" in finding.found for finding in app.findings)


def test_of_two_inputs_that_feed_each_other_the_first_stays_upstream() -> None:
    draft = ApplicationDraft("app", Declarations())
    for at, name in enumerate(("z-first", "a-second")):
        draft.add_topic(name, TopicRole.INPUT, subtopology=at)
        draft.add_topic(name, TopicRole.OUTPUT)
    both = [TopicEdge("z-first", "a-second"), TopicEdge("a-second", "z-first")]
    assert without_cycles(draft, both) == {TopicEdge("z-first", "a-second")}


@given(topologies(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_edges_of_any_topology(topology: Topology, with_cluster: bool) -> None:
    plain = application_from_topology("app", topology)
    app = plain
    if with_cluster:  # every second topic exists, so that stores without changelogs occur
        cluster = {topic.name: 1 for topic in plain.topics[::2]}
        app = application_from_topology("app", topology, cluster_topics=cluster)
    edges = _edges(app)
    names = {topic.name for topic in app.topics}
    assert len(edges) == len(app.edges)
    assert all(source != target for source, target in edges)
    assert {name for edge in edges for name in edge} <= names
    graphlib.TopologicalSorter(_by_target(edges)).prepare()  # raises CycleError on a cycle
    data = _data_graph(topology, app)
    for source, target in edges:
        assert ("topic", target) in _reach(data, ("topic", source))
    if not any("writes back" in finding.found for finding in app.findings):
        _assert_complete(topology, app, edges)


def _by_target(edges: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    sources: dict[str, set[str]] = {}
    for source, target in edges:
        sources.setdefault(target, set()).add(source)
    return sources


def _on_cluster(topic: str, app: StreamsApplication) -> str:
    """Internal topics carry the prefix; a name of the text is one or the other."""
    prefixes = [f"app-{topic}", f"app-billing-{topic}", f"app-a: b-{topic}"]
    internal = {t.name for t in app.with_role(TopicRole.REPARTITION)}
    return next((name for name in prefixes if name in internal), topic)


def _data_graph(topology: Topology, app: StreamsApplication) -> Mapping[object, set[object]]:
    """Written apart from the code under test: topics, nodes and stores, linked where data goes."""
    graph: dict[object, set[object]] = {}

    def link(start: object, end: object) -> None:
        graph.setdefault(start, set()).add(end)

    changelogs = {store.name: store.changelog for store in app.stores if not store.is_global}
    for block in topology.subtopologies:
        for node in block.nodes:
            here = ("node", block.id, node.name)
            for successor in node.successors:
                link(here, ("node", block.id, successor))
            if isinstance(node, Source):
                for topic in node.topics:
                    link(("topic", _on_cluster(topic, app)), here)
                for topic in app.topics:
                    if node.pattern is not None and re.fullmatch(node.pattern, topic.name):
                        link(("topic", topic.name), here)
            if isinstance(node, Processor):
                for store in node.stores:
                    link(here, ("topic", changelogs.get(store)))
                    link(("topic", changelogs.get(store)), here)
            if isinstance(node, Sink) and node.topic is not None:
                link(here, ("topic", _on_cluster(node.topic, app)))
    return graph


def _reach(graph: Mapping[object, set[object]], start: object) -> set[object]:
    seen: set[object] = set()
    waiting = [start]
    while waiting:
        for end in graph.get(waiting.pop(), ()):
            if end not in seen:
                seen.add(end)
                waiting.append(end)
    return seen


def _assert_complete(
    topology: Topology, app: StreamsApplication, edges: set[tuple[str, str]]
) -> None:
    """What is written downstream of a source is reached from the topics that the source reads."""
    graph: dict[object, set[object]] = {}
    for source, target in edges:
        graph.setdefault(source, set()).add(target)
    for block in topology.subtopologies:
        inside: dict[object, set[object]] = {n.name: {*n.successors} for n in block.nodes}
        for source in block.sources:
            below = _reach(inside, source.name)
            written = {
                _on_cluster(sink.topic, app)
                for sink in block.sinks
                if sink.topic is not None and sink.name in below
            }
            for topic in source.topics:
                name = _on_cluster(topic, app)
                assert written - {name} <= _reach(graph, name)
