"""Compares stored records with the records that would replace them, by offset."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import PurePosixPath

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kstreams_assets.backup.planner import TopicPlan
from kstreams_assets.model.data_files import SpanFile
from kstreams_assets.model.files import NewFile, path_in_table
from kstreams_assets.model.recordings import LedgerEntry
from kstreams_assets.model.spans import SpanId
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.repository import Repository
from kstreams_assets.store import StorePath, store_at

_Offsets = npt.NDArray[np.int64]


def poorer_partitions(
    repo: Repository, topic: TopicPlan, files: Iterable[NewFile]
) -> frozenset[TopicPartitionId]:
    """Return partitions with a stored offset that the new files do not have.

    An unreadable stored file counts with the records of its ledger row: the new files need as many
    in its range.

    Args:
        repo: The repository of the stored files.
        topic: The topic that was read; its `held` are the stored rows.
        files: New files, of this topic and of others.
    """
    read = {span.partition for span in topic.spans}
    entries = [entry for entry in topic.held if entry.result.partition in read]
    if not entries:
        return frozenset()
    new: dict[TopicPartitionId, list[SpanFile]] = {}
    for file in files:
        span = SpanId.of_file(file)
        if span.window == topic.window.key:
            new.setdefault(span.partition, []).append(_span_file(repo.records_path, file))
    return frozenset(
        partition
        for partition, file in _stored(repo, entries)
        if not _has_all(new.get(partition, []), file)
    ) | frozenset(
        entry.result.partition
        for entry in entries
        if not _has_as_many(new.get(entry.result.partition, []), entry)
    )


def files_that_stay(repo: Repository, topics: Iterable[TopicPlan]) -> set[str]:
    """Return paths (below the table) of these topics' stored files that are not read again."""
    entries: list[LedgerEntry] = []
    for topic in topics:
        read = {span.partition for span in topic.spans}
        entries += [entry for entry in topic.earlier if entry.result.partition not in read]
    below = PurePosixPath(str(repo.records_path))
    return {
        str(PurePosixPath(str(file.path)).relative_to(below)) for _, file in _stored(repo, entries)
    }


def _stored(
    repo: Repository, entries: Sequence[LedgerEntry]
) -> Iterator[tuple[TopicPartitionId, SpanFile]]:
    """Yield the stored files of these rows, each with its partition."""
    spans = {SpanId(e.result.plan.window.key, e.result.partition) for e in entries}
    if not spans:
        return
    actions = repo.ledger.file_actions()
    topics = pa.array({span.partition.topic for span in spans}, pa.string())
    windows = pa.array({span.window for span in spans}, pa.string())
    rows = actions.filter(pc.field("topic").isin(topics) & pc.field("window").isin(windows))
    for row in rows.to_pylist():
        partition = TopicPartitionId(row["topic"], row["partition"])
        if SpanId(row["window"], partition) in spans:
            path = repo.records_path / path_in_table(row["path"])
            yield partition, SpanFile(path, row["file_records"], row["first"], row["last"])


def _span_file(records: StorePath, file: NewFile) -> SpanFile:
    first, last = (file.stats[of]["offset"] for of in ("minValues", "maxValues"))
    return SpanFile(records / file.path, file.records, first, last)


def _has_as_many(files: Collection[SpanFile], entry: LedgerEntry) -> bool:
    """Whether files have as many records in a span as were stored of it."""
    plan = entry.result.plan
    return len(_inside(files, plan.start, plan.end)) >= entry.result.content.records


def _has_all(files: Collection[SpanFile], stored: SpanFile) -> bool:
    """Whether files have every offset of a stored file."""
    found = _inside(files, stored.first_offset, stored.last_offset + 1)
    try:
        held = _offsets(stored)
    except (OSError, pa.ArrowException):
        return len(found) >= stored.records
    return bool(np.isin(held, found, assume_unique=True).all())


def _inside(files: Iterable[SpanFile], start: int, end: int) -> _Offsets:
    """Return the offsets of the files' records in a range."""
    near = [_offsets(f) for f in files if f.first_offset < end and f.last_offset >= start]
    offsets = np.concatenate(near) if near else np.empty(0, np.int64)
    return offsets[(offsets >= start) & (offsets < end)]


def _offsets(file: SpanFile) -> _Offsets:
    with pq.ParquetFile(store_at(file.path).readable(), page_checksum_verification=True) as parquet:
        return parquet.read(columns=["offset"])["offset"].to_numpy()
