"""Maps errors of Spark and its transports (gRPC, py4j) to one error with cause and remedy."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import grpc
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from kstreams_assets.errors import (
    SparkJobError,
    SparkLostError,
    StoreKeysEndedError,
    TableVersionGoneError,
    TaskOutageError,
)
from kstreams_assets.store import ended_keys_reason, forget_keys
from spark_resources.outages import OutageInTaskError

T = TypeVar("T")
SPARK_FAILURES: Final = (PySparkException, Py4JError, grpc.RpcError)

_CAUSE = re.compile(r"^\s*Caused by: (.+)$", re.MULTILINE)
_FIRST = re.compile(
    r"^(?:: |.*Lost task .*?\): )((?:[\w$]+\.)+\w*(?:Exception|Error): .+)$", re.MULTILINE
)
"""The error that py4j or the driver names before its causes."""
_EXCEPTION = re.compile(r"^\s*((?:[\w$]+\.)+\w*(?:Exception|Error): .+)$", re.MULTILINE)
_PYTHON = "Traceback (most recent call last):"
_PYTHON_ERROR = re.compile(r"^((?:\w+\.)*\w*(?:Exception|Error): .+)$", re.MULTILINE)
_TELLING = ("org.apache.kafka.", "org.apache.spark.sql.kafka010.", "org.apache.spark.sql.delta.")
_TASK_OUTAGE: Final = re.compile(
    rf"(?:^|: ){re.escape(f'{OutageInTaskError.__module__}.{OutageInTaskError.__qualname__}')}"
    r": (.+)$",
    re.MULTILINE,
)
"""The last line of a worker's traceback, which Spark passes on."""
_WORKER_DIED: Final = "Python worker exited unexpectedly"

_STATUS = re.compile(r"\bstatus = StatusCode\.([A-Z_]+)")
_DETAILS = re.compile(r'\bdetails = "(.*?)"\s*(?:debug_error_string\b|>|$)', re.DOTALL)
_PEER = re.compile(r"\bipv[46]:((?:\[|%5B)?[0-9a-fA-F.:%]+?(?:\]|%5D)?:\d+)\b")
_LAST_ERROR = re.compile(r"^failed to connect to all addresses; last error: (?:[A-Z_]+: )?", re.I)
_SEEN_BY_GRPC = re.compile(
    r"^(?:ipv[46]:\S+: |connect: |recvmsg: ?|errors resolving \S+: |\[field:[\w ]+ error:)+", re.I
)
_CLOSED_CHANNEL: Final = ("Cannot invoke RPC", "Channel closed")
"""A ValueError of gRPC: it has no specific class."""
_LONGEST: Final = 300

_AGAIN: Final = (
    "An engine of this host that has ended (`kstreams-assets engine status`) is started again by"
    " the next command: run the command again. Committed work stays. For another Spark Connect"
    " server (`remote`, KSTREAMS_ASSETS_SPARK_REMOTE), check that it runs and that this is its"
    " address."
)
_JOB: Final = "Fix the cause that the reason names and run the command again. Committed work stays."


@dataclass(frozen=True, slots=True)
class _Meaning:
    """The meaning of a transport failure; `{why}` is the text of gRPC, `{at}` the address."""

    problem: str
    remedy: str
    is_lost: bool = True


_SESSION_ENDED: Final = _Meaning(
    "The Spark server{at} has ended the session: {why}",
    "It was restarted, or the session was idle for too long. Run the command again. Committed work"
    " stays.",
)
_SHUT_DOWN: Final = _Meaning("The Spark server{at} was stopped while it ran a job", _AGAIN)
_UNREACHABLE: Final = _Meaning("The Spark server{at} does not answer: {why}", _AGAIN)
_NOT_LET_IN: Final = _Meaning(
    "The Spark server{at} refuses this client: {why}",
    "Give the token of that server in `remote` (KSTREAMS_ASSETS_SPARK_REMOTE) as ;token=...; for an"
    " engine of this host, run `kstreams-assets engine stop`, then run the command again.",
)
_OTHER_SERVER: Final = _Meaning(
    "The process{at} is not a Spark Connect server, or not of this release: {why}",
    "Check host, port and TLS (;use_ssl=true) of `remote` (KSTREAMS_ASSETS_SPARK_REMOTE).",
    is_lost=False,
)
_TOO_LARGE: Final = _Meaning(
    "A message to or from the Spark server{at} is too large: {why}",
    "Raise spark.connect.grpc.maxInboundMessageSize of that server, or do less at once (fewer"
    " windows, topics or rules).",
    is_lost=False,
)
_BROKEN_OFF: Final = _Meaning("The Spark server{at} ended the connection: {why}", _AGAIN)
_CANCELLED: Final = _Meaning(
    "The Spark job was cancelled{at}: {why}",
    "If you did not cancel it, the server was stopped. Run the command again.",
    is_lost=False,
)
_OTHER_RPC: Final = _Meaning("The Spark server{at} failed: {why}", _AGAIN)

