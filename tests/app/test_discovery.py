from dataclasses import replace

import pytest

from kstreams_assets.app.declarations import Declarations, StoreDeclaration
from kstreams_assets.app.discovery import ClusterFacts, StreamsGroupSubtopology
from kstreams_assets.app.model import AppTopic, Store, StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.app.roles import application_from_cluster, application_from_declarations
from kstreams_assets.errors import ConfigurationError

IN, GLOBAL, REP, LOG, OUT = (
    TopicRole.INPUT,
    TopicRole.GLOBAL,
    TopicRole.REPARTITION,
    TopicRole.CHANGELOG,
    TopicRole.OUTPUT,
)

TOPICS = {
    "orders-in": 4,
    "customers": 1,
    "totals": 4,
    "orders-totals-changelog": 4,
    "orders-totals-repartition": 4,
    "orders-eu-totals-changelog": 4,
    "orders-eu-totals-repartition": 4,
    "orders-audit": 1,
    "__consumer_offsets": 50,
}
FACTS = ClusterFacts(
    topics=TOPICS,
    group_topics=frozenset({"orders-in", "orders-totals-repartition"}),
    transactional_topics=frozenset(
        {"totals", "orders-totals-changelog", "orders-totals-repartition", "__consumer_offsets"}
    ),
    other_application_ids=frozenset({"orders-eu"}),
)


def _roles(app: StreamsApplication) -> dict[str, set[TopicRole]]:
    return {topic.name: set(topic.roles) for topic in app.topics}


def _edges(app: StreamsApplication) -> set[tuple[str, str]]:
    return {(edge.source, edge.target) for edge in app.edges}


def _subjects(app: StreamsApplication) -> list[str]:
    return [finding.subject for finding in app.findings]


def test_roles_by_names_offsets_and_transactions() -> None:
    app = application_from_cluster("orders", FACTS)
    assert _roles(app) == {
        "orders-in": {IN},
        "orders-totals-changelog": {LOG},
        "orders-totals-repartition": {REP},
        "totals": {OUT},
    }
    assert app.stores == (Store("totals", "orders-totals-changelog"),)
    assert app.topic("orders-totals-changelog").stores == ("totals",)
    assert _edges(app) == {
        ("orders-in", "orders-totals-repartition"),
        ("orders-totals-repartition", "orders-totals-changelog"),
        ("orders-totals-changelog", "totals"),
    }
    general, coarse = app.findings
    assert "global tables" in general.found
    assert "coarse" in coarse.found


def test_an_application_that_has_just_started_shows_its_changelogs_alone() -> None:
    just_started = ClusterFacts(topics={"in": 4, "orders-x-changelog": 4})
    app = application_from_cluster("orders", just_started)
    assert set(_roles(app)) == {"orders-x-changelog"}
    (found,) = [f for f in app.findings if "committed no offsets" in f.found]
    assert "would miss its inputs" in found.found
    assert "again once" in found.action
    later = replace(just_started, group_topics=frozenset({"in"}))
    told = [f.found for f in application_from_cluster("orders", later).findings]
    assert not any("committed no offsets" in statement for statement in told)


def test_a_part_that_has_processed_nothing_yet_is_told() -> None:
    facts = ClusterFacts(
        topics={"in": 1, "orders-x-repartition": 1, "orders-x-changelog": 1},
        group_topics=frozenset({"in"}),
    )
    told = [f.found for f in application_from_cluster("orders", facts).findings]
    assert any("no offset of orders-x-repartition" in statement for statement in told)


def test_orders_and_orders_eu_never_share_a_topic() -> None:
    eu = application_from_cluster(
        "orders-eu",
        ClusterFacts(
            topics=TOPICS,
            group_topics=frozenset({"orders-in"}),
            other_application_ids=frozenset({"orders"}),
        ),
    )
    assert set(_roles(eu)) == {
        "orders-in",
        "orders-eu-totals-changelog",
        "orders-eu-totals-repartition",
    }


def test_odd_partition_count_hints_at_an_unknown_longer_application_id() -> None:
    facts = ClusterFacts(
        topics={"in": 4, "orders-x-changelog": 4, "orders-eu-x-changelog": 3},
        group_topics=frozenset({"in"}),
        transactional_topics=frozenset({"out"}),
    )
    app = application_from_cluster("orders", facts)
    assert "orders-eu-x-changelog" in _subjects(app)
    assert "orders-x-changelog" not in _subjects(app)


