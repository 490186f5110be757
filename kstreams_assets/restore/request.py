"""What a user asks of a restore. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kstreams_assets.warehouse.judge import Restores


class RestoreMode(StrEnum):
    """What is restored and how the application goes on.

    `state`: inputs, changelogs, records in flight, outputs and offsets, so that it continues
    exactly where it stood. `rebuild`: all inputs, offsets at their beginning; everything is
    recomputed. `inputs_until`: the same with the inputs up to a recovery point.
    """

    STATE = "state"
    REBUILD = "rebuild"
    INPUTS_UNTIL = "inputs_until"


class InputsExtent(StrEnum):
    """How much of the inputs comes back: `full`, or the `tail` from the committed offsets on."""

    FULL = "full"
    TAIL = "tail"


class InputsAt(StrEnum):
    """Where a group goes on in inputs that are not restored, since the target has them already.

    `mapped`: at the same records. The topic is the very one of the recovery point, or a restore of
    this warehouse wrote it, whose offset map says where they are. `latest`: at the end of the
    topic; what lies in it is never read, so that the restore is not exact.
    """

    MAPPED = "mapped"
    LATEST = "latest"


class ChangelogSource(StrEnum):
    """Where the records of changelogs come from: the `raw` log, or the KTable `snapshot`.

    A snapshot holds one record of each key, so fewer records and bytes are produced. Topics that
    have another role besides (a source topic that serves as changelog) come from the raw log.
    """

    RAW = "raw"
    SNAPSHOT = "snapshot"


class VerifyExtent(StrEnum):
    """How much is read back: every record, a `sample` of each partition, or `counts` alone."""

    FULL = "full"
    SAMPLE = "sample"
    COUNTS = "counts"


@dataclass(frozen=True, slots=True)
class OriginalHeaders:
    """Which headers are added to each restored record, behind its own; values are decimal text.

    Off by default: headers can be state.
    """

    offset: bool = False
    """`x-original-offset`"""
    timestamp: bool = False
    """`x-original-timestamp`, epoch milliseconds"""
    partition: bool = False
    """`x-source-partition`"""


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """What to restore, from when, and under which names.

    The newest point that gives what is accepted is taken unless `point_id` or `as_of_ms` (epoch
    milliseconds; the newest point complete at that time) says otherwise. `accept` is the least that
    will do. `application_id` renames the application with its internal topics, `prefix` goes before
    the name of every other topic, `topics` (source name -> target name) wins over both. `exclude`
    are globs of source topics that are not restored; `inputs_are_at` must say where the group goes
    on in one of them in which it had committed offsets.
    """

    mode: RestoreMode = RestoreMode.STATE
    point_id: str | None = None
    as_of_ms: int | None = None
    accept: Restores = Restores.EXACT
    inputs: InputsExtent = InputsExtent.FULL
    application_id: str | None = None
    prefix: str = ""
    topics: Mapping[str, str] = field(default_factory=dict)
    exclude: tuple[str, ...] = ()
    inputs_are_at: InputsAt | None = None
    replication_factor: int | None = None
    original_headers: OriginalHeaders = field(default_factory=OriginalHeaders)
    accept_replaced_timestamps: bool = False
    """Records with a timestamp of 0 or below get the time of the restore."""
    verify: VerifyExtent = VerifyExtent.FULL
    changelog_source: ChangelogSource = ChangelogSource.RAW
    skip_completeness: bool = False
    """Group offsets are committed whatever completeness rules say of the restored cluster."""
