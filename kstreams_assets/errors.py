"""The one tree of errors of this project.

The message of an error says what is wrong, with the value, and ends with what the operator should
do. What is told apart by who catches it has a class of its own, with the facts that are asked for.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kstreams_assets.process_log import cause_in_log


class KStreamsAssetsError(Exception):
    """Something this project refuses or could not do; the message ends with the remedy."""

    def __init__(self, problem: str, *, remedy: str) -> None:
        super().__init__(f"{problem} {remedy}")
        self.problem = problem
        self.remedy = remedy


class ConfigurationError(KStreamsAssetsError):
    """What a user wrote is missing, unknown or contradicts something else."""


class SecretNotFoundError(ConfigurationError):
    """The environment variable or file that holds a secret is absent or empty."""

    def __init__(self, *, setting: str, source: str) -> None:
        super().__init__(
            f"The secret for {setting} is not there: {source} is absent or empty.",
            remedy=f"Provide {source} to the process that connects to Kafka.",
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


class GroupOffsetsFileError(ConfigurationError):
    """A file of group offsets is not there or not as it must be."""

    def __init__(self, *, path: Path, line: int | None, problem: str) -> None:
        where = f"{path}" if line is None else f"{path} line {line}"
        super().__init__(
            f"{where}: {problem}.",
            remedy="Give lines of topic,partition,offset[,metadata]; a header line is allowed.",
        )


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


class RuleLimitError(SparkJobError):
    """The query of a rule reached one of its limits and was ended."""


class WarehouseError(KStreamsAssetsError):
    """A folder or table of the warehouse cannot be read or written.

    `path` is what could not be used; `reason` is one line, as the system or the library gave it.
    """

    def __init__(self, *, path: object, reason: str, remedy: str) -> None:
        super().__init__(f"{path} cannot be used: {reason}.", remedy=remedy)


class StoredDataError(KStreamsAssetsError):
    """Stored data is missing, or does not match what was noted when it was written.

    `subject` names the data (a span of a window, a row, a snapshot), `problem` what is wrong with
    it. Nothing of it was used.
    """

    def __init__(self, *, subject: str, problem: str, remedy: str) -> None:
        super().__init__(f"{subject} cannot be used: {problem}.", remedy=remedy)


class RecoveryPointNotFoundError(KStreamsAssetsError):
    """There is no recovery point of this id."""

    def __init__(self, *, point_id: str, application_id: str) -> None:
        super().__init__(
            f"{application_id} has no recovery point {point_id!r}.",
            remedy="Look ids up: kstreams-assets recovery-points list.",
        )


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
            shown = ", ".join(map(str, unreached[:3]))
            more = f" and {len(unreached) - 3} more" if len(unreached) > 3 else ""
            reason = (
                f"it advertises (advertised.listeners) {shown}{more}, which cannot be reached from"
                " here"
            )
            problem = f"answers, but {reason} ({operation})."
            remedy = (
                "If clients are to use another address, correct advertised.listeners of the"
                " broker (or the listener that bootstrap_servers names); else make this address"
                " reachable from this machine and check that the broker runs."
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
        self.mechanism = mechanism
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
            f"There are more than {limit_bytes} bytes to read.",
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


class RecordsNotReadError(KafkaError):
    """Records of a partition cannot be read, while the brokers answer."""

    def __init__(self, *, reason: str) -> None:
        super().__init__(
            reason,
            remedy="Look at the log of the partition's leader and at its remote storage, then run"
            " the same again.",
        )


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
        self.group = group
        self.group_type = group_type
        self.state = state
        seen = f" ({group_type} group, state {state})" if group_type else ""
        super().__init__(
            f"Group {group} is in use{seen}: {operation} is refused.",
            remedy="Stop every instance of the application and wait until its members have left the"
            " group: an instance that was killed counts as a member for session.timeout.ms (45 s by"
            " default); then try again.",
        )


class LocalClusterError(KafkaError):
    """A local broker did not start or died."""

    def __init__(self, *, node: int, reason: str, log_file: Path) -> None:
        super().__init__(
            f"Local broker {node} does not run: {reason}.",
            remedy=f"Read its log {log_file}; correct the properties of the cluster, or try again.",
        )
        self.reason = reason
        self.log_file = log_file


# --- KTables -------------------------------------------------------------------------------------


class KTableError(KStreamsAssetsError):
    """A snapshot of a state store could not be made or read."""


class KTableWindowError(KTableError):
    """A snapshot cannot be made for a window: it, or one that it needs, is not backed up."""

    def __init__(self, *, store: str, window: str, reason: str) -> None:
        super().__init__(
            f"There can be no snapshot of store {store} for window {window}: {reason.rstrip('.')}.",
            remedy="Back up the windows that are missing, then make the snapshot again.",
        )


class NoSnapshotError(KTableError):
    """No snapshot of a store was made at or before a time.

    `windows` are those that have one, with the time of their recovery point, oldest first.
    """

    def __init__(
        self,
        *,
        application_id: str,
        store: str,
        as_of: str | None,
        windows: Sequence[tuple[str, str]],
    ) -> None:
        until = "" if as_of is None else f" as of {as_of} or earlier"
        there = "there is none at all"
        if windows:
            key, taken_at = windows[0]
            there = f"the oldest of {len(windows)} is that of window {key} ({taken_at})"
        super().__init__(
            f"Store {store!r} of {application_id} has no snapshot{until}: {there}.",
            remedy="Make one of a window that is backed up: kstreams-assets ktables make --app"
            f" defs.yaml --store {store} --window WINDOW (kstreams-assets windows lists them).",
        )


class KeyNotUnderstoodError(KTableError):
    """A text that cannot be a key of the store."""

    def __init__(self, *, key: str, expected: str) -> None:
        super().__init__(
            f"{key!r} is not a key of this store.",
            remedy=f"Give {expected}; or the raw bytes with --key-hex.",
        )


class KeyNotInStoreError(KTableError):
    """The store did not hold the key."""

    def __init__(
        self, *, store: str, key: str, window: str, taken_at: str, some_keys: Sequence[str]
    ) -> None:
        there = f" It holds, for example, {', '.join(some_keys)}." if some_keys else ""
        super().__init__(
            f"Store {store!r} holds no key {key} in window {window} (recovery point of"
            f" {taken_at}).{there}",
            remedy="Try another time, or --history for all windows.",
        )


class UnknownStoreError(KTableError):
    """The application has no store of this name, or none with a table."""

    def __init__(
        self,
        *,
        application_id: str,
        store: str,
        known: Iterable[str],
        near: Iterable[str] = (),
        why: str = "",
    ) -> None:
        hint = f" (near: {', '.join(near)})" if (near := tuple(near)) else ""
        super().__init__(
            f"Store {store!r} of {application_id} has no table: {why}."
            if why
            else f"{application_id} has no store {store!r}{hint}.",
            remedy=f"Its stores are: {', '.join(known) or 'none'}.",
        )


class RegistryError(KTableError):
    """A schema registry did not give what was asked of it."""


class SchemaNotFoundError(RegistryError):
    """The registry has no such schema, subject or version."""

    def __init__(self, *, url: str, asked: str, reason: str) -> None:
        super().__init__(
            f"The schema registry at {url} has no {asked}: {reason}.",
            remedy="Check that schema_registry.url is the registry that the application writes"
            " with, and that nobody deleted the schema for good.",
        )


class SchemaUnusableError(RegistryError):
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


class RestoreError(KStreamsAssetsError):
    """A restore was refused, or is not as it must be."""


class RestoreRefusedError(RestoreError):
    """Things stand against a restore; no record was written."""

    def __init__(self, *, application_id: str, refusals: Iterable[str]) -> None:
        self.refusals = tuple(refusals)
        listed = "\n".join(f"- {refusal}" for refusal in self.refusals)
        super().__init__(
            f"The restore of {application_id} is refused, no record was written:\n{listed}\n",
            remedy="Mend each of these; kstreams-assets restore plan shows whether all are gone.",
        )


class RestoreCommandError(RestoreError):
    """A command before or after a restore did not succeed; `failed` says what became of that."""

    def __init__(self, *, name: str, command: str, problem: str, failed: str) -> None:
        super().__init__(
            f"The {name} command {problem.rstrip('.')}: {command}. {failed}",
            remedy="See what it wrote; then run the restore again, which writes nothing twice."
            if name == "before"
            else "See what it wrote, mend that, and do by hand what the command was to do.",
        )


class RestoreDeadlineError(RestoreError):
    """A restore was not verified within its deadline, and was ended."""

    def __init__(self, *, restore_id: str, deadline_s: float) -> None:
        super().__init__(
            f"Restore {restore_id} was not verified within {deadline_s:g} s (--deadline) and"
            " was ended. No group offset was committed, and the after"
            " command is not run: the application stays stopped.",
            remedy="Run the same command again: it continues where it stopped and writes nothing"
            " twice. Give a longer --deadline if the restore needs it. To do without the restore,"
            " start the application by hand where its own topics and offsets are.",
        )


class RestoreStateError(RestoreError):
    """A step is not taken on a restore in its state; `step` names it, `problem` says why."""

    def __init__(
        self, *, restore_id: str, state: str, step: str, problem: str, remedy: str
    ) -> None:
        super().__init__(
            f"Restore {restore_id} is {state}: {step} is refused. {problem}", remedy=remedy
        )
        self.restore_id = restore_id
        self.state = state
        self.step = step


class RestoreNotVerifiedError(RestoreStateError):
    """A restore has not passed its verification, and the step needs that it has."""


class TargetTopicChangedError(RestoreError):
    """What was restored into is not there any more."""

    def __init__(self, *, subject: str, expected: str, found: str | None) -> None:
        super().__init__(
            f"The {subject} is not the one that was restored into: its id is"
            f" {found or 'unknown, it is not there'}, it was {expected}.",
            remedy="It was deleted or made anew since. Run the restore again.",
        )


_FIND_OUT: Final = (
    "Find out what is missing, or restore another point; correct the rule if it is the rule that"
    " is wrong."
)
_EVALUATE: Final = (
    "Run the restore again, it writes nothing twice and evaluates them; in Dagster, select the"
    " topics, `completeness` and `group_offsets` together."
)


class RestoreIncompleteError(RestoreError):
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
            f"Restore {restore_id} is not known to be complete: {'; '.join(told)}. No group offset"
            " was committed.",
            remedy=f"{_FIND_OUT if self.violated else _EVALUATE} To go on all the same, run the"
            " restore again with --skip-completeness (in Dagster: skip_completeness: true).",
        )


class GroupOffsetsDifferError(RestoreError):
    """Committed offsets of the target's group are not what they must be."""

    def __init__(self, *, problem: str, partitions: Iterable[str]) -> None:
        self.partitions = tuple(partitions)
        super().__init__(
            f"Group offsets are {problem}: {'; '.join(self.partitions)}.",
            remedy="Do not start the application. Check that nothing else writes to the group, then"
            " run the restore again.",
        )


