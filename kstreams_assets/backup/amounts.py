"""How much a backup has to read, in bytes as Kafka stores them, and how long that takes."""

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
"""What a record is taken for where nothing is known of its topic."""
_FEW_OFFSETS: Final = 1_000
"""Of fewer it does not matter how large they are."""
_TELLING_BYTES: Final = 64 * 1024**2
"""What takes a moment says nothing about a rate."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """Bytes that an offset takes, by partition."""

    per_offset: Mapping[TopicPartitionId, float]

    def of_span(self, span: SpanPlan) -> float:
        """Bytes to read of a span, about."""
        return span.to_read * self.per_offset.get(span.partition, _BYTES_PER_RECORD)

    def of(self, topics: "Iterable[TopicPlan]") -> float:
        """Bytes to read of topics in windows, about; nothing where only the look is lacking."""
        return sum(self.of_span(span) for topic in topics if topic.to_read for span in topic.spans)


def amounts(cluster: "KafkaCluster", repo: Repository, topics: "Sequence[TopicPlan]") -> Amounts:
    """What offsets take on the leaders' disks; where these do not tell, in earlier backups.

    Logs are measured whole: records at their end may be larger or smaller than the mean. Earlier
    backups are counted uncompressed.
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
        _log.info("How large the logs are is not known: %s", error.problem)
    means = _means(repo, {partition.topic for partition in wanted - known.keys()})
    return Amounts({p: means[p.topic] for p in wanted if p.topic in means} | known)


def _means(repo: Repository, topics: set[str]) -> Mapping[str, float]:
    """Bytes that an offset of a topic took so far."""
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
    """How many bytes per second are read, and how that is known."""

    bytes_per_s: float
    how: str

    def takes_s(self, size: float) -> float:
        """How long so many bytes take."""
        return size / self.bytes_per_s


class Phase(StrEnum):
    """The phases of a backup, in their order; one that has nothing to do is left out."""

    CLOSING_POINT = "closing_point"
    RECORDS = "records"
    MERGE = "merge"
    LAST_POINT = "last_point"


@dataclass(frozen=True, slots=True)
class Progress:
    """A phase starts; or records were read, which takes long.

    Bytes that were read since the last one, and about how many are left. `pace` is None where
    nothing is known of it yet.
    """

    phase: Phase
    read_bytes: float = 0.0
    left_bytes: float = 0.0
    pace: Pace | None = None


def expected_pace(
    settings: BackupSettings, warehouse: Warehouse, application_id: str
) -> Pace | None:
    """The pace measured last, or the throttle if that is slower; None if neither is there."""
    measured = _measured(warehouse, application_id)
    limit = settings.bytes_per_second
    if limit is not None and (measured is None or limit < measured):
        return Pace(limit, "the throttle")
    return None if measured is None else Pace(measured, "as measured last")


def note_pace(warehouse: Warehouse, application_id: str, size: float, took_s: float) -> None:
    """Remember how fast so many bytes were read; of a few it is not worth it."""
    if size < _TELLING_BYTES or took_s <= 0:
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
    """What is to be read of one topic."""

    topic: str
    offsets: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a backup of some windows would read, and how fast."""

    application_id: str
    windows: tuple[str, ...] = ()
    topics: tuple[TopicAmount, ...] = ()
    pace: Pace | None = None

    @property
    def offsets(self) -> int:
        """Of all topics."""
        return sum(topic.offsets for topic in self.topics)

    @property
    def bytes(self) -> int:
        """Of all topics, as Kafka stores them."""
        return sum(topic.bytes for topic in self.topics)

    @property
    def takes_s(self) -> float | None:
        """How long it would take, None if no pace is known."""
        return None if self.pace is None else self.pace.takes_s(self.bytes)


def in_words(size: float, offsets: int, pace: Pace | None) -> str:
    """How much is to be read and how long that takes, for people."""
    text = f"about {bytes_text(round(size))} in {offsets:,} offsets"
    if pace is None:
        return f"{text}; how long that takes is known after the first {bytes_text(_TELLING_BYTES)}"
    rate = f"{bytes_text(round(pace.bytes_per_s))}/s, {pace.how}"
    return f"{text}; {duration(round(1000 * pace.takes_s(size)))} at {rate}"
