"""Commits planned windows and increments: read, account, commit once, update the ledger."""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from kstreams_assets.app.model import AppTopic
from kstreams_assets.backup.accounting import Accountant, LogInspection, uninspected
from kstreams_assets.backup.amounts import Amounts, Pace, amounts, record_pace
from kstreams_assets.backup.context import RunContext
from kstreams_assets.backup.parts import first_part, next_increments
from kstreams_assets.backup.planner import Planner, RunPlan, TopicPlan, read_ranges
from kstreams_assets.backup.recorded import current_facts, window_backups
from kstreams_assets.backup.replacement import files_that_stay, poorer_partitions
from kstreams_assets.backup.result import (
    BackupReadError,
    Executor,
    TopicBackup,
    TopicRecreatedWhileReadingError,
    UnreadTopic,
    WindowBackup,
    range_of,
)
from kstreams_assets.errors import (
    KStreamsAssetsError,
    OffsetOutOfRangeError,
    SparkLostError,
    TopicNotFoundError,
)
from kstreams_assets.kafka.admin import may_be_compacted
from kstreams_assets.kafka.connection import CarriedConnection
from kstreams_assets.model.files import NewFile
from kstreams_assets.model.recordings import LedgerEntry
from kstreams_assets.model.spans import SpanId, SpanPlan, SpanResult, TopicFacts, Window
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.committer import commit, uncommitted
from kstreams_assets.repository.records import contents_of, ensure_records, open_records
from kstreams_assets.store import StorePath
from kstreams_assets.store.locks import LockHandle
from kstreams_assets.texts import bytes_text, duration
from spark_resources.work import ReadRange

if TYPE_CHECKING:
    from spark_resources.span_tasks import SpanTask, Written

_log = logging.getLogger(__name__)

_ATTEMPTS: Final = 3


_MOST_REASONS: Final = 5
"""At most this many reasons are named."""