_OF_SESSION: Final = (
    r"INVALID_HANDLE|INVALID_CURSOR|NO_ACTIVE_SESSION|SESSION_(?:CLOSED|CHANGED|NOT_FOUND)"
    r"|OPERATION_(?:NOT_FOUND|ABANDONED)"
)
_BY_ANSWER: Final = (
    (
        re.compile(
            r"cancelled because SparkContext was shut ?down"
            r"|Cannot call methods on a stopped SparkContext"
        ),
        _SHUT_DOWN,
    ),
    (
        # Only at the start: a query can name a column like this.
        re.compile(
            rf"^(?:\([\w.$]+\) )?(?:\[(?:{_OF_SESSION})\b"
            r"|(?:Spark )?Session (?:was |is |has been )?(?:closed|not found)"
            r"|Cannot invoke RPC|Channel closed)",
            re.IGNORECASE,
        ),
        _SESSION_ENDED,
    ),
    (re.compile(r"^(?:\([\w.$]+\) )?\[OPERATION_CANCELED"), _CANCELLED),
)
"""By the answer of Spark or pyspark."""
_NO_VERSION: Final = re.compile(
    r"^(?:\([\w.$]+\) )?\[DELTA_(?:VERSION_NOT_FOUND|NO_RECREATABLE_HISTORY_FOUND"
    r"|TRUNCATED_TRANSACTION_LOG|VERSIONS_NOT_CONTIGUOUS|STATE_RECOVER_ERROR"
    r"|LOG_FILE_NOT_FOUND\w*|MISSING_\w*TRANSACTION_LOG\w*|FILE_NOT_FOUND\w*)\]"
    r"|^(?:\([\w.$]+\) )?\[FAILED_READ_FILE\b[^\n]*/_delta_log/"
)
"""Of the beginning of an answer: Delta cannot read the log of a table up to a version."""
_BY_DETAILS: Final = (
    (
        re.compile(
            rf"{_OF_SESSION}|Session (?:was )?(?:closed|not found)"
            "|server driver instance has restarted",
            re.IGNORECASE,
        ),
        _SESSION_ENDED,
    ),
    (re.compile(r"SparkContext was shut ?down|stopped SparkContext"), _SHUT_DOWN),
    # The stream of a server that is stopped during a job ends like this [seen], also as CANCELLED.
    (re.compile(r"RST_STREAM|Stream removed|GOAWAY|goaway", re.IGNORECASE), _BROKEN_OFF),
    (re.compile(r"message larger than max"), _TOO_LARGE),
    (
        re.compile(
            r"WRONG_VERSION_NUMBER|ssl handshake|handshaker|http2 header with status"
            r"|connect an http1|look like a TLS|unexpected content-type",
            re.IGNORECASE,
        ),
        _OTHER_SERVER,
    ),
)
"""By the details of a failed gRPC call."""
_BY_STATUS: Final = {
    "UNAVAILABLE": _UNREACHABLE,
    "DEADLINE_EXCEEDED": _UNREACHABLE,
    "UNAUTHENTICATED": _NOT_LET_IN,
    "PERMISSION_DENIED": _NOT_LET_IN,
    "UNIMPLEMENTED": _OTHER_SERVER,
    "RESOURCE_EXHAUSTED": _TOO_LARGE,
    "CANCELLED": _CANCELLED,
}


@contextmanager
def spark_failures() -> Iterator[None]:
    """Raise failures of Spark in the block as SparkJobError, transport ones as SparkLostError."""
    try:
        yield
    except (*SPARK_FAILURES, ValueError) as error:
        failure = spark_failure(error)
        if failure is None:
            raise
        raise failure from error


def again_with_new_keys(job: Callable[[], T]) -> T:
    """Plan and run a job of Spark, once more if the store's keys in its plan expired.

    Raises:
        StoreKeysEndedError: They expired again.
    """
    try:
        return job()
    except StoreKeysEndedError:
        forget_keys()
        return job()


