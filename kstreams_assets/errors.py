"""The one tree of errors of this project.

Every error carries its facts as attributes; its message says what is wrong, with the value, and
ends with what the operator should do.
"""

from collections.abc import Iterable, Mapping
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
        self.rule_problem = problem
        self.file = file
        self.line = line
        self.problem_line = problem_line
        of = "" if file is None else f" of {file}"
        at = "" if line is None else f", line {line}"
        if problem_line is not None and problem_line != line:
            at += f" (the problem is in line {problem_line})"
        super().__init__(f"Completeness rule {rule!r}{of}{at}: {problem}.", remedy=remedy)


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


# --- restores ----------------------------------------------------------------------------------


class RestoreError(KStreamsAssetsError):
    """A restore was refused, or is not as it must be."""


class RestoreRefusedError(RestoreError):
    """Things stand against a restore; nothing was written."""

    def __init__(self, *, application_id: str, refusals: Iterable[str]) -> None:
        self.application_id = application_id
        self.refusals = tuple(refusals)
        listed = "\n".join(f"- {refusal}" for refusal in self.refusals)
        super().__init__(
            f"The restore of {application_id} is refused, nothing was written:\n{listed}\n",
            remedy="Mend each of these; kstreams-assets restore plan shows whether all are gone.",
        )


class RestoreNotVerifiedError(RestoreError):
    """Group offsets were to be committed for a restore that has not passed its verification."""

    def __init__(self, *, restore_id: str, state: str) -> None:
        super().__init__(
            f"Restore {restore_id} is {state}, not verified: no group offsets are committed.",
            remedy="Run the restore again; it goes on where it stopped and verifies.",
        )
        self.restore_id = restore_id
        self.state = state


class TargetTopicChangedError(RestoreError):
    """What was restored into is not there any more."""

    def __init__(self, *, subject: str, expected: str, found: str | None) -> None:
        super().__init__(
            f"The {subject} is not the one that was restored into: its id is"
            f" {found or 'unknown, it is not there'}, it was {expected}.",
            remedy="It was deleted or made anew since. Run the restore again.",
        )
        self.subject = subject
        self.expected = expected
        self.found = found


class RestoredTopicsChangedError(RestoreError):
    """Records were added to restored topics, or deleted from them, after they were verified."""

    def __init__(self, *, restore_id: str, partitions: Iterable[str]) -> None:
        self.restore_id = restore_id
        self.partitions = tuple(partitions)
        super().__init__(
            f"Since restore {restore_id} was verified its topics have changed:"
            f" {'; '.join(self.partitions)}. No group offset was committed.",
            remedy="Stop whatever writes or deletes there, delete the restored topics and run the"
            " restore again; where the application has run since, leave its offsets as they are.",
        )


class RestoreIncompleteError(RestoreError):
    """Blocking completeness rules do not hold on a restored cluster, or were not evaluated there.

    `violated` are rules in violation, or that could not be evaluated, with what was found;
    `not_evaluated` are rules of which no evaluation of this restore is stored.
    """

    def __init__(
        self, *, restore_id: str, violated: Mapping[str, str], not_evaluated: Iterable[str]
    ) -> None:
        self.restore_id = restore_id
        self.violated = dict(violated)
        self.not_evaluated = tuple(not_evaluated)
        told = [f"rule {rule}: {what}" for rule, what in self.violated.items()]
        told += [f"rule {rule} was not evaluated on it" for rule in self.not_evaluated]
        super().__init__(
            f"Restore {restore_id} is not known to be complete: {'; '.join(told)}. No group offset"
            " was committed.",
            remedy="Find out what is missing, or restore another point; correct the rule if it is"
            " the rule that is wrong. To go on all the same, run the restore again with"
            " --skip-completeness (in Dagster: skip_completeness: true).",
        )


class GroupOffsetsDifferError(RestoreError):
    """Committed offsets of the target's group are not what they must be."""

    def __init__(self, *, problem: str, partitions: Iterable[str]) -> None:
        self.problem_seen = problem
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
        self.reason = reason


class RestoreRecordsError(RestoreError):
    """The backup of a partition does not give the records that the plan found in it."""

    def __init__(self, *, partition: str, reason: str) -> None:
        super().__init__(
            f"{partition} cannot be restored: {reason}.",
            remedy="Check the warehouse's storage; if the records table was changed or vacuumed"
            " since, plan the restore again.",
        )
        self.partition = partition
        self.reason = reason


class ProduceRefusedError(RestoreError):
    """The target did not take a record; those before it are there, none behind it.

    `source_offset` is that of the record, `reason` librdkafka's name of the error
    (`MSG_SIZE_TOO_LARGE`, `INVALID_TIMESTAMP` ...), `detail` its words.
    """

    def __init__(self, *, partition: str, source_offset: int, reason: str, detail: str) -> None:
        super().__init__(
            f"{partition} did not take the record with source offset {source_offset}:"
            f" {reason} ({detail.rstrip('.')}).",
            remedy="Change the topic's configs (max.message.bytes, message.timestamp.*) or the"
            " rights of this user accordingly and run the restore again; it goes on there.",
        )
        self.partition = partition
        self.source_offset = source_offset
        self.reason = reason
        self.detail = detail


