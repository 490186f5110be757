"""The definition of the browser actions fits the application."""

from pathlib import Path

import pytest

from examples.browser_actions.application import EXAMPLE
from kstreams_assets.app.model import TopicRole
from kstreams_assets.settings import ApplicationSettings
from tests.restore.example_definition import Definition

DEFINITION = Definition(EXAMPLE, "browser_actions")
LOGGED = (
    "product-counts",
    "browser-counts",
    "browser-windows",
    "captcha-this-join-store",
    "captcha-outer-other-join-store",
    "captcha-left-shared-join-store",
)


@pytest.fixture
def settings(tmp_path: Path) -> ApplicationSettings:
    return DEFINITION.settings("127.0.0.1:1", "app", "p.", tmp_path)


@pytest.mark.kafka
def test_describe_equals_the_text_kept_beside_the_component() -> None:
    kept = DEFINITION.path / "topology.txt"
    assert EXAMPLE.describe_topology() == kept.read_text("utf-8")


@pytest.mark.kafka
def test_topics_have_the_roles_that_they_play(settings: ApplicationSettings) -> None:
    inputs = ("product-views", "user-actions", "captchas-solved")
    outputs = ("popular-products", "browser-counts", "browser-window-counts", "captcha-checks")
    assert {t.name: {r.value for r in t.roles} for t in settings.application.topics} == {
        **{f"p.{name}": {TopicRole.INPUT} for name in inputs},
        **{f"p.{name}": {TopicRole.OUTPUT} for name in outputs},
        **{f"app-{store}-changelog": {TopicRole.CHANGELOG} for store in LOGGED},
        "p.known-browsers": {TopicRole.GLOBAL},
        "app-events-by-browser-repartition": {TopicRole.REPARTITION},
    }
    logs = {store.name: (store.changelog, store.is_global) for store in settings.application.stores}
    assert logs == {
        **{store: (f"app-{store}-changelog", False) for store in LOGGED},
        "known-browsers": ("p.known-browsers", True),
    }
    assert settings.application.findings == ()
    assert settings.topics == settings.application.topics


@pytest.mark.kafka
def test_every_store_is_declared(settings: ApplicationSettings) -> None:
    assert set(settings.store_formats) == {s.name for s in settings.application.stores}