class _Kept(Protocol):
    def unpersist(self) -> object: ...


def free(rows: _Kept) -> None:
    """Free the cached rows; if Spark cannot, it has no cache of them or is gone."""
    with suppress(*SPARK_FAILURES):
        rows.unpersist()


def spark_failure(error: BaseException) -> SparkJobError | None:
    """Return the meaning of an error of pyspark, gRPC or py4j; None for any other error.

    One mapping for all callers: the problem is one line without stack traces, the remedy says what
    to do. SparkLostError if another session may succeed.
    """
    if isinstance(error, SparkJobError):
        return error
    text = str(error)
    if isinstance(error, ValueError) and not isinstance(error, PySparkException):
        if not text.startswith(_CLOSED_CHANNEL):
            return None
    elif not isinstance(error, SPARK_FAILURES):
        return None
    if _WORKER_DIED in text:
        return SparkJobError(
            "A Python worker of Spark died (killed, or out of memory).",
            remedy="Give the host more memory, or reduce parallel work (`tasks`), and run the"
            " command again. Committed work stays.",
        )
    if (reason := ended_keys_reason(text)) is not None:
        return StoreKeysEndedError(reason)
    if (outage := _TASK_OUTAGE.search(text)) is not None:
        return TaskOutageError(outage[1])
    if _NO_VERSION.search(text):
        return TableVersionGoneError(innermost_cause(text).rstrip("."))
    rpc = _rpc_of(error, text)
    meaning = _meaning(rpc, text)
    if meaning is None:
        return SparkJobError(f"{innermost_cause(text).rstrip('.')}.", remedy=_JOB)
    kind = SparkLostError if meaning.is_lost else SparkJobError
    why, at = cause_of(error).rstrip(".!"), _place(text)
    return kind(f"{meaning.problem.format(why=why, at=at)}.", remedy=meaning.remedy)


def cause_of(error: BaseException) -> str:
    """Return an error in one line, without the envelopes of gRPC and Java; no period."""
    text = str(error)
    rpc = _rpc_of(error, text)
    if rpc is None:
        return _one_line(innermost_cause(text)) or type(error).__name__
    said = _LAST_ERROR.sub("", _one_line(rpc.details))
    said = _SEEN_BY_GRPC.sub("", said).rstrip("].! ")
    return said or f"only the status {rpc.status}"


@dataclass(frozen=True, slots=True)
class _Rpc:
    """A failed call: the name of gRPC's status, and its text."""

    status: str
    details: str


def _rpc_of(error: BaseException, text: str) -> _Rpc | None:
    """Return the call of gRPC's own errors and their pyspark forms; None for an answer of Spark."""
    status = _STATUS.search(text)
    if status is not None:
        details = _DETAILS.search(text)
        return _Rpc(status[1], details[1] if details else "")
    if isinstance(error, grpc.Call):
        code: grpc.StatusCode | None = error.code()
        return _Rpc("UNKNOWN" if code is None else code.name, error.details() or "")
    if isinstance(error, grpc.RpcError):
        return _Rpc("UNKNOWN", text)
    return None


def _meaning(rpc: _Rpc | None, text: str) -> _Meaning | None:
    if rpc is None:
        return next((meaning for words, meaning in _BY_ANSWER if words.search(text)), None)
    for words, meaning in _BY_DETAILS:
        if words.search(rpc.details):
            return meaning
    return _BY_STATUS.get(rpc.status, _OTHER_RPC)


def _place(text: str) -> str:
    peer = _PEER.search(text)
    if peer is None:
        return ""
    return f" at {peer[1].replace('%5B', '[').replace('%5D', ']')}"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


def innermost_cause(text: str) -> str:
    """Return the innermost cause that Delta names, else the innermost one.

    Causes below those are Java's own (`ArithmeticException: long overflow`), which say less.
    """
    causes = [*_FIRST.findall(text), *_CAUSE.findall(text)] or _EXCEPTION.findall(text)
    if _PYTHON in (causes[-1] if causes else text):
        causes = _PYTHON_ERROR.findall(text) or causes
    if not causes:
        return next(iter(text.strip().splitlines()), "")
    telling = [cause for cause in causes if cause.startswith(_TELLING)]
    package_and_class, _, message = (telling or causes)[-1].strip().partition(":")
    return f"{package_and_class.rpartition('.')[2]}:{message}" if message else package_and_class
