"""Transactions of an application: its transactional ids, and its open transactions."""

import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import kafka.errors as client_errors
from kafka.protocol.admin.transactions import DescribeTransactionsRequest, ListTransactionsRequest

from kstreams_assets.errors import (
    AuthorizationFailedError,
    ClusterUnavailableError,
    KafkaRequestError,
    RawReadLimitError,
    TopicNotFoundError,
)
from kstreams_assets.kafka.coordinator_log import (
    CONSUMER_OFFSETS,
    TRANSACTION_STATE,
    coordinator_partition,
    transaction_states,
)
from kstreams_assets.kafka.leaders import Requests
from kstreams_assets.kafka.raw_log import UNREADABLE, RawLogReader
from kstreams_assets.kafka.throttle import unthrottled_time
from kstreams_assets.kafka.wire import COORDINATOR_BUSY, Coordinated, WireClient
from kstreams_assets.offsets import TopicPartitionId

_OPERATION = "transactional_topics"
_LIST = "transactional_ids"
_DESCRIBE = "ongoing_producers"
_WRITTEN = "written_topics"
_LOG_BYTES = 64 * 1024**2
_SHORTER_S = (86_400.0, 3_600.0, 300.0, 30.0)
"""If the log of the coordinators is too long, only this much of it is read."""
_HIDDEN = (ClusterUnavailableError, TopicNotFoundError, *UNREADABLE)
"""The reason why a log is not read."""
ONGOING = "Ongoing"
"""Kafka's state of an open transaction without a requested end."""
_RETRY_S = 0.1
_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# Gone or moved between the two requests; its topics are found the next time.
_PASSING = {
    client_errors.TransactionalIdNotFoundError.errno,
    client_errors.NotCoordinatorError.errno,
    client_errors.CoordinatorLoadInProgressError.errno,
    client_errors.CoordinatorNotAvailableError.errno,
}


@dataclass(frozen=True, slots=True)
class TransactionalTopics:
    """Topics in transactions of an application; `reason` explains why some or all are missing."""

    topics: frozenset[str]
    transactional_ids: tuple[str, ...]
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class TransactionalId:
    """A transactional id according to its coordinator.

    `producer_id` is the current one; `state` in Kafka's words (`Empty`, `Ongoing`, `PrepareCommit`,
    `CompleteCommit` ...).
    """

    name: str
    producer_id: int
    state: str


def transactional_id_pattern(application_id: str) -> re.Pattern[str]:
    """The pattern of Kafka Streams' transactional ids of one application.

    `<application id>-<process uuid>-<thread>` (exactly_once_v2) or `<application id>-<task>`; a
    prefix alone would also match `orders-eu` for `orders`.
    """
    return re.compile(rf"{re.escape(application_id)}-(?:{_UUID}-\d+|\d+_\d+)")


class _CoordinatorBusyError(KafkaRequestError):
    """A broker is not ready to list its transactional ids."""


def _listed(
    wire: WireClient,
    application_id: str,
    operation: str,
    *,
    retry: bool,
    timeout_s: float | None = None,
) -> tuple[TransactionalId, ...]:
    """The lists of all brokers together, each asked once."""
    pattern = transactional_id_pattern(application_id)
    found: dict[str, TransactionalId] = {}
    for broker in wire.broker_ids(operation=operation):
        response = wire.request(
            ListTransactionsRequest,
            operation=operation,
            node=broker,
            retry=retry,
            timeout_s=timeout_s,
        )
        if response.error_code:
            kind = KafkaRequestError
            if response.error_code in COORDINATOR_BUSY:
                kind = _CoordinatorBusyError
            name = client_errors.for_code(response.error_code).__name__
            raise kind(operation=operation, resource=f"broker {broker}", reason=name)
        for entry in response.transaction_states:
            if pattern.fullmatch(entry.transactional_id):
                found[entry.transactional_id] = TransactionalId(
                    entry.transactional_id, entry.producer_id, entry.transaction_state
                )
    return tuple(found[name] for name in sorted(found))


def _described(wire: WireClient, ids: Iterable[str], operation: str) -> Iterator[Any]:
    """The coordinators' descriptions of these transactional ids, without those that are moving."""
    by_coordinator: defaultdict[int, list[str]] = defaultdict(list)
    for name in ids:
        node = wire.coordinator(Coordinated.TRANSACTION, name, operation=operation)
        by_coordinator[node].append(name)
    for node, names in by_coordinator.items():
        try:
            response = wire.request(
                lambda names=names: DescribeTransactionsRequest(transactional_ids=names),
                operation=operation,
                node=node,
                retry=False,
            )
        except ClusterUnavailableError:
            for name in names:  # another broker coordinates them soon
                wire.forget_coordinator(Coordinated.TRANSACTION, name)
            if operation != _DESCRIBE:
                raise
            continue
        for entry in response.transaction_states:
            if entry.error_code in _PASSING:
                wire.forget_coordinator(Coordinated.TRANSACTION, entry.transactional_id)
                continue
            if entry.error_code:
                raise _refused(entry.transactional_id, entry.error_code, operation)
            yield entry


def _refused(name: str, code: int, operation: str) -> AuthorizationFailedError | KafkaRequestError:
    resource = f"transactional id {name}"
    error = client_errors.for_code(code)
    if error is client_errors.TransactionalIdAuthorizationFailedError:
        return AuthorizationFailedError(operation=operation, resource=resource, needed="DESCRIBE")
    return KafkaRequestError(operation=operation, resource=resource, reason=error.__name__)


def _unseen(reason: str) -> TransactionalTopics:
    return TransactionalTopics(frozenset(), (), reason)