class ForeignRecordsError(RestoreError):
    """A target partition does not end where this restore alone would have left it."""

    def __init__(self, *, partition: str, problem: str) -> None:
        super().__init__(
            f"{partition} is not written by this restore alone: {problem}.",
            remedy="Stop whatever else writes it, delete the target topics of this restore and run"
            " it again.",
        )
        self.partition = partition
        self.problem_seen = problem


class NotCaughtUpError(RestoreError):
    """The application was not seen to have read everything on its new cluster."""

    def __init__(self, *, group: str, seen: str, troubles: Iterable[str]) -> None:
        self.group = group
        self.seen = seen
        self.troubles = tuple(troubles)
        told = " ".join(self.troubles)
        super().__init__(
            f"Group {group} has not caught up ({seen}).{' ' if told else ''}{told}"
            " Nothing was changed.",
            remedy="Start the application and see kstreams-assets restore watch; then try again,"
            " or force it if the application is not to go on here.",
        )


class ConfigsNotPutBackError(RestoreError):
    """Topics do not have the configs that were just set."""

    def __init__(self, *, differing: Mapping[str, str]) -> None:
        self.differing = dict(differing)
        listed = "; ".join(f"{topic}: {what}" for topic, what in self.differing.items())
        super().__init__(
            f"Configs read back are not those that were put back: {listed}.",
            remedy="Check that nothing else sets the configs of these topics, then finish again.",
        )


class RollbackRefusedError(RestoreError):
    """There are no former group offsets, or they must not be put back any more."""

    def __init__(self, *, restore_id: str, problem: str, remedy: str) -> None:
        super().__init__(f"Restore {restore_id} is not rolled back: {problem}.", remedy=remedy)
        self.restore_id = restore_id


class GroupOffsetsFileError(ConfigurationError):
    """A file of group offsets is not there or not as it must be."""

    def __init__(self, *, path: Path, line: int | None, problem: str) -> None:
        where = f"{path}" if line is None else f"{path} line {line}"
        super().__init__(
            f"{where}: {problem}.",
            remedy="Give lines of topic,partition,offset[,metadata]; a header line is allowed.",
        )
        self.path = path
        self.line = line


class NoGroupOffsetsError(RestoreError):
    """A group has no committed offsets to map."""

    def __init__(self, *, group: str, cluster: str) -> None:
        super().__init__(
            f"Group {group} has no committed offsets on {cluster}.",
            remedy="Check the name of the group; if the source cluster is lost, give its offsets as"
            " a file of topic,partition,offset.",
        )
        self.group = group
        self.cluster = cluster


class LocalTargetNotFoundError(RestoreError):
    """There is no local cluster of this name, or it belongs to something else."""

    def __init__(self, *, name: str, directory: Path, known: Iterable[str]) -> None:
        self.name = name
        self.directory = directory
        self.known = tuple(known)
        super().__init__(
            f"There is no local cluster {name!r} in {directory}"
            f" (there are: {', '.join(self.known) or 'none'}).",
            remedy="Give one of these, or restore with target local first.",
        )


# --- KTables -----------------------------------------------------------------------------------


class KTableError(KStreamsAssetsError):
    """A snapshot of a state store could not be made or read."""


class KTableWindowError(KTableError):
    """A snapshot cannot be made for a window: it, or one that it needs, is not backed up."""

    def __init__(self, *, store: str, topic: str, window: str, reason: str) -> None:
        super().__init__(
            f"There can be no snapshot of store {store} for window {window}: {reason.rstrip('.')}.",
            remedy="Back up the windows that are missing, then make the snapshot again.",
        )
        self.store = store
        self.topic = topic
        self.window = window
        self.reason = reason


class KTableColumnsError(KTableError):
    """A table has columns that the store, as it is declared now, cannot be written to.

    `columns` says of each what the table has and what is to be written.
    """

    def __init__(self, *, store: str, table: Path, columns: Mapping[str, tuple[str, str]]) -> None:
        self.store = store
        self.table = table
        self.columns = dict(columns)
        listed = "; ".join(
            f"{name} is {there} there and {wanted} now" for name, (there, wanted) in columns.items()
        )
        super().__init__(
            f"The table of store {store} has other columns than are declared now: {listed}.",
            remedy=f"Put the declaration back, or remove the folder {table} and make its snapshots"
            " anew: the backup has everything that is needed.",
        )


