"""All errors of this project, in one tree.

The message of an error names the problem with its value, and ends with the remedy. An error that a
caller handles differently has a class of its own, with the facts that the caller needs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kstreams_assets.process_log import cause_in_log
from kstreams_assets.texts import few


class KStreamsAssetsError(Exception):
    """An operation that this project refused or could not complete; the message ends with the
    remedy."""

    def __init__(self, problem: str, *, remedy: str) -> None:
        super().__init__(f"{problem} {remedy}")
        self.problem = problem
        self.remedy = remedy


class ConfigurationError(KStreamsAssetsError):
    """A setting is missing, unknown or contradicts another one.

    `keys` are the (dotted) keys of the YAML below which `value` may be written, if known.
    """

    def __init__(
        self, problem: str, *, remedy: str, keys: Sequence[str] = (), value: str = ""
    ) -> None:
        super().__init__(problem, remedy=remedy)
        self.keys = keys
        self.value = value


class SecretNotFoundError(ConfigurationError):
    """The source of a secret is absent, empty or unreadable."""

    def __init__(
        self, *, setting: str, source: str, reason: str | None = None, remedy: str | None = None
    ) -> None:
        problem = f"{source} is absent or empty" if reason is None else f"{source}: {reason}"
        super().__init__(
            f"The secret for {setting} is not available: {problem}.",
            remedy=remedy or f"Provide {source} to the process that connects to Kafka.",
        )
        self.setting = setting
        self.source = source


class RuleSqlError(ConfigurationError):
    """A completeness rule, or the recomputation of a store, is invalid.

    `rule` is its name (of a recomputation `recompute_<store>`), `line` the line in `file` where it
    starts, `problem_line` the line of the YAML with the problem; None if unknown.
    """

    def __init__(
        self,
        *,
        rule: str,
        problem: str,
        remedy: str,
        file: Path | None = None,
        line: int | None = None,
        problem_line: int | None = None,
    ) -> None:
        self.rule = rule
        self.line = line
        self.problem_line = problem_line
        of = "" if file is None else f" of {file}"
        at = "" if line is None else f", line {line}"
        if problem_line is not None and problem_line != line:
            at += f" (the problem is in line {problem_line})"
        super().__init__(f"Completeness rule {rule!r}{of}{at}: {problem}.", remedy=remedy)


class JavaNotFoundError(KStreamsAssetsError):
    """No JDK 17 or 21 was found through JAVA_HOME or PATH."""


class ProcessError(KStreamsAssetsError):
    """A program on this machine could not be started or failed."""


class JarsMissingError(KStreamsAssetsError):
    """Jars of the lock file are missing, or their digests differ."""

    def __init__(self, *, directory: Path, missing: Iterable[str], command: str) -> None:
        self.missing = tuple(missing)
        self.command = command
        names = ", ".join(self.missing[:5]) + (" ..." if len(self.missing) > 5 else "")
        super().__init__(
            f"{len(self.missing)} jar(s) missing or different in {directory}: {names}.",
            remedy=f"Run: {command}",
        )


class EngineError(KStreamsAssetsError):
    """The local Spark engine did not start or did not stop; `log` is its output."""

    def __init__(self, reason: str, log: Path) -> None:
        cause = cause_in_log(log)
        super().__init__(
            f"{reason}{f' (its log: {cause})' if cause else ''}.",
            remedy=f"Read {log}; `kstreams-assets engine status` shows the running engine. To use"
            " another Spark Connect server instead, set `remote` (KSTREAMS_ASSETS_SPARK_REMOTE).",
        )


class SparkJobError(KStreamsAssetsError, RuntimeError):
    """A Spark job failed; `problem` is its innermost cause, without the stack of Java or gRPC.

    An empty remedy means a bug in the code that ran in the job.
    """

    def __init__(self, problem: str, *, remedy: str = "") -> None:
        super().__init__(problem, remedy=remedy)
        if not remedy:
            self.args = (problem,)


class SparkLostError(SparkJobError):
    """The Spark server does not answer, or has ended the session: another session may succeed.

    Callers do not blame the data or the rule that the job read.
    """


class TaskOutageError(SparkLostError):
    """A cluster or an object store did not answer a Spark task; `reason` is one line."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"A Spark task got no answer: {reason}.",
            remedy="Check that the brokers and the object store are reachable from the Spark"
            " workers, then run the command again. Committed work stays.",
        )


