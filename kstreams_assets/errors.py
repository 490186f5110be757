"""The one tree of errors of this project.

Every error carries its facts as attributes; its message says what is wrong, with the value, and
ends with what the operator should do.
"""

from collections.abc import Iterable
from pathlib import Path


class KStreamsAssetsError(Exception):
    """Something this project refuses or could not do; the message ends with the remedy."""

    def __init__(self, problem: str, *, remedy: str) -> None:
        super().__init__(f"{problem} {remedy}")
        self.problem = problem
        self.remedy = remedy


# --- what a user wrote -------------------------------------------------------------------------


class ConfigurationError(KStreamsAssetsError):
    """A setting is missing, unknown or contradicts another one."""


class SecretNotFoundError(ConfigurationError):
    """The environment variable or file that holds a secret is absent or empty."""

    def __init__(self, *, setting: str, source: str) -> None:
        super().__init__(
            f"The secret for {setting} is not there: {source} is absent or empty.",
            remedy=f"Provide {source} to the process that connects to Kafka.",
        )
        self.setting = setting
        self.source = source


class TopologyParseError(ConfigurationError):
    """A text is not the output of `Topology.describe()`."""

    def __init__(self, *, line_number: int, line: str, expected: str) -> None:
        super().__init__(
            f"Line {line_number} of the topology text is not understood: {line!r}"
            f" (expected {expected}).",
            remedy="Give the unchanged output of Topology.describe().toString().",
        )
        self.line_number = line_number
        self.line = line
        self.expected = expected


class DeclaredNotFoundError(ConfigurationError):
    """A topic or store that the user declared is not there under this name."""

    def __init__(self, *, kind: str, name: str, where: str, near: Iterable[str] = ()) -> None:
        self.kind = kind
        self.name = name
        self.where = where
        self.near = tuple(near)
        hint = f" (near: {', '.join(self.near)})" if self.near else ""
        super().__init__(
            f"The declared {kind} {name!r} is not in {where}{hint}.",
            remedy=f"Correct the name of the {kind} in the declarations, or remove it there.",
        )


class TopicPatternUnmatchedError(ConfigurationError):
    """An include or exclude pattern matches no topic of the application."""

    def __init__(
        self, *, application_id: str, setting: str, pattern: str, near: Iterable[str] = ()
    ) -> None:
        self.application_id = application_id
        self.setting = setting
        self.pattern = pattern
        self.near = tuple(near)
        hint = f" (near: {', '.join(self.near)})" if self.near else ""
        super().__init__(
            f"The {setting} pattern {pattern!r} matches no topic of application"
            f" {application_id}{hint}.",
            remedy=f"Correct the pattern (full names, case sensitive, * ? [...]) or remove it from"
            f" {setting}.",
        )


class ApplicationNotFoundError(ConfigurationError):
    """Nothing on the cluster belongs to this application id."""

    def __init__(self, *, application_id: str) -> None:
        self.application_id = application_id
        super().__init__(
            f"No topic and no committed offset on the cluster belongs to application"
            f" {application_id!r}.",
            remedy="Check the application.id and the rights DESCRIBE on its group and topics; start"
            " the application once; or give its topology text.",
        )


# --- the machine -------------------------------------------------------------------------------


class JavaNotFoundError(KStreamsAssetsError):
    """No JDK 17 or 21 was found through JAVA_HOME or PATH."""


class ProcessError(KStreamsAssetsError):
    """A program of this machine could not be started or failed."""


class JarsMissingError(KStreamsAssetsError):
    """Jars of the lock file are missing or differ from it."""

    def __init__(self, *, directory: Path, missing: Iterable[str], command: str) -> None:
        self.directory = directory
        self.missing = tuple(missing)
        self.command = command
        names = ", ".join(self.missing[:5]) + (" ..." if len(self.missing) > 5 else "")
        super().__init__(
            f"{len(self.missing)} jar(s) missing or different in {directory}: {names}.",
            remedy=f"Run: {command}",
        )


# --- the cluster -------------------------------------------------------------------------------


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
            remedy="Check the names in the YAML, or the right DESCRIBE on them (Kafka hides topics"
            " it does not let you see); exclude the topic if it is not to be backed up.",
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

    def __init__(self, *, operation: str, resource: str, reason: str) -> None:
        super().__init__(
            f"Kafka refused {operation} on {resource}: {reason}.",
            remedy="Look the reason up in the broker's log.",
        )
        self.operation = operation
        self.resource = resource
        self.reason = reason


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