class KTableJobError(KTableError):
    """Spark could not make a snapshot."""

    def __init__(self, *, store: str, window: str, reason: str) -> None:
        super().__init__(
            f"The snapshot of store {store} for window {window} could not be made: {reason}.",
            remedy="The table is as it was; see the log of the run, mend the cause and try again.",
        )
        self.store = store
        self.window = window
        self.reason = reason


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
        self.application_id = application_id
        self.store = store
        self.known = tuple(known)
        self.near = tuple(near)
        hint = f" (near: {', '.join(self.near)})" if self.near else ""
        super().__init__(
            f"Store {store!r} of {application_id} has no table: {why}."
            if why
            else f"{application_id} has no store {store!r}{hint}.",
            remedy=f"Its stores are: {', '.join(self.known) or 'none'}.",
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
        windows: Iterable[tuple[str, str]],
    ) -> None:
        self.application_id = application_id
        self.store = store
        self.as_of = as_of
        self.windows = tuple(windows)
        until = "" if as_of is None else f" as of {as_of} or earlier"
        there = "there is none at all"
        if self.windows:
            key, taken_at = self.windows[0]
            there = f"the oldest of {len(self.windows)} is that of window {key} ({taken_at})"
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
        self.key = key


class KeyNotInStoreError(KTableError):
    """The store did not hold the key."""

    def __init__(
        self, *, store: str, key: str, window: str, taken_at: str, some_keys: Iterable[str]
    ) -> None:
        self.store = store
        self.key = key
        self.window = window
        self.some_keys = tuple(some_keys)
        there = f" It holds, for example, {', '.join(self.some_keys)}." if self.some_keys else ""
        super().__init__(
            f"Store {store!r} holds no key {key} in window {window} (recovery point of"
            f" {taken_at}).{there}",
            remedy="Try another time, or --history for all windows.",
        )


# --- the schema registry -----------------------------------------------------------------------


class CompletenessError(KStreamsAssetsError):
    """Completeness rules cannot be evaluated as asked."""


class UnknownRuleError(CompletenessError):
    """The application has no completeness rule of this name."""

    def __init__(self, *, application_id: str, rule: str, known: Iterable[str]) -> None:
        self.application_id = application_id
        self.rule = rule
        self.known = tuple(known)
        super().__init__(
            f"{application_id} has no completeness rule {rule!r}.",
            remedy=f"Its rules are: {', '.join(self.known) or 'none'}.",
        )


class UnknownPointError(CompletenessError):
    """There is no recovery point with this id."""

    def __init__(self, *, application_id: str, point_id: str) -> None:
        self.application_id = application_id
        self.point_id = point_id
        super().__init__(
            f"{application_id} has no recovery point {point_id!r}.",
            remedy="Look ids up: kstreams-assets recovery-points list.",
        )


class RegistryError(KTableError):
    """A schema registry did not give what was asked of it."""


class RegistryUnavailableError(RegistryError):
    """The registry did not answer, or not as a registry does; `url` is without credentials."""

    def __init__(self, *, url: str, asked: str, reason: str) -> None:
        super().__init__(
            f"The schema registry at {url} did not give {asked}: {reason}.",
            remedy="Check that it runs, its address and its certificate, then try again; schemas"
            " that are stored in the warehouse are read without it.",
        )
        self.url = url
        self.asked = asked
        self.reason = reason


class RegistryRefusedError(RegistryError):
    """The registry answered no: wrong credentials, a missing right, or another refusal."""

    def __init__(self, *, url: str, asked: str, status: int, reason: str) -> None:
        super().__init__(
            f"The schema registry at {url} refused {asked}: HTTP {status}, {reason}.",
            remedy="Check user name and password of schema_registry and their right to read"
            " schemas.",
        )
        self.url = url
        self.asked = asked
        self.status = status
        self.reason = reason


class SchemaNotFoundError(RegistryError):
    """The registry has no such schema, subject or version."""

    def __init__(self, *, url: str, asked: str, reason: str) -> None:
        super().__init__(
            f"The schema registry at {url} has no {asked}: {reason}.",
            remedy="Check that schema_registry.url is the registry that the application writes"
            " with, and that nobody deleted the schema for good.",
        )
        self.url = url
        self.asked = asked
        self.reason = reason


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


# --- drills -------------------------------------------------------------------------------------


class DrillError(KStreamsAssetsError):
    """A restore drill could not begin."""


class DrillNotDeclaredError(DrillError):
    """The YAML does not say how the application is started."""

    def __init__(self, *, application_id: str) -> None:
        super().__init__(
            f"Nothing says how {application_id} is started in a drill.",
            remedy="Give drill.command in the YAML: program and arguments, with"
            " {bootstrap_servers} and {state_dir} where they belong.",
        )
        self.application_id = application_id


class DrillCommandNotFoundError(DrillError):
    """The program of the drill's command, or its working directory, is not there."""

    def __init__(self, *, program: str, problem: str) -> None:
        super().__init__(
            f"The drill cannot start {program!r}: {problem}.",
            remedy="Correct drill.command (or drill.working_directory) in the YAML; nothing was"
            " restored.",
        )
        self.program = program
        self.problem = problem
