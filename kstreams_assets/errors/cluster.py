"""What a Kafka cluster refused or did not answer."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from kstreams_assets.errors.base import KStreamsAssetsError


class KafkaError(KStreamsAssetsError):
    """A cluster did not do what was asked of it."""


class ClusterUnavailableError(KafkaError):
    """No broker answered in time."""

    def __init__(
        self, *, bootstrap_servers: str, operation: str, timeout_s: float, reason: str
    ) -> None:
        super().__init__(
            f"Kafka at {bootstrap_servers} did not answer within {timeout_s:g} s ({operation}):"
            f" {reason}.",
            remedy="Check that the brokers run, the address and the security protocol; then try"
            " again.",
        )
        self.bootstrap_servers = bootstrap_servers
        self.operation = operation
        self.timeout_s = timeout_s
        self.reason = reason


class AuthenticationFailedError(KafkaError):
    """The cluster refused the credentials (or the TLS handshake)."""

    def __init__(self, *, bootstrap_servers: str, mechanism: str, reason: str) -> None:
        super().__init__(
            f"Kafka at {bootstrap_servers} refused the credentials ({mechanism}): {reason}.",
            remedy="Check user name, secret and mechanism of the connection, and the broker's log.",
        )
        self.bootstrap_servers = bootstrap_servers
        self.mechanism = mechanism
        self.reason = reason


class AuthorizationFailedError(KafkaError):
    """An ACL is missing."""

    def __init__(self, *, operation: str, resource: str, needed: str) -> None:
        super().__init__(
            f"Not allowed: {operation} on {resource}.",
            remedy=f"Give the user of this connection the right {needed} on {resource}.",
        )
        self.operation = operation
        self.resource = resource
        self.needed = needed


class TopicNotFoundError(KafkaError):
    """Topics that the application is declared to have are not on the cluster."""

    def __init__(self, *, topics: Iterable[str], cluster: str) -> None:
        self.topics = tuple(sorted(topics))
        self.cluster = cluster
        super().__init__(
            f"Not on the cluster {cluster}: topic {', '.join(self.topics)}.",
            remedy="Check the names in the YAML, and the right DESCRIBE on them (Kafka hides topics"
            " it does not let you see). A store whose table reads its topic directly has no"
            " changelog of its own under topology.optimization: declare stores.<store>.source_topic"
            " (kstreams-assets discover --topology writes it); a store without logging:"
            " stores.<store>.logging_disabled. A topic that is gone for good: take it out of the"
            " YAML, or list it under not_mine.",
        )


class UnstableGroupOffsetsError(KafkaError):
    """A transaction that commits offsets of the group stayed undecided for too long."""

    def __init__(self, *, group: str, partitions: Iterable[str], waited_s: float) -> None:
        self.group = group
        self.partitions = tuple(partitions)
        self.waited_s = waited_s
        super().__init__(
            f"The offsets of group {group} were still being committed after {waited_s:.0f} s:"
            f" {', '.join(self.partitions)}.",
            remedy="Try again; if it lasts, look for a hanging transaction of the application"
            " (kafka-transactions.sh find-hanging).",
        )


class OffsetOutOfRangeError(KafkaError):
    """The log no longer (or not yet) holds an offset that was asked for."""

    def __init__(self, *, partition: str, offset: int, log_start: int, log_end: int) -> None:
        super().__init__(
            f"{partition} holds offsets {log_start} to {log_end}, not {offset}.",
            remedy="Records below the log start were deleted (retention, DeleteRecords or a"
            " recreated topic); read from the log start and record the loss.",
        )
        self.partition = partition
        self.offset = offset
        self.log_start = log_start
        self.log_end = log_end


class RawReadTimeoutError(KafkaError):
    """The raw log was not read to its end in the time allowed."""

    def __init__(
        self, *, partition: str, reached: int, end: int, timeout_s: float, reason: str
    ) -> None:
        super().__init__(
            f"{partition} was read up to offset {reached} of {end} within {timeout_s:g} s:"
            f" {reason}.",
            remedy="Check the brokers; allow more time if the range is large.",
        )
        self.partition = partition
        self.reached = reached
        self.end = end
        self.timeout_s = timeout_s
        self.reason = reason


class RawReadLimitError(KafkaError):
    """Ranges of the raw log hold more bytes than may be kept in memory."""

    def __init__(self, *, limit_bytes: int) -> None:
        super().__init__(
            f"There are more than {limit_bytes} bytes to read.",
            remedy="Raise the limit, or read less at once.",
        )
        self.limit_bytes = limit_bytes


class CorruptBatchError(KafkaError):
    """Bytes of the log are no record batch this project can read."""

    def __init__(self, *, partition: str, offset: int, reason: str) -> None:
        super().__init__(
            f"{partition} cannot be read at offset {offset}: {reason}.",
            remedy="Check the disk of the partition's leader; formats before Kafka 0.11 are not"
            " read.",
        )
        self.partition = partition
        self.offset = offset
        self.reason = reason


class CoordinatorRecordError(KafkaError):
    """A record of an internal topic has a form this project does not know."""

    def __init__(self, *, topic: str, offset: int, reason: str) -> None:
        super().__init__(
            f"The record at offset {offset} of {topic} cannot be read: {reason}.",
            remedy="Use a version of this project that knows the brokers' version; until then"
            " recovery points are taken by another method.",
        )
        self.topic = topic
        self.offset = offset
        self.reason = reason


class KafkaRequestError(KafkaError):
    """A broker refused a request for a reason that has no class of its own."""

    def __init__(
        self,
        *,
        operation: str,
        resource: str,
        reason: str,
        remedy: str = "Look the reason up in the broker's log.",
    ) -> None:
        super().__init__(f"Kafka refused {operation} on {resource}: {reason}.", remedy=remedy)
        self.operation = operation
        self.resource = resource
        self.reason = reason


class OffsetsRefusedError(KafkaRequestError):
    """A group's offsets of some partitions were refused; those of the others were taken.

    `refused` says why, by partition; `accepted` are the partitions whose offsets changed.
    """

    def __init__(
        self, *, operation: str, group: str, refused: Mapping[str, str], accepted: Iterable[str]
    ) -> None:
        self.group = group
        self.refused = dict(refused)
        self.accepted = tuple(accepted)
        shown = [f"{partition} ({reason})" for partition, reason in self.refused.items()]
        more = f" and {len(shown) - 5} more" if len(shown) > 5 else ""
        super().__init__(
            operation=operation,
            resource=f"group {group}",
            reason=", ".join(shown[:5]) + more,
            remedy=f"Mend the cause and do it again; until then do not start the application:"
            f" {len(self.accepted)} partition(s) have their new offsets, {len(shown)} have not.",
        )


class GroupNotEmptyError(KafkaError):
    """A group has members, so that nobody else may change its offsets.

    `group_type` and `state` are Kafka's words (`classic`, `Stable` ...), None when not known.
    """

    def __init__(
        self, *, operation: str, group: str, group_type: str | None, state: str | None
    ) -> None:
        self.operation = operation
        self.group = group
        self.group_type = group_type
        self.state = state
        seen = f" ({group_type} group, state {state})" if group_type else ""
        super().__init__(
            f"Group {group} is in use{seen}: {operation} is refused.",
            remedy="Stop every instance of the application and wait until its members have left the"
            " group: those that did not say goodbye stay for session.timeout.ms (45 s by default);"
            " then try again.",
        )


class LocalClusterError(KafkaError):
    """A local broker did not start or died."""

    def __init__(self, *, node: int, reason: str, log_file: Path) -> None:
        super().__init__(
            f"Local broker {node} does not run: {reason}.",
            remedy=f"Read its log {log_file}; correct the properties of the cluster, or try again.",
        )
        self.node = node
        self.reason = reason
        self.log_file = log_file