class StoreKeysEndedError(SparkLostError):
    """The keys of the object store with which a Spark job was planned have expired."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"Spark tasks can no longer reach the object store: {reason}.",
            remedy="Run the same command again; committed data stays. If it fails again in the"
            " same way, give the executors a role, or use keys that are valid for longer than a"
            " task takes.",
        )


class TableVersionGoneError(SparkJobError):
    """Spark cannot open the version of a Delta table that a job was planned with.

    The log of `records` keeps its entries for an hour.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"Spark cannot open the version of the table with which its job was planned: {reason}.",
            remedy="Run the same command again: it is planned with the tables as they are now.",
        )


class RuleLimitError(SparkJobError):
    """The query of a rule reached one of its limits and was stopped."""


class WarehouseError(KStreamsAssetsError):
    """A folder or table of the warehouse cannot be read or written.

    `path` could not be used; `reason` is one line, as the system or the library reported it.
    """

    def __init__(self, *, path: object, reason: str, remedy: str) -> None:
        super().__init__(f"{path} cannot be used: {reason}.", remedy=remedy)


class LockOrderError(RuntimeError):
    """A lock is requested while a later one is held: two processes might wait for each other
    forever."""

    def __init__(self, *, wanted: str, held: Sequence[str]) -> None:
        super().__init__(f"Lock {wanted} is taken while {', '.join(held)} is held: wrong order.")


class StoredDataError(KStreamsAssetsError):
    """Stored data is missing, or differs from what was recorded when it was written.

    `subject` names the data (a span of a window, a row, a snapshot), `problem` the difference. None
    of the data was used.
    """

    def __init__(self, *, subject: str, problem: str, remedy: str) -> None:
        super().__init__(f"{subject} cannot be used: {problem}.", remedy=remedy)


# --- Kafka ---------------------------------------------------------------------------------------


class KafkaError(KStreamsAssetsError):
    """A request to a cluster failed."""


@dataclass(frozen=True, slots=True)
class Unreached:
    """A broker whose advertised address cannot be reached."""

    broker: object
    address: str
    reason: str

    def __str__(self) -> str:
        return f"broker {self.broker} at {self.address} ({self.reason})"


class ClusterUnavailableError(KafkaError):
    """No broker answered in time.

    `unreached` are brokers whose address is advertised by the cluster, not part of the connection.
    """

    def __init__(
        self,
        *,
        bootstrap_servers: str,
        operation: str,
        timeout_s: float,
        reason: str,
        unreached: Sequence[Unreached] = (),
    ) -> None:
        remedy = (
            "Check that the brokers run, and check the address and the security protocol; then try"
            " again."
        )
        problem = f"did not answer within {timeout_s:g} s ({operation}): {reason}."
        if unreached:
            reason = (
                f"it advertises (advertised.listeners) {few(unreached)}, which cannot be reached"
                " from here"
            )
            problem = f"answers, but {reason} ({operation})."
            remedy = (
                "If clients should use another address, correct advertised.listeners of the"
                " broker (or the listener in bootstrap_servers). Otherwise make this address"
                " reachable from this machine, and check that the broker runs."
            )
        super().__init__(f"Kafka at {bootstrap_servers} {problem}", remedy=remedy)
        self.bootstrap_servers = bootstrap_servers
        self.timeout_s = timeout_s
        self.reason = reason


class AuthenticationFailedError(KafkaError):
    """The cluster refused the credentials (or the TLS handshake)."""

    def __init__(self, *, bootstrap_servers: str, mechanism: str, reason: str) -> None:
        super().__init__(
            f"Kafka at {bootstrap_servers} refused the credentials ({mechanism}): {reason}.",
            remedy="Check user name, secret and mechanism of the connection, and the broker's log.",
        )
        self.reason = reason


