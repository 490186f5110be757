from collections.abc import Callable

import pytest

from kstreams_assets.app.declarations import Declarations, StoreDeclaration
from kstreams_assets.app.model import AppTopic, Store, StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.app.roles import application_from_topology
from kstreams_assets.app.topology import Topology, parse_topology
from kstreams_assets.errors import ConfigurationError

Topologies = Callable[[str], Topology]

IN, GLOBAL, REP, LOG, OUT = (
    TopicRole.INPUT,
    TopicRole.GLOBAL,
    TopicRole.REPARTITION,
    TopicRole.CHANGELOG,
    TopicRole.OUTPUT,
)
COUNT = "KSTREAM-AGGREGATE-STATE-STORE-0000000002"
SESSIONS = "KSTREAM-AGGREGATE-STATE-STORE-0000000005"
LEFT, RIGHT = "left-STATE-STORE-0000000000", "right-STATE-STORE-0000000003"


def _roles(app: StreamsApplication) -> dict[str, set[TopicRole]]:
    return {topic.name: set(topic.roles) for topic in app.topics}


def _findings(app: StreamsApplication) -> dict[str, str]:
    return {finding.subject: finding.found for finding in app.findings}


def _topic(
    name: str,
    *roles: TopicRole,
    stores: tuple[str, ...] = (),
    subtopologies: tuple[int, ...] = (),
) -> AppTopic:
    return AppTopic(name, TopicRoles(roles), stores, subtopologies)


# --- the reference texts, whole; exact classification gives the same as names alone ---------------

REFERENCE = {
    "filter": ((_topic("in", IN, subtopologies=(0,)), _topic("out", OUT)), ()),
    "repartitioned_count": (
        (
            _topic(f"app-{COUNT}-changelog", LOG, stores=(COUNT,), subtopologies=(1,)),
            _topic(f"app-{COUNT}-repartition", REP, subtopologies=(1,)),
            _topic("counts", OUT),
            _topic("in", IN, subtopologies=(0,)),
        ),
        (Store(COUNT, f"app-{COUNT}-changelog"),),
    ),
    "global_table_session": (
        (
            _topic(f"app-{SESSIONS}-changelog", LOG, stores=(SESSIONS,), subtopologies=(1,)),
            _topic("clicks", IN, subtopologies=(1,)),
            _topic("session-counts", OUT),
            _topic("users", GLOBAL, stores=("users-STATE-STORE-0000000000",), subtopologies=(0,)),
        ),
        (
            Store(SESSIONS, f"app-{SESSIONS}-changelog"),
            Store("users-STATE-STORE-0000000000", "users", is_global=True),
        ),
    ),
    "table_join": (
        (
            _topic(f"app-{LEFT}-changelog", LOG, stores=(LEFT,), subtopologies=(0,)),
            _topic(f"app-{RIGHT}-changelog", LOG, stores=(RIGHT,), subtopologies=(0,)),
            _topic("joined", OUT),
            _topic("left", IN, subtopologies=(0,)),
            _topic("right", IN, subtopologies=(0,)),
        ),
        (Store(LEFT, f"app-{LEFT}-changelog"), Store(RIGHT, f"app-{RIGHT}-changelog")),
    ),
}


@pytest.mark.parametrize("name", REFERENCE)
@pytest.mark.parametrize("with_cluster", [True, False])
def test_reference_texts(name: str, with_cluster: bool, topology: Topologies) -> None:
    topics, stores = REFERENCE[name]
    cluster = dict.fromkeys([topic.name for topic in topics] + ["unrelated"], 3)
    app = application_from_topology(
        "app", topology(name), cluster_topics=cluster if with_cluster else None
    )
    assert app.topics == topics
    assert app.stores == stores
    assert app.findings == ()


@pytest.mark.parametrize(
    ("name", "subscription_topics"),
    [
        (
            "foreign_key_join",
            {
                "app-KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000006-topic",
                "app-KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-0000000014-topic",
            },
        ),
        (
            "foreign_key_join_named",
            {
                "app-enrich-subscription-registration-topic",
                "app-enrich-subscription-response-topic",
            },
        ),
    ],
)
def test_foreign_key_subscription_topics_are_repartition_topics(
    name: str, subscription_topics: set[str], topology: Topologies
) -> None:
    by_name = application_from_topology("app", topology(name))
    assert {topic.name for topic in by_name.with_role(REP)} == subscription_topics
    assert {topic.name for topic in by_name.with_role(IN)} == {"orders", "products"}
    cluster = {topic.name: 1 for topic in by_name.topics}
    assert application_from_topology("app", topology(name), cluster_topics=cluster) == by_name


