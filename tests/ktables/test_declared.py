"""The kind of a store by the name that Kafka Streams gives it, and what is declared."""

import pytest

from kstreams_assets.app.store_format import (
    UNDECLARED,
    StoreFormat,
    StoreKind,
    format_of,
    kind_by_name,
)

NUMBER = "0000000012"


@pytest.mark.parametrize(
    ("store", "kind"),
    [
        (f"KSTREAM-JOINTHIS-{NUMBER}-store", StoreKind.JOIN_WINDOW),
        (f"KSTREAM-JOINOTHER-{NUMBER}-store", StoreKind.JOIN_WINDOW),
        (f"KSTREAM-OUTERTHIS-{NUMBER}-store", StoreKind.JOIN_WINDOW),
        (f"KSTREAM-OUTEROTHER-{NUMBER}-store", StoreKind.JOIN_WINDOW),
        ("clicks-this-join-store", StoreKind.JOIN_WINDOW),
        ("clicks-other-join-store", StoreKind.JOIN_WINDOW),
        ("clicks-outer-this-join-store", StoreKind.JOIN_WINDOW),
        ("clicks-outer-other-join-store", StoreKind.JOIN_WINDOW),
        (f"KSTREAM-OUTERSHARED-{NUMBER}-store", StoreKind.OUTER_JOIN),
        ("clicks-left-shared-join-store", StoreKind.OUTER_JOIN),
        ("clicks-outer-shared-join-store", StoreKind.OUTER_JOIN),
        (f"KTABLE-SUPPRESS-STATE-STORE-{NUMBER}", StoreKind.SUPPRESS),
        (f"KTABLE-FK-JOIN-SUBSCRIPTION-STATE-STORE-{NUMBER}", StoreKind.SUBSCRIPTION),
        ("with-customer-subscription-store", StoreKind.SUBSCRIPTION),
        ("with-prices-Buffer", StoreKind.JOIN_BUFFER),
        (f"KSTREAM-AGGREGATE-STATE-STORE-{NUMBER}", None),
        (f"orders-STATE-STORE-{NUMBER}", None),
        ("totals-store", None),
        ("my-KTABLE-SUPPRESS-STATE-STORE-1", None),
        (f"KSTREAM-JOINTHIS-{NUMBER}-store-2", None),
        ("Buffer", None),
    ],
)
def test_kind_by_name(store: str, kind: StoreKind | None) -> None:
    assert kind_by_name(store) is kind
    read = format_of(store, {})
    assert read == StoreFormat(kind=kind or StoreKind.KEY_VALUE)
    assert read.undeclared


def test_what_is_declared_counts() -> None:
    declared = {"x-Buffer": StoreFormat(kind=StoreKind.SESSION)}
    assert format_of("x-Buffer", declared) is declared["x-Buffer"]
    assert format_of("y", declared) is UNDECLARED
