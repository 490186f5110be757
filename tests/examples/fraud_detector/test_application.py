"""The fraud detector's definition fits the application."""

from pathlib import Path

import pytest

from examples.fraud_detector.application import EXAMPLE
from kstreams_assets.app.model import TopicRole
from kstreams_assets.settings import ApplicationSettings
from tests.restore.example_definition import Definition

DEFINITION = Definition(EXAMPLE, "fraud_detector")


@pytest.fixture
def settings(tmp_path: Path) -> ApplicationSettings:
    return DEFINITION.settings("127.0.0.1:1", "app", "p.", tmp_path)


@pytest.mark.kafka
def test_describe_equals_the_text_kept_beside_the_component() -> None:
    kept = DEFINITION.path / "topology.txt"
    assert EXAMPLE.describe_topology() == kept.read_text("utf-8")


@pytest.mark.kafka
def test_topics_have_the_roles_that_they_play(settings: ApplicationSettings) -> None:
    assert {t.name: {r.value for r in t.roles} for t in settings.application.topics} == {
        "p.transactions": {TopicRole.INPUT},
        "p.risk-scores": {TopicRole.GLOBAL},
        "app-suspicious-by-user-repartition": {TopicRole.REPARTITION},
        "app-session-count-store-changelog": {TopicRole.CHANGELOG},
        "p.fraud-alerts": {TopicRole.OUTPUT},
    }
    logs = {store.name: (store.changelog, store.is_global) for store in settings.application.stores}
    assert logs == {
        "session-count-store": ("app-session-count-store-changelog", False),
        "global-risk-store": ("p.risk-scores", True),
    }
    assert settings.application.findings == ()
    assert settings.topics == settings.application.topics


@pytest.mark.kafka
def test_every_store_is_declared(settings: ApplicationSettings) -> None:
    assert set(settings.store_formats) == {s.name for s in settings.application.stores}
