"""The block `stores`: what rebuilds a store, how it is read, and what is said when it is wrong."""

from pathlib import Path
from typing import Any

import pytest

from kstreams_assets.app.store_format import Encoding, Format, StoreFormat, StoreKind
from kstreams_assets.app_file.read import application_model
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.kafka.registry import RegistryConnection
from kstreams_assets.orchestration.component import build_application_definitions
from kstreams_assets.settings import ApplicationSettings
from tests.orchestration.project import Project, attributes, messages_of, specs_of

OUTER_SHARED = "KSTREAM-OUTERSHARED-0000000004-store"


def _settings(
    store: dict[str, Any] | None = None, *, name: str = "s", **more: Any
) -> ApplicationSettings:
    said = attributes(stores={} if store is None else {name: store}, **more)
    said["topics"][f"shop-{name}-changelog"] = {"roles": ["changelog"]}
    return application_model(said).settings(Path.cwd())


def _format(store: dict[str, Any], *, name: str = "s") -> StoreFormat:
    return _settings(store, name=name).store_formats[name]


@pytest.mark.parametrize("encoding", [each for each in Encoding if each is not Encoding.JSON])
def test_every_format_by_its_name(encoding: Encoding) -> None:
    assert _format({"key": encoding.value, "value": {"format": encoding.value}}) == StoreFormat(
        key=Format(encoding), value=Format(encoding)
    )


def test_json_with_its_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCHEMA", "count BIGINT, total STRUCT<cents: BIGINT>")
    said = {
        "value": {"format": "json", "schema": "{{ env('SCHEMA') }}"},
        "lineage": {"total.cents": ["in.cents", "orders.v1.cents"], "": ["in"]},
    }
    assert _format(said) == StoreFormat(
        value=Format(Encoding.JSON, "count BIGINT, total STRUCT<cents: BIGINT>"),
        lineage=(("", ("in",)), ("total.cents", ("in.cents", "orders.v1.cents"))),
    )


def test_kinds_with_their_times() -> None:
    window = {"kind": "window", "key": "string", "window_size_ms": 5_000, "retention_ms": 60_000}
    assert _format(window) == StoreFormat(
        kind=StoreKind.WINDOW,
        key=Format(Encoding.STRING),
        window_size_ms=5_000,
        retention_ms=60_000,
    )
    suppress = {"kind": "suppress", "windowed_keys": "session", "value": "long"}
    assert _format(suppress) == StoreFormat(
        kind=StoreKind.SUPPRESS,
        value=Format(Encoding.LONG),
        windowed_keys=StoreKind.SESSION,
    )


def test_a_generated_name_tells_the_kind_unless_it_is_declared() -> None:
    assert _format({"key": "string"}, name=OUTER_SHARED).kind is StoreKind.OUTER_JOIN
    assert _format({"kind": "key_value"}, name=OUTER_SHARED).kind is StoreKind.KEY_VALUE


def test_what_rebuilds_a_store_is_no_format() -> None:
    settings = _settings({"changelog": "elsewhere"})
    assert settings.store_formats == {}
    assert [s.changelog for s in settings.application.stores if s.name == "s"] == ["elsewhere"]


def test_a_format_leaves_the_rules_to_find_the_changelog() -> None:
    settings = _settings({"key": "string"})
    assert [s.changelog for s in settings.application.stores] == ["shop-s-changelog"]


def test_both_are_taken() -> None:
    settings = _settings({"source_topic": "in", "value": "long"})
    assert settings.store_formats == {"s": StoreFormat(value=Format(Encoding.LONG))}
    assert [s.changelog for s in settings.application.stores if s.name == "s"] == ["in"]


def test_a_store_without_a_table() -> None:
    settings = _settings({"ktable": False})
    assert settings.without_ktable == {"s"}
    assert settings.store_formats == {}


class TestRegistry:
    """The block `schema_registry`."""

    def test_where_and_who(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("REGISTRY", "http://127.0.0.1:8081")
        said = {
            "url": "{{ env('REGISTRY') }}",
            "username": {"env": "U"},
            "password": {"env": "P"},
        }
        settings = _settings(schema_registry=said)
        expected = RegistryConnection.model_validate(said | {"url": "http://127.0.0.1:8081"})
        assert settings.registry == expected
        assert expected.password is not None
        assert expected.password.env == "P"

    def test_a_secret_in_clear_is_refused_and_not_repeated(self, project: Project) -> None:
        said = {"url": "http://127.0.0.1:8081", "username": "me", "password": "hunter2-hidden"}
        project.write("shop", attributes(schema_registry=said))
        with pytest.raises(Exception) as caught:  # noqa: PT011 - Dagster wraps it
            project.graph()
        text = messages_of(caught.value)
        assert "A secret is given as a plain str" in text
        assert "hunter2" not in text


def test_a_store_that_the_application_does_not_have() -> None:
    said = attributes(stores={"order-total": {"key": "string"}})
    said["topics"] |= {"shop-order-totals-changelog": {"roles": ["changelog"]}}
    with pytest.raises(ConfigurationError) as caught:
        application_model(said).settings(Path.cwd())
    assert "The declared store 'order-total' is not in application shop" in str(caught.value)
    assert "(near: order-totals)" in str(caught.value)


def test_definitions_are_built_from_declared_stores() -> None:
    definitions = build_application_definitions(_settings({"key": "string", "value": "long"}))
    assert "shop/backup/shop-s-changelog" in specs_of(definitions)