class OffsetMapError(RestoreError):
    """Runs of source and target offsets that cannot belong to one restore."""

    def __init__(
        self, *, partition: str, source_offset: int, target_offset: int, reason: str
    ) -> None:
        super().__init__(
            f"The offset map of {partition} is wrong at source offset {source_offset}, target"
            f" offset {target_offset}: {reason}.",
            remedy="Somebody else wrote the target topic, or the stored map was changed: delete the"
            " target topics of this restore and run it again.",
        )
        self.partition = partition
        self.source_offset = source_offset
        self.target_offset = target_offset


class RestoreRecordsError(RestoreError):
    """The backup of a partition does not give the records that the plan found in it."""

    def __init__(self, *, partition: str, reason: str) -> None:
        super().__init__(
            f"{partition} cannot be restored: {reason}.",
            remedy="Bring the file back from a copy of the warehouse, or back the window up again"
            " if Kafka still has it, and run the restore again; else restore a recovery point"
            " before it.",
        )
        self.partition = partition


class ProduceRefusedError(RestoreError):
    """The target did not take a record; those before it are there, none behind it.

    `source_offset` is that of the record, `reason` Kafka's name of the error
    (`MESSAGE_SIZE_TOO_LARGE`, `INVALID_TIMESTAMP` ...), `detail` its words.
    """

    def __init__(self, *, partition: str, source_offset: int, reason: str, detail: str) -> None:
        super().__init__(
            f"{partition} did not take the record with source offset {source_offset}:"
            f" {reason} ({detail.rstrip('.')}).",
            remedy="Change the topic's configs (max.message.bytes, message.timestamp.*, or"
            " cleanup.policy if a record has no key) or the rights of this user accordingly and run"
            " the restore again; it goes on there.",
        )
        self.partition = partition
        self.source_offset = source_offset


