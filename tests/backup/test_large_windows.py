"""A window of more than one commit takes is backed up in parts: a kill costs one of them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from kstreams_assets.backup.commits import SpanReader
from kstreams_assets.backup.run import estimate
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.spans import GapCause, SpanContent, Window
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.records import file_actions
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import BackupSettings, ExecutorSettings
from spark_resources import span_tasks
from spark_resources.work import ReadRange
from tests.backup.reading import consume, stored
from tests.backup.writing import open_transaction, write
from tests.repository.disk import on_disk
from tests.streams.workbench import ON_SPARK, NoSpark, Workbench

pytestmark = [pytest.mark.kafka]

PARTITIONS = 2
RECORDS = 400
IN_PARTS = BackupSettings(commit_bytes=200_000, part_bytes=100_000)
"""Records count as 1 kB each: a part is about a hundred of them."""


@pytest.fixture
def topics(workbench: Workbench) -> list[str]:
    """A large topic with transactions, one of them aborted, and a small one; one closed window.

    It is the first one of all, and so holds also what lies below a point that is older.
    """
    workbench.settings = IN_PARTS
    large, small = workbench.topic("orders", partitions=PARTITIONS), workbench.topic("small")
    write(workbench, small, 5)
    start_ms = workbench.take_point().taken_at_ms + 1
    sender = open_transaction(workbench)
    for number in range(RECORDS // 10):
        for partition in range(PARTITIONS):
            values = [b"%d of %d" % (index, number) for index in range(10)]
            for value in values:
                sender.produce(large, value, key=value[:1], partition=partition)
        assert sender.flush(20) == 0
        sender.abort_transaction(20) if number == 7 else sender.commit_transaction(20)
        sender.begin_transaction()
    sender.abort_transaction(20)
    end_ms = workbench.take_point().taken_at_ms + 1
    workbench.windows.append(Window(start_ms, end_ms, "w0000"))
    return [large, small]


@contextmanager
def _watched(kill_at: int | None = None) -> Iterator[list[int]]:
    """The offsets that each commit read; the run is killed before the commit of this number."""
    reads: list[int] = []
    original = SpanReader._write

    def counting(
        reader: SpanReader, folder: Path, spans: Any, asked: Sequence[ReadRange], *rest: Any
    ) -> Any:
        reads.append(sum(one.end - one.start for one in asked))
        if len(reads) == kill_at:
            raise KeyboardInterrupt
        return original(reader, folder, spans, asked, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SpanReader, "_write", counting)
        yield reads


def _complete(bench: Workbench, topics: Sequence[str]) -> None:
    """The window is whole, as if it had been read at once."""
    (window,) = bench.windows
    assert bench.ledger.done(topics) == {window: {*topics}}
    assert bench.ledger.increments_of(window) == []
    assert not bench.ledger.damaged()
    for topic, partitions in zip(topics, (PARTITIONS, 1), strict=True):
        assert stored(bench, topic, {window.key}) == consume(
            bench.bootstrap_servers, topic, partitions
        )
    points = [point for point in bench.points() if point.taken_at_ms < window.end_ms]
    assert len(points) == 2
    assert all(
        one.covered
        for one in Repository.of(bench.warehouse, bench.application.application_id)
        .reading(bench.application)
        .statuses(points)
    )


@pytest.mark.parametrize(
    "executor",
    [
        pytest.param(ExecutorSettings(), id="in the process"),
        pytest.param(ON_SPARK, id="on Spark", marks=pytest.mark.spark),
    ],
)
def test_a_window_in_parts_is_the_window_at_once(
    workbench: Workbench, topics: list[str], executor: ExecutorSettings, tmp_path: Path
) -> None:
    workbench.executor = executor
    if executor != ON_SPARK:
        workbench.spark = NoSpark()
    with _watched() as reads:
        backups = workbench.back_up()
    assert len(reads) >= 6
    assert max(reads) <= 200
    assert all(verdict.passed for verdict in workbench.verdicts(backups).values())
    _complete(workbench, topics)
    of_parts = _contents(workbench)
    at_once = replace(workbench, warehouse=Warehouse(tmp_path / "other"), settings=BackupSettings())
    at_once.executor = ExecutorSettings()
    _copy_points(workbench, at_once)
    with _watched() as reads_at_once:
        at_once.back_up()
    assert len(reads_at_once) == 1
    assert reads_at_once == [sum(reads)]
    assert _contents(at_once) == of_parts


def _copy_points(bench: Workbench, other: Workbench) -> None:

    other.warehouse.make()
    for point in bench.points()[:2]:
        Repository(other.warehouse, point.application_id).points.append(point)


def _contents(bench: Workbench) -> list[tuple[object, ...]]:
    """What the ledger says of each span, but for its files and their sizes."""
    found: list[tuple[object, ...]] = []
    for entry in bench.ledger.entries():
        content = replace(entry.result.content, stored_bytes=0, files=0, written=(), bytes=0)
        plan = entry.result.plan
        gaps = {gap.cause: gap.offsets for gap in entry.result.gaps}
        found.append((str(plan.partition), plan.start, plan.end, plan.continues, content, gaps))
    return found


@pytest.mark.parametrize("kill_at", [2, 5])
def test_after_a_kill_only_what_was_not_committed_is_read(
    workbench: Workbench, topics: list[str], kill_at: int
) -> None:
    workbench.spark = NoSpark()
    with _watched(kill_at) as first, pytest.raises(KeyboardInterrupt):
        workbench.back_up()
    (window,) = workbench.windows
    assert workbench.ledger.done(topics) == {}
    parts = {e.result.plan.window.key for e in workbench.ledger.increments_of(window)}
    assert len(parts) == kill_at - 1

    with _watched() as second:
        workbench.back_up()

    total = sum(first[:-1]) + sum(second)
    assert total == sum(_offsets(workbench, topic) for topic in topics)
    _complete(workbench, topics)


def _offsets(bench: Workbench, topic: str) -> int:
    return sum(
        entry.result.plan.end - entry.result.plan.start
        for entry in bench.ledger.entries(topics=[topic])
    )


def test_killed_before_the_parts_are_put_together_nothing_is_read_again(
    workbench: Workbench, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    workbench.spark = NoSpark()
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "record", _killed)
        with pytest.raises(KeyboardInterrupt):
            workbench.back_up()
    with _watched() as reads:
        workbench.back_up()
    assert reads == []
    _complete(workbench, topics)


def _killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_large_files_of_parts_are_not_written_again(
    workbench: Workbench, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    workbench.spark = NoSpark()
    monkeypatch.setattr(span_tasks, "_LARGE_FILE", 2_000)
    written: dict[int, int] = {}
    original = Ledger.record_increment

    def noting(ledger: Ledger, *args: Any, **kwargs: Any) -> None:
        original(ledger, *args, **kwargs)
        files = [*on_disk(workbench.records_path).glob("*/*.parquet")]
        written.update({file.stat().st_ino: file.stat().st_size for file in files})

    monkeypatch.setattr(Ledger, "record_increment", noting)
    workbench.back_up()
    _complete(workbench, topics)
    paths = [unquote(row["path"]) for row in file_actions(workbench.records_path).to_pylist()]
    inodes = {(on_disk(workbench.records_path) / path).stat().st_ino for path in paths}
    kept = {inode for inode, size in written.items() if size >= 2_000}
    assert kept
    assert kept <= inodes
    # what their statistics say is what a file that is written anew would say
    of_links = {id_: content for id_, *_, content, _ in _contents(workbench)}
    assert all(isinstance(content, SpanContent) for content in of_links.values())
    assert sum(c.records for c in of_links.values()) == sum(  # pyright: ignore[reportAttributeAccessIssue]
        len(consume(workbench.bootstrap_servers, topic, partitions))
        for topic, partitions in zip(topics, (PARTITIONS, 1), strict=True)
    )


def test_what_retention_takes_between_two_parts_is_lost_and_the_rest_is_kept(
    workbench: Workbench, topics: list[str]
) -> None:
    workbench.spark = NoSpark()
    large, _ = topics
    with _watched(3), pytest.raises(KeyboardInterrupt):
        workbench.back_up()
    before = len(stored(workbench, large))
    assert before
    workbench.delete_records(large, RECORDS)

    backups = workbench.back_up()

    spans = {
        s.partition.partition: s for t in backups[0].topics for s in t.spans if t.topic == large
    }
    (lost,) = [gap for gap in spans[0].gaps if gap.cause is GapCause.RETENTION]
    assert lost.end == RECORDS
    assert 0 < lost.start < RECORDS
    assert not spans[1].losses
    assert spans[0].unaccounted == 0
    assert len(stored(workbench, large)) > before


def test_a_topic_that_is_gone_is_told_once(workbench: Workbench, topics: list[str]) -> None:
    """The older point knows the topic, the one that closes the window does not."""
    workbench.spark = NoSpark()
    workbench.delete(topics[1])
    (window,) = workbench.windows
    end_ms = workbench.take_point().taken_at_ms + 1
    workbench.windows[:] = [replace(window, end_ms=end_ms)]
    backups = workbench.back_up()
    gaps = [g for t in backups[0].topics if t.topic == topics[1] for s in t.spans for g in s.gaps]
    assert [gap.cause for gap in gaps] == [GapCause.TOPIC_DELETED]


def test_a_topic_without_parts_begins_where_the_window_does(
    workbench: Workbench, topics: list[str]
) -> None:
    workbench.spark = NoSpark()
    with _watched(3), pytest.raises(KeyboardInterrupt):
        workbench.back_up(topics=topics[:1])
    workbench.back_up()
    _complete(workbench, topics)


def test_an_estimate_is_what_is_read_then_and_writes_nothing(
    workbench: Workbench, topics: list[str]
) -> None:
    workbench.spark = NoSpark()
    (window,) = workbench.windows
    known = estimate(workbench.run().ctx, [window], newest_closed=window)
    with _watched(3) as reads, pytest.raises(KeyboardInterrupt):
        workbench.back_up()
    rest = estimate(workbench.run().ctx, [window], newest_closed=window)
    assert known.offsets == rest.offsets + sum(reads[:-1])
    assert {one.topic: one.offsets for one in known.topics} == {
        topic: sum(workbench.cluster.high_watermarks(_ids(workbench, topic)).values())
        for topic in topics
    }
    # more offsets than are asked for the size of their log
    assert 1_024 * known.offsets == pytest.approx(known.bytes, rel=0.01)
    assert workbench.ledger.done(topics) == {}


def test_without_a_point_the_estimate_reaches_up_to_now(
    workbench: Workbench, topics: list[str]
) -> None:
    workbench.spark = NoSpark()
    (window,) = workbench.windows
    write(workbench, topics[0], 2_000)
    following = replace(window, start_ms=window.end_ms, end_ms=window.end_ms + 60_000, key="w0001")
    before = len(workbench.points())
    first = estimate(workbench.run().ctx, [window], newest_closed=window)
    both = estimate(workbench.run().ctx, [window, following], newest_closed=following)
    assert both.offsets == first.offsets + 2_000
    assert len(workbench.points()) == before
    sizes = workbench.cluster.log_sizes(_ids(workbench, topics[0]))
    of_topic = next(one for one in both.topics if one.topic == topics[0])
    assert of_topic.bytes == pytest.approx(sum(sizes.values()), rel=0.01)


def _ids(bench: Workbench, topic: str) -> list[TopicPartitionId]:
    partitions = bench.cluster.describe_topics([topic])[topic].partitions
    return [TopicPartitionId(topic, number) for number in range(partitions)]
