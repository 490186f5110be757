"""The YAML that `discover` writes gives the application that it decided, without a cluster."""

import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kstreams_assets.app.discovery import ClusterFacts, with_observed
from kstreams_assets.app.model import StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.app.names import changelog_of, owner_of
from kstreams_assets.app.roles import (
    Declarations,
    application_from_cluster,
    application_from_topology,
)
from kstreams_assets.app.topology import Topology, parse_topology
from kstreams_assets.app_file.discovered import (
    document,
    relevant_ids,
    without_guesses,
    without_roles,
    written,
)
from kstreams_assets.app_file.model import ApplicationModel
from kstreams_assets.app_file.read import load_model
from kstreams_assets.settings import ApplicationSettings
from tests.app.generated import render, topologies

TEXTS = sorted((Path(__file__).parent / "topologies").glob("*.txt"))
ATTRIBUTES: Mapping[str, Any] = {
    "application_id": "app",
    "connection": {"bootstrap_servers": "nowhere:1"},
    "warehouse": "/nowhere",
    "windows": {"every": "hour", "start": "2026-11-01"},
}
DEDUP = """Topologies:
   Sub-topology: 0
    Source: read-in (topics: [in])
      --> dedup
    Processor: dedup (stores: [seen])
      --> tally
      <-- read-in
    Processor: tally (stores: [tally])
      --> write-out
      <-- dedup
    Sink: write-out (topic: out)
      <-- tally
"""
READ_ONLY = """Topologies:
   Sub-topology: 0
    Source: read-orders (topics: [orders])
      --> price-it
    Processor: price-it (stores: [prices])
      --> write-priced
      <-- read-orders
    Source: read-prices (topics: [prices])
      --> keep-prices
    Processor: keep-prices (stores: [prices])
      --> none
      <-- read-prices
    Sink: write-priced (topic: priced)
      <-- price-it
"""
TABLE = """Topologies:
   Sub-topology: 0
    Source: users-source (topics: [users])
      --> users
    Processor: users (stores: [by-id])
      --> none
      <-- users-source
"""
BY_PATTERN = """Topologies:
   Sub-topology: 0
    Source: read (topics: shop-[a-z]+-orders)
      --> count
    Source: odd (topics: [a-z&&[^b]]+-feed)
      --> count
    Processor: count (stores: [counts])
      --> write, route
      <-- read, odd
    Sink: write (topic: counts-out)
      <-- count
    Sink: route (extractor class: Route)
      <-- count
"""


def everything(application: StreamsApplication) -> tuple[Any, ...]:
    """All that later commands work with."""
    return (
        application,
        [topic.unconfirmed for topic in application.topics],
        [store.unconfirmed for store in application.stores],
    )


def load(attributes: Mapping[str, Any], text: str | None) -> ApplicationSettings:
    """What a later command gets from the written file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "defs.yaml"
        document = {"type": "x.KafkaStreamsAppComponent", "attributes": dict(attributes)}
        if text is not None:
            document["attributes"]["topology"] = "t.txt"
            (file.parent / "t.txt").write_text(text)
        file.write_text(yaml.safe_dump(document, sort_keys=False))
        return load_model(file).settings(file.parent, file=file.name)


def check(
    decided: StreamsApplication, text: str | None, given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What is loaded is what was decided; returns the attributes."""
    topology = None if text is None else parse_topology(text)
    made = written({**ATTRIBUTES, **(given or {})}, decided, topology)
    assert made.not_held == ()
    model = ApplicationModel.model_validate(made.attributes)
    loaded = model.described(topology)
    assert everything(loaded) == everything(_without_findings(decided, loaded))
    return made.attributes


def _without_findings(decided: StreamsApplication, loaded: StreamsApplication) -> Any:
    return replace(decided, findings=loaded.findings)


def on(
    topology: Topology,
    cluster: Iterable[str],
    *,
    read: Collection[str] | None = None,
    wrote: Collection[str] = (),
    others: Collection[str] = (),
    said: Declarations | None = None,
) -> StreamsApplication:
    topics = dict.fromkeys(cluster, 1)
    application = application_from_topology(
        "app",
        topology,
        declarations=said or Declarations(),
        cluster_topics=topics,
        group_topics=read,
        transactional_topics=wrote,
        other_application_ids=others,
    )
    owners = {t: o for t in topics if (o := owner_of(t, {"app", *others})) is not None}
    return relevant_ids(application, owners)


@pytest.mark.parametrize("file", TEXTS, ids=lambda file: file.stem)
def test_of_every_example_with_each_of_its_topics_missing(file: Path) -> None:
    text = file.read_text()
    topology = parse_topology(text)
    known = application_from_topology("app", topology)
    names = {t.name for t in known.topics} | {"late", "eu-orders.x", "c7", "app-x-changelog"}
    readable = {t.name for t in known.topics if t.roles.is_input}
    for missing in [None, *sorted(names)]:
        there = names - {missing}
        check(on(topology, there), text)
        wrote = {"late", "eu-orders.x", *readable} & there
        check(on(topology, there, read=readable | {"c9"}, wrote=wrote), text)