# --- internal or intermediate --------------------------------------------------------------------


def test_read_and_written_is_internal_only_if_the_prefixed_topic_exists() -> None:
    chain = parse_topology(CHAIN)
    cluster = {"a": 1, "app-mid": 1, "mid": 1, "b": 1}
    internal = application_from_topology("app", chain, cluster_topics=cluster)
    assert _roles(internal) == {"a": {IN}, "app-mid": {REP}, "b": {OUT}}
    del cluster["app-mid"]
    external = application_from_topology("app", chain, cluster_topics=cluster)
    assert _roles(external) == {"a": {IN}, "mid": {IN, OUT}, "b": {OUT}}
    assert _roles(application_from_topology("app", chain)) == _roles(external)


def test_user_topic_named_like_a_repartition_topic() -> None:
    chain = parse_topology(CHAIN.replace("mid", "mid-repartition"))
    cluster = {"a": 1, "mid-repartition": 1, "b": 1}
    on_cluster = application_from_topology("app", chain, cluster_topics=cluster)
    assert _roles(on_cluster)["mid-repartition"] == {IN, OUT}
    # By name alone it is internal; what the user declares wins.
    assert "app-mid-repartition" in _roles(application_from_topology("app", chain))
    declared = Declarations(topic_roles={"mid-repartition": TopicRoles({IN, OUT})})
    app = application_from_topology("app", chain, declarations=declared)
    assert _roles(app)["mid-repartition"] == {IN, OUT}


def test_internal_topics_of_an_application_that_never_ran_go_by_name(topology: Topologies) -> None:
    app = application_from_topology(
        "app", topology("repartitioned_count"), cluster_topics={"in": 2, "counts": 2}
    )
    assert _roles(app)[f"app-{COUNT}-repartition"] == {REP}
    assert "not on the cluster" in _findings(app)[f"app-{COUNT}-repartition"]


def test_named_topology_is_part_of_the_prefix() -> None:
    chain = parse_topology(CHAIN.replace("Topologies:", "Topology: billing:"))
    cluster = {"a": 1, "app-billing-mid": 1, "b": 1}
    app = application_from_topology("app", chain, cluster_topics=cluster)
    assert _roles(app) == {"a": {IN}, "app-billing-mid": {REP}, "b": {OUT}}


# --- stores --------------------------------------------------------------------------------------


def test_source_topic_as_changelog(topology: Topologies) -> None:
    """Optimised topologies print the same text; the changelog topics are missing."""
    cluster = {"left": 2, "right": 2, "joined": 2, f"app-{RIGHT}-changelog": 2}
    app = application_from_topology("app", topology("table_join"), cluster_topics=cluster)
    assert app.topic("left") == _topic("left", IN, LOG, stores=(LEFT,), subtopologies=(0,))
    assert app.topic("right").roles == {IN}
    assert app.stores == (Store(LEFT, "left"), Store(RIGHT, f"app-{RIGHT}-changelog"))
    assert list(_findings(app)) == [LEFT]
    assert "needs confirmation" in _findings(app)[LEFT]


def test_a_changelog_that_the_user_may_not_describe_is_not_taken_for_absent(
    topology: Topologies,
) -> None:
    """Else the table's source would be saved as its changelog, and points be called exact."""
    hidden = f"app-{LEFT}-changelog"
    cluster = {"left": 2, "right": 2, "joined": 2, f"app-{RIGHT}-changelog": 2}
    app = application_from_topology(
        "app", topology("table_join"), cluster_topics=cluster, hidden_topics={hidden}
    )
    assert app.topic("left").roles == {IN}
    assert app.topic(hidden).roles == {LOG}
    assert Store(LEFT, hidden) in app.stores
    assert "not visible to this user" in _findings(app)[hidden]


