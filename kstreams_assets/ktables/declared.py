"""What is said about how stores are read, by the user or by the names Kafka Streams gives. Pure."""

import re
from collections.abc import Mapping
from typing import Final

from kstreams_assets.ktables.store_format import UNDECLARED, StoreFormat, StoreKind

_NAMES: Final = (
    (
        re.compile(
            r"KSTREAM-(?:JOINTHIS|JOINOTHER|OUTERTHIS|OUTEROTHER)-[0-9]{10}-store"
            r"|.+-(?:outer-)?(?:this|other)-join-store"  # StreamJoined.as
        ),
        StoreKind.JOIN_WINDOW,
    ),
    (
        re.compile(r"KSTREAM-OUTERSHARED-[0-9]{10}-store|.+-(?:left|outer)-shared-join-store"),
        StoreKind.OUTER_JOIN,
    ),
    (re.compile(r"KTABLE-SUPPRESS-STATE-STORE-[0-9]{10}"), StoreKind.SUPPRESS),
    (
        re.compile(
            r"KTABLE-FK-JOIN-SUBSCRIPTION-STATE-STORE-[0-9]{10}"
            r"|.+-subscription-store"  # TableJoined.as
        ),
        StoreKind.SUBSCRIPTION,
    ),
    (re.compile(r".+-Buffer"), StoreKind.JOIN_BUFFER),  # Joined.as with a grace period
)


def kind_by_name(store: str) -> StoreKind | None:
    """The kind that the DSL's own name of a store tells, None where the name tells nothing.

    A suppress buffer with a name of its own (`Suppressed.withName`) is called `<name>-store`, as
    many stores are: its kind must be declared.
    """
    return next((kind for pattern, kind in _NAMES if pattern.fullmatch(store)), None)


def format_of(store: str, declared: Mapping[str, StoreFormat]) -> StoreFormat:
    """How a store is read: as declared, else bytes, of the kind that its name tells."""
    if store in declared:
        return declared[store]
    kind = kind_by_name(store)
    return UNDECLARED if kind is None else StoreFormat(kind=kind, undeclared=True)
