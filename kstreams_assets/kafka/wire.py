"""Single Kafka requests through kafka-python 3, which librdkafka does not support correctly.

All code that uses kafka-python's internals (its connection manager and network loop) is here.
"""

import base64
import contextlib
import json
import socket
import ssl
import struct
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any

import kafka.errors as client_errors
from kafka.net.manager import KafkaConnectionManager
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.net.selector import NetworkSelector
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest

from kstreams_assets.errors import (
    AuthenticationFailedError,
    AuthorizationFailedError,
    ClusterUnavailableError,
    ConfigurationError,
    SecretNotFoundError,
    Unreached,
)
from kstreams_assets.kafka.clients import tame_client_logs
from kstreams_assets.kafka.connection import (
    KafkaConnection,
    MskIamSasl,
    OAuthBearerSasl,
    read_certificates,
    resolve_extras,
)
from kstreams_assets.kafka.msk_iam import MskIamTokens
from kstreams_assets.kafka.throttle import (
    CLIENT_ID,
    QUOTA_PATIENCE_S,
    count_throttled,
    report_quota,
    unthrottled_time,
    wait_throttled,
)

_REFRESH_AT = 0.8  # of a token's lifetime, as Kafka's own clients do
_DEFAULT_LIFETIME_S = 300.0


class ClientCredentialsTokenProvider(AbstractTokenProvider):
    """Fetch a token with the client credentials grant and cache it for 80 % of its lifetime.

    Raises AuthenticationFailedError if the endpoint refuses, does not answer in time or does not
    return a token; SecretNotFoundError.
    """

    def __init__(self, sasl: OAuthBearerSasl, *, bootstrap_servers: str, timeout_s: float) -> None:
        super().__init__()
        self._sasl = sasl
        self._bootstrap_servers = bootstrap_servers
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._token = ""
        self._refresh_at = 0.0

    def token(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A valid token."""
        with self._lock:
            if time.monotonic() >= self._refresh_at:
                self._token, lifetime_s = self._fetch()
                self._refresh_at = time.monotonic() + lifetime_s * _REFRESH_AT
            return self._token

    def _fetch(self) -> tuple[str, float]:
        try:
            with urllib.request.urlopen(self._request(), timeout=self._timeout_s) as response:  # noqa: S310 (http and https only, see OAuthBearerSasl)
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            raise self._failed(f"it answered {error.code} {error.reason}") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise self._failed(str(reason)) from None
        token = answer.get("access_token") if isinstance(answer, dict) else None
        if not isinstance(token, str) or not token:
            raise self._failed("its answer contains no access_token")
        lifetime = answer.get("expires_in")
        return token, float(lifetime) if isinstance(lifetime, int | float) else _DEFAULT_LIFETIME_S

    def _request(self) -> urllib.request.Request:
        secret = self._sasl.client_secret.resolve("sasl.client_secret")
        pair = f"{self._sasl.client_id}:{secret}".encode()
        form = {"grant_type": "client_credentials"}
        if self._sasl.scope is not None:
            form["scope"] = self._sasl.scope
        return urllib.request.Request(  # noqa: S310 (http and https only, see OAuthBearerSasl)
            self._sasl.token_endpoint_url,
            data=urllib.parse.urlencode(form).encode(),
            headers={
                "Authorization": f"Basic {base64.b64encode(pair).decode()}",
                "Accept": "application/json",
                "Content-Type": "application/x-www-form-urlencoded",
            },
        )

    def _failed(self, reason: str) -> AuthenticationFailedError:
        return AuthenticationFailedError(
            bootstrap_servers=self._bootstrap_servers,
            mechanism="OAUTHBEARER",
            reason=f"no token from {self._sasl.token_endpoint_url}: {reason}",
        )


class MskIamTokenProvider(AbstractTokenProvider):
    """Signed tokens, in the form that kafka-python accepts."""

    def __init__(self, tokens: MskIamTokens) -> None:
        super().__init__()
        self._tokens = tokens

    def token(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A valid token."""
        return self._tokens.token()


def kafka_python_arguments(connection: KafkaConnection) -> dict[str, Any]:
    """The base arguments of every kafka-python client of this cluster, with clear-text secrets.

    Build them where the client is built and do not store them. Raises SecretNotFoundError,
    ConfigurationError.
    """
    arguments: dict[str, Any] = {
        "bootstrap_servers": connection.bootstrap_servers.split(","),
        "security_protocol": connection.security_protocol.value,
        "client_id": CLIENT_ID,
        "request_timeout_ms": round(connection.request_timeout_seconds * 1000),
    }
    if connection.security_protocol.uses_ssl:
        arguments["ssl_context"] = ssl_context(connection)
    sasl = connection.sasl
    if isinstance(sasl, OAuthBearerSasl):
        arguments["sasl_mechanism"] = sasl.mechanism
        arguments["sasl_oauth_token_provider"] = ClientCredentialsTokenProvider(
            sasl,
            bootstrap_servers=connection.bootstrap_servers,
            timeout_s=connection.request_timeout_seconds,
        )
    elif isinstance(sasl, MskIamSasl):
        arguments["sasl_mechanism"] = "OAUTHBEARER"
        arguments["sasl_oauth_token_provider"] = MskIamTokenProvider(
            MskIamTokens(sasl, bootstrap_servers=connection.bootstrap_servers)
        )
    elif sasl is not None:
        arguments["sasl_mechanism"] = sasl.mechanism
        arguments["sasl_plain_username"] = sasl.username
        arguments["sasl_plain_password"] = sasl.password.resolve("sasl.password")
    return arguments | resolve_extras("extra_kafka_python", connection.extra_kafka_python)


def ssl_context(connection: KafkaConnection) -> ssl.SSLContext:
    """The TLS context of a connection; raises SecretNotFoundError, ConfigurationError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    settings = connection.ssl
    if settings is None or settings.ca is None:
        context.load_default_certs()
    else:
        authorities = read_certificates("ssl.ca", settings.ca)
        try:
            context.load_verify_locations(cadata=authorities)
        except ssl.SSLError as error:
            raise _unreadable("ssl.ca", error) from None
    if settings is None:
        return context
    context.check_hostname = settings.verify_host_name
    key = settings.resolve_private_key()
    if settings.certificate is not None and key is not None:
        chain = read_certificates("ssl.certificate", settings.certificate)
        _load_chain(context, chain, key, settings.resolve_key_password())
    return context


def _load_chain(context: ssl.SSLContext, chain: str, key: str, password: str | None) -> None:
    # Python reads certificate and key only from files; these exist during one call
    with tempfile.TemporaryDirectory(prefix="kstreams-assets-") as directory:
        path = Path(directory, "chain.pem")
        path.touch(mode=0o600)
        path.write_text(f"{key.strip()}\n{chain.strip()}\n", encoding="ascii")
        try:
            # without a password OpenSSL would ask for one on the terminal
            context.load_cert_chain(path, password=password or "")
        except ssl.SSLError as error:
            raise _unreadable("ssl.certificate or ssl.private_key", error) from None


def _unreadable(setting: str, error: ssl.SSLError) -> ConfigurationError:
    return ConfigurationError(
        f"{setting} is not accepted by OpenSSL ({error.reason or 'unreadable'}).",
        remedy="Check that certificate, key and key password belong together and are valid PEM.",
    )


_RETRY_S = 0.1
_FIRST_ATTEMPT_S = 2.0
_STOP_MS = 2_000
_UNMUTED_S = 0.01
LARGEST_RESPONSE = 2**30
"""One batch may be as large as the broker's message.max.bytes."""
_SASL_REFUSALS = (
    client_errors.SaslAuthenticationFailedError,
    client_errors.UnsupportedSaslMechanismError,
    client_errors.IllegalSaslStateError,
    AuthenticationFailedError,
    SecretNotFoundError,
)
_UNREADABLE = (
    ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError, struct.error
)  # fmt: skip
_BROKEN_OFF = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
# From version 13 on the answer has a top-level error that older brokers do not support.
_METADATA_WITH_TOPIC_IDS = 10
_METADATA_VERSION = 12
TOPIC_NOT_ALLOWED = client_errors.TopicAuthorizationFailedError.errno
COORDINATOR_BUSY = {14, 15, 16}
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR: try again."""


class Coordinated(IntEnum):
    """Kinds of coordinators, in the numbers of FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


class _Manager(KafkaConnectionManager):
    """Record why connections failed; kafka-python itself retries and reports only `timeout`.

    Also record until when brokers do not read because of a quota (KIP-219): kafka-python rejects
    requests to them as if they did not exist.
    """

    def __init__(self, net: NetworkSelector, **configs: Any) -> None:  # noqa: ANN401
        super().__init__(net, **configs)
        self.refusal: Exception | None = None
        self.last_failure: Exception | None = None
        self.unreached: dict[Any, str] = {}
        """The reason why the last connection to a broker failed, by its id."""
        self._muted_until: dict[Any, float] = {}

    def muted_s(self, node: int | None) -> float:
        """How long a broker, or the first of all known ones, does not read from us."""
        until = self._muted_until
        if node is None:
            known = [broker.node_id for broker in self.cluster.brokers()]
            latest = min((until.get(id_, 0.0) for id_ in known), default=0.0)
        else:
            latest = until.get(node, 0.0)
        return max(0.0, latest - time.monotonic())

    def was_muted(self, node: int | None, since: float) -> bool:
        """Whether a broker, or any, did not read from us at some time after this one."""
        if node is not None:
            return self._muted_until.get(node, 0.0) > since
        return any(until > since for until in self._muted_until.values())

    def get_connection(self, node_id: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if self.refusal is not None:
            raise self.refusal
        is_new = node_id not in self._conns
        connection = super().get_connection(node_id, *args, **kwargs)
        connection.init_future.add_errback(self._remember)
        connection.init_future.add_errback(lambda e: self.unreached.update({node_id: str(e)}))
        connection.init_future.add_callback(lambda _: self.unreached.pop(node_id, None))
        if is_new:
            connection._maybe_throttle = partial(  # noqa: SLF001
                self._note_muted,
                node_id,
                connection._maybe_throttle,  # noqa: SLF001
            )
            connection.data_received = partial(_readable, connection.data_received)
        return connection

    def unreached_addresses(self, bootstrap_servers: str) -> dict[Any, Unreached]:
        """Brokers whose last connection failed and whose address is not in bootstrap_servers.

        The cluster itself advertises these addresses, so it has answered.
        """
        given = {server.lower() for server in bootstrap_servers.split(",")}
        found: dict[Any, Unreached] = {}
        for node_id, reason in [*self.unreached.items()]:
            node = self.cluster.broker_metadata(node_id)
            if node is None or self.cluster.is_bootstrap(node_id):
                continue
            if f"{node.host}:{node.port}".lower() not in given:
                found[node_id] = Unreached(node_id, f"{node.host}:{node.port}", reason)
        return found

    def _note_muted(self, node_id: Any, throttle: Callable[[Any], None], response: Any) -> None:  # noqa: ANN401
        throttle_time_ms = getattr(response, "throttle_time_ms", 0)
        report_quota(throttle_time_ms)
        for_s = min(throttle_time_ms / 1000, QUOTA_PATIENCE_S)
        if for_s > 0:
            until = time.monotonic() + for_s + _UNMUTED_S
            self._muted_until[node_id] = max(until, self._muted_until.get(node_id, 0.0))
        throttle(response)

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:  # noqa: ANN401
        transport = await super()._build_transport(node, timeout_at=timeout_at)
        # kafka-python drops data that arrived together with the end of the connection, including
        # the answer that the password is wrong.
        transport._sock_recv = partial(_data_before_end, transport._sock_recv)  # noqa: SLF001
        return transport

    def _remember(self, failure: Exception) -> None:
        self.last_failure = failure
        if _refusal_reason(failure) is not None:
            self.refusal = failure


class WireClient:
    """Send requests to chosen brokers, from any thread; connect at the first request.

    Every request ends within its timeout. After a failure the connections are closed, so that the
    next request notices a repaired broker.
    """

    def __init__(self, connection: KafkaConnection, *, timeout_s: float) -> None:
        self._connection = connection
        self.bootstrap_servers = connection.bootstrap_servers
        self.timeout_s = timeout_s
        self._lock = threading.RLock()
        self._manager: _Manager | None = None
        self._net: NetworkSelector | None = None
        self._coordinators: dict[tuple[Coordinated, str], int] = {}
        self.asked_coordinators: dict[str, set[int]] = {}
        """The brokers that were asked as coordinators of groups, since this was last cleared."""

    def request(
        self,
        make: Callable[[], ApiMessage],
        *,
        operation: str,
        node: int | None = None,
        timeout_s: float | None = None,
        retry: bool = True,
    ) -> Any:  # noqa: ANN401 (kafka-python builds its response classes at run time)
        """The response of broker `node` (None: any).

        Repeated while connections fail, unless `retry` is off: for callers that prefer to ask
        another broker. Raises AuthenticationFailedError, ClusterUnavailableError,
        SecretNotFoundError.
        """
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        return self._asked(
            make, operation, node, unthrottled_time() + limit_s, limit_s, retry=retry
        )

    def _asked(
        self,
        make: Callable[[], ApiMessage],
        operation: str,
        node: int | None,
        deadline: float,
        limit_s: float,
        *,
        retry: bool,
    ) -> Any:  # noqa: ANN401
        """Send a request until a deadline; errors name `limit_s`."""
        while True:
            manager = self._connected(operation, deadline, limit_s)
            wait_throttled(manager.muted_s(node))
            asked_at = time.monotonic()
            remaining_ms = max(1, round((deadline - unthrottled_time()) * 1000))
            try:
                return manager.run(_send, manager, make, node, remaining_ms)
            except client_errors.IncompatibleBrokerVersion:
                raise
            except (client_errors.KafkaError, AuthenticationFailedError, RuntimeError) as error:
                # RuntimeError: another thread's failure closed the network loop
                if manager.was_muted(node, asked_at) and _refusal_reason(error) is None:
                    # The broker reads it only when the quota allows it.
                    time.sleep(_RETRY_S)
                    count_throttled(time.monotonic() - asked_at)
                    continue
                late = unthrottled_time() + _RETRY_S >= deadline
                if _refusal_reason(error) is not None or late:
                    raise self._failed(operation, limit_s, error) from None
                if not retry:
                    # Between connection attempts kafka-python does not report the reason.
                    waits = isinstance(error, client_errors.NodeNotReadyError)
                    reason = (waits and manager.last_failure) or error
                    unreached = manager.unreached_addresses(self.bootstrap_servers)
                    raise self.unavailable(
                        operation,
                        limit_s,
                        str(reason),
                        unreached={n: one for n, one in unreached.items() if node in (None, n)},
                    ) from None
            time.sleep(_RETRY_S)

    def metadata(
        self,
        topics: Iterable[str] | None,
        *,
        operation: str,
        node: int | None = None,
        timeout_s: float | None = None,
        retry: bool = True,
        with_rights: bool = False,
    ) -> Any:  # noqa: ANN401
        """The metadata of broker `node` (None: any) about these topics (None: all) and the brokers.

        Topics that do not exist or are hidden from this user have an error code. Raises the errors
        of `request`.
        """
        named = None
        if topics is not None:
            named = [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(
            topics=named,
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=with_rights,
            min_version=_METADATA_WITH_TOPIC_IDS,
            max_version=_METADATA_VERSION,
        )
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        deadline = unthrottled_time() + limit_s
        attempts = 0
        while True:
            # a paused broker accepts a connection but stays silent; another one may answer
            patience_s = limit_s if node is not None or not retry else attempt_s(attempts)
            attempt_ends = min(deadline, unthrottled_time() + patience_s)
            try:
                return self._asked(
                    lambda: request, operation, node, attempt_ends, limit_s, retry=retry
                )
            except ClusterUnavailableError:
                if not retry or unthrottled_time() + _RETRY_S >= deadline:
                    raise
            attempts += 1

    def connected_socket(self, node: int, *, operation: str, timeout_s: float) -> socket.socket:
        """A separate logged-in connection to a broker, which the caller closes.

        If the broker ends it because its login has expired (`connections.max.reauth.ms`), the
        caller requests another one. Raises the errors of `request`.
        """
        deadline = unthrottled_time() + timeout_s
        manager = self._connected(operation, deadline, timeout_s)
        remaining_ms = max(1, round((deadline - unthrottled_time()) * 1000))
        try:
            return manager.run(_taken_over, manager, node, remaining_ms)
        except (client_errors.KafkaError, AuthenticationFailedError, RuntimeError) as error:
            raise self._failed(operation, timeout_s, error) from None

    def broker_ids(self, *, operation: str) -> list[int]:
        """The ids of all brokers."""
        manager = self._connected(operation, unthrottled_time() + self.timeout_s, self.timeout_s)
        return sorted(broker.node_id for broker in manager.cluster.brokers())

    def coordinator(self, kind: Coordinated, key: str, *, operation: str) -> int:
        """The broker that coordinates a group or transactional id; looked up once, then cached.

        Raises AuthorizationFailedError, ClusterUnavailableError while there is none.
        """
        known = self._coordinators.get((kind, key))
        if known is None:
            known = self._coordinators[kind, key] = self._find_coordinator(kind, key, operation)
        if kind is Coordinated.GROUP:
            self.asked_coordinators.setdefault(key, set()).add(known)
        return known

    def _find_coordinator(self, kind: Coordinated, key: str, operation: str) -> int:
        deadline = unthrottled_time() + self.timeout_s
        while True:
            response = self.request(
                lambda: FindCoordinatorRequest(
                    key_type=kind.value, coordinator_keys=[key], min_version=4
                ),
                operation=operation,
            )
            found = response.coordinators[0]
            if found.error_code == 0:
                return found.node_id
            error = client_errors.for_code(found.error_code)
            if error in (
                client_errors.GroupAuthorizationFailedError,
                client_errors.TransactionalIdAuthorizationFailedError,
            ):
                kind_name = "group" if kind is Coordinated.GROUP else "transactional id"
                raise AuthorizationFailedError(
                    operation=operation, resource=f"{kind_name} {key}", needed="DESCRIBE"
                )
            if unthrottled_time() + _RETRY_S >= deadline:
                raise self.unavailable(operation, self.timeout_s, error.__name__)
            time.sleep(_RETRY_S)

    def forget_coordinator(self, kind: Coordinated, key: str) -> None:
        """Look the coordinator up again next time, because it has changed."""
        self._coordinators.pop((kind, key), None)

    def remember_coordinator(self, kind: Coordinated, key: str, node: int) -> None:
        """Set the coordinator from newer metadata."""
        self._coordinators[kind, key] = node

    def unavailable(
        self,
        operation: str,
        timeout_s: float,
        reason: str,
        *,
        unreached: Mapping[Any, Unreached] = {},
    ) -> ClusterUnavailableError:
        """The error for a call without a usable answer in time."""
        return ClusterUnavailableError(
            bootstrap_servers=self.bootstrap_servers,
            operation=operation,
            timeout_s=timeout_s,
            reason=self._connection.scrub(reason).rstrip("."),
            unreached=tuple(
                replace(one, reason=self._connection.scrub(one.reason).rstrip("."))
                for one in unreached.values()
            ),
        )

    def close(self) -> None:
        """Close all connections; the next request opens new ones."""
        with self._lock:
            manager, net = self._manager, self._net
            self._manager = self._net = None
            self._coordinators.clear()
        if manager is not None and net is not None:
            # the loop may have ended already
            with contextlib.suppress(client_errors.KafkaError, RuntimeError):
                manager.run(manager.close)
            net.stop(timeout_ms=_STOP_MS)
            net.close()

    def _connected(self, operation: str, deadline: float, limit_s: float) -> _Manager:
        with self._lock:
            if self._manager is not None:
                return self._manager
            tame_client_logs()
            arguments = kafka_python_arguments(self._connection)
            timeout_ms = max(1, round((deadline - unthrottled_time()) * 1000))
            longest_ms = max(timeout_ms, round(1000 * self.timeout_s))
            arguments |= {
                "request_timeout_ms": longest_ms,
                "socket_connection_setup_timeout_ms": longest_ms,
                "receive_message_max_bytes": LARGEST_RESPONSE,
                "reconnect_backoff_max_ms": 1_000,
            }
            if provider := arguments.get("sasl_oauth_token_provider"):
                provider.token()  # not on the network thread: its error stays unchanged
            net = NetworkSelector(**arguments)
            manager = _Manager(net, **arguments)
            net.start()
            self._manager, self._net = manager, net
            try:
                manager.run(_bootstrap, manager, timeout_ms)
            except (client_errors.KafkaError, AuthenticationFailedError) as error:
                raise self._failed(operation, limit_s, error) from None
            return manager

    def _failed(
        self, operation: str, timeout_s: float, error: Exception
    ) -> AuthenticationFailedError | ClusterUnavailableError | SecretNotFoundError:
        manager = self._manager
        remembered = None if manager is None else manager.refusal or manager.last_failure
        unreached = {} if manager is None else manager.unreached_addresses(self.bootstrap_servers)
        self.close()
        for failure in (error, remembered):
            reason = None if failure is None else _refusal_reason(failure)
            if isinstance(failure, AuthenticationFailedError | SecretNotFoundError):
                return failure
            if reason is not None:
                return AuthenticationFailedError(
                    bootstrap_servers=self.bootstrap_servers,
                    mechanism=self._connection.mechanism,
                    reason=self._connection.scrub(reason).rstrip("."),
                )
        timed_out = isinstance(error, client_errors.KafkaTimeoutError) and remembered is not None
        reason = str(remembered if timed_out else error)
        return self.unavailable(operation, timeout_s, reason, unreached=unreached)


def attempt_s(attempts: int) -> float:
    """How long a query waits for one broker, after this many attempts without an answer.

    Short at first, in case that broker is dead; longer later, for a slow cluster.
    """
    return _FIRST_ATTEMPT_S * 2 ** (attempts // 2)


def topics_not_allowed(
    operation: str, topics: Iterable[str], needed: str
) -> AuthorizationFailedError:
    """The error for topics on which a right is missing; names them all."""
    names = sorted(set(topics))
    resource = f"topic{'s' if len(names) > 1 else ''} {', '.join(names)}"
    return AuthorizationFailedError(operation=operation, resource=resource, needed=needed)


def _data_before_end(
    receive: Callable[[], tuple[bytes, client_errors.KafkaConnectionError | None]],
) -> tuple[bytes, client_errors.KafkaConnectionError | None]:
    data, error = receive()
    return (data, None) if data else (data, error)  # the next read sees the end again


def _readable(receive: Callable[[bytes], None], data: bytes) -> None:
    """Process data from a broker; without this kafka-python would wait after malformed answers."""
    try:
        receive(data)
    except client_errors.KafkaProtocolError:
        raise
    except (client_errors.KafkaError, *_UNREADABLE) as error:
        message = f"an answer that cannot be read ({error})"
        raise client_errors.KafkaProtocolError(message) from error


async def _bootstrap(manager: _Manager, timeout_ms: int) -> None:
    # with its own timeout: a peer that accepts but stays silent would block it for ever
    await manager.wait_for(manager.bootstrap_async(timeout_ms), timeout_ms)


async def _send(
    manager: _Manager, make: Callable[[], ApiMessage], node: int | None, timeout_ms: int
) -> Any:  # noqa: ANN401
    if node is not None:
        await _known(manager, node, timeout_ms)
    target = manager.least_loaded_node() if node is None else node
    connection = manager.get_connection(target, timeout_ms=timeout_ms)
    connection._maybe_unthrottle()  # noqa: SLF001 (its own timer may come a moment later)
    sent = connection.send_request(make(), request_timeout_ms=timeout_ms)
    return await manager.wait_for(sent, timeout_ms)


async def _known(manager: _Manager, node: int, timeout_ms: int) -> None:
    """Look up the address of a broker."""
    if manager.cluster.broker_metadata(node) is None:
        refresh = manager.cluster.refresh_metadata  # pyright: ignore[reportAttributeAccessIssue]
        await manager.wait_for(manager.call_soon(refresh), timeout_ms)


async def _taken_over(manager: _Manager, node: int, timeout_ms: int) -> socket.socket:
    """The socket of a new connection, which kafka-python releases."""
    await _known(manager, node, timeout_ms)
    connections = manager._conns  # noqa: SLF001
    shared = connections.pop(node, None)
    try:
        connection = manager.get_connection(node, timeout_ms=timeout_ms, pop_on_close=False)
    finally:
        connections.pop(node, None)
        if shared is not None:
            connections[node] = shared
    await manager.wait_for(connection.init_future, timeout_ms)
    transport = connection.transport
    connection._reauth.cancel()  # noqa: SLF001
    manager._net.cancel(transport._read_task)  # noqa: SLF001
    return transport._sock  # noqa: SLF001


def _refusal_reason(error: BaseException) -> str | None:
    """The reason for a permanent refusal by the broker or TLS, None for transient failures."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, _SASL_REFUSALS):
            return str(seen)
        if isinstance(seen, ssl.SSLCertVerificationError):
            return f"TLS: {seen.verify_message}"
        if isinstance(seen, ssl.SSLError) and not isinstance(seen, _BROKEN_OFF):
            return f"TLS: {seen.reason or seen}"
        inner = seen.args[0] if seen.args and isinstance(seen.args[0], BaseException) else None
        seen = inner or seen.__cause__ or seen.__context__
    return None