class ForeignRecordsError(RestoreError):
    """A target partition does not end where this restore alone would have left it."""

    def __init__(self, *, partition: str, problem: str) -> None:
        super().__init__(
            f"{partition} is not written by this restore alone: {problem}.",
            remedy="Stop whatever else writes it, delete the target topics of this restore and run"
            " it again.",
        )
        self.partition = partition


class OvertakenError(RestoreError):
    """Another attempt of the same restore writes a target partition, so this one must not."""

    def __init__(self, *, partition: str, source_offset: int) -> None:
        super().__init__(
            f"Another attempt of this restore has written the record with source offset"
            f" {source_offset} to {partition}, or will write one before it.",
            remedy="Run the restore again: it goes on where they have come to.",
        )
        self.partition = partition
        self.source_offset = source_offset


class NotCaughtUpError(RestoreError):
    """The application was not seen to run and to have read everything on its new cluster.

    `records_left` are those that it has still to read, None where they were not counted.
    """

    def __init__(
        self,
        *,
        group: str,
        seen: str,
        troubles: Iterable[str],
        records_left: int | None,
        is_running: bool,
    ) -> None:
        self.seen = seen
        what = "has not caught up"
        if not is_running:
            what = "has no member, so the application is not seen to run"
        elif records_left == 0:
            what = "has no record left to read, but is not seen to be healthy"
        told = " ".join(troubles)
        super().__init__(
            f"Group {group} {what} ({seen}).{' ' if told else ''}{told} Nothing was changed.",
            remedy="Start the application and see kstreams-assets restore watch; then try again,"
            " or force it if the application is not to go on here.",
        )