class AuthorizationFailedError(KafkaError):
    """An ACL is missing."""

    def __init__(self, *, operation: str, resource: str, needed: str) -> None:
        super().__init__(
            f"Not allowed: {operation} on {resource}.",
            remedy=f"Give the user of this connection the right {needed} on {resource}.",
        )
        self.resource = resource
        self.needed = needed


class TopicNotFoundError(KafkaError):
    """Declared topics of the application are not on the cluster."""

    def __init__(self, *, topics: Iterable[str], cluster: str) -> None:
        self.topics = tuple(sorted(topics))
        super().__init__(
            f"Not on the cluster {cluster}: topic {', '.join(self.topics)}.",
            remedy="Check the names in the YAML, and the right DESCRIBE on them (Kafka hides"
            " topics that you may not see). A store whose table reads its topic directly has no"
            " changelog of its own under topology.optimization: declare"
            " stores.<store>.source_topic (kstreams-assets discover --topology writes it). For a"
            " store without logging, declare stores.<store>.logging_disabled. If the topic is"
            " deleted for good, remove it from the YAML, or list it under not_mine.",
        )


class UnstableGroupOffsetsError(KafkaError):
    """A transaction that commits offsets of the group stayed open for too long."""

    def __init__(self, *, group: str, partitions: Iterable[str], waited_s: float) -> None:
        self.group = group
        self.partitions = tuple(partitions)
        super().__init__(
            f"The offsets of group {group} were still being committed after {waited_s:.0f} s:"
            f" {', '.join(self.partitions)}.",
            remedy="Try again. If this persists, look for a hanging transaction of the application"
            " (kafka-transactions.sh find-hanging).",
        )


