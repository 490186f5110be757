"""Puts the increments of a window together when it has closed: one row and one file for each span.

Nothing is read from Kafka. The new files come in one commit, then the window's rows, and only then
the increments' rows and files go: whoever reads in between finds the window or its increments
whole. A run that is killed anywhere is finished by the next one.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from kstreams_assets.errors import StoredDataError
from kstreams_assets.layout import WrittenFile, changed_files
from kstreams_assets.lease import LockHandle
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.store import StorePath
from kstreams_assets.warehouse.committer import commit
from kstreams_assets.warehouse.ledger import Ledger, LedgerEntry
from kstreams_assets.warehouse.records import SpanId, ensure_records
from kstreams_assets.warehouse.spans import UNREAD, Gap, SpanContent, SpanPlan, SpanResult, Window

if TYPE_CHECKING:
    from spark_resources.data_files import NewFolder
    from spark_resources.span_tasks import FoldTask


@dataclass(frozen=True, slots=True)
class Pieces:
    """The increments of one partition in the last life of its topic that a window saw, in order."""

    window: Window
    entries: tuple[LedgerEntry, ...]

    @property
    def partition(self) -> TopicPartitionId:
        """Whose they are."""
        return self.entries[0].result.partition

    @property
    def id(self) -> SpanId:
        """The span that they become."""
        return SpanId(self.window.key, self.partition)

    @property
    def files(self) -> list[WrittenFile]:
        """Their files, in order of offsets."""
        return [file for entry in self.entries for file in entry.result.content.written]

    @property
    def plan(self) -> SpanPlan:
        """The whole span.

        Where offsets in the middle were not to be read (a purge, retention), what can be restored
        begins behind them.
        """
        plans = [entry.result.plan for entry in self.entries]
        unread = [plan.read_start for plan in plans if plan.read_start > plan.start]
        return replace(
            plans[0],
            window=self.window,
            end=plans[-1].end,
            read_start=max(unread, default=plans[0].read_start),
        )

    def result(self, content: SpanContent) -> SpanResult:
        """The whole span with what its new files hold.

        Raises:
            StoredDataError: They do not hold what the increments held.
        """
        results = [entry.result for entry in self.entries]
        had = sum(result.content.records for result in results)
        if content.records != had:
            raise StoredDataError(
                subject=f"Window {self.window.key} of {self.partition}",
                problem=f"its increments have {had:,} records, put together {content.records:,}",
                remedy="Run the backup again; if it says the same, the files of the increments were"
                " changed: see `kstreams-assets recovery-points list`.",
            )
        holes = [result.first_hole for result in results if result.first_hole is not None]
        return SpanResult(
            plan=self.plan,
            content=content,
            gaps=gaps_together(gap for result in results for gap in result.gaps),
            kept=any(result.kept for result in results),
            first_hole=min(holes, default=None),
            contiguity_known=all(result.contiguity_known for result in results),
        )


def pieces_of(window: Window, entries: Iterable[LedgerEntry]) -> dict[str, list[Pieces]]:
    """By topic, the increments of a window that can be put together.

    Only topics that have one up to the window's end, without offsets missing between them. What an
    earlier life of a topic left stays increments.
    """
    by_topic: dict[str, dict[TopicPartitionId, list[LedgerEntry]]] = defaultdict(dict)
    ended: set[str] = set()
    for entry in sorted(entries, key=lambda e: e.result.plan.window):
        partition = entry.result.partition
        by_topic[partition.topic]
        if entry.result.plan.window.end_ms == window.end_ms:
            ended.add(partition.topic)
        if entry.has_span:
            by_topic[partition.topic].setdefault(partition, []).append(entry)
    found: dict[str, list[Pieces]] = {}
    for topic in sorted(ended):
        pieces = [_last_life(window, of_it) for of_it in by_topic[topic].values()]
        if all(_is_whole(one) for one in pieces):
            found[topic] = pieces
    return found


def _last_life(window: Window, entries: Sequence[LedgerEntry]) -> Pieces:
    life = entries[-1].result.plan.topic_id
    return Pieces(window, tuple(e for e in entries if e.result.plan.topic_id == life))


def _is_whole(pieces: Pieces) -> bool:
    plans = [entry.result.plan for entry in pieces.entries]
    return all(one.end == other.start for one, other in pairwise(plans))


def gaps_together(gaps: Iterable[Gap]) -> tuple[Gap, ...]:
    """One gap of each cause; those whose end or number nobody knows stay as they are.

    So do those of offsets that were not read, unless they are adjacent: between them lies what is
    stored.
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
    # Each part of a window reports a topic that is gone.
    return (*known.values(), *dict.fromkeys(others))


