import pytest

from kstreams_assets.app.model import StreamsApplication
from kstreams_assets.app.names import (
    changelog_of,
    is_internal_name,
    is_repartition_name,
    is_subscription_response_name,
    owner_of,
    repartition_name,
    store_of,
)
from kstreams_assets.errors import ConfigurationError


def test_changelog_name_and_back() -> None:
    assert changelog_of("orders", "totals") == "orders-totals-changelog"
    assert store_of("orders", "orders-totals-changelog") == "totals"
    assert store_of("orders", "orders-x-changelog-changelog") == "x-changelog"
    assert store_of("orders", "orders-totals-repartition") is None
    assert store_of("orders", "other-totals-changelog") is None


@pytest.mark.parametrize(
    ("topic", "internal"),
    [
        ("orders-totals-changelog", True),
        ("orders-by-customer-repartition", True),
        ("orders-enrich-subscription-registration-topic", True),
        ("orders-enrich-subscription-response-topic", True),
        ("orders-KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000006-topic", True),
        ("orders-KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-0000000014-topic", True),
        ("orders-named-KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-0000000014-topic", True),
        ("orders-KTABLE-FK-JOIN-SUBSCRIPTION-OUTPUT-0000000014-topic", False),
        ("orders-KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-x-topic", False),
        ("orders", False),
        ("orders-rejected", False),
        ("orders-changelog", False),  # nothing between prefix and suffix: a user's topic
        ("orders-repartition", False),
        ("orders--changelog", False),
        ("ordersx-totals-changelog", False),
        ("Orders-totals-changelog", False),
    ],
)
def test_internal_names(topic: str, internal: bool) -> None:
    assert is_internal_name("orders", topic) is internal


def test_repartition_names_have_no_prefix() -> None:
    assert is_repartition_name("KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000006-topic")
    assert repartition_name("orders", "orders-by-x-repartition") == "by-x-repartition"
    assert repartition_name("orders", "orders-totals-changelog") is None
    assert is_subscription_response_name("enrich-subscription-response-topic")
    assert is_subscription_response_name("KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-0000000014-topic")
    assert not is_subscription_response_name("enrich-subscription-registration-topic")


@pytest.mark.parametrize(
    ("topic", "owner"),
    [
        ("orders-totals-changelog", "orders"),
        ("orders-eu-x-changelog", "orders-eu"),
        ("orders-eu-changelog", "orders"),  # the store "eu" of orders
        ("orders-eu", None),
        ("billing-x-changelog", None),
    ],
)
def test_longest_application_id_wins(topic: str, owner: str | None) -> None:
    assert owner_of(topic, ["orders", "orders-eu", "ord"]) == owner
    assert owner_of(topic, ["orders-eu", "ord", "orders"]) == owner


@pytest.mark.parametrize("name", ["", "..", "a/b", "../shop", "a b", "shop\n", "é", "a" * 250])
def test_an_application_id_is_what_kafka_takes(name: str) -> None:
    with pytest.raises(ConfigurationError, match="application id"):
        StreamsApplication(name, ())