class OffsetOutOfRangeError(KafkaError):
    """The log does not contain a requested offset."""

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
    """The raw log was not read completely within the time limit."""

    def __init__(
        self,
        *,
        partition: str,
        reached: int,
        end: int,
        timeout_s: float,
        reason: str,
        answered: bool = False,
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
        self.answered = answered
        """Whether the broker answered until the end, but without the records."""


class RawReadLimitError(KafkaError):
    """Ranges of the raw log contain more bytes than may be kept in memory."""

    def __init__(self, *, limit_bytes: int) -> None:
        super().__init__(
            f"The ranges contain more than {limit_bytes} bytes.",
            remedy="Raise the limit, or read less at once.",
        )


class CorruptBatchError(KafkaError):
    """Bytes of the log are not a record batch that this project can read."""

    def __init__(self, *, partition: str, offset: int, reason: str) -> None:
        super().__init__(
            f"{partition} cannot be read at offset {offset}: {reason}.",
            remedy="Check the disk of the partition's leader; formats before Kafka 0.11 are not"
            " supported.",
        )
        self.offset = offset


class CoordinatorRecordError(KafkaError):
    """A record of an internal topic has an unknown format."""

    def __init__(self, *, topic: str, offset: int, reason: str) -> None:
        super().__init__(
            f"The record at offset {offset} of {topic} cannot be read: {reason}.",
            remedy="Use a release of this project that supports the brokers' version; until then"
            " recovery points are taken by another method.",
        )
        self.topic = topic
        self.offset = offset


class KafkaRequestError(KafkaError):
    """A broker refused a request for a reason without a class of its own."""

    def __init__(
        self,
        *,
        operation: str,
        resource: str,
        reason: str,
        remedy: str = "Check the log of the broker for the reason.",
    ) -> None:
        super().__init__(f"Kafka refused {operation} on {resource}: {reason}.", remedy=remedy)
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
        self.reason = reason
        self.log_file = log_file


# --- State stores --------------------------------------------------------------------------------


class StateNotCoveredError(KStreamsAssetsError):
    """The backups do not contain all records of a store's state at a recovery point."""

    def __init__(self, *, store: str, point_id: str, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"Store {store!r} is not covered by backups at recovery point {point_id}:"
            f" {reason.rstrip('.')}.",
            remedy="Back up the missing windows (kstreams-assets backup), or choose a covered"
            " point (kstreams-assets recovery-points list).",
        )


# --- Schema registries ----------------------------------------------------------------------------


class SchemaNotFoundError(KStreamsAssetsError):
    """The registry does not have this schema, subject or version."""

    def __init__(self, *, url: str, asked: str, reason: str) -> None:
        super().__init__(
            f"The schema registry at {url} has no {asked}: {reason}.",
            remedy="Check that schema_registry.url is the registry of the application, and that the"
            " schema was not deleted permanently.",
        )


class SchemaUnusableError(KStreamsAssetsError):
    """The text of a schema cannot be parsed, so its records stay bytes."""

    def __init__(self, *, schema_id: int, kind: str, reason: str) -> None:
        super().__init__(
            f"Schema {schema_id} ({kind}) cannot be used: {reason}.",
            remedy="The records are kept as bytes; check the schema and its references in the"
            " registry.",
        )
        self.schema_id = schema_id
        self.kind = kind
        self.reason = reason


# --- Restores ------------------------------------------------------------------------------------


_FIND_OUT: Final = (
    "Find the missing records, or restore another point. If the rule is wrong, correct it."
)
_EVALUATE: Final = (
    "Run the restore again: it evaluates the rules and writes no record twice. In Dagster, select"
    " the topics, `restored_completeness` and `group_offsets` together."
)


class RestoreIncompleteError(KStreamsAssetsError):
    """Blocking completeness rules are violated on a restored cluster, or were not evaluated there.

    `violated` are rules that are violated or could not be evaluated, with the reason;
    `not_evaluated` are rules without a stored evaluation of this restore.
    """

    def __init__(
        self, *, restore_id: str, violated: Mapping[str, str], not_evaluated: Iterable[str]
    ) -> None:
        self.violated = dict(violated)
        self.not_evaluated = tuple(not_evaluated)
        causes = [f"rule {rule}: {what}" for rule, what in self.violated.items()]
        causes += [f"rule {rule} was not evaluated on it" for rule in self.not_evaluated]
        super().__init__(
            f"Restore {restore_id} is possibly incomplete: {'; '.join(causes)}. No group offset was"
            " committed.",
            remedy=f"{_FIND_OUT if self.violated else _EVALUATE} To continue anyway, run the"
            " restore again with --skip-completeness (in Dagster: skip_completeness: true).",
        )


class GroupOffsetsDifferError(KStreamsAssetsError):
    """Committed offsets of the target's group differ from the expected ones."""

    def __init__(self, *, problem: str, partitions: Iterable[str]) -> None:
        self.partitions = tuple(partitions)
        super().__init__(
            f"Group offsets are {problem}: {'; '.join(self.partitions)}.",
            remedy="Do not start the application. Check that nothing else writes to the group, then"
            " run the restore again.",
        )


class OffsetMapError(KStreamsAssetsError):
    """Runs of source and target offsets that cannot belong to one restore."""

    def __init__(
        self, *, partition: str, source_offset: int, target_offset: int, reason: str
    ) -> None:
        super().__init__(
            f"The offset map of {partition} is wrong at source offset {source_offset}, target"
            f" offset {target_offset}: {reason}.",
            remedy="Another process wrote to the target topic, or the stored map was changed."
            " Delete the target topics of this restore and run it again.",
        )
        self.partition = partition
        self.source_offset = source_offset
        self.target_offset = target_offset


class OvertakenError(KStreamsAssetsError):
    """Another attempt of the same restore writes a target partition, so this one must not."""

    def __init__(self, *, partition: str, source_offset: int) -> None:
        super().__init__(
            f"Another attempt of this restore has written the record with source offset"
            f" {source_offset} to {partition}, or will write one before it.",
            remedy="Run the restore again: it continues their work.",
        )
        self.partition = partition
        self.source_offset = source_offset
