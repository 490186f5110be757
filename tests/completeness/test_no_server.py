"""A rule that could not run because Spark, a cluster or a store did not answer, has not failed."""

import errno
from pathlib import Path
from typing import Any, cast

import pytest

from kstreams_assets.app.rules import CompletenessRule
from kstreams_assets.completeness.evaluate import Evaluator
from kstreams_assets.errors import ClusterUnavailableError, EngineError, SparkLostError
from kstreams_assets.home import NoHomeError
from kstreams_assets.layout import Warehouse
from kstreams_assets.repository.repository import Repository
from spark_resources.work import Spark
from tests.completeness.stored_topics import CHANGELOG, ORDERS, StoredTopics, total, window_of

RULE = CompletenessRule(
    name="no_debts", query="SELECT total FROM totals WHERE total < 0", views=("totals",)
)
UNAVAILABLE = ClusterUnavailableError(
    bootstrap_servers="127.0.0.1:1", operation="read", timeout_s=1, reason="refused"
)


class NoServer:
    """What a session raises where there is none."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    @property
    def spark_session(self) -> Any:
        """Raise."""
        raise self._error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (SparkLostError("The server is gone.", remedy="Run it again."), SparkLostError),
        (EngineError("The engine ended while it started", Path("x.log")), EngineError),
        (PermissionError(errno.EACCES, "Permission denied", "/.cache"), NoHomeError),
        (UNAVAILABLE, ClusterUnavailableError),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), ConnectionResetError),
        (OSError("s3://bucket/records cannot be read: its endpoint does not answer"), OSError),
    ],
)
def test_nothing_is_stored_of_it(
    error: Exception, expected: type[Exception], tmp_path: Path
) -> None:
    stored = StoredTopics(Warehouse(tmp_path / "warehouse"), (RULE,))
    sums = [total(0, "bo", 1, 10)]
    stored.close(0, {ORDERS: [], CHANGELOG: sums, "totals": sums}, {ORDERS: 0})
    with (
        Evaluator(stored.settings, spark=cast(Spark, NoServer(error)), run_id="run") as evaluator,
        pytest.raises(expected),
    ):
        evaluator.window(window_of(0))
    results = Repository(stored.settings.warehouse, stored.settings.application_id).results
    assert results.newest(10) == []
