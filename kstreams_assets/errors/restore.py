"""Restores that were refused, or did not come out as planned."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from kstreams_assets.errors.base import KStreamsAssetsError
from kstreams_assets.errors.configuration import ConfigurationError


class RestoreError(KStreamsAssetsError):
    """A restore was refused, or is not as it must be."""


class RestoreRefusedError(RestoreError):
    """Things stand against a restore; no record was written."""

    def __init__(self, *, application_id: str, refusals: Iterable[str]) -> None:
        self.application_id = application_id
        self.refusals = tuple(refusals)
        listed = "\n".join(f"- {refusal}" for refusal in self.refusals)
        super().__init__(
            f"The restore of {application_id} is refused, no record was written:\n{listed}\n",
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
        self.restore_id = restore_id
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
            remedy="Bring the file back from a copy of the warehouse, or back the window up again"
            " if Kafka still has it, and run the restore again; else restore a recovery point"
            " before it.",
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
        self.group = group
        what = "has not caught up"
        if not is_running:
            what = "has no member, so the application is not seen to run"
        elif records_left == 0:
            what = "has no record left to read, but is not seen to be healthy"
        self.seen = seen
        self.troubles = tuple(troubles)
        told = " ".join(self.troubles)
        super().__init__(
            f"Group {group} {what} ({seen}).{' ' if told else ''}{told} Nothing was changed.",
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
