"""examples/defs/parcel_tracker: what the topology text and the YAML say of the topics."""

from pathlib import Path

import pytest
import yaml

import examples
from examples.parcel_tracker.application import EXAMPLE, INPUTS, OUTPUTS, SERVE_AS_CHANGELOG
from kstreams_assets.app.declarations import Declarations, StoreDeclaration
from kstreams_assets.app.model import StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.app.roles import application_from_topology
from kstreams_assets.app.store_format import StoreKind
from kstreams_assets.app.topology import parse_topology
from kstreams_assets.app_file.read import application_model
from kstreams_assets.settings import ApplicationSettings

FOLDER = Path(examples.__file__).parent / "defs" / "parcel_tracker"
LOGGED = (
    "addressed-subscription-store",
    "closed-windows-store",
    "handover-outer-other-join-store",
    "handover-outer-shared-join-store",
    "handover-outer-this-join-store",
    "labels",
    "priced-Buffer",
    "scans-at-close",
    "scans-per-window",
    "slots",
    "tariffs",
)
ON_THE_CLUSTER = (
    *INPUTS,
    *OUTPUTS,
    *(f"parcel-tracker-{store}-changelog" for store in LOGGED),
    "parcel-tracker-addressed-subscription-registration-topic",
    "parcel-tracker-addressed-subscription-response-topic",
)
"""What a broker has once the application has run (from a run of it)."""


@pytest.fixture(scope="module")
def settings() -> ApplicationSettings:
    said = yaml.safe_load((FOLDER / "defs.yaml").read_text("utf-8"))["attributes"]
    plain = {"connection": {"bootstrap_servers": "127.0.0.1:1"}, "warehouse": "here"}
    windows = {"windows": {"every": "minute", "start": "2026-11-21"}, "sensors": "stopped"}
    component = application_model(said | plain | windows)
    return component.settings(FOLDER)


def _roles(application: StreamsApplication) -> dict[str, TopicRoles]:
    return {topic.name: topic.roles for topic in application.topics}


def test_every_topic_of_the_cluster_has_its_role(settings: ApplicationSettings) -> None:
    """The topics of the foreign-key join are repartition topics, whatever their names end in."""
    roles = _roles(settings.application)
    assert set(roles) == set(ON_THE_CLUSTER)
    for topic in ON_THE_CLUSTER:
        if topic in SERVE_AS_CHANGELOG:
            expected = {TopicRole.INPUT, TopicRole.CHANGELOG}
        elif topic in INPUTS:
            expected = {TopicRole.INPUT}
        elif topic in OUTPUTS:
            expected = {TopicRole.OUTPUT}
        else:
            is_changelog = topic.endswith("-changelog")
            expected = {TopicRole.CHANGELOG if is_changelog else TopicRole.REPARTITION}
        assert roles[topic] == expected, topic


def test_every_store_has_its_log_and_its_format(settings: ApplicationSettings) -> None:
    logs = {store.name: store.changelog for store in settings.application.stores}
    assert logs == {
        **{store: f"parcel-tracker-{store}-changelog" for store in LOGGED},
        **{topic: topic for topic in SERVE_AS_CHANGELOG},
        "regions": None,
    }
    assert {s for s in logs if s != "regions"} <= settings.store_formats.keys()
    kinds = {format_.kind for format_ in settings.store_formats.values()}
    assert kinds == {*StoreKind} - {StoreKind.SESSION}


def test_without_declarations_the_cluster_shows_what_the_optimisation_did() -> None:
    """The text is that of the plain topology; absent changelogs tell, and ask to be confirmed."""
    text = (FOLDER / "topology.txt").read_text("utf-8")
    found = application_from_topology(
        "parcel-tracker", parse_topology(text), cluster_topics=dict.fromkeys(ON_THE_CLUSTER, 4)
    )
    both = {TopicRole.INPUT, TopicRole.CHANGELOG}
    assert {t for t, roles in _roles(found).items() if roles == both} >= {*SERVE_AS_CHANGELOG}
    doubts = {f.subject for f in found.findings if "needs confirmation" in f.found}
    assert doubts == {*SERVE_AS_CHANGELOG, "regions"}


def test_declared_there_is_nothing_to_confirm() -> None:
    declared = Declarations(
        stores={
            **{topic: StoreDeclaration(source_topic=topic) for topic in SERVE_AS_CHANGELOG},
            "regions": StoreDeclaration(logging_disabled=True),
        }
    )
    text = (FOLDER / "topology.txt").read_text("utf-8")
    found = application_from_topology(
        "parcel-tracker",
        parse_topology(text),
        declarations=declared,
        cluster_topics=dict.fromkeys(ON_THE_CLUSTER, 4),
    )
    assert not [f for f in found.findings if "needs confirmation" in f.found]
    assert found.topic("scans").roles == {TopicRole.INPUT}


@pytest.mark.kafka
def test_describe_equals_the_text_kept_beside_the_component() -> None:
    assert EXAMPLE.describe_topology() == (FOLDER / "topology.txt").read_text("utf-8")
    assert "topics: [eu.parcels]" in EXAMPLE.describe_topology(topic_prefix="eu.")
