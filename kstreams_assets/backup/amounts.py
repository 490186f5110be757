"""Estimates how many bytes, as Kafka stores them, a backup reads, and how long that takes."""

import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from kstreams_assets.errors import KafkaError
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.spans import SpanPlan
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import BackupSettings
from kstreams_assets.store import StorePath, store_at
from kstreams_assets.texts import bytes_text, duration

if TYPE_CHECKING:
    from kstreams_assets.backup.planner import TopicPlan
    from kstreams_assets.kafka.cluster import KafkaCluster

_log = logging.getLogger(__name__)

_BYTES_PER_RECORD: Final = 1024
"""Assumed size of a record if nothing is known about its topic."""
_FEW_OFFSETS: Final = 1_000
"""Below this number of offsets, their size does not matter."""
_MEASURABLE_BYTES: Final = 64 * 1024**2
"""Smaller reads are too short to measure a rate."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """Bytes per offset, by partition."""

    per_offset: Mapping[TopicPartitionId, float]

    def of_span(self, span: SpanPlan) -> float:
        """Return the approximate number of bytes to read of a span."""
        return span.to_read * self.per_offset.get(span.partition, _BYTES_PER_RECORD)

    def of(self, topics: "Iterable[TopicPlan]") -> float:
        """Return the approximate bytes to read; 0 for topics that only need an inspection."""
        return sum(self.of_span(span) for topic in topics if topic.to_read for span in topic.spans)


def amounts(cluster: "KafkaCluster", repo: Repository, topics: "Sequence[TopicPlan]") -> Amounts:
    """Return the bytes per offset on the leaders' disks, or else in earlier backups.

    Logs are measured as a whole: records at their end may be larger or smaller than the mean.
    Earlier backups are counted uncompressed.
    """
    if sum(topic.to_read for topic in topics) <= _FEW_OFFSETS:
        return Amounts({})
    wanted = {span.partition for topic in topics for span in topic.spans if span.to_read}
    known: dict[TopicPartitionId, float] = {}
    try:
        sizes = cluster.log_sizes(wanted)
        starts, ends = cluster.log_start_offsets(sizes), cluster.high_watermarks(sizes)
        for partition, size in sizes.items():
            if size and ends[partition] > starts[partition]:
                known[partition] = size / (ends[partition] - starts[partition])
    except KafkaError as error:
        _log.info("The sizes of the logs are unknown: %s", error.problem)
    means = _means(repo, {partition.topic for partition in wanted - known.keys()})
    return Amounts({p: means[p.topic] for p in wanted if p.topic in means} | known)


def _means(repo: Repository, topics: set[str]) -> Mapping[str, float]:
    """Return the mean bytes per offset of each topic in earlier backups."""
    if not topics:
        return {}
    columns = ["topic", "start", "end", "bytes"]
    rows = repo.ledger.span_rows(topics, columns=columns, increments=True)
    offsets: defaultdict[str, int] = defaultdict(int)
    taken: defaultdict[str, int] = defaultdict(int)
    for row in rows.to_pylist():
        offsets[row["topic"]] += row["end"] - row["start"]
        taken[row["topic"]] += row["bytes"]
    return {topic: taken[topic] / count for topic, count in offsets.items() if count}


@dataclass(frozen=True, slots=True)
class Pace:
    """How many bytes per second are read, and the source of that figure."""

    bytes_per_s: float
    how: str

    def takes_s(self, size: float) -> float:
        """Return how long reading this many bytes takes (s)."""
        return size / self.bytes_per_s


class Phase(StrEnum):
    """The phases of a backup, in order; a phase without work is skipped."""

    CLOSING_POINT = "closing_point"
    RECORDS = "records"
    MERGE = "merge"
    LAST_POINT = "last_point"


@dataclass(frozen=True, slots=True)
class Progress:
    """Reports the start of a phase, or how much of a long read is done.

    Has the bytes read since the previous report, and about how many are left. `pace` is None
    while it is unknown.
    """

    phase: Phase
    read_bytes: float = 0.0
    left_bytes: float = 0.0
    pace: Pace | None = None


def expected_pace(
    settings: BackupSettings, warehouse: Warehouse, application_id: str
) -> Pace | None:
    """Return the last measured pace, or the throttle if it is slower; None without either."""
    measured = _measured(warehouse, application_id)
    limit = settings.bytes_per_second
    if limit is not None and (measured is None or limit < measured):
        return Pace(limit, "the throttle")
    return None if measured is None else Pace(measured, "as measured in the last run")


def record_pace(warehouse: Warehouse, application_id: str, size: float, took_s: float) -> None:
    """Store how fast these bytes were read; small reads are too inaccurate and are ignored."""
    if size < _MEASURABLE_BYTES or took_s <= 0:
        return
    store_at(_file(warehouse, application_id)).put_text(
        json.dumps({"bytes_per_s": size / took_s}), durable=False
    )


def _measured(warehouse: Warehouse, application_id: str) -> float | None:
    try:
        said = json.loads(_file(warehouse, application_id).read_text(encoding="utf-8"))
        return float(said["bytes_per_s"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _file(warehouse: Warehouse, application_id: str) -> StorePath:
    return warehouse.lock_file(f"backup-pace/{application_id}").with_suffix(".json")


@dataclass(frozen=True, slots=True)
class TopicAmount:
    """How much of one topic is to be read."""

    topic: str
    offsets: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """How much a backup of some windows would read, and how fast."""

    application_id: str
    windows: tuple[str, ...] = ()
    topics: tuple[TopicAmount, ...] = ()
    pace: Pace | None = None

    @property
    def offsets(self) -> int:
        """Offsets of all topics."""
        return sum(topic.offsets for topic in self.topics)

    @property
    def bytes(self) -> int:
        """Bytes of all topics, as Kafka stores them."""
        return sum(topic.bytes for topic in self.topics)

    @property
    def takes_s(self) -> float | None:
        """How long the backup would take (s), None if the pace is unknown."""
        return None if self.pace is None else self.pace.takes_s(self.bytes)


def in_words(size: float, offsets: int, pace: Pace | None) -> str:
    """Return how much is to be read and how long that takes, as a sentence."""
    text = f"about {bytes_text(round(size))} in {offsets:,} offsets"
    if pace is None:
        return f"{text}; the duration is known after the first {bytes_text(_MEASURABLE_BYTES)}"
    rate = f"{bytes_text(round(pace.bytes_per_s))}/s, {pace.how}"
    return f"{text}; {duration(round(1000 * pace.takes_s(size)))} at {rate}"
