"""Outages: a cluster, a Spark server or an object store that does not answer.

A task of Spark decides where it runs whether its error is an outage, because Spark passes on only
the text of errors.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from kstreams_assets.errors import (
    AuthenticationFailedError,
    AuthorizationFailedError,
    ClusterUnavailableError,
    ConfigurationError,
    EngineError,
    KStreamsAssetsError,
    RawReadTimeoutError,
    SparkLostError,
    WarehouseError,
)
from kstreams_assets.store import is_unanswered

if TYPE_CHECKING:
    import pyarrow as pa

    ArrowTask = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    """A function for `mapInArrow`."""

_OUTAGES: Final = (ClusterUnavailableError, SparkLostError, ConnectionError, TimeoutError)
_LASTING: Final = (
    AuthenticationFailedError,
    AuthorizationFailedError,
    ConfigurationError,
    EngineError,
)
"""Failures that a repetition does not repair, whatever caused them."""


class OutageInTaskError(Exception):
    """An outage in a task of Spark; the driver recognises it by the name of this class."""


def is_outage(error: BaseException) -> bool:
    """Whether a cluster, a Spark server or an object store did not answer.

    The first error in the chain of causes that is an outage, or lasting, decides.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, _LASTING):
            return False
        if isinstance(cause, RawReadTimeoutError) and not cause.answered:
            return True
        if isinstance(cause, WarehouseError | OSError) and is_unanswered(str(cause)):
            return True
        if isinstance(cause, _OUTAGES):
            return True
        hidden = cause.__suppress_context__
        cause = cause.__cause__ or (None if hidden else cause.__context__)
    return False


def outage_reason(error: BaseException) -> str | None:
    """Return an outage in one line without a period; None for any other error."""
    if not is_outage(error):
        return None
    is_ours = isinstance(error, KStreamsAssetsError)
    text = error.problem if is_ours else f"{type(error).__name__}: {error}"
    return " ".join(text.split()).rstrip(".")


def reporting_outages(task: "ArrowTask") -> "ArrowTask":
    """Return a task that raises OutageInTaskError instead of an outage."""

    def run(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        try:
            yield from task(batches)
        except (KStreamsAssetsError, OSError) as error:
            reason = outage_reason(error)
            if reason is None:
                raise
            raise OutageInTaskError(reason) from error

    return run