def test_another_applications_internal_topic_that_is_read_is_an_input() -> None:
    facts = ClusterFacts(
        topics=TOPICS,
        group_topics=frozenset({"orders-eu-totals-changelog"}),
        other_application_ids=frozenset({"orders-eu"}),
    )
    app = application_from_cluster("orders", facts)
    assert _roles(app)["orders-eu-totals-changelog"] == {IN}


def test_a_changelog_with_committed_offsets_needs_confirmation() -> None:
    facts = ClusterFacts(
        topics={"orders-x-changelog": 1}, group_topics=frozenset({"orders-x-changelog"})
    )
    app = application_from_cluster("orders", facts)
    assert _roles(app) == {"orders-x-changelog": {IN, LOG}}
    told = [f.found for f in app.findings if f.subject == "orders-x-changelog"]
    assert "needs confirmation" in told[0]
    assert app.edges == ()


def test_unknown_outputs_and_vanished_inputs_are_told() -> None:
    facts = ClusterFacts(topics={"in": 1}, group_topics=frozenset({"in", "deleted"}))
    app = application_from_cluster("orders", facts)
    assert _subjects(app) == ["deleted", "orders", "orders"]
    assert "not on the cluster" in app.findings[0].found
    assert "No output topic is known" in app.findings[2].found


def test_intermediate_topic_has_edges_out_of_it_only() -> None:
    facts = ClusterFacts(
        topics={"in": 1, "mid": 1, "out": 1, "orders-x-changelog": 1},
        group_topics=frozenset({"in", "mid"}),
        transactional_topics=frozenset({"mid", "out"}),
    )
    app = application_from_cluster("orders", facts)
    assert _roles(app)["mid"] == {IN, OUT}
    assert _edges(app) == {
        ("in", "orders-x-changelog"),
        ("mid", "orders-x-changelog"),
        ("orders-x-changelog", "out"),
    }
    assert app.findings[-1].found.startswith("The lineage is coarse:")
    assert len(app.findings) == 2


def test_stateless_application() -> None:
    facts = ClusterFacts(
        topics={"in": 1, "out": 1},
        group_topics=frozenset({"in"}),
        transactional_topics=frozenset({"out"}),
    )
    assert _edges(application_from_cluster("orders", facts)) == {("in", "out")}


def test_foreign_key_topics_are_paired_by_name() -> None:
    log, asks, answers = (
        "app-e-subscription-store-changelog",
        "app-e-subscription-registration-topic",
        "app-e-subscription-response-topic",
    )
    facts = ClusterFacts(
        topics=dict.fromkeys(["in", log, asks, answers], 1), group_topics=frozenset({"in"})
    )
    app = application_from_cluster("app", facts)
    assert _roles(app) == {"in": {IN}, log: {LOG}, asks: {REP}, answers: {REP}}
    assert _edges(app) == {("in", asks), (asks, log), (asks, answers)}


def test_declarations_win() -> None:
    declared = Declarations(
        topic_roles={
            "customers": TopicRoles({GLOBAL}),
            "orders-totals-repartition": TopicRoles({OUT}),
        },
        outputs=frozenset({"orders-audit"}),
        not_mine=frozenset({"orders-totals-changelog"}),
        stores={"cache": StoreDeclaration(logging_disabled=True)},
    )
    app = application_from_cluster("orders", FACTS, declarations=declared)
    assert _roles(app) == {
        "customers": {GLOBAL},
        "orders-audit": {OUT},
        "orders-in": {IN},
        "orders-totals-repartition": {OUT},
        "totals": {OUT},
    }
    assert app.stores == (Store("cache", None),)


def test_declared_store_wins_over_its_name() -> None:
    for store, topics in (
        (StoreDeclaration(source_topic="orders-in"), {"orders-in": {IN, LOG}}),
        (StoreDeclaration(logging_disabled=True), {"orders-in": {IN}}),
        (
            StoreDeclaration(changelog="orders-totals-changelog"),
            {"orders-in": {IN}, "orders-totals-changelog": {LOG}},
        ),
    ):
        declared = Declarations(stores={"totals": store})
        app = application_from_cluster("orders", FACTS, declarations=declared)
        found = {name: roles for name, roles in _roles(app).items() if roles & {IN, LOG}}
        assert found == topics
        assert app.stores == (Store("totals", store.changelog or store.source_topic),)