def test_the_commented_target_is_a_target_once_it_is_not_commented(tmp_path: Path) -> None:
    file = tmp_path / "defs.yaml"
    text = document({**ATTRIBUTES, "topics": {"in": {"roles": ["input"]}}})
    file.write_text(text)
    assert not load_model(file).targets
    head, comment = text.split("  # targets:\n")
    block = "  targets:\n" + comment.replace("  # ", "  ")
    file.write_text(head + block)
    loaded = load_model(file).settings(tmp_path)
    assert loaded.default_target == "dr"
    target = loaded.declared_targets["dr"].connection
    assert target is not None
    assert target.bootstrap_servers == "dr-kafka-1:9092"
    assert "# targets:" not in document(yaml.safe_load(file.read_text())["attributes"])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(topologies(), st.data())
def test_of_any_topology_on_any_cluster(topology: Topology, data: st.DataObject) -> None:
    known = application_from_topology("app", topology)
    literal = {t.name for t in known.topics} | {
        name for b in topology.subtopologies for s in b.sources for name in s.topics
    }
    candidates = sorted(
        literal
        | {f"app-{name}" for name in literal}
        | {changelog_of("app", s.name) for s in known.stores}
        | {"abc", "eu-a", "us-bc", "x.x", "bb", "app-eu-s-changelog", "app-b-repartition"}
    )
    subsets = st.sets(st.sampled_from(candidates))
    cluster = data.draw(subsets)
    decided = on(
        topology,
        cluster,
        read=data.draw(st.none() | subsets),
        wrote=data.draw(subsets) & cluster,
        others=data.draw(st.sets(st.sampled_from(["app-eu", "other"]))),
    )
    check(decided, render(topology))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_of_any_cluster_without_a_text(data: st.DataObject) -> None:
    names = ["in", "out", "mid", "app-s-changelog", "app-s-repartition", "app-eu-t-changelog"]
    names += ["app-KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000006-topic", "app-eu-changelog"]
    subsets = st.sets(st.sampled_from(names))
    topics = data.draw(st.dictionaries(st.sampled_from(names), st.integers(1, 3), min_size=1))
    others = data.draw(st.sets(st.sampled_from(["app-eu", "app-s", "z"])))
    facts = ClusterFacts(
        topics=topics,
        group_topics=frozenset(data.draw(subsets) & topics.keys() | {sorted(topics)[0]}),
        transactional_topics=frozenset(data.draw(subsets) & topics.keys()),
        other_application_ids=frozenset(others),
    )
    decided = application_from_cluster("app", facts)
    owners = {t: o for t in topics if (o := owner_of(t, {"app", *others})) is not None}
    decided = relevant_ids(decided, owners)
    attributes = check(decided, None)
    again = application_from_cluster(
        "app",
        facts,
        declarations=with_observed(
            ApplicationModel.model_validate(attributes).declarations.confirmed, facts
        ),
    )
    assert everything(relevant_ids(again, owners))[1:] == everything(decided)[1:]
    assert {t.name: t.roles for t in again.topics} == {t.name: t.roles for t in decided.topics}


def test_inputs_by_pattern_and_outputs_by_extractor_are_backed_up() -> None:
    there = ["shop-eu-orders", "shop-us-orders", "a-feed", "counts-out", "dlq", "by-route"]
    decided = on(
        parse_topology(BY_PATTERN),
        [*there, "app-counts-changelog"],
        read={"shop-eu-orders", "a-feed"},
        wrote={"dlq", "by-route", "counts-out", "app-counts-changelog"},
    )
    attributes = check(decided, BY_PATTERN)
    assert attributes["inputs"] == ["a-feed", "shop-eu-orders", "shop-us-orders"]
    assert attributes["outputs"] == ["by-route", "dlq"]
    assert "stores" not in attributes
    assert "topics" not in attributes
    backed_up = {topic.name for topic in load(attributes, BY_PATTERN).topics}
    assert backed_up == {*there, "app-counts-changelog"}
    told = {finding.subject for finding in decided.findings}
    assert {"dlq", "by-route"} <= told


def test_a_store_of_a_processor_is_not_given_its_input() -> None:
    decided = on(parse_topology(DEDUP), ["in", "out", "app-tally-changelog"], read={"in"})
    assert {s.name: s.changelog for s in decided.stores} == {
        "seen": None,
        "tally": "app-tally-changelog",
    }
    assert decided.topic("in").roles == {TopicRole.INPUT}
    attributes = check(decided, DEDUP)
    assert attributes["stores"]["seen"]["logging_disabled"] is True
    assert attributes["stores"]["seen"]["unconfirmed"]
    (guess,) = load(attributes, DEDUP).application.guesses
    assert guess.setting == "stores.seen"
    assert "tally" not in attributes["stores"]


