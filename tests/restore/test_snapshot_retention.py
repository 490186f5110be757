"""Declared retentions held against what the configs of changelogs say."""

from collections.abc import Mapping

import pytest

from kstreams_assets.app.store_format import StoreFormat, StoreKind
from kstreams_assets.restore.snapshots import may_be_versioned, retention_refusal
from tests.restore.snapshot_samples import store

DAY = 86_400_000


def _refusal(kind: StoreKind, retention_ms: int | None, configs: Mapping[str, str]) -> str | None:
    declared = store(format=StoreFormat(kind=kind, retention_ms=retention_ms))
    refusal = retention_refusal(declared, configs)
    return None if refusal is None else str(refusal)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (StoreKind.WINDOW, "retention.ms"),
        (StoreKind.JOIN_WINDOW, "retention.ms"),
        (StoreKind.SESSION, "retention.ms"),
        (StoreKind.VERSIONED, "min.compaction.lag.ms"),
    ],
)
def test_a_shorter_retention_would_lose_rows(kind: StoreKind, config: str) -> None:
    configs = {config: str(DAY + 60_000)}
    text = _refusal(kind, 59_999, configs)
    assert text is not None
    assert text.startswith("store sums: Its declared retention_ms is 59999, but")
    assert f"{config}={DAY + 60_000} of shop-sums-changelog says that the store keeps 60000" in text
    assert "Declare retention_ms: 60000" in text
    assert _refusal(kind, 60_000, configs) is None
    assert _refusal(kind, None, configs) is None


def test_configs_that_tell_nothing() -> None:
    assert _refusal(StoreKind.WINDOW, 1, {}) is None
    assert _refusal(StoreKind.WINDOW, 1, {"retention.ms": "-1"}) is None
    assert _refusal(StoreKind.WINDOW, 1, {"min.compaction.lag.ms": str(9 * DAY)}) is None
    assert _refusal(StoreKind.VERSIONED, 1, {"retention.ms": str(9 * DAY)}) is None


def test_a_store_of_no_declared_kind_may_be_versioned() -> None:
    configs = {"min.compaction.lag.ms": str(DAY)}
    undeclared = store(format=StoreFormat(undeclared=True))
    refusal = retention_refusal(undeclared, configs)
    assert refusal is not None
    assert "Its kind is not declared" in str(refusal)
    assert retention_refusal(undeclared, {"min.compaction.lag.ms": "0"}) is None
    assert retention_refusal(undeclared, {}) is None
    assert retention_refusal(store(), configs) is None
    assert may_be_versioned(store(), configs)
    assert not may_be_versioned(store(format=StoreFormat(kind=StoreKind.VERSIONED)), configs)
