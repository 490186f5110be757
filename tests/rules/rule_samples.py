"""An application `shop` with every kind of view that rules can name."""

from pathlib import Path
from typing import Any

from kstreams_assets.app_file.read import application_model
from kstreams_assets.rules.view import KnownViews
from kstreams_assets.settings import ApplicationSettings

ORDER = {"format": "json", "schema": "id STRING, customer STRING, cents BIGINT, rate DOUBLE"}
TOTAL = {"format": "json", "schema": "orders BIGINT, cents BIGINT, rate DOUBLE"}
AT = "at STRUCT<city: STRING, street: STRUCT<no: INT>>"
PLACE = {"format": "json", "schema": f"{AT}, _offset BIGINT, tags ARRAY<STRING>"}


def topics() -> dict[str, Any]:
    """The topics as the YAML has them."""
    return {
        "orders": {"roles": ["input"], "key": "string", "value": ORDER},
        "orders.created.v1": {"roles": ["input"], "key": "string", "value": ORDER},
        "orders-rejected": {"roles": ["output"], "key": "string", "value": ORDER},
        "places": {"roles": ["input"], "key": "long", "value": PLACE},
        "plain": {"roles": ["input"]},
        "steps": {"roles": ["input", "output"], "key": "string", "value": "long"},
        "payments": {"roles": ["input"], "key": "string", "value": "avro"},
        "totals": {"roles": ["output"], "key": "string", "value": TOTAL},
        "left-out": {"roles": ["output"]},
        "shop-by-customer-repartition": {
            "roles": ["repartition"],
            "key": "string",
            "value": ORDER,
        },
        "shop-totals-changelog": {"roles": ["changelog"]},
        "shop-per-minute-changelog": {"roles": ["changelog"]},
        "shop-kept-changelog": {"roles": ["changelog"]},
        "shop-hidden-changelog": {"roles": ["changelog"]},
    }


def stores() -> dict[str, Any]:
    """The stores: `totals` has the name of a topic, the changelog of `hidden` is excluded."""
    return {
        "totals": {"key": "string", "value": TOTAL},
        "per-minute": {
            "kind": "window",
            "key": "string",
            "value": "long",
            "window_size_ms": 60_000,
            "retention_ms": 600_000,
        },
        "kept": {"key": "string", "value": "double", "ktable": False},
        "hidden": {"key": "string", "value": "long"},
        "cache": {"logging_disabled": True},
    }


def attributes(**more: Any) -> dict[str, Any]:
    """What the YAML says; `more` replaces keys of it."""
    return {
        "application_id": "shop",
        "connection": {"bootstrap_servers": "127.0.0.1:1"},
        "warehouse": "/nowhere",
        "windows": {"every": "hour", "start": "2026-11-21"},
        "topics": topics(),
        "stores": stores(),
        "exclude": ["left-out", "shop-hidden-changelog"],
        **more,
    }


def settings(**more: Any) -> ApplicationSettings:
    """The settings that the YAML gives."""
    return application_model(attributes(**more)).settings(Path("/nowhere"))


def known(**more: Any) -> KnownViews:
    """What its rules can name."""
    return KnownViews.of(settings(**more))