def test_of_a_read_only_store_both_remedies_are_named() -> None:
    decided = on(parse_topology(READ_ONLY), ["orders", "prices", "priced"], read={"orders"})
    (finding,) = [f for f in decided.findings if f.subject == "prices"]
    assert "source_topic: prices" in finding.action
    assert "logging_disabled: true" in finding.action
    check(decided, READ_ONLY)
    confirmed = {"stores": {"prices": {"source_topic": "prices"}}}
    said = load({**ATTRIBUTES, **confirmed}, READ_ONLY).application
    assert said.guesses == ()
    assert said.topic("prices").roles == {TopicRole.INPUT, TopicRole.CHANGELOG}


def test_an_optimised_table_is_a_guess_too() -> None:
    decided = on(parse_topology(TABLE), ["users"], read={"users"})
    attributes = check(decided, TABLE)
    about = attributes["stores"]["by-id"]
    assert about["source_topic"] == "users"
    assert "optimised" in about["unconfirmed"][0]


def test_before_its_first_start_an_application_has_the_changelogs_of_its_text() -> None:
    decided = on(parse_topology(TABLE), ["users"], read=set())
    assert decided.stores[0].changelog == "app-by-id-changelog"
    assert decided.guesses == ()
    assert "discover again" in " ".join(f.action for f in decided.findings)
    assert "stores" not in check(decided, TABLE)


def test_what_a_person_has_written_stays() -> None:
    """Formats, kinds, sizes, confirmed stores; a guess is made again."""
    about = {"key": "string", "value": "long", "kind": "window", "window_size_ms": 5}
    given = {
        "topics": {"in": {"key": "string"}, "gone": {"roles": ["input"], "unconfirmed": ["why"]}},
        "stores": {
            "seen": {**about, "source_topic": "in", "unconfirmed": ["a guess"]},
            "tally": {"logging_disabled": True, "ktable": False},
        },
        "not_mine": ["x"],
        "outputs": ["dlq"],
    }
    kept = without_guesses({**ATTRIBUTES, **given})
    assert kept["topics"] == {"in": {"key": "string"}}
    assert kept["stores"]["seen"] == about
    said = ApplicationModel.model_validate({**ATTRIBUTES, **given}).declarations
    decided = on(parse_topology(DEDUP), ["in", "out", "dlq", "x"], said=said.confirmed)
    attributes = check(decided, DEDUP, kept)
    assert attributes["stores"]["tally"] == {"logging_disabled": True, "ktable": False}
    assert {**attributes["stores"]["seen"], **about} == attributes["stores"]["seen"]
    assert attributes["stores"]["seen"]["logging_disabled"] is True
    assert attributes["topics"] == {"in": {"key": "string"}}
    assert (attributes["not_mine"], attributes["outputs"]) == (["x"], ["dlq"])
    assert without_roles({"topics": {"a": {"roles": ["input"], "key": "int"}}}, {"a": 1}) == {
        "topics": {"a": {"key": "int"}}
    }


def test_a_topic_that_fits_two_applications_is_a_guess() -> None:
    text = DEDUP.replace("seen", "eu-x").replace("tally]", "t]")
    there = ["in", "out", "app-eu-x-changelog", "app-t-changelog"]
    decided = on(parse_topology(text), there, others=["app-eu"])
    attributes = check(decided, text)
    assert attributes["other_application_ids"] == ["app-eu"]
    assert attributes["topics"]["app-eu-x-changelog"]["roles"] == ["changelog"]
    (guess,) = load(attributes, text).application.guesses
    assert guess.setting == "topics.app-eu-x-changelog"
    del attributes["topics"]["app-eu-x-changelog"]["unconfirmed"]
    said = ApplicationModel.model_validate(attributes).declarations
    assert on(parse_topology(text), there, others=["app-eu"], said=said).guesses == ()


def test_what_the_cluster_shows_is_added_to_declared_roles() -> None:
    facts = ClusterFacts(
        topics={"a": 1, "b": 1},
        group_topics=frozenset({"a"}),
        transactional_topics=frozenset({"b"}),
    )
    roles = {"a": [TopicRole.OUTPUT], "b": [TopicRole.GLOBAL]}
    said = Declarations(topic_roles={t: TopicRoles(r) for t, r in roles.items()})
    found = application_from_cluster("app", facts, declarations=with_observed(said, facts))
    assert found.topic("a").roles == {TopicRole.INPUT, TopicRole.OUTPUT}
    assert found.topic("b").roles == {TopicRole.GLOBAL, TopicRole.OUTPUT}