def damaged_entries(records: StorePath, entries: Iterable[LedgerEntry]) -> dict[LedgerEntry, str]:
    """The rows of the ledger of which a file is not intact, and what is wrong with it."""
    entries = list(entries)
    files = [(records / file.path, file) for e in entries for file in e.result.content.written]
    bad = changed_files(files)
    found: dict[LedgerEntry, str] = {}
    for entry in entries:
        for file in entry.result.content.written:
            if records / file.path in bad:
                found.setdefault(entry, bad[records / file.path])
    return found


def lost_increment(entry: LedgerEntry, problem: str) -> str:
    """What a damaged increment costs that Kafka cannot give again."""
    plan = entry.result.plan
    return (
        f"Window {plan.window.key}, {plan.partition}: offsets {plan.start} to {plan.end - 1} are"
        f" lost ({problem}), and Kafka no longer holds all of them. The increments before and after"
        " stay and can be restored. Restore the file from a copy of the warehouse (kstreams-assets"
        " verify --repair --from URL)."
    )


def fold_tasks(
    records: StorePath, pieces: Iterable[Pieces], folder: "NewFolder"
) -> "list[FoldTask]":
    """Tasks that write the files of each anew as one, the largest first; `records` is the table."""
    from spark_resources.data_files import SpanEdges
    from spark_resources.span_tasks import FoldTask

    tasks = [
        FoldTask(
            partition=one.partition,
            span=SpanEdges((one.window.key,), (one.entries[0].result.plan.start,), (one.plan.end,)),
            files=tuple((records / file.path, file) for file in one.files),
            folder=folder,
        )
        for one in pieces
        if one.files
    ]
    return sorted(tasks, key=lambda task: -sum(file.size for _, file in task.files))


def drop_superseded(
    ledger: Ledger,
    records: StorePath,
    windows: Iterable[Window],
    *,
    writer: LockHandle,
    provenance: Mapping[str, object],
) -> bool:
    """Take away the increments that the ledger has as windows by now; whether there were some.

    Their files go first: rows without files harm nobody, since the window's row counts.
    """
    done = [_drop_superseded(ledger, records, one, writer, provenance) for one in windows]
    return any(done)


def _drop_superseded(
    ledger: Ledger,
    records: StorePath,
    window: Window,
    writer: LockHandle,
    provenance: Mapping[str, object],
) -> bool:
    entries = ledger.increments_of(window)
    rows = ledger.of_windows({window.key})
    lives = {
        entry.result.partition: entry.result.plan.topic_id
        for of_topic in rows.values()
        for entry in of_topic
    }
    gone, stay = superseded(entries, lives, {topic for _, topic in rows})
    if not gone:
        return False
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
    return True


def superseded(
    entries: Iterable[LedgerEntry], lives: Mapping[TopicPartitionId, str], topics: Iterable[str]
) -> tuple[list[LedgerEntry], list[LedgerEntry]]:
    """Increments that the ledger has as a window by now, and those that stay.

    `lives` are the topic ids in the window's rows, `topics` those that the window has rows of.
    """
    done = set(topics)
    gone: list[LedgerEntry] = []
    stay: list[LedgerEntry] = []
    for entry in entries:
        result = entry.result
        has_row = result.partition.topic in done and (
            not entry.has_span or lives.get(result.partition) == result.plan.topic_id
        )
        (gone if has_row else stay).append(entry)
    return gone, stay