@dataclass(frozen=True, slots=True)
class Committer:
    """Backs up windows and increments in groups, one commit per group.

    The caller holds the application's lock throughout.
    """

    ctx: RunContext
    planner: Planner

    def back_up(
        self,
        windows: Sequence[Window],
        lock: LockHandle,
        topics: Sequence[AppTopic] | None = None,
    ) -> list[WindowBackup]:
        """Plan these windows, of these topics or of all topics of the run, and commit them."""
        if not windows:
            return []
        plan = self.planner.plan(windows, topics)
        sizes = amounts(self.ctx.cluster, self.ctx.repo, plan.topics)
        return self.commit(plan, sizes, lock, topics)

    def commit(
        self,
        plan: RunPlan,
        sizes: Amounts,
        lock: LockHandle,
        topics: Sequence[AppTopic] | None = None,
    ) -> list[WindowBackup]:
        """Commit the planned windows of these topics, group by group."""
        done: list[WindowBackup] = []
        left = sizes.of(plan.topics)
        for group in self._groups(plan, sizes):
            began = time.monotonic()
            done += self._settled(
                group, plan, lock, lambda group=group: self.planner.plan(group, topics)
            )
            size = sizes.of(topic for topic in plan.topics if topic.window in group)
            self._record_pace(size, time.monotonic() - began)
            left -= size
            self.ctx.has_read(size, left)
        return done

    def back_up_part(
        self, rest: Window, topics: Sequence[AppTopic], lock: LockHandle
    ) -> WindowBackup:
        """Back up the rest of a window as an increment, at most as much as one commit takes."""
        ctx = self.ctx
        plan = self.planner.plan([rest], topics)
        sizes = amounts(ctx.cluster, ctx.repo, plan.topics)
        size_of_all = sizes.of(plan.topics)
        is_long = size_of_all > ctx.settings.backup.part_bytes
        pace = ctx.expected_pace() if is_long else None

        def part(whole: RunPlan) -> RunPlan:
            return first_part(whole, rest, sizes, ctx.settings.backup, pace) or whole

        first = part(plan)
        window = first.topics[0].window if first.ends_early else rest
        if is_long:
            ctx.has_read(0, size_of_all)
        began = time.monotonic()
        (done,) = self._settled(
            [window], first, lock, lambda: part(self.planner.plan([rest], topics))
        )
        size, took_s = sizes.of(first.topics), time.monotonic() - began
        self._record_pace(size, took_s)
        left = size_of_all - size
        if is_long:
            ctx.has_read(size, left)
        if first.ends_early:
            pace = Pace(size / took_s, "")
            _log.info(
                "Window %s: %s backed up in %s (%s/s); about %s are left, %s at this pace.",
                rest.first_window,
                bytes_text(round(size)),
                duration(round(1000 * took_s)),
                bytes_text(round(pace.bytes_per_s)),
                bytes_text(round(left)),
                duration(round(1000 * pace.takes_s(left))),
            )
        return done

    def complete(self, window: Window, lock: LockHandle) -> tuple[UnreadTopic, ...]:
        """Back up the missing rest of a window as increments of bounded size.

        Returns:
            The topics that cannot be read to the window's end yet.
        """
        ctx = self.ctx
        unread: dict[str, UnreadTopic] = {}
        while parts := next_increments(
            ctx.repo,
            window,
            window.end_ms,
            ctx.topics_of(ctx.missing(window) - unread.keys()),
        ):
            part, topics = parts[0]
            done = self.back_up_part(part, topics, lock)
            unread |= {one.topic: replace(one, window=window) for one in done.unread}
        return tuple(unread.values())

    def read_again(self, increments: Iterable[LedgerEntry]) -> None:
        """Back up increments again, each up to its end, as far as Kafka still has the records.

        Takes the application's lock for each window.

        Raises:
            KStreamsAssetsError: The cluster cannot be reached.
        """
        topics: dict[Window, set[str]] = {}
        for entry in increments:
            plan = entry.result.plan
            topics.setdefault(plan.window, set()).add(plan.partition.topic)
        for window, names in sorted(topics.items()):
            with self.ctx.writing() as lock:
                try:
                    self.back_up([window], lock, self.ctx.topics_of(names))
                except (BackupReadError, TopicNotFoundError) as error:
                    _log.warning("%s", error)  # The increment stays damaged, which is reported.

    def _record_pace(self, size: float, took_s: float) -> None:
        settings = self.ctx.settings
        record_pace(settings.warehouse, settings.application_id, size, took_s)

    def _groups(self, plan: RunPlan, sizes: Amounts) -> list[tuple[Window, ...]]:
        backup = self.ctx.settings.backup
        by_window = {one.window: 0 for one in plan.unread}
        for topic in plan.topics:
            size = round(sizes.of([topic]))
            by_window[topic.window] = by_window.get(topic.window, 0) + size
        return commit_groups(
            by_window, limit_bytes=backup.commit_bytes, most=backup.windows_per_commit
        )

    def _settled(
        self,
        windows: Sequence[Window],
        plan: RunPlan,
        lock: LockHandle,
        plan_again: Callable[[], RunPlan],
    ) -> list[WindowBackup]:
        """Commit a group; plan it again if the log changed during the read."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return self._commit_group(windows, plan, lock)
            except (BackupReadError, TopicRecreatedWhileReadingError) as error:
                new_plan = plan_again()
                if _spans(new_plan, windows) == _spans(plan, windows):
                    raise
                _log.warning("%s The log has changed meanwhile: planning again.", error.problem)
                plan = new_plan
        return self._commit_group(windows, plan, lock)

    def _commit_group(
        self, windows: Sequence[Window], plan: RunPlan, lock: LockHandle
    ) -> list[WindowBackup]:
        ctx, began = self.ctx, time.monotonic()
        previous = ctx.repo.topics.before(min(window.start_ms for window in windows))
        read = self._read(windows, plan, previous, lock)
        # Files that a commit may refer to are never deleted: none of them is uncommitted by now.
        version = self._commit_files(read, windows, lock)
        took_s = time.monotonic() - began
        backups = self._backups(plan, read, version, previous, took_s)
        found = [backup for id_, backup in backups.items() if id_ in read.results]
        if any(window.is_increment for window in windows):
            changed = [one for one in found if previous.get(one.topic) != one.facts]
            ctx.repo.topics.record([_at_its_point(one) for one in changed], writer=lock)
            ctx.repo.ledger.record_increment(found, run_id=ctx.run_id, writer=lock)
        else:
            ctx.repo.topics.record([backups[topic.id] for topic in read.fresh], writer=lock)
            stay = [entry for t in read.topics if t.id in read.results for entry in read.kept(t)]
            ctx.repo.ledger.record(found, run_id=ctx.run_id, writer=lock, kept=stay)
        staying = [
            topic for topic in read.topics if topic.increments and topic.id not in read.results
        ]
        unread = [
            *(one for one in plan.unread if one.window in windows),
            *map(_increments_stay, staying),
            *read.left_out,
            *_not_read(read.results),
        ]
        for topic in staying:
            del backups[topic.id]
        done = window_backups(ctx.repo, windows, backups.values(), plan.edges, unread)
        for one in unread:
            _log.warning("Window %s, topic %s: %s", one.window.key, one.topic, one.reason)
        for window in done:
            _log.info(
                "Window %s: %d records of %d topics.",
                window.window.key,
                window.records,
                len(window.topics),
            )
        return done

    def _read(
        self,
        windows: Sequence[Window],
        plan: RunPlan,
        previous: Mapping[str, TopicFacts],
        lock: LockHandle,
    ) -> "_Accounted":
        """Read and account for every offset; nothing is committed yet."""
        ctx, backup = self.ctx, self.ctx.settings.backup
        topics = [topic for topic in plan.topics if topic.window in windows]
        again = [topic for topic in topics if topic.needs_only_inspection]
        with Accountant(
            ctx.cluster.connection, backup.scan_stall_seconds, backup.scan_connections, ctx.throttle
        ) as accountant:
            fresh = _richer((t, self._staying(accountant, t)) for t in topics if t not in again)
            with SpanReader(ctx, lock).read(fresh, windows) as read:
                files, inspections, left_out, executor = read
                fresh = [topic for topic in fresh if topic.id not in left_out]
                contents_of(ctx.records, files)
                self._refuse_recreated(plan, windows, fresh, files)
                fresh = _richer((t, poorer_partitions(ctx.repo, t, files)) for t in fresh)
                files = self._of_spans(fresh, files)
                contents = contents_of(ctx.records, files)
                compacted = _compacted(plan, previous)
                results = accountant.results([*fresh, *again], contents, inspections, compacted)
        return _Accounted(
            [topic for topic in topics if topic.id not in left_out],
            fresh,
            files,
            results,
            [*left_out.values()],
            executor,
        )

    def _staying(self, accountant: Accountant, topic: TopicPlan) -> Set[TopicPartitionId]:
        """Return partitions that keep their backup; of these, only damaged spans are read."""
        if topic.unread:
            return {entry.result.partition for entry in topic.held} - topic.unread
        gone = accountant.gone_since(topic)
        if not gone:
            return gone
        name, window = topic.topic.name, topic.window.key
        damaged = {
            TopicPartitionId(name, span.partition)
            for span in self.ctx.repo.ledger.damaged([name], windows=[window])
            if span.partition is not None
        }
        return {entry.result.partition for entry in topic.held} - (damaged - gone)

    def _refuse_recreated(
        self,
        plan: RunPlan,
        windows: Sequence[Window],
        plans: Sequence[TopicPlan],
        files: Sequence[NewFile],
    ) -> None:
        """Raise if records of two topics with one name, or of two log incarnations, may mix."""
        if not files and not any(topic.held for topic in plans):
            return
        cluster = self.ctx.cluster
        now = cluster.describe_topics(sorted(set(plan.descriptions) & set(cluster.topics())))
        changed = {
            name
            for name, topic in plan.descriptions.items()
            if name not in now or now[name].topic_id != topic.topic_id
        }
        logs = self.planner.incarnations(now)
        changed |= {
            span.partition.topic
            for span in _spans(plan, windows)
            if span.to_read and logs.get(span.partition, span.topic_id) != span.topic_id
        }
        if changed:
            raise TopicRecreatedWhileReadingError(topics=changed)

    def _of_spans(self, plans: Iterable[TopicPlan], files: Sequence[NewFile]) -> list[NewFile]:
        """Return the files of planned spans; delete the others."""
        spans = {SpanId.of(span) for topic in plans for span in topic.spans}
        for file in files:
            if SpanId.of_file(file) not in spans:
                with suppress(OSError):  # the next clean-up deletes it
                    (self.ctx.records / file.path).unlink()
        return [file for file in files if SpanId.of_file(file) in spans]

    def _commit_files(
        self, read: "_Accounted", windows: Sequence[Window], lock: LockHandle
    ) -> int | None:
        """Replace the table's contents for what was read; None if nothing was read."""
        records = self.ctx.records
        table = open_records(records, to_write=True)
        if table is None:
            return None
        return commit(
            records,
            table,
            read.files,
            writer=lock,
            replaces=[{"window": t.window.key, "topic": t.topic.name} for t in read.fresh],
            keeps=files_that_stay(self.ctx.repo, read.fresh),
            provenance=self.ctx.provenance(windows),
        )

    def _backups(
        self,
        plan: RunPlan,
        read: "_Accounted",
        version: int | None,
        previous: Mapping[str, TopicFacts],
        took_s: float,
    ) -> dict[tuple[str, str], TopicBackup]:
        """Return the new backup of each topic, by window and topic."""
        facts = current_facts(self.ctx, plan.descriptions)
        backups: dict[tuple[str, str], TopicBackup] = {}
        for topic in read.topics:
            name = topic.topic.name
            # The point that closes the window says nothing about the end of a part of it.
            closing = None if plan.ends_early else plan.edges.closing_point(topic.window)
            is_unchanged = topic.needs_only_inspection
            backups[topic.id] = TopicBackup(
                window=topic.window,
                topic=name,
                role="+".join(sorted(topic.topic.roles)),
                spans=_in_order(read.results.get(topic.id, ()), read.kept(topic)),
                facts=facts.get(name),
                previous_facts=previous.get(name),
                recovery_point_id=closing.id if closing else None,
                delta_version=topic.earlier[0].delta_version if is_unchanged else version,
                duration_s=took_s,
                executor=read.executor,
                below_first={p: o for p, o in plan.below_first.items() if p.topic == name},
            )
        return backups