def test_what_the_text_does_not_name_can_be_denied_without_a_cluster(topology: Topologies) -> None:
    """The changelog of an optimised table, one that is left over, a topic no longer read."""
    denied = frozenset({f"app-{LEFT}-changelog", "app-old-changelog", "formerly-read"})
    said = Declarations(not_mine=denied)
    app = application_from_topology("app", topology("table_join"), declarations=said)
    assert app.topic("left").roles == {IN, LOG}
    assert not denied & {topic.name for topic in app.topics}
    assert app.undeclared_internal([*denied, "app-new-changelog"]) == {"app-new-changelog"}


@pytest.mark.parametrize("text", ["foreign_key_join", "foreign_key_join_named"])
def test_source_topics_of_a_foreign_key_join_as_changelogs(topology: Topologies, text: str) -> None:
    """The answers of the join look the left table up; they are no source of it."""
    joined = topology(text)
    orders, products = "orders-STATE-STORE-0000000000", "products-STATE-STORE-0000000003"
    stores = {orders: "orders", products: "products"}
    cluster = {topic.name: 1 for topic in application_from_topology("app", joined).topics}
    for store in stores:
        del cluster[f"app-{store}-changelog"]
    app = application_from_topology("app", joined, cluster_topics=cluster)
    assert {s.name: s.changelog for s in app.stores if s.name in stores} == stores
    both = {topic.name for topic in app.topics if topic.roles == {IN, LOG}}
    assert both == {"orders", "products"}


def test_missing_changelog_of_an_aggregate_means_logging_disabled(topology: Topologies) -> None:
    """Behind a repartition topic, and straight behind a source: no table reads the topic."""
    for name, store, cluster in (
        ("repartitioned_count", COUNT, {"in": 1, f"app-{COUNT}-repartition": 1, "counts": 1}),
        ("writes_its_own_input", "attempts", {"jobs": 1, "retries": 1, "done": 1, "poll": 1}),
    ):
        app = application_from_topology("app", topology(name), cluster_topics=cluster)
        assert app.stores == (Store(store, None),)
        assert app.with_role(LOG) == ()
        assert "logging of the store is assumed to be disabled" in _findings(app)[store]
        assert "needs confirmation" in _findings(app)[store]


def test_a_repartition_topic_never_serves_as_changelog(topology: Topologies) -> None:
    """Also not behind an operator with a name, which could be a table's."""
    named = topology("foreign_key_join_named")
    cluster = {topic.name: 1 for topic in application_from_topology("app", named).topics}
    del cluster["app-enrich-subscription-store-changelog"]
    app = application_from_topology("app", named, cluster_topics=cluster)
    assert Store("enrich-subscription-store", None) in app.stores


def test_only_a_table_has_its_source_as_changelog() -> None:
    for operator, changelog in (
        ("KTABLE-SOURCE-0000000001", "a"),
        ("my-table", None),  # its source would be my-table-source
        ("KSTREAM-REDUCE-0000000001", None),
        ("COGROUPKSTREAM-AGGREGATE-0000000001", None),
    ):
        text = CHAIN.replace("p1", operator).replace("(stores: [])", "(stores: [s])")
        app = application_from_topology(
            "app", parse_topology(text), cluster_topics={"a": 1, "mid": 1, "b": 1}
        )
        assert app.stores == (Store("s", changelog),)


def test_declared_stores_win_without_a_finding(topology: Topologies) -> None:
    declared = Declarations(
        stores={
            LEFT: StoreDeclaration(source_topic="left"),
            RIGHT: StoreDeclaration(logging_disabled=True),
        }
    )
    cluster = {"left": 1, "right": 1, "joined": 1}
    for topics in (cluster, None):
        app = application_from_topology(
            "app", topology("table_join"), declarations=declared, cluster_topics=topics
        )
        assert app.stores == (Store(LEFT, "left"), Store(RIGHT, None))
        assert _roles(app) == {"left": {IN, LOG}, "right": {IN}, "joined": {OUT}}
        assert app.findings == ()


def test_declared_changelog_name(topology: Topologies) -> None:
    declared = Declarations(stores={COUNT: StoreDeclaration(changelog="ksql-count-log")})
    app = application_from_topology("app", topology("repartitioned_count"), declarations=declared)
    assert app.topic("ksql-count-log").roles == {LOG}
    assert app.stores == (Store(COUNT, "ksql-count-log"),)


