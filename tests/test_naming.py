"""Names of assets, groups and pools."""

import re

import dagster as dg
import pytest

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.orchestration.keys import group, pool, refuse_collisions, sanitize_name
from kstreams_assets.orchestration.translator import (
    AssetKind,
    KafkaStreamsAsset,
    KafkaStreamsTranslator,
)
from tests.orchestration.default_keys import backup_key, recovery_points_key


def test_keys_hold_names_as_kafka_has_them() -> None:
    topic = KafkaStreamsAsset(AssetKind.TOPIC, "shop.eu", "a.b-c_d")
    assert KafkaStreamsTranslator().get_asset_key(topic) == dg.AssetKey(["kafka", "a.b-c_d"])
    assert backup_key("shop.eu", "a.b") == dg.AssetKey(["shop.eu", "backup", "a.b"])
    assert recovery_points_key("shop.eu") == dg.AssetKey(["shop.eu", "recovery_points"])


def test_names_are_folded_as_dagster_folds_them() -> None:
    assert sanitize_name("a.b-c_d9") == "a_b_c_d9"
    assert dg.AssetKey(["a.b-c_d9"]).to_python_identifier() == sanitize_name("a.b-c_d9")
    assert group("shop.eu", "topics") == "shop_eu/topics"
    assert pool("shop.eu") == "kstreams_shop_eu"


@pytest.mark.parametrize("names", [[], ["a"], ["a", "a"], ["a.b", "a.c", "A.b"]])
def test_names_that_can_be_told_apart(names: list[str]) -> None:
    refuse_collisions(names)


@pytest.mark.parametrize("names", [["a.b", "a_b"], ["a_b", "x", "a.b", "a_b"], ["a-b", "a.b"]])
def test_names_that_cannot(names: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="not_mine") as caught:
        refuse_collisions(names)
    told = re.match(r"Dagster cannot tell '(.*)' and '(.*)' apart", str(caught.value))
    assert told is not None
    assert {*told.groups()} <= set(names)