@dataclass(frozen=True, slots=True)
class _Accounted:
    """Topics as read, with a result for each offset; nothing is committed yet.

    `topics` may be recorded. New files of `fresh` topics are used. `left_out` could not be read.
    """

    topics: Sequence[TopicPlan]
    fresh: Sequence[TopicPlan]
    files: Sequence[NewFile]
    results: Mapping[tuple[str, str], Sequence[SpanResult]]
    left_out: Sequence[UnreadTopic]
    executor: Executor

    def kept(self, topic: TopicPlan) -> list[LedgerEntry]:
        """Return the stored spans of a topic that are kept, given the results of the read."""
        read = {result.partition for result in self.results.get(topic.id, ())}
        return [entry for entry in topic.held if entry.result.partition not in read]


class Read(NamedTuple):
    """The written files, the log inspections made while reading, and topics that must not be
    recorded, by window and topic."""

    files: list[NewFile]
    inspections: Mapping[SpanId, LogInspection]
    left_out: Mapping[tuple[str, str], UnreadTopic]
    executor: Executor = Executor.PYTHON


@dataclass(frozen=True, slots=True)
class SpanReader:
    """Reads under the application's lock: small amounts in this process, others on Spark.

    Spark's tasks write only while the lock is held.
    """

    ctx: RunContext
    lock: LockHandle

    @contextmanager
    def read(self, plans: Sequence[TopicPlan], windows: Sequence[Window]) -> Iterator[Read]:
        """Yield the files of what is to be read; delete them if the block fails.

        Raises:
            BackupReadError: The log has changed, or records cannot be read or written.
            KafkaError: Its subclasses say why the cluster cannot be read.
        """
        reads = read_ranges(span for topic in plans for span in topic.spans)
        if not reads:
            yield Read([], {}, {})
            return
        offsets = sum(span.to_read for topic in plans for span in topic.spans)
        if self.ctx.settings.spark.needs_spark(offsets):
            self.ctx.spark.check()
        ensure_records(self.ctx.records, first=self.ctx.repo.ledger.ensure)
        with uncommitted(self.ctx.records) as folder:
            yield self._write(folder, plans, reads, windows)

    def _write(
        self,
        folder: StorePath,
        plans: Sequence[TopicPlan],
        reads: Sequence[ReadRange],
        windows: Sequence[Window],
    ) -> Read:
        from spark_resources.data_files import NewFolder, remove_unreported
        from spark_resources.span_tasks import edges_of, span_tasks

        spans = [span for topic in plans for span in topic.spans]
        offsets = sum(span.to_read for span in spans)
        topics = {span.partition.topic for span in spans}
        _log.info(
            "Reading %d offsets of %d topics for %s.", offsets, len(topics), range_of(windows)
        )
        backup, connection = self.ctx.settings.backup, self.ctx.cluster.connection
        tasks = span_tasks(
            reads,
            edges_of(spans),
            folder=NewFolder(folder, backup.compression, backup.compression_level),
            connection=CarriedConnection.of(connection),
            idle_timeout_s=backup.read_stall_s,
            throttle=self.ctx.throttle,
        )
        began = time.monotonic()
        try:
            executor, done = self._run(tasks, offsets)
        except SparkLostError:
            raise
        except (OffsetOutOfRangeError, TopicNotFoundError, RuntimeError) as error:
            reason = error.problem if isinstance(error, KStreamsAssetsError) else str(error)
            raise BackupReadError(windows=windows, reason=connection.scrub(reason)) from None
        _log.info("Read in %.1f s (%s).", time.monotonic() - began, executor)
        inspections = {
            SpanId(window, TopicPartitionId(topic, number)): LogInspection(tally)
            for one in done
            for (window, topic, number), tally in one.tallies.items()
        }
        reasons = {
            SpanId(window, TopicPartitionId(topic, number)): reason
            for one in done
            for (window, topic, number), reason in one.unread.items()
        }
        inspections |= {
            id_: uninspected(span, reasons[id_])
            for span in spans
            if (id_ := SpanId.of(span)) in reasons
        }
        left_out = _left_out(plans, reasons)
        files = [
            file
            for one in done
            for file in (NewFile.from_task_row(folder, row) for row in one.rows)
            if (file.values["window"], file.values["topic"]) not in left_out
        ]
        remove_unreported(folder, {file.path.rpartition("/")[2] for file in files})
        return Read(files, inspections, left_out, executor)

    def _run(
        self, tasks: "Sequence[SpanTask]", offsets: int
    ) -> "tuple[Executor, Sequence[Written]]":
        """Run small amounts of work in this process, others on Spark."""
        from spark_resources.span_tasks import run_here

        settings = self.ctx.settings
        if settings.spark.needs_spark(offsets):
            return Executor.SPARK, self._on_spark(tasks)
        return Executor.PYTHON, run_here(tasks, self.ctx.check, at_a_time=settings.backup.tasks)

    def _on_spark(self, tasks: "Sequence[SpanTask]") -> "Sequence[Written]":
        from spark_resources.partition_tasks import run_partition_tasks
        from spark_resources.span_tasks import run_on_spark

        return run_partition_tasks(
            self.ctx.spark.spark_session,
            tasks,
            run_on_spark,
            lock=self.lock.tasks,
            at_a_time=self.ctx.settings.backup.tasks,
        )


