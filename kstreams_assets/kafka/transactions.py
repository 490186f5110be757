"""Transactions in progress: which topics an application writes right now."""

import re
from collections import defaultdict
from dataclasses import dataclass

import kafka.errors as client_errors
from kafka.protocol.admin.transactions import (
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)

from kstreams_assets.errors import AuthorizationFailedError, KafkaRequestError
from kstreams_assets.kafka.wire import Coordinated, WireClient

_OFFSETS_TOPIC = "__consumer_offsets"
_OPERATION = "transactional_topics"
_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# Gone or moved between the two requests; its topics are seen the next time.
_PASSING = {
    client_errors.TransactionalIdNotFoundError.errno,
    client_errors.NotCoordinatorError.errno,
    client_errors.CoordinatorLoadInProgressError.errno,
    client_errors.CoordinatorNotAvailableError.errno,
}


@dataclass(frozen=True, slots=True)
class TransactionalTopics:
    """Topics in the open transactions of an application; `reason` says why none could be seen."""

    topics: frozenset[str]
    transactional_ids: tuple[str, ...]
    reason: str | None = None


def transactional_id_pattern(application_id: str) -> re.Pattern[str]:
    """What Kafka Streams names the transactional ids of one application.

    `<application id>-<process uuid>-<thread>` (exactly_once_v2) or `<application id>-<task>`; a
    mere prefix would take `orders-eu` for `orders`.
    """
    return re.compile(rf"{re.escape(application_id)}-(?:{_UUID}-\d+|\d+_\d+)")


def transactional_topics(wire: WireClient, application_id: str) -> TransactionalTopics:
    """Topics that open transactions of this application write at the moment.

    Empty with a reason when this user may not see them. Raises ClusterUnavailableError,
    AuthenticationFailedError.
    """
    pattern = transactional_id_pattern(application_id)
    ids: list[str] = []
    for broker in wire.broker_ids(operation=_OPERATION):
        response = wire.request(ListTransactionsRequest, operation=_OPERATION, node=broker)
        if response.error_code:
            return _unseen(client_errors.for_code(response.error_code).__name__)
        ids += (
            entry.transactional_id
            for entry in response.transaction_states
            if pattern.fullmatch(entry.transactional_id)
        )
    if not ids:
        return _unseen(
            f"no transactional id of {application_id} is visible (none in use, or the right"
            f" DESCRIBE on transactional ids {application_id}-* is missing)"
        )
    try:
        topics = _topics_of(wire, ids)
    except AuthorizationFailedError as error:
        return TransactionalTopics(frozenset(), tuple(sorted(ids)), str(error))
    return TransactionalTopics(topics, tuple(sorted(ids)))


def _topics_of(wire: WireClient, ids: list[str]) -> frozenset[str]:
    by_coordinator: defaultdict[int, list[str]] = defaultdict(list)
    for name in ids:
        node = wire.coordinator(Coordinated.TRANSACTION, name, operation=_OPERATION)
        by_coordinator[node].append(name)
    topics: set[str] = set()
    for node, names in by_coordinator.items():
        response = wire.request(
            lambda names=names: DescribeTransactionsRequest(transactional_ids=names),
            operation=_OPERATION,
            node=node,
        )
        for entry in response.transaction_states:
            if entry.error_code in _PASSING:
                wire.forget_coordinator(Coordinated.TRANSACTION, entry.transactional_id)
                continue
            if entry.error_code:
                raise _refused(entry.transactional_id, entry.error_code)
            topics |= {topic.topic for topic in entry.topics}
    return frozenset(topics - {_OFFSETS_TOPIC})


def _refused(name: str, code: int) -> AuthorizationFailedError | KafkaRequestError:
    resource = f"transactional id {name}"
    error = client_errors.for_code(code)
    if error is client_errors.TransactionalIdAuthorizationFailedError:
        return AuthorizationFailedError(operation=_OPERATION, resource=resource, needed="DESCRIBE")
    return KafkaRequestError(operation=_OPERATION, resource=resource, reason=error.__name__)


def _unseen(reason: str) -> TransactionalTopics:
    return TransactionalTopics(frozenset(), (), reason)
