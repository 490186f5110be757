"""A target cluster in memory: topics, records and group offsets; restores write it for real.

What a restore asks of its target is answered from here. Records come out of the files of the
backups; only Spark and the wire are left out.
"""

import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest

from kstreams_assets.cli import restore as cli
from kstreams_assets.cli import restore_after, restore_offsets
from kstreams_assets.cli.spark_run import SparkRun
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.kafka.admin import TopicDescription, TopicSpec
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.groups import GroupState
from kstreams_assets.kafka.metadata import ClusterMetadata, TopicIdentity
from kstreams_assets.model.restores import PartitionProduced
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId, runs_of
from kstreams_assets.restore import commands, group_offsets, planner, records
from kstreams_assets.restore.verify import VerifyResult
from kstreams_assets.settings import VerifyExtent
from spark_resources.partition_records import (
    Difference,
    PartitionVerified,
    PartitionWork,
    work_records,
)

Record = dict[str, Any]


@dataclass(slots=True)
class SimulatedTopic:
    """A topic, its records by partition."""

    topic_id: str
    logs: list[list[Record]]
    configs: dict[str, str]


class Killed(BaseException):
    """The process was killed here."""


@dataclass(slots=True)
class SimulatedTarget:
    """The cluster, in place of `KafkaCluster` wherever a restore opens its target.

    `kill_before` names the step (produce, verify, commit) before which a run is killed, `slow` the
    one that takes a minute. `timers` are the seconds left of the process's timer at each step.
    `spoiled` is a partition of which a record is written wrong, `differs_besides` is what else the
    verification finds. What is committed is not there later if it `forgets`. The group has members
    until the file `stopped` is there. `retention_ms` is the brokers' default.
    """

    cluster_id_: str = "target"
    topics: dict[str, SimulatedTopic] = field(default_factory=dict)
    groups: dict[str, dict[TopicPartitionId, CommittedOffset]] = field(default_factory=dict)
    stopped: Path | None = None
    did: list[str] = field(default_factory=list)
    timers: dict[str, float] = field(default_factory=dict)
    kill_before: str = ""
    slow: str = ""
    spoiled: TopicPartitionId | None = None
    differs_besides: tuple[Difference, ...] = ()
    forgets: bool = False
    retention_ms: int | None = None
    made: int = 0
    connection: KafkaConnection = field(
        default_factory=lambda: KafkaConnection(bootstrap_servers="target:1")
    )

    def __call__(self, connection: KafkaConnection, **_: Any) -> Self:
        """A connection to it."""
        self.connection = connection
        return self

    @property
    def offsets(self) -> dict[TopicPartitionId, CommittedOffset]:
        """Those of the application's own group."""
        return self.groups.get("shop", {})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def step(self, name: str) -> None:
        """A run comes to a step, or is killed before it."""
        if self.kill_before == name:
            raise Killed
        self.timers[name], _ = signal.getitimer(signal.ITIMER_REAL)
        if self.slow == name:
            time.sleep(60)
        self.did.append(name)

    def cluster_id(self) -> str:
        """See `KafkaCluster`, as all that follows."""
        return self.cluster_id_

    def metadata(self) -> ClusterMetadata:
        return ClusterMetadata(
            self.cluster_id_,
            {
                name: TopicIdentity(name, topic.topic_id, len(topic.logs))
                for name, topic in self.topics.items()
            },
        )

    def broker_ids(self) -> tuple[int, ...]:
        return (0,)

    def topic_defaults(self) -> Mapping[str, str]:
        return {}

    def describe_topics(self, names: Iterable[str]) -> Mapping[str, TopicDescription]:
        return {
            name: TopicDescription(
                name=name,
                topic_id=self.topics[name].topic_id,
                partitions=len(self.topics[name].logs),
                replication_factor=1,
                explicit_configs=self.topics[name].configs,
                effective_configs={"cleanup.policy": "delete"} | self.topics[name].configs,
                authorized_operations=frozenset({"ALL"}),
            )
            for name in names
        }

    def log_start_offsets(self, ids: Iterable[TopicPartitionId]) -> dict[TopicPartitionId, int]:
        return dict.fromkeys(ids, 0)

    def high_watermarks(self, ids: Iterable[TopicPartitionId]) -> dict[TopicPartitionId, int]:
        return {id_: len(self.topics[id_.topic].logs[id_.partition]) for id_ in ids}

    def group_state(self, group: str) -> GroupState | None:
        is_running = self.stopped is not None and not self.stopped.exists()
        if not is_running and not self.groups.get(group):
            return None
        return GroupState(group, "classic", "Stable" if is_running else "Empty", int(is_running))

    def group_operations(self, group: str) -> frozenset[str]:
        del group
        return frozenset({"ALL"})

    def group_offsets(
        self, group: str, partitions: Iterable[TopicPartitionId] | None = None
    ) -> dict[TopicPartitionId, CommittedOffset]:
        found = self.groups.get(group, {})
        return {i: o for i, o in found.items() if partitions is None or i in partitions}

    def commit_group_offsets(
        self, group: str, offsets: Mapping[TopicPartitionId, CommittedOffset]
    ) -> None:
        self.step("commit")
        if not self.forgets:
            self.groups.setdefault(group, {}).update(offsets)

    def delete_group_offsets(self, group: str, partitions: Iterable[TopicPartitionId]) -> None:
        for id_ in partitions:
            del self.groups[group][id_]

    def create_topics(self, specs: Iterable[TopicSpec]) -> None:
        for spec in specs:
            self.made += 1
            logs: list[list[Record]] = [[] for _ in range(spec.partitions)]
            self.topics[spec.name] = SimulatedTopic(f"id-{self.made}", logs, dict(spec.configs))

    def validate_topics(self, specs: Iterable[TopicSpec]) -> Mapping[str, KStreamsAssetsError]:
        return {}

    def alter_topic_configs(self, changes: Mapping[str, Mapping[str, str | None]]) -> None:
        for name, configs in changes.items():
            of_topic = self.topics[name].configs
            of_topic |= {key: value for key, value in configs.items() if value is not None}
            for key in configs.keys() - {key for key, value in configs.items() if value}:
                of_topic.pop(key, None)

    def broker_retention_ms(self) -> int | None:
        return self.retention_ms

    def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartitionId, int]
    ) -> dict[TopicPartitionId, int | None]:
        return {
            id_: next(
                (n for n, row in enumerate(self._log(id_)) if row["timestamp_ms"] >= at), None
            )
            for id_, at in timestamps_ms.items()
        }

    def produce(
        self, _session: object, works: Sequence[PartitionWork], *_: Any, **__: Any
    ) -> list[PartitionProduced]:
        """Write what is not there yet; see `restore.produce`."""
        self.step("produce")
        done: list[PartitionProduced] = []
        for work in works:
            log, rows = self._log(work.target), list(_records(work))
            resumed = len(log) - work.base_offset
            log += rows[resumed:]
            if work.target == self.spoiled:
                log[4] |= {"value": b"another"}
            first, end = work.base_offset, len(log)
            runs = runs_of([row["offset"] for row in rows], [*range(first, end)])
            done.append(PartitionProduced(work.source, work.target, runs, len(rows), resumed, end))
        return done

    def verify(
        self,
        _session: object,
        works: Sequence[PartitionWork],
        *_: Any,
        extent: VerifyExtent,
        **__: Any,
    ) -> VerifyResult:
        """Compare what is there with the backup; see `restore.verify`."""
        self.step("verify")
        found: list[PartitionVerified] = []
        for work in works:
            rows = list(_records(work))
            differing = [
                Difference(work.target, offset, "the value differs")
                for offset, (mine, theirs) in enumerate(
                    zip(rows, self._log(work.target)[work.base_offset :], strict=True)
                )
                if mine != theirs
            ]
            found.append(
                PartitionVerified(
                    work.target, len(rows), len(rows), len(differing), tuple(differing)
                )
            )
        problems = tuple(one for of_it in found for one in of_it.differences)
        problems += self.differs_besides
        return VerifyResult(extent, tuple(found), problems)

    def _log(self, id_: TopicPartitionId) -> list[Record]:
        return self.topics[id_.topic].logs[id_.partition]


def _records(work: PartitionWork) -> Iterator[Record]:
    for batch in work_records(work):
        yield from pa.Table.from_batches([batch]).to_pylist()


class _NoSession:
    """A session that is never used."""

    spark_session = None

    def check(self) -> None:
        """Nothing is missing."""


@contextmanager
def _no_spark() -> Iterator[SparkRun]:
    yield SparkRun(_NoSession(), f"cli-{id(object())}", lambda: None)  # pyright: ignore[reportArgumentType]


def restores_go_to(target: SimulatedTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all that a restore does on its target be done on this one."""
    for module in (planner, records, group_offsets, commands, restore_after, restore_offsets):
        monkeypatch.setattr(module, "KafkaCluster", target)
    monkeypatch.setattr(records, "produce", target.produce)
    monkeypatch.setattr(records, "verify", target.verify)
    monkeypatch.setattr(cli, "spark_run", _no_spark)
    monkeypatch.setattr(commands, "_ASKED_EVERY_S", 0.01)
