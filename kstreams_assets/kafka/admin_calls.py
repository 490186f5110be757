"""Calls of `AdminClient`: queries are repeated until a deadline, changes are sent once.

librdkafka may wait for a dead broker while others could answer, so a query gets a short time-out
and is repeated by a new client. A change is sent once, because a second attempt cannot distinguish
"already done" from "refused". After a lost answer the cluster is asked whether the change was made.
confluent-kafka is imported where a client is built: `recovery-points take` does not load it.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import kafka.errors as client_errors

from kstreams_assets.errors import AuthenticationFailedError, ConfigurationError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.librdkafka import LOG, librdkafka_config
from kstreams_assets.kafka.throttle import (
    QUOTA_PATIENCE_S,
    report_quota,
    unthrottled_time,
    wait_throttled,
)
from kstreams_assets.kafka.wire import WireClient, attempt_s

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, ThrottleEvent
    from confluent_kafka.admin import AdminClient

_HASTY_ATTEMPTS: Final = 8
_RETRY_S: Final = 0.1
_LOOK_AGAIN_S: Final = 0.2
_NOT_CONTROLLER: Final = client_errors.NotControllerError.errno
_TIMED_OUT_THERE: Final = client_errors.RequestTimedOutError.errno
"""The controller has started a change but not seen its end."""

_POLL_S: Final = 0.1
_GRACE_S: Final = 1.0
"""librdkafka ends each call itself; this limit is for calls that it does not end."""
_UNMUTED_S: Final = 0.01
_LARGEST_LOCAL: Final = -100
"""Codes up to this are librdkafka's own; higher ones are those of brokers."""
_NEVER_SENT: Final = re.compile(
    r"(Failed while|Timed out) (initializing|waiting for controller|waiting for broker\b)"
)
"""librdkafka's words for a call that ended before a connection was available."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A broker's refusal for one of the topics or brokers that a call names."""

    code: int
    reason: str