def test_odd_number_of_partitions_is_told(topology: Topologies) -> None:
    cluster = {"in": 4, f"app-{COUNT}-repartition": 4, f"app-{COUNT}-changelog": 3, "counts": 1}
    app = application_from_topology("app", topology("repartitioned_count"), cluster_topics=cluster)
    assert list(_findings(app)) == [f"app-{COUNT}-changelog"]
    assert "3 partition(s)" in _findings(app)[f"app-{COUNT}-changelog"]


# --- patterns and extractors ---------------------------------------------------------------------

PATTERN_CLUSTER = {
    "eu-orders.food": 2,
    "us-orders.books-v2": 2,
    "eu-orders.Food": 2,
    "my-eu-orders.food": 2,
    "late-orders": 2,
    "orders.replayed": 2,
}


def test_pattern_is_expanded_against_the_cluster(topology: Topologies) -> None:
    app = application_from_topology(
        "app", topology("pattern_and_extractor"), cluster_topics=PATTERN_CLUSTER
    )
    names = {"eu-orders.food", "us-orders.books-v2", "late-orders", "orders.replayed"}
    assert _roles(app) == {name: {IN} for name in names}
    assert app.topic("eu-orders.food").subtopologies == (0,)
    assert [f for f in _findings(app).values() if "at run time" in f]


def test_pattern_never_takes_internal_topics_of_known_applications() -> None:
    reads_all = parse_topology(CHAIN.replace("[a]", ".*"))
    cluster = {
        "a": 1,
        "mid": 1,
        "b": 1,
        "app-x-changelog": 1,
        "other-y-repartition": 1,
        "unknown-y-repartition": 1,
        "__consumer_offsets": 50,
    }
    app = application_from_topology(
        "app", reads_all, cluster_topics=cluster, other_application_ids=["other"]
    )
    inputs = {topic.name for topic in app.with_role(IN)}
    assert inputs == {"a", "b", "mid", "unknown-y-repartition"}


def test_pattern_without_a_cluster_reads_declared_inputs(topology: Topologies) -> None:
    declared = Declarations(
        inputs=frozenset({"eu-orders.food", "side-channel"}), outputs=frozenset({"audit-eu"})
    )
    app = application_from_topology("app", topology("pattern_and_extractor"), declarations=declared)
    assert app.topic("eu-orders.food").subtopologies == (0,)
    assert app.topic("side-channel") == _topic("side-channel", IN)
    assert app.topic("audit-eu") == _topic("audit-eu", OUT)
    assert [f.subject for f in app.findings] == ["KSTREAM-SOURCE-0000000000"]


def test_declared_topics_that_a_pattern_may_match_need_no_cluster(topology: Topologies) -> None:
    text = topology("pattern_and_extractor")
    for declared in (
        Declarations(not_mine=frozenset({"eu-orders.food"})),
        Declarations(topic_roles={"eu-orders.food": TopicRoles({IN})}),
    ):
        app = application_from_topology("app", text, declarations=declared)
        assert ("eu-orders.food" in _roles(app)) is not bool(declared.not_mine)
    other = Declarations(topic_roles={"de-orders.food": TopicRoles({IN})})
    with pytest.raises(ConfigurationError):
        application_from_topology("app", text, declarations=other)


def test_pattern_that_only_java_understands_is_told() -> None:
    app = application_from_topology(
        "app",
        parse_topology(CHAIN.replace("[a]", r"\p{Alpha}+")),
        cluster_topics={"mid": 1, "b": 1},
    )
    assert "not supported here" in _findings(app)["s1"]


def test_pattern_that_matches_nothing_is_told() -> None:
    app = application_from_topology(
        "app", parse_topology(CHAIN.replace("[a]", "x-.*")), cluster_topics={"mid": 1, "b": 1}
    )
    assert "matches no topic" in _findings(app)["s1"]


# --- two applications ----------------------------------------------------------------------------


def test_orders_and_orders_eu_on_one_cluster(topology: Topologies) -> None:
    count = topology("repartitioned_count")
    both = ("orders", "orders-eu")
    cluster = {"in": 1, "counts": 1} | {
        f"{id_}-{COUNT}-{kind}": 1 for id_ in both for kind in ("changelog", "repartition")
    }
    for id_ in both:
        app = application_from_topology(
            id_, count, cluster_topics=cluster, other_application_ids=set(both) - {id_}
        )
        assert set(_roles(app)) == {
            "in",
            "counts",
            f"{id_}-{COUNT}-changelog",
            f"{id_}-{COUNT}-repartition",
        }
        assert app.findings == ()