def _compacted(plan: RunPlan, previous: Mapping[str, TopicFacts]) -> set[str]:
    """Return topics in which compaction may have made holes: now or at their last backup."""
    return {
        name
        for name, topic in plan.descriptions.items()
        if may_be_compacted(topic.effective_configs)
        or (name in previous and may_be_compacted(dict(previous[name].configs)))
    }


def _left_out(
    plans: Iterable[TopicPlan], reasons: Mapping[SpanId, str]
) -> dict[tuple[str, str], UnreadTopic]:
    """Return topics that are not recorded because some of their records could not be read.

    The next increment reads the whole topic again. In a closed window, readable partitions are
    recorded, unless their increments are kept.
    """
    found: dict[tuple[str, str], UnreadTopic] = {}
    for topic in plans:
        why = [reasons[id_] for span in topic.spans if (id_ := SpanId.of(span)) in reasons]
        if why and (topic.window.is_increment or topic.increments):
            text = " ".join(why[:_MOST_REASONS])
            found[topic.id] = UnreadTopic(topic.window, topic.topic.name, text)
    return found


def commit_groups(
    sizes: Mapping[Window, int], *, limit_bytes: int, most: int
) -> list[tuple[Window, ...]]:
    """Split windows, in order, into groups of at most this many bytes and windows (at least one).

    Each group becomes one commit, so a failure keeps the groups before it.
    """
    groups: list[list[Window]] = []
    filled = 0
    for window, size in sorted(sizes.items()):
        if not groups or filled + size > limit_bytes or len(groups[-1]) == most:
            groups.append([])
            filled = 0
        groups[-1].append(window)
        filled += size
    return [tuple(group) for group in groups]