def test_a_declared_topic_must_be_on_the_cluster() -> None:
    with pytest.raises(ConfigurationError, match=r"'total' .*near: totals"):
        application_from_cluster(
            "orders", FACTS, declarations=Declarations(outputs=frozenset({"total"}))
        )


def test_unknown_application_is_an_error() -> None:
    facts = ClusterFacts(topics=TOPICS, other_application_ids=frozenset({"orders", "orders-eu"}))
    with pytest.raises(ConfigurationError, match="'order'"):
        application_from_cluster("order", facts)


# --- streams groups ------------------------------------------------------------------------------

DESCRIBED = ClusterFacts(
    topics=dict.fromkeys(
        [
            "raw",
            "users",
            "out",
            "app-x-repartition",
            "app-x-changelog",
            "app-old-changelog",
        ],
        2,
    ),
    group_topics=frozenset({"raw", "users", "app-x-repartition"}),
    transactional_topics=frozenset({"out", "app-x-changelog"}),
    streams_group=(
        StreamsGroupSubtopology(
            "0", source_topics=("raw",), repartition_sink_topics=("app-x-repartition",)
        ),
        StreamsGroupSubtopology(
            "1",
            source_topics=("users",),
            repartition_source_topics=("app-x-repartition",),
            state_changelog_topics=("app-x-changelog", "users"),
        ),
    ),
)


def test_what_a_streams_group_says_is_authoritative() -> None:
    app = application_from_cluster("app", DESCRIBED)
    assert app.topics == (
        AppTopic("app-x-changelog", TopicRoles({LOG}), ("x",), (1,)),
        AppTopic("app-x-repartition", TopicRoles({REP}), (), (1,)),
        AppTopic("out", TopicRoles({OUT})),
        AppTopic("raw", TopicRoles({IN}), (), (0,)),
        AppTopic("users", TopicRoles({IN, LOG}), (), (1,)),
    )
    assert _edges(app) == {
        ("raw", "app-x-repartition"),
        ("app-x-repartition", "app-x-changelog"),
        ("users", "app-x-changelog"),
        ("app-x-changelog", "out"),
    }
    assert set(_subjects(app)) == {"app-old-changelog", "users", "app"}


def test_streams_group_with_a_foreign_key_join_has_no_cycle() -> None:
    asks, answers = "app-e-subscription-registration-topic", "app-e-subscription-response-topic"
    logs = [f"app-{store}-changelog" for store in ("orders", "products", "e-subscription-store")]
    facts = ClusterFacts(
        topics=dict.fromkeys(["orders", "products", asks, answers, *logs], 1),
        streams_group=(
            StreamsGroupSubtopology("0", ("orders",), (answers,), (asks,), (logs[0],)),
            StreamsGroupSubtopology("1", ("products",), (asks,), (answers,), (logs[1], logs[2])),
        ),
    )
    app = application_from_cluster("app", facts)
    assert (logs[0], asks) in _edges(app)
    assert not [edge for edge in app.edges if edge.source == answers]
    assert not [finding for finding in app.findings if "writes back" in finding.found]


# --- declarations alone --------------------------------------------------------------------------


def test_only_what_is_declared() -> None:
    declared = Declarations(
        topic_roles={
            "customers": TopicRoles({GLOBAL}),
            "orders-totals-changelog": TopicRoles({LOG}),
        },
        stores={
            "rates": StoreDeclaration(source_topic="fx"),
            "cache": StoreDeclaration(logging_disabled=True),
        },
        inputs=frozenset({"in"}),
        outputs=frozenset({"out"}),
    )
    app = application_from_declarations("orders", declared)
    assert _roles(app) == {
        "customers": {GLOBAL},
        "fx": {IN, LOG},
        "in": {IN},
        "orders-totals-changelog": {LOG},
        "out": {OUT},
    }
    assert app.stores == (
        Store("cache", None),
        Store("rates", "fx"),
        Store("totals", "orders-totals-changelog"),
    )
    assert _edges(app) == {
        ("in", "orders-totals-changelog"),
        ("fx", "orders-totals-changelog"),
        ("orders-totals-changelog", "out"),
    }
    assert "coarse" in app.findings[0].found


def test_nothing_declared_is_an_empty_application() -> None:
    assert application_from_declarations("orders", Declarations()).topics == ()
