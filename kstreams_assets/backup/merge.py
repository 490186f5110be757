"""Merges files: the increments of a window, and windows between two kept points.

Nothing is read from Kafka. `merge` writes one file for each partition while others work, checks
under the lock that the rows are still those that it read, and adds the files in one commit. Then
its caller changes the ledger, and only then deletes the merged rows and files. A reader in between
finds either the old files or the new one, complete. The next run finishes the work of a killed one.

Small files of control tables are merged by `repository/table.py` in another way. No row names such
a file, so the table reads rows, sorts and replaces them in one commit, and retries if another
writer came first.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from kstreams_assets.errors import StoredDataError
from kstreams_assets.model.data_files import By, ExpectedFile
from kstreams_assets.model.files import NewFile
from kstreams_assets.model.recordings import LedgerEntry
from kstreams_assets.model.spans import (
    UNREAD,
    Gap,
    GapCause,
    SpanContent,
    SpanId,
    SpanPlan,
    SpanResult,
    Window,
)
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.committer import commit, uncommitted
from kstreams_assets.repository.inspection import inspect
from kstreams_assets.repository.records import contents_of, ensure_records
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import BackupSettings
from kstreams_assets.store import StorePath
from kstreams_assets.store.locks import LockHandle

if TYPE_CHECKING:
    from spark_resources.span_tasks import LastOfEachKey

_AT_ONCE: Final = 2
"""Partitions merged at a time: each needs memory for some row groups."""


class Keep(Enum):
    """Which records are kept when files are merged; a `LastOfEachKey` is the other choice."""

    ALL = "all"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Pieces:
    """Adjacent rows of one partition, of the last incarnation of its topic, in order.

    They become `window`.
    """

    window: Window
    entries: tuple[LedgerEntry, ...]

    @property
    def partition(self) -> TopicPartitionId:
        """The partition of all rows."""
        return self.entries[0].result.partition

    @property
    def id(self) -> SpanId:
        """The span that the rows become."""
        return SpanId(self.window.key, self.partition)

    def files(self, records: StorePath) -> tuple[ExpectedFile, ...]:
        """Return their files in the records table, in order of offsets."""
        return tuple(file for entry in self.entries for file in _files(records, entry))

    @property
    def plan(self) -> SpanPlan:
        """The whole span.

        If offsets in the middle were not to be read (a purge, retention), the restorable range
        starts behind them.
        """
        plans = [entry.result.plan for entry in self.entries]
        unread = [plan.read_start for plan in plans if plan.read_start > plan.start]
        return replace(
            plans[0],
            window=self.window,
            end=plans[-1].end,
            read_start=max(unread, default=plans[0].read_start),
        )

    @property
    def holes(self) -> list[tuple[int | None, LedgerEntry]]:
        """The first log hole at the time each piece was read, or where one is possible."""
        return [
            (result.first_hole if result.contiguity_known else result.plan.start, entry)
            for entry in self.entries
            if (result := entry.result).plan.start < result.plan.end
            and (result.first_hole is not None or not result.contiguity_known)
        ]

    def result(self, content: SpanContent, keep: "Keep | LastOfEachKey" = Keep.ALL) -> SpanResult:
        """Return the whole span with the contents of its new files.

        An inspection of it can find only what inspections of the pieces found.

        Raises:
            StoredDataError: The new files do not have the records of the pieces.
        """
        results = [entry.result for entry in self.entries]
        plan = self.plan
        had = sum(result.content.records for result in results)
        gaps = merge_gaps(gap for result in results for gap in result.gaps)
        if keep is Keep.NONE:
            plan = replace(plan, read_start=plan.end)
            gaps = (Gap(GapCause.EXPIRED, plan.start, plan.end, plan.end - plan.start),)
            gaps = gaps if plan.start < plan.end else ()
        elif content.records > had or (keep is Keep.ALL and content.records != had):
            raise StoredDataError(
                subject=f"Window {self.window.key} of {self.partition}",
                problem=f"the files to be merged hold {had:,} records, the merged one"
                f" {content.records:,}",
                remedy="Nothing was changed. Run it again. If the error repeats, files were"
                " altered: see `kstreams-assets verify --full`.",
            )
        elif content.records < had:
            left_out = Gap(
                GapCause.COMPACTED_BY_EXPIRE, plan.start, plan.end, had - content.records
            )
            gaps = merge_gaps([*gaps, left_out])
        examined = [r for r in results if r.plan.start < r.plan.end]
        known = any(r.contiguity_known for r in examined) or not examined
        holes = [hole for hole, _ in self.holes if hole is not None]
        return SpanResult(
            plan=plan,
            content=content,
            gaps=gaps,
            kept=any(r.kept for r in results),
            first_hole=min(holes, default=None) if known else None,
            contiguity_known=known and any(r.contiguity_known for r in results),
        )


@dataclass(frozen=True, slots=True)
class Merged:
    """New files in the table, beside those from which they were merged.

    `results` are the spans of the new files, `lock` is the application's lock, `version` the
    table's version.
    """

    results: Mapping[SpanId, SpanResult]
    lock: LockHandle
    version: int | None


@contextmanager
def merge(
    records: StorePath,
    pieces: Collection[Pieces],
    keep: "Mapping[SpanId, Keep | LastOfEachKey]" = MappingProxyType({}),
    *,
    parts: Collection[tuple[str, str]],
    settings: BackupSettings,
    check: Callable[[], None],
    writing: Callable[[], AbstractContextManager[LockHandle]],
    require_unchanged: Callable[[], None],
    provenance: Mapping[str, object],
) -> Iterator[Merged]:
    """Add one merged file for each of these to the table; the block then changes the ledger.

    Args:
        records: The records table.
        pieces: The rows to merge; the caller holds the lock for merging.
        keep: Which records are kept; all of them for spans without an entry.
        parts: Windows (keys) and topics that the new files contain entirely.
        settings: How files are written, and how many at a time.
        check: Called regularly; may raise.
        writing: Takes the application's lock, which is held to the end of the block.
        require_unchanged: Called under that lock; raises if the pieces have changed.
        provenance: What the commit says about its origin.

    Raises:
        StoredDataError: A file is not intact, or the new ones do not have the expected records.
            Nothing was changed.
    """
    from spark_resources.data_files import NewFolder, SpanEdges
    from spark_resources.span_tasks import MergeTask, run_here

    with ExitStack() as stack:
        with uncommitted(records) as folder:
            new = NewFolder(folder, settings.compression, settings.compression_level)
            tasks = [
                MergeTask(
                    partition=one.partition,
                    span=SpanEdges((one.window.key,), (one.plan.start,), (one.plan.end,)),
                    files=files,
                    folder=new,
                    keeps=None if isinstance(kept, Keep) else kept,
                )
                for one in pieces
                if (kept := keep.get(one.id, Keep.ALL)) is not Keep.NONE
                and (files := one.files(records))
            ]
            tasks.sort(key=lambda task: -sum(file.size for file in task.files))
            done = run_here(tasks, check, at_a_time=settings.tasks or _AT_ONCE)
            files = [NewFile.from_task_row(folder, row) for one in done for row in one.rows]
            contents = contents_of(records, files)
            results = {
                one.id: one.result(contents.get(one.id, SpanContent()), keep.get(one.id, Keep.ALL))
                for one in pieces
            }
            lock = stack.enter_context(writing())
            require_unchanged()
        version = commit(
            records,
            ensure_records(records),
            files,
            writer=lock,
            replaces=[{"window": key, "topic": topic} for key, topic in sorted(parts)],
            provenance=provenance,
        )
        yield Merged(results, lock, version)


def merge_gaps(gaps: Iterable[Gap]) -> tuple[Gap, ...]:
    """Merge gaps to one of each cause; gaps of unknown end or number stay separate.

    Gaps of offsets that were not read stay separate too, unless they are adjacent: stored
    records lie between them.
    """
    known: dict[str, Gap] = {}
    others: list[Gap] = []
    for gap in gaps:
        if gap.end is None or gap.offsets is None:
            others.append(gap)
            continue
        before = known.get(gap.cause)
        if before and gap.cause in UNREAD and before.end != gap.start:
            others.append(before)
            before = None
        known[gap.cause] = (
            gap
            if before is None or before.end is None or before.offsets is None
            else Gap(
                gap.cause,
                min(before.start, gap.start),
                max(before.end, gap.end),
                before.offsets + gap.offsets,
            )
        )
    # Each part of a window reports a missing topic.
    return (*known.values(), *dict.fromkeys(others))


def damaged_entries(records: StorePath, entries: Iterable[LedgerEntry]) -> dict[LedgerEntry, str]:
    """Return the ledger rows with a file that is not intact, and what is wrong with it."""
    of_entry = {file: entry for entry in entries for file in _files(records, entry)}
    whose = {file.place: entry for file, entry in of_entry.items()}
    found: dict[LedgerEntry, str] = {}
    for damage in inspect([*of_entry], By.DIGEST):
        found.setdefault(whose[damage.place], damage.problem)
    return found


def _files(records: StorePath, entry: LedgerEntry) -> Iterator[ExpectedFile]:
    plan = entry.result.plan
    for written in entry.result.content.written:
        yield ExpectedFile.of(
            records,
            written,
            window=plan.window.key,
            topic=plan.partition.topic,
            partition=plan.partition.partition,
            topic_id=plan.topic_id,
            start=plan.start,
            end=plan.end,
        )


def drop_superseded(
    repo: Repository,
    records: StorePath,
    windows: Iterable[Window],
    *,
    writer: LockHandle,
    provenance: Mapping[str, object],
) -> bool:
    """Delete increments that the ledger has as windows by now; return whether there were any.

    Their files are deleted first: rows without files do no harm, since the window's row counts.
    """
    ledger, found = repo.ledger, False
    for window in windows:
        rows = ledger.of_windows({window.key})
        closed = {topic for _, topic in rows}
        lives = {
            entry.result.partition: entry.result.plan.topic_id
            for of_topic in rows.values()
            for entry in of_topic
        }
        gone: list[LedgerEntry] = []
        stay: list[LedgerEntry] = []
        for entry in ledger.increments_of(window):
            result = entry.result
            is_closed = result.partition.topic in closed and (
                not entry.has_span or lives.get(result.partition) == result.plan.topic_id
            )
            (gone if is_closed else stay).append(entry)
        if not gone:
            continue
        parts = {(e.result.plan.window.key, e.result.partition.topic) for e in gone}
        commit(
            records,
            ensure_records(records),
            [],
            writer=writer,
            replaces=[{"window": key, "topic": topic} for key, topic in sorted(parts)],
            keeps={file.path for entry in stay for file in entry.result.content.written},
            provenance=provenance,
        )
        ledger.keep_increments(window, stay, writer)
        found = True
    return found
