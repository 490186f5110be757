"""What one Spark task restores or verifies: one partition. Pure, pickled into tasks."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kstreams_assets.backup.content import SpanFile
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.restore.request import OriginalHeaders


@dataclass(frozen=True, slots=True)
class PartitionWork:
    """The records of one partition: which files hold them, which offsets count, where they go.

    `files` are span files in order of offsets; `saved_file` is a Parquet file with further records
    in order of offsets (those saved with recovery points), which may repeat offsets of the span
    files. Restored are the records whose source offset lies in one of `ranges` (in order,
    disjoint), each once, in order of offsets: `records` of them. The first gets the target offset
    `base_offset` if nothing was restored before. `noted` are the files, by path, as their backups
    noted them: one that does not match is not used.
    """

    source: TopicPartitionId
    target: TopicPartitionId
    files: tuple[str, ...]
    saved_file: str | None
    ranges: tuple[OffsetRange, ...]
    base_offset: int
    records: int
    original_headers: OriginalHeaders = field(default_factory=OriginalHeaders)
    noted: Mapping[str, SpanFile] = field(default_factory=dict)