def _none_visible(application_id: str) -> TransactionalTopics:
    return _unseen(
        f"no transactional id of {application_id} is visible (none in use, or the right"
        f" DESCRIBE on transactional ids {application_id}-* is missing)"
    )


class TransactionRequests(Requests):
    """The part of `KafkaCluster` that concerns transactions."""

    def transactional_ids(self, application_id: str) -> tuple[TransactionalId, ...]:
        """The transactional ids of an application with their producer ids, by name.

        Includes those of stopped instances, until they expire (`transactional.id.expiration.ms`, 7
        days). **An empty answer proves nothing:** brokers silently omit ids that this user may not
        DESCRIBE. Repeated within the request timeout while coordinators move or load. Raises
        KafkaRequestError.
        """
        deadline = unthrottled_time() + self._wire.timeout_s
        while True:
            try:
                return _listed(self._wire, application_id, _LIST, retry=False)
            except _CoordinatorBusyError as error:
                reason = error.reason
            except ClusterUnavailableError as error:
                reason = error.reason  # a stopped broker is not asked again
            if unthrottled_time() + _RETRY_S > deadline:
                raise self._wire.unavailable(_LIST, self._wire.timeout_s, reason)
            time.sleep(_RETRY_S)

    def ongoing_producers(self, transactional_ids: Iterable[str]) -> frozenset[tuple[int, int]]:
        """Producer id and epoch of those of these transactional ids whose transaction is open.

        An id whose coordinator is moving or loading is omitted, like one that no longer exists.
        Needs DESCRIBE on them. Raises KafkaRequestError.
        """
        return frozenset(
            (entry.producer_id, entry.producer_epoch)
            for entry in _described(self._wire, transactional_ids, _DESCRIBE)
            if entry.transaction_state == ONGOING
        )

    def transactional_topics(self, application_id: str) -> TransactionalTopics:
        """Topics that open transactions of this application are writing.

        `written_topics` also finds those of ended transactions.

        Empty with a reason if this user may not see them.
        """
        try:
            ids = [
                known.name for known in _listed(self._wire, application_id, _OPERATION, retry=True)
            ]
        except KafkaRequestError as error:
            return _unseen(error.reason)
        if not ids:
            return _none_visible(application_id)
        try:
            found = {
                t.topic for entry in _described(self._wire, ids, _OPERATION) for t in entry.topics
            }
        except AuthorizationFailedError as error:
            return TransactionalTopics(frozenset(), tuple(sorted(ids)), str(error))
        topics = frozenset(found - {CONSUMER_OFFSETS})
        return TransactionalTopics(topics, tuple(sorted(ids)))

    def written_topics(
        self,
        application_id: str,
        reader: RawLogReader,
        *,
        log_partitions: int | None,
        lookback_s: float | None = None,
        timeout_s: float = 2.0,
    ) -> TransactionalTopics:
        """Topics that transactions of this application wrote, including ended ones.

        Never raises for hidden or late answers: `reason` explains them. Without READ on
        `__transaction_state` only open transactions are found.

        Args:
            application_id: The application's id.
            reader: Reads `__transaction_state`.
            log_partitions: Number of partitions of `__transaction_state`; None: not visible.
            lookback_s: How far back from the newest record; None: as far as the log extends, at
                most 64 MiB.
            timeout_s: Of each request, and of all reading together.
        """
        try:
            ids = [
                one.name
                for one in _listed(
                    self._wire, application_id, _WRITTEN, retry=False, timeout_s=timeout_s
                )
            ]
        except (KafkaRequestError, ClusterUnavailableError) as error:
            return _unseen(error.reason)
        if not ids:
            return _none_visible(application_id)
        why = f"{TRANSACTION_STATE} is not visible (rights DESCRIBE and READ)"
        if log_partitions is not None:
            parts = {
                TopicPartitionId(TRANSACTION_STATE, coordinator_partition(name, log_partitions))
                for name in ids
            }
            try:
                found = self._in_log(frozenset(ids), sorted(parts), reader, lookback_s, timeout_s)
                return TransactionalTopics(found - {CONSUMER_OFFSETS}, tuple(sorted(ids)))
            except _HIDDEN as error:
                why = error.problem.rstrip(".")
        try:
            opened = {t.topic for one in _described(self._wire, ids, _WRITTEN) for t in one.topics}
        except (AuthorizationFailedError, ClusterUnavailableError, KafkaRequestError) as error:
            return TransactionalTopics(frozenset(), tuple(sorted(ids)), error.problem.rstrip("."))
        return TransactionalTopics(frozenset(opened - {CONSUMER_OFFSETS}), tuple(sorted(ids)), why)

    def _in_log(
        self,
        ids: frozenset[str],
        partitions: Sequence[TopicPartitionId],
        reader: RawLogReader,
        lookback_s: float | None,
        timeout_s: float,
    ) -> frozenset[str]:
        """Topics in the states of these ids in the coordinators' log."""
        try:
            read = reader.read(
                reader.newest(partitions, lookback_s, deadline_s=timeout_s, timeout_s=timeout_s),
                deadline_s=timeout_s,
                limit_bytes=_LOG_BYTES,
            )
        except RawReadLimitError:
            shorter = next((s for s in _SHORTER_S if lookback_s is None or s < lookback_s), None)
            if shorter is None:
                raise
            return self._in_log(ids, partitions, reader, shorter, timeout_s)
        states = transaction_states(chain.from_iterable(read.values()), ids)
        return frozenset(partition.topic for state in states for partition in state.partitions)
