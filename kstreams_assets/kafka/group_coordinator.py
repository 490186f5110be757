"""Requests to the broker that coordinates a group."""

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import kafka.errors as client_errors

from kstreams_assets.errors import (
    AuthorizationFailedError,
    ClusterUnavailableError,
    KafkaRequestError,
)
from kstreams_assets.kafka.wire import COORDINATOR_BUSY, Coordinated, WireClient
from kstreams_assets.offsets import TopicPartitionId

GROUP_ID_NOT_FOUND: Final = client_errors.GroupIdNotFoundError.errno
GROUP_NOT_ALLOWED: Final = client_errors.GroupAuthorizationFailedError.errno
TOPIC_NOT_ALLOWED: Final = client_errors.TopicAuthorizationFailedError.errno

_BUSY_RETRY_S = 0.1
_LONGEST_RETRY_S = 0.5


def ask_coordinator(
    wire: WireClient,
    group: str,
    make: Callable[[], Any],
    codes_of: Callable[[Any], Iterable[int]],
    operation: str,
) -> Any:  # noqa: ANN401
    """The answer of the group's coordinator, asked again while there is none that is ready.

    `codes_of` gives the answer's error codes. A coordinator that is gone is looked for anew:
    another broker takes its place. Raises ClusterUnavailableError, AuthorizationFailedError.
    """
    deadline = time.monotonic() + wire.timeout_s
    while True:
        try:
            node = wire.coordinator(Coordinated.GROUP, group, operation=operation)
            remaining_s = max(_BUSY_RETRY_S, deadline - time.monotonic())
            response = wire.request(
                make, operation=operation, node=node, timeout_s=remaining_s, retry=False
            )
        except ClusterUnavailableError as error:
            reason = error.reason
        else:
            busy = next((code for code in codes_of(response) if code in COORDINATOR_BUSY), None)
            if busy is None:
                return response
            reason = client_errors.for_code(busy).__name__
        wire.forget_coordinator(Coordinated.GROUP, group)
        if time.monotonic() + _LONGEST_RETRY_S > deadline:
            raise wire.unavailable(operation, wire.timeout_s, reason)
        time.sleep(_BUSY_RETRY_S)


def group_refused(
    operation: str, group: str, code: int, *, needed: str = "DESCRIBE"
) -> AuthorizationFailedError | KafkaRequestError:
    """The error for a code that concerns the group as a whole; `needed` is the right it takes."""
    resource = f"group {group}"
    if code == GROUP_NOT_ALLOWED:
        return AuthorizationFailedError(operation=operation, resource=resource, needed=needed)
    name = client_errors.for_code(code).__name__
    return KafkaRequestError(operation=operation, resource=resource, reason=name)


def by_topic(partitions: Iterable[TopicPartitionId]) -> dict[str, list[int]]:
    """The partitions' numbers by topic, both in order."""
    topics: dict[str, list[int]] = {}
    for partition in sorted(partitions):
        topics.setdefault(partition.topic, []).append(partition.partition)
    return topics
