"""Confluent's admin client behind calls that end in time and say what is wrong."""

import logging
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from kstreams_assets.errors import (
    AuthenticationFailedError,
    ClusterUnavailableError,
    ConfigurationError,
)
from kstreams_assets.kafka.clients import LIBRDKAFKA_LOGGER, librdkafka_config, tame_client_logs
from kstreams_assets.kafka.connection import KafkaConnection

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_POLL_S = 0.05
_TLS_GRACE_S = 1.5  # a broker that restarts also breaks off handshakes
_MARGIN_S = 0.5  # librdkafka's own timeout comes first and says more
_UNREACHABLE = {
    KafkaError._TIMED_OUT,  # noqa: SLF001 (librdkafka's local errors are all named like this)
    KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001
    KafkaError._TRANSPORT,  # noqa: SLF001
    KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
    KafkaError._RESOLVE,  # noqa: SLF001
    KafkaError._DESTROY,  # noqa: SLF001
    KafkaError._WAIT_COORD,  # noqa: SLF001
    KafkaError._WAIT_CACHE,  # noqa: SLF001
}
_AUTHENTICATION = KafkaError._AUTHENTICATION  # noqa: SLF001
_SSL = KafkaError._SSL  # noqa: SLF001
_TLS_ALERT = "SSL alert number"


class LibrdkafkaAdmin:
    """One lazily built AdminClient; thrown away after a failure, so that a cure is noticed.

    librdkafka tells a wrong password only through its error callback while calls run into their
    timeout; so every call here watches that callback.
    """

    def __init__(self, connection: KafkaConnection, *, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._client: AdminClient | None = None
        self._errors: list[KafkaError] = []

    def call(
        self, operation: str, start: Callable[[AdminClient], Mapping[K, "Future[V]"]]
    ) -> dict[K, V | KafkaException]:
        """Results by key, or the broker's refusal of that key.

        Raises AuthenticationFailedError, ClusterUnavailableError (within the timeout).
        """
        client = self._connected()
        self._errors.clear()
        try:
            futures = start(client)
        except KafkaException as error:
            raise self._unavailable(operation, _text(error)) from None
        self._wait(operation, client, list(futures.values()))
        results: dict[K, V | KafkaException] = {}
        for key, future in futures.items():
            error = future.exception()
            if error is None:
                results[key] = future.result()
            elif not isinstance(error, KafkaException):
                raise error
            elif error.args[0].code() in _UNREACHABLE:
                raise self._unavailable(operation, _text(error))
            else:
                results[key] = error
        return results

    @property
    def timeout_s(self) -> float:
        """After how long a call gives up."""
        return self._timeout_s

    def close(self) -> None:
        """Forget the client; the next call builds a new one."""
        self._client = None

    def _connected(self) -> AdminClient:
        if self._client is None:
            tame_client_logs()
            config: dict[str, Any] = {
                **librdkafka_config(self._connection),
                # a second call soon after a failed one must try again, not sleep
                "reconnect.backoff.max.ms": 1_000,
                "error_cb": self._errors.append,
            }
            try:
                logger = logging.getLogger(LIBRDKAFKA_LOGGER)
                self._client = AdminClient(config, logger=logger)
            except KafkaException as error:
                reason = self._connection.scrub(_text(error))
                raise ConfigurationError(
                    f"librdkafka refuses the connection's settings: {reason}.",
                    remedy="Check ssl, sasl and extra_librdkafka of the connection.",
                ) from None
        return self._client

    def _wait(self, operation: str, client: AdminClient, futures: list["Future[V]"]) -> None:
        started = time.monotonic()
        deadline = started + self._timeout_s + _MARGIN_S
        pending = set(futures)
        while pending:
            _, pending = wait(pending, timeout=_POLL_S, return_when=FIRST_COMPLETED)
            client.poll(0)  # delivers error callback and logs
            now = time.monotonic()
            if pending and self._refusal(after_grace=now - started > _TLS_GRACE_S):
                raise self._unavailable(operation, "refused")
            if pending and now > deadline:
                raise self._unavailable(operation, "no answer")

    def _refusal(self, *, after_grace: bool) -> KafkaError | None:
        for error in self._errors:
            # a refused client certificate comes as an alert after the handshake (TLS 1.3)
            tls = error.code() == _SSL or _TLS_ALERT in error.str()
            if error.code() == _AUTHENTICATION or (tls and after_grace):
                return error
        return None

    def _unavailable(
        self, operation: str, reason: str
    ) -> AuthenticationFailedError | ClusterUnavailableError:
        """The error for a call nobody answered; the client is given up."""
        refusal = self._refusal(after_grace=True)
        self.close()
        servers = self._connection.bootstrap_servers
        if refusal is not None:
            return AuthenticationFailedError(
                bootstrap_servers=servers,
                mechanism=self._connection.mechanism,
                reason=self._connection.scrub(_clean(refusal.str())),
            )
        told = [_clean(error.str()) for error in self._errors if error.str()]
        return ClusterUnavailableError(
            bootstrap_servers=servers,
            operation=operation,
            timeout_s=self._timeout_s,
            reason=self._connection.scrub(told[0] if told else reason),
        )


def _text(error: KafkaException) -> str:
    return _clean(error.args[0].str())


def _clean(text: str) -> str:
    return text.strip().rstrip(".")