def test_a_name_that_fits_two_applications_needs_confirmation() -> None:
    text = CHAIN.replace("(stores: [])", "(stores: [eu-x])")
    cluster = {"a": 1, "mid": 1, "b": 1, "orders-eu-x-changelog": 1}
    app = application_from_topology(
        "orders",
        parse_topology(text),
        cluster_topics=cluster,
        other_application_ids=["orders-eu"],
    )
    assert app.topic("orders-eu-x-changelog").roles == {LOG}
    assert "needs confirmation" in _findings(app)["orders-eu-x-changelog"]
    leave = Declarations(
        stores={"eu-x": StoreDeclaration(logging_disabled=True)},
        not_mine=frozenset({"orders-eu-x-changelog"}),
    )
    without = application_from_topology(
        "orders", parse_topology(text), cluster_topics=cluster, declarations=leave
    )
    assert "orders-eu-x-changelog" not in _roles(without)
    assert without.stores == (Store("eu-x", None),)


def test_internal_topic_unknown_to_the_text_is_told(topology: Topologies) -> None:
    cluster = {"in": 1, "out": 1, "app-old-changelog": 1, "app-eu-x-changelog": 1}
    app = application_from_topology(
        "app", topology("filter"), cluster_topics=cluster, other_application_ids=["app-eu"]
    )
    assert set(_roles(app)) == {"in", "out"}
    assert list(_findings(app)) == ["app-old-changelog"]


# --- declarations --------------------------------------------------------------------------------


def test_declared_roles_and_additions_win(topology: Topologies) -> None:
    cluster = {"in": 1, "out": 1, "dlq": 1, "lookup": 1}
    declared = Declarations(
        topic_roles={"in": TopicRoles({GLOBAL})},
        inputs=frozenset({"lookup"}),
        outputs=frozenset({"dlq"}),
        not_mine=frozenset({"out"}),
    )
    app = application_from_topology(
        "app", topology("filter"), declarations=declared, cluster_topics=cluster
    )
    assert _roles(app) == {"in": {GLOBAL}, "lookup": {IN}, "dlq": {OUT}}
    assert app.edges == ()


@pytest.mark.parametrize(
    ("declared", "name"),
    [
        (Declarations(topic_roles={"inn": TopicRoles({IN})}), "inn"),
        (Declarations(not_mine=frozenset({"ou"})), "ou"),
        (Declarations(stores={"stor": StoreDeclaration(logging_disabled=True)}), "stor"),
        (Declarations(stores={"store": StoreDeclaration(source_topic="gone")}), "gone"),
        (Declarations(inputs=frozenset({"gone"})), "gone"),
        (Declarations(outputs=frozenset({"gone"})), "gone"),
        (Declarations(stores={"store": StoreDeclaration(changelog="gone")}), "gone"),
    ],
)
def test_a_declared_name_that_exists_nowhere_is_an_error(declared: Declarations, name: str) -> None:
    text = CHAIN.replace("(stores: [])", "(stores: [store])")
    cluster = {"a": 1, "mid": 1, "b": 1, "app-store-changelog": 1}
    with pytest.raises(ConfigurationError, match=repr(name)):
        application_from_topology(
            "app", parse_topology(text), declarations=declared, cluster_topics=cluster
        )
    only_on_a_cluster = bool(
        declared.inputs
        or declared.not_mine
        or declared.outputs
        or any(store.changelog for store in declared.stores.values())
    )
    if only_on_a_cluster:  # nothing to look additions up in
        application_from_topology("app", parse_topology(text), declarations=declared)
    else:
        with pytest.raises(ConfigurationError, match=repr(name)):
            application_from_topology("app", parse_topology(text), declarations=declared)


CHAIN = """Topologies:
   Sub-topology: 0
    Source: s1 (topics: [a])
      --> p1
    Processor: p1 (stores: [])
      --> w1
      <-- s1
    Sink: w1 (topic: mid)
      <-- p1

  Sub-topology: 1
    Source: s2 (topics: [mid])
      --> w2
    Sink: w2 (topic: b)
      <-- s2

"""
