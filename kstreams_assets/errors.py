"""The one tree of errors of this project.

The message of an error says what is wrong, with the value, and ends with what the operator should
do. What is told apart by who catches it has a class of its own, with the facts that are asked for.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kstreams_assets.process_log import cause_in_log
from kstreams_assets.texts import few


class KStreamsAssetsError(Exception):
    """Something this project refuses or could not do; the message ends with the remedy."""

    def __init__(self, problem: str, *, remedy: str) -> None:
        super().__init__(f"{problem} {remedy}")
        self.problem = problem
        self.remedy = remedy


class ConfigurationError(KStreamsAssetsError):
    """What a user wrote is missing, unknown or contradicts something else.

    `keys` are those of the YAML (dotted) below which `value` may be written, where that is known.
    """

    def __init__(
        self, problem: str, *, remedy: str, keys: Sequence[str] = (), value: str = ""
    ) -> None:
        super().__init__(problem, remedy=remedy)
        self.keys = keys
        self.value = value


class SecretNotFoundError(ConfigurationError):
    """The place that holds a secret is absent or empty, or cannot be read."""

    def __init__(
        self, *, setting: str, source: str, reason: str | None = None, remedy: str | None = None
    ) -> None:
        problem = f"{source} is absent or empty" if reason is None else f"{source}: {reason}"
        super().__init__(
            f"The secret for {setting} is not there: {problem}.",
            remedy=remedy or f"Provide {source} to the process that connects to Kafka.",
        )
        self.setting = setting
        self.source = source


class RuleSqlError(ConfigurationError):
    """A completeness rule, or the recomputation of a store, cannot be what was meant.

    `rule` is its name (of a recomputation `recompute_<store>`), `line` where it begins in `file`,
    `problem_line` the line of the YAML with the problem; None where that is not known.
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
    """A program of this machine could not be started or failed."""


class JarsMissingError(KStreamsAssetsError):
    """Jars of the lock file are missing or differ from it."""

    def __init__(self, *, directory: Path, missing: Iterable[str], command: str) -> None:
        self.missing = tuple(missing)
        self.command = command
        names = ", ".join(self.missing[:5]) + (" ..." if len(self.missing) > 5 else "")
        super().__init__(
            f"{len(self.missing)} jar(s) missing or different in {directory}: {names}.",
            remedy=f"Run: {command}",
        )


class EngineError(KStreamsAssetsError):
    """The engine of this host did not start, or did not end; `log` is what it prints."""

    def __init__(self, reason: str, log: Path) -> None:
        cause = cause_in_log(log)
        super().__init__(
            f"{reason}{f' (its log: {cause})' if cause else ''}.",
            remedy=f"Read {log}; `kstreams-assets engine status` shows what runs. With another"
            " Spark Connect server instead, set `remote` (KSTREAMS_ASSETS_SPARK_REMOTE).",
        )


class SparkJobError(KStreamsAssetsError, RuntimeError):
    """A Spark job failed; `problem` is its innermost cause, without the stack of Java or gRPC.

    Without a remedy it is a fault of the code that ran in the job.
    """

    def __init__(self, problem: str, *, remedy: str = "") -> None:
        super().__init__(problem, remedy=remedy)
        if not remedy:
            self.args = (problem,)


class SparkLostError(SparkJobError):
    """The Spark server does not answer, or has ended the session: another session may succeed."""


