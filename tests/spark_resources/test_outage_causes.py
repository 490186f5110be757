"""Which failures are outages, after which a step is repeated."""

from pathlib import Path

import pytest

from kstreams_assets.errors import (
    AuthenticationFailedError,
    ClusterUnavailableError,
    ConfigurationError,
    EngineError,
    KStreamsAssetsError,
    RawReadTimeoutError,
    SparkJobError,
    SparkLostError,
    TopicNotFoundError,
    WarehouseError,
)
from spark_resources.outages import is_outage

DOWN = ClusterUnavailableError(
    bootstrap_servers="b:1", operation="metadata", timeout_s=1, reason="refused"
)
REFUSED = AuthenticationFailedError(bootstrap_servers="b:1", mechanism="PLAIN", reason="no")


def _read(*, answered: bool) -> RawReadTimeoutError:
    return RawReadTimeoutError(
        partition="t-0", reached=1, end=2, timeout_s=1, reason="slow", answered=answered
    )


def _warehouse(reason: str) -> WarehouseError:
    return WarehouseError(path="s3://b/records", reason=reason, remedy="Check the store.")


def _from(error: Exception, cause: Exception) -> Exception:
    """As `raise error from cause` makes it."""
    error.__cause__ = cause
    return error


def _while(error: Exception, context: Exception, *, hidden: bool = False) -> Exception:
    """As `raise error` makes it while `context` is handled; hidden: `from None`."""
    error.__context__ = context
    error.__suppress_context__ = hidden
    return error


def _other() -> KStreamsAssetsError:
    return KStreamsAssetsError("No recovery point.", remedy="Try again.")


@pytest.mark.parametrize(
    "error",
    [
        DOWN,
        _read(answered=False),
        SparkLostError("The server is gone.", remedy="Run it again."),
        _warehouse("its endpoint does not answer in time"),
        OSError(5, "its endpoint does not answer", "s3://b/records"),
        ConnectionResetError("peer"),
        TimeoutError(),
        _from(_other(), DOWN),
        _while(_other(), DOWN),
        _from(_other(), _while(RuntimeError("x"), ConnectionRefusedError())),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_outage_anywhere_in_the_chain(error: Exception) -> None:
    assert is_outage(error)


@pytest.mark.parametrize(
    "error",
    [
        TopicNotFoundError(topics=["t"], cluster="b:1"),
        _from(REFUSED, ConnectionResetError("peer")),
        _from(_other(), REFUSED),
        _while(ConfigurationError("x", remedy="y"), DOWN),
        _while(_other(), DOWN, hidden=True),
        _from(EngineError("It did not start", Path("/nowhere/log")), ConnectionRefusedError()),
        _read(answered=True),
        SparkJobError("It failed.", remedy="Correct it."),
        _warehouse("No space left on device"),
        OSError(28, "No space left on device"),
        ZeroDivisionError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_other_failures(error: Exception) -> None:
    assert not is_outage(error)