class UnansweredError(Exception):
    """A call of librdkafka without an answer.

    `is_maybe_done`: the request was sent, so a broker may have executed it or may still do so.
    `is_refusal`: librdkafka could not log in, or does not trust the broker's certificate.
    """

    def __init__(self, reason: str, *, is_maybe_done: bool, is_refusal: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_maybe_done = is_maybe_done
        self.is_refusal = is_refusal


Start = Callable[["AdminClient", float], Mapping[str, Future[Any]]]
"""Start a call with a timeout in seconds; return a future for each topic or broker."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of topics that must not be sent twice.

    `start` makes the call for some of the topics. `outcomes` inspects the cluster and returns the
    topics with a certain outcome: None if the change was made, else the refusal.
    """

    operation: str
    start: Callable[[Sequence[str]], Start]
    outcomes: Callable[[Sequence[str]], Mapping[str, Refusal | None]]


class AdminConnection:
    """One `AdminClient` of a cluster; close it after an UnansweredError.

    Raises SecretNotFoundError, ConfigurationError.
    """

    def __init__(self, connection: KafkaConnection) -> None:
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient

        self._error, self._exception = KafkaError, KafkaException
        self._definite = {
            KafkaError._INVALID_ARG,  # noqa: SLF001 (public, with librdkafka's underscore)
            KafkaError._NOT_IMPLEMENTED,  # noqa: SLF001
            KafkaError._UNSUPPORTED_FEATURE,  # noqa: SLF001
        }
        self._last_failure: KafkaError | None = None
        self._muted_until = 0.0
        settings = {
            "reconnect.backoff.max.ms": 1_000,
            "enable.metrics.push": False,
            **librdkafka_config(connection),
            "error_cb": self._remember_failure,
            "throttle_cb": self._remember_throttling,
        }
        try:
            self._client: AdminClient | None = AdminClient(settings, logger=LOG)
        except KafkaException as error:
            raise ConfigurationError(
                "librdkafka does not accept the connection:"
                f" {connection.scrub(error.args[0].str()).rstrip('.')}.",
                remedy="Check extra_librdkafka, then the blocks ssl and sasl of the connection.",
            ) from None

    def answers(self, start: Start, timeout_s: float, *, is_hasty: bool = False) -> dict[str, Any]:
        """The answer for each name, or its Refusal; raises UnansweredError.

        With `is_hasty` it also ends if a broker cannot be reached: librdkafka connects only to the
        brokers that it needs, and does not try others.
        """
        assert self._client is not None  # noqa: S101 (nothing is asked after close)
        wait_throttled(self._muted_until - time.monotonic())
        self._last_failure = None
        deadline = time.monotonic() + timeout_s + _GRACE_S
        futures = start(self._client, timeout_s)
        pending = set(futures.values())
        while pending and time.monotonic() < deadline:
            _, pending = wait(pending, timeout=_POLL_S)
            self._client.poll(0)
            if self._is_refused() or (is_hasty and self._is_broker_gone()):
                break
        if pending:
            raise self._unanswered("no answer", is_maybe_done=True)
        return {name: self._answer(future) for name, future in futures.items()}

    def close(self) -> None:
        """Close it; unsent requests are never sent."""
        self._client = None

    def _answer(self, future: Future[Any]) -> Any:  # noqa: ANN401 (differs by call)
        failure = future.exception()
        if failure is None:
            return future.result()
        if not isinstance(failure, self._exception):
            raise failure
        error: KafkaError = failure.args[0]
        if error.code() > _LARGEST_LOCAL or error.code() in self._definite:
            return Refusal(error.code(), error.str().rstrip("."))
        is_maybe_done = _NEVER_SENT.match(error.str()) is None
        raise self._unanswered(error.str(), is_maybe_done=is_maybe_done) from None

    def _unanswered(self, reason: str, *, is_maybe_done: bool) -> UnansweredError:
        """The error, with the reason why librdkafka is not connected, if known."""
        failure = self._last_failure
        return UnansweredError(
            reason if failure is None else failure.str(),
            is_maybe_done=is_maybe_done,
            is_refusal=self._is_refused(),
        )

    def _is_refused(self) -> bool:
        failure = self._last_failure
        if failure is None:
            return False
        if failure.code() == self._error._SSL:  # noqa: SLF001
            return "certificate" in failure.str()  # else a handshake that broke off
        return failure.code() == self._error._AUTHENTICATION  # noqa: SLF001

    def _is_broker_gone(self) -> bool:
        """Not for addresses of the connection: librdkafka also tries the other ones."""
        failure = self._last_failure
        gone = (self._error._TRANSPORT, self._error._RESOLVE)  # noqa: SLF001
        return failure is not None and failure.code() in gone and "/bootstrap" not in failure.str()

    def _remember_failure(self, error: "KafkaError") -> None:
        if error.code() != self._error._ALL_BROKERS_DOWN:  # noqa: SLF001 (says less than the others)
            self._last_failure = error

    def _remember_throttling(self, event: "ThrottleEvent") -> None:
        """For the reported time brokers read nothing more from a connection."""
        report_quota(round(1000 * event.throttle_time))
        for_s = min(event.throttle_time, QUOTA_PATIENCE_S)
        if for_s > 0:
            self._muted_until = time.monotonic() + for_s + _UNMUTED_S


class AdminCalls:
    """The calls of one `KafkaCluster`; creates a client for the first call and after a failure."""

    def __init__(self, connection: KafkaConnection, wire: WireClient) -> None:
        self._connection, self._wire = connection, wire
        self._opened: AdminConnection | None = None

    def ask(
        self, operation: str, question: Start, *, limit_s: float | None = None
    ) -> dict[str, Any]:
        """The answer or Refusal of each name; repeated with new clients until the deadline.

        The first attempts are short, in case the selected broker is dead; later ones are longer,
        for a slow cluster. Raises the errors of `KafkaCluster`.
        """
        limit_s = self._wire.timeout_s if limit_s is None else limit_s
        deadline = unthrottled_time() + limit_s
        attempts = refused_attempts = 0
        while True:
            remaining_s = max(_RETRY_S, deadline - unthrottled_time())
            try:
                answers = self._open(operation, remaining_s).answers(
                    question,
                    min(attempt_s(attempts), remaining_s),
                    is_hasty=attempts < _HASTY_ATTEMPTS,
                )
            except UnansweredError as error:
                reason = error.reason
                refused_attempts = refused_attempts + 1 if error.is_refusal else 0
            else:
                unready = [
                    *_with_code(answers, _NOT_CONTROLLER),
                    *_with_code(answers, _TIMED_OUT_THERE),
                ]
                if not unready:
                    return answers
                reason = answers[unready[0]].reason
            self.close()
            attempts += 1
            if refused_attempts > 1:
                raise AuthenticationFailedError(
                    bootstrap_servers=self._wire.bootstrap_servers,
                    mechanism=self._connection.mechanism,
                    reason=self._connection.scrub(reason).rstrip("."),
                )
            if unthrottled_time() + _RETRY_S > deadline:
                raise self._wire.unavailable(operation, limit_s, reason)
            time.sleep(_RETRY_S)

    def _open(self, operation: str, timeout_s: float) -> AdminConnection:
        """The client, created after our own request was answered.

        Our request reports wrong credentials at once, in the broker's own words.
        """
        if self._opened is None:
            self._wire.metadata([], operation=operation, timeout_s=timeout_s)
            self._opened = AdminConnection(self._connection)
        return self._opened

    def close(self) -> None:
        """Close the client; unsent requests are never sent."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def change(self, change: Change, names: Sequence[str]) -> dict[str, Refusal]:
        """Send a change of topics once; return the topics for which it was refused.

        Raises the errors of `KafkaCluster`, and ClusterUnavailableError if the answer was lost and
        the outcome stays unknown.
        """
        deadline = unthrottled_time() + self._wire.timeout_s
        outcomes: dict[str, Refusal | None] = {}
        while left := [name for name in names if name not in outcomes]:
            try:
                answers = self._answers_of_ready_broker(change, left, deadline)
            except UnansweredError as error:
                self.close()
                reason = error.reason
                if error.is_maybe_done:
                    outcomes |= self._outcomes(change, left, reason)
            else:
                reason = "the controller moves"
                unseen = _with_code(answers, _TIMED_OUT_THERE)
                moved = _with_code(answers, _NOT_CONTROLLER)
                outcomes |= {n: answer for n, answer in answers.items() if n not in unseen + moved}
                if unseen:
                    outcomes |= self._outcomes(change, unseen, answers[unseen[0]].reason)
                if moved:
                    self.close()  # nothing was done, and the next client finds the controller
            if len(outcomes) < len(names):
                if unthrottled_time() + _RETRY_S > deadline:
                    raise self._wire.unavailable(change.operation, self._wire.timeout_s, reason)
                time.sleep(_RETRY_S)
        return {name: answer for name, answer in outcomes.items() if answer is not None}

    def _answers_of_ready_broker(
        self, change: Change, names: Sequence[str], deadline: float
    ) -> dict[str, Any]:
        """Send a change on a connection on which a query was just answered.

        Otherwise librdkafka may wait for a dead controller as long as an answer may take. It may
        do so even now: brokers name each other at random as the controller (KIP-500), a dead one
        too until it is fenced, and any answer with metadata may change the name. So an attempt
        gets half of the time that is left; one that found no controller sent nothing.
        """
        remaining_s = max(_RETRY_S, deadline - unthrottled_time())
        self.ask(change.operation, describe_configs("topic", names[:1]), limit_s=remaining_s)
        admin = self._open(change.operation, remaining_s)
        remaining_s = max(_RETRY_S, deadline - unthrottled_time())
        limit_s = min(remaining_s, max(attempt_s(0), remaining_s / 2))
        return admin.answers(change.start(names), limit_s)

    def _outcomes(
        self, change: Change, names: Sequence[str], reason: str
    ) -> dict[str, Refusal | None]:
        """The outcomes of a change whose answer was lost; repeated until all of them are
        certain."""
        deadline = unthrottled_time() + self._wire.timeout_s
        outcomes: dict[str, Refusal | None] = {}
        while left := [name for name in names if name not in outcomes]:
            outcomes |= change.outcomes(left)
            if len(outcomes) == len(names):
                break
            if unthrottled_time() + _LOOK_AGAIN_S > deadline:
                uncertain = ", ".join(name for name in names if name not in outcomes)
                raise self._wire.unavailable(
                    change.operation,
                    self._wire.timeout_s,
                    f"{reason}. The request was sent but its answer was lost; the cluster may still"
                    f" carry it out for {uncertain}",
                )
            time.sleep(_LOOK_AGAIN_S)
        return outcomes


def describe_configs(kind: str, names: Sequence[str]) -> Start:
    """Request all configs of topics, or of one broker, which answers itself."""

    def start(admin: "AdminClient", timeout_s: float) -> Mapping[str, Future[Any]]:
        from confluent_kafka.admin import ConfigResource  # pyright: ignore[reportPrivateImportUsage]

        resources = [ConfigResource(kind, name) for name in names]
        futures = admin.describe_configs(resources, request_timeout=timeout_s)
        return {resource.name: future for resource, future in futures.items()}

    return start


def _with_code(answers: Mapping[str, Any], code: int) -> list[str]:
    return [
        name
        for name, answer in answers.items()
        if isinstance(answer, Refusal) and answer.code == code
    ]
