"""Asks the companion of an application (`companion/`) for commits, by a topic or by HTTP."""

import http.client
import logging
import secrets
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Literal, Protocol
from urllib.parse import urlsplit

from kstreams_assets.errors import KafkaError, SecretNotFoundError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.librdkafka import LOG, librdkafka_config
from kstreams_assets.secret import Secret

if TYPE_CHECKING:
    from confluent_kafka import Producer

_log = logging.getLogger(__name__)
_SEND_S: Final = 5.0
_ANSWER_S: Final = 2.0
"""How long one instance may take to answer; a hold lasts for half a second."""
_AT_ONCE: Final = 32

Kind = Literal["commit", "hold", "release"]
_Address = tuple[str, int]


class CommitControl(Protocol):
    """Sends requests to all instances of an application."""

    def send(self, kind: Kind, request: str = "") -> str:
        """Send a request; return its identity, a new one unless given.

        Raises KafkaError if an instance may not get it.
        """
        ...


@dataclass(slots=True)
class ControlTopic:
    """Writes requests into the control topic of an application, which must exist.

    Needs WRITE and DESCRIBE on the topic. The connection is opened for the first request.

    Example:
        control = ControlTopic(connection, "shop-control")
        request = control.send("commit")
    """

    connection: KafkaConnection
    topic: str
    _producer: "Producer | None" = field(init=False, default=None)

    def send(self, kind: Kind, request: str = "") -> str:
        """See `CommitControl`. Raises KafkaError if no broker has acknowledged it within 5 s."""
        request = request or secrets.token_hex(8)
        if self._producer is None:
            self._producer = self._open()
        failures: list[str] = []
        self._producer.produce(
            self.topic,
            key=kind,
            value=request,
            partition=0,
            on_delivery=lambda error, _: failures.append(str(error)) if error else None,
        )
        waiting = self._producer.flush(_SEND_S)
        if waiting or failures:
            reason = failures[0] if failures else f"no answer within {_SEND_S:g} s"
            raise KafkaError(
                f"The request to {kind} was not written to topic {self.topic}: {reason}.",
                remedy="Give the recorder WRITE and DESCRIBE on the topic.",
            )
        return request

    def _open(self) -> "Producer":
        from confluent_kafka import KafkaException, Producer

        own = {"acks": "all", "linger.ms": 0, "message.timeout.ms": round(1000 * _SEND_S)}
        try:
            return Producer({**own, **librdkafka_config(self.connection)}, logger=LOG)
        except KafkaException as error:
            raise KafkaError(
                "librdkafka does not accept the connection:"
                f" {self.connection.scrub(error.args[0].str()).rstrip('.')}.",
                remedy="Check extra_librdkafka, then the blocks ssl and sasl of the connection.",
            ) from None


@dataclass(frozen=True, slots=True)
class ControlEndpoints:
    """Sends requests by HTTP to each address of each URL, all at the same time.

    A host name may stand for many instances, such as a headless service of Kubernetes. Needs no
    right to write to the cluster.

    Example:
        control = ControlEndpoints(["http://shop-control:7071"], Secret(env="SHOP_CONTROL_TOKEN"))
        request = control.send("commit")
    """

    urls: Sequence[str]
    token: Secret

    def send(self, kind: Kind, request: str = "") -> str:
        """See `CommitControl`.

        Raises KafkaError if an instance refuses, or none of a URL answers within 2 s.
        """
        request = request or secrets.token_hex(8)
        try:
            token = self.token.resolve("recovery_points.control_token")
        except SecretNotFoundError as error:
            raise KafkaError(error.problem, remedy=error.remedy) from None
        if not (token.isascii() and token.isprintable()):  # an error of http.client would show it
            raise KafkaError(
                "recovery_points.control_token has characters that HTTP cannot send.",
                remedy="Use printable ASCII characters only.",
            )
        failure = self._post(kind, request, token)
        if failure is not None:
            if kind == "hold":  # the other instances should not stop in vain
                self._post("release", request, token)
            raise failure
        return request

    def _post(self, kind: Kind, request: str, token: str) -> KafkaError | None:
        """Send a request to all addresses; return the first failure that counts."""
        places = [(url, address) for url in self.urls for address in _addresses(url)]
        path = f"/{kind}/{request}"
        with ThreadPoolExecutor(min(len(places), _AT_ONCE), "control") as pool:
            answers = list(pool.map(lambda place: _ask(*place, token=token, path=path), places))
        heard = {url for (url, _), answer in zip(places, answers, strict=True) if answer is None}
        for (url, address), answer in zip(places, answers, strict=True):
            if answer is None:
                continue
            # An address of the other family, or of an instance that has ended. If an instance is
            # missing, its threads do not answer in the journal.
            if answer.is_silent and url in heard:
                _log.info("%s does not answer at %s: %s.", url, address[0], answer.reason)
                continue
            return KafkaError(
                f"The request to {kind} was not accepted at {url} ({address[0]}): {answer.reason}.",
                remedy=answer.remedy,
            )
        return None


def _addresses(url: str) -> Sequence[_Address]:
    parts = urlsplit(url)
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise KafkaError(
            f"The host of {url} was not found: {error.strerror or error}.",
            remedy="Check recovery_points.control_urls.",
        ) from None
    return sorted({(str(one[4][0]), int(one[4][1])) for one in found})


@dataclass(frozen=True, slots=True)
class _Failure:
    reason: str
    remedy: str
    is_silent: bool = False


_REFUSED: Final[Mapping[int, _Failure]] = {
    HTTPStatus.UNAUTHORIZED: _Failure(
        "it does not accept the token",
        "Set recovery_points.control_token to the application's"
        " kstreams.assets.control.http.token.",
    ),
    HTTPStatus.TOO_MANY_REQUESTS: _Failure(
        "it stopped for another request less than a second ago",
        "Take points with one recorder at a time.",
    ),
}


def _ask(url: str, address: _Address, *, token: str, path: str) -> _Failure | None:
    """Send one request to one address; return None if it was accepted."""
    connection = http.client.HTTPConnection(*address, timeout=_ANSWER_S)
    try:
        headers = {"Authorization": f"Bearer {token}", "Host": urlsplit(url).netloc}
        connection.request("POST", path, headers=headers)
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return _Failure(
            getattr(error, "strerror", None) or str(error) or type(error).__name__,
            "Check that an instance serves this address (kstreams.assets.control.http.address).",
            is_silent=True,
        )
    finally:
        connection.close()
    if status == HTTPStatus.NO_CONTENT:
        return None
    return _REFUSED.get(
        status,
        _Failure(
            f"HTTP {status}", "Check that the companion serves this address, of this release."
        ),
    )