def _not_read(
    results: Mapping[tuple[str, str], Sequence[SpanResult]],
) -> Iterator[UnreadTopic]:
    """Yield topics with partitions that could not be read."""
    for (_, topic), spans in results.items():
        unread = [span for span in spans if span.is_unread and span.not_examined_because]
        if unread:
            reasons = " ".join(span.not_examined_because for span in unread[:_MOST_REASONS])
            yield UnreadTopic(unread[0].plan.window, topic, reasons)


def _richer(
    plans: Iterable[tuple[TopicPlan, Collection[TopicPartitionId]]],
) -> list[TopicPlan]:
    """Return the plans without partitions of which more is stored than can be read.

    The increments of a window are merged all together or not at all.
    """
    found: list[TopicPlan] = []
    for plan, poorer in plans:
        rest = plan.without(poorer)
        if len(rest.spans) == len(plan.spans):
            found.append(plan)
        elif rest.spans and not plan.increments:
            found.append(rest)
    return found


def _in_order(results: Iterable[SpanResult], kept: Iterable[LedgerEntry]) -> tuple[SpanResult, ...]:
    every = [*results, *(replace(entry.result, kept=True) for entry in kept)]
    return tuple(sorted(every, key=lambda one: (one.partition, one.plan.window)))


def _at_its_point(increment: TopicBackup) -> TopicBackup:
    """Return the increment as if it ended with its closing point, one millisecond earlier.

    Facts recorded with it apply to that point.
    """
    window = increment.window
    return replace(increment, window=replace(window, end_ms=window.end_ms - 1))


def _increments_stay(topic: TopicPlan) -> UnreadTopic:
    """Return why a window is not merged from its increments."""
    return UnreadTopic(
        topic.window,
        topic.topic.name,
        "Offsets are missing between its increments, and Kafka no longer has all records of"
        " the increments. The increments stay, and recovery points restore from them."
        " Records between them are lost.",
    )


def _spans(plan: RunPlan, windows: Sequence[Window]) -> list[SpanPlan]:
    return [span for topic in plan.topics if topic.window in windows for span in topic.spans]