class StoreKeysEndedError(SparkLostError):
    """The keys of the object store that a Spark job was planned with are not valid any more."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"Spark tasks cannot reach the object store any more: {reason}.",
            remedy="Run the same again; what was committed stays. If it ends so again, give the"
            " executors a role, or use keys that are valid for longer than a task takes.",
        )


class RuleLimitError(SparkJobError):
    """The query of a rule reached one of its limits and was ended."""


class WarehouseError(KStreamsAssetsError):
    """A folder or table of the warehouse cannot be read or written.

    `path` is what could not be used; `reason` is one line, as the system or the library gave it.
    """

    def __init__(self, *, path: object, reason: str, remedy: str) -> None:
        super().__init__(f"{path} cannot be used: {reason}.", remedy=remedy)


class LockOrderError(RuntimeError):
    """A lock is asked for while one is held that comes later: two processes might wait forever."""

    def __init__(self, *, wanted: str, held: Sequence[str]) -> None:
        super().__init__(f"Lock {wanted} is taken while {', '.join(held)} is held: wrong order.")


class StoredDataError(KStreamsAssetsError):
    """Stored data is missing, or does not match what was noted when it was written.

    `subject` names the data (a span of a window, a row, a snapshot), `problem` what is wrong with
    it. Nothing of it was used.
    """

    def __init__(self, *, subject: str, problem: str, remedy: str) -> None:
        super().__init__(f"{subject} cannot be used: {problem}.", remedy=remedy)


# --- Kafka ---------------------------------------------------------------------------------------


class KafkaError(KStreamsAssetsError):
    """A cluster did not do what was asked of it."""


@dataclass(frozen=True, slots=True)
class Unreached:
    """A broker that a cluster advertises at an address which cannot be reached."""

    broker: object
    address: str
    reason: str

    def __str__(self) -> str:
        return f"broker {self.broker} at {self.address} ({self.reason})"


class ClusterUnavailableError(KafkaError):
    """No broker answered in time.

    `unreached` are brokers whose address comes from the cluster itself, not from the connection.
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
            "Check that the brokers run, the address and the security protocol; then try again."
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
    """Topics that the application is declared to have are not on the cluster."""

    def __init__(self, *, topics: Iterable[str], cluster: str) -> None:
        self.topics = tuple(sorted(topics))
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
        """Whether the broker answered to the end, without the records."""


class RawReadLimitError(KafkaError):
    """Ranges of the raw log hold more bytes than may be kept in memory."""

    def __init__(self, *, limit_bytes: int) -> None:
        super().__init__(
            f"The ranges contain more than {limit_bytes} bytes.",
            remedy="Raise the limit, or read less at once.",
        )


class CorruptBatchError(KafkaError):
    """Bytes of the log are no record batch this project can read."""

    def __init__(self, *, partition: str, offset: int, reason: str) -> None:
        super().__init__(
            f"{partition} cannot be read at offset {offset}: {reason}.",
            remedy="Check the disk of the partition's leader; formats before Kafka 0.11 are not"
            " read.",
        )
        self.offset = offset


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


class KafkaRequestError(KafkaError):
    """A broker refused a request for a reason that has no class of its own."""

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
    """The backups do not hold all that the state of a store at a recovery point is made of."""

    def __init__(self, *, store: str, point_id: str, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"Store {store!r} is not covered by backups at recovery point {point_id}:"
            f" {reason.rstrip('.')}.",
            remedy="Back up the windows that are missing (kstreams-assets backup), or choose a"
            " covered point (kstreams-assets recovery-points list).",
        )


# --- Schema registries ----------------------------------------------------------------------------


class SchemaNotFoundError(KStreamsAssetsError):
    """The registry has no such schema, subject or version."""

    def __init__(self, *, url: str, asked: str, reason: str) -> None:
        super().__init__(
            f"The schema registry at {url} has no {asked}: {reason}.",
            remedy="Check that schema_registry.url is the registry of the application, and that the"
            " schema was not deleted permanently.",
        )


class SchemaUnusableError(KStreamsAssetsError):
    """The text of a schema cannot be read, so its records stay bytes."""

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
    " the topics, `completeness` and `group_offsets` together."
)


class RestoreIncompleteError(KStreamsAssetsError):
    """Blocking completeness rules do not hold on a restored cluster, or were not evaluated there.

    `violated` are rules in violation, or that could not be evaluated, with what was found;
    `not_evaluated` are rules of which no evaluation of this restore is stored.
    """

    def __init__(
        self, *, restore_id: str, violated: Mapping[str, str], not_evaluated: Iterable[str]
    ) -> None:
        self.violated = dict(violated)
        self.not_evaluated = tuple(not_evaluated)
        told = [f"rule {rule}: {what}" for rule, what in self.violated.items()]
        told += [f"rule {rule} was not evaluated on it" for rule in self.not_evaluated]
        super().__init__(
            f"Restore {restore_id} is possibly incomplete: {'; '.join(told)}. No group offset was"
            " committed.",
            remedy=f"{_FIND_OUT if self.violated else _EVALUATE} To continue anyway, run the"
            " restore again with --skip-completeness (in Dagster: skip_completeness: true).",
        )


class GroupOffsetsDifferError(KStreamsAssetsError):
    """Committed offsets of the target's group are not what they must be."""

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
