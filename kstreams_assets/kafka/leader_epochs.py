"""Leader epochs: they count the elections of a partition's leader and identify stale leaders."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.consumer import OffsetForLeaderEpochRequest
from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest

from kstreams_assets.errors import ClusterUnavailableError
from kstreams_assets.kafka.coordinator_log import CONSUMER_OFFSETS
from kstreams_assets.kafka.leaders import (
    PartitionLeaders,
    Requests,
    answers_in,
    ask_leaders,
    by_topic,
)
from kstreams_assets.kafka.throttle import unthrottled_time
from kstreams_assets.kafka.wire import Coordinated, WireClient
from kstreams_assets.offsets import TopicPartitionId

_OPERATION = "leader_epochs"
_ENDS_VERSION = 4
_CONSUMER = -1
_ONE_BROKER_S = 3.0
_RETRY_S = 0.2


class EpochRequests(Requests):
    """The part of `KafkaCluster` that distinguishes stale leaders and coordinators from current
    ones."""

    def leader_epochs(self, topics: Iterable[str]) -> Mapping[TopicPartitionId, int]:
        """The epoch of every partition of these topics, according to one broker.

        Topics that do not exist or are hidden from this user are absent.
        """
        names = sorted(set(topics))
        if not names:
            return {}
        response = self._wire.metadata(names, operation=_OPERATION)
        return {partition: entry.leader_epoch for partition, entry in _partitions(response).items()}

    def epoch_ends(self, epochs: Mapping[TopicPartitionId, int]) -> Mapping[TopicPartitionId, int]:
        """The end offset of each leader epoch's part of the log; -1 if unknown.

        An offset below an end in that epoch that is not below this end was truncated (KIP-101,
        KIP-320). Only leaders of the newest seen epoch are asked: a deposed or newly elected one
        refuses (FENCED or UNKNOWN_LEADER_EPOCH), and its epoch is looked up again. Needs DESCRIBE.
        """
        answers = ask_leaders(
            self._wire,
            self._leaders,
            epochs,
            lambda asked: _ends_request(asked, self._leaders),
            _end_answers,
            operation=_OPERATION,
        )
        return {partition: answer.end_offset for partition, answer in answers.items()}

    def watch_leaders(self) -> None:
        """Start to record which leaders report ends of logs, and which coordinators are asked."""
        self._leaders.answered.clear()
        self._wire.asked_coordinators.clear()

    def reported_epoch(self, partition: TopicPartitionId) -> int | None:
        """The epoch of the leader that reported ends since `watch_leaders`; None if not unique."""
        epochs = self._leaders.answered.get(partition, set())
        return next(iter(epochs)) if len(epochs) == 1 else None

    def stale_leader_check(self, group: str, *, wait_s: float) -> str:
        """The reason why answers since `watch_leaders` may be stale; empty if they are current.

        A paused or isolated broker may still believe that it is the leader and report an old high
        watermark; an old coordinator reports old offsets. Its successor knows, so all brokers are
        asked for the newest leader epochs: every answer must have come from a leader of that epoch.
        A broker that does not answer may be the successor if it has a replica; this waits up to
        `wait_s` until it answers or the others no longer list it. Newer epochs are remembered, so
        the next request goes to the right broker.
        """
        wire, leaders = self._wire, self._leaders
        deadline = unthrottled_time() + wait_s
        while True:
            views = _views(wire, {partition.topic for partition in leaders.answered})
            old = [*_old_leaders(views, leaders), *_old_coordinator(views, wire, leaders, group)]
            if old:
                return old[0]
            unknown = views.silent & views.replicas(leaders.answered)
            if not any(p.topic == CONSUMER_OFFSETS for p in leaders.answered):
                unknown = views.silent  # any of them may be the coordinator
                if not unknown:
                    return _disagreement(wire, views, group)
            if not unknown:
                return ""
            if unthrottled_time() + _RETRY_S > deadline:
                return (
                    f"broker {min(unknown)} did not answer, and may have become the leader of a"
                    " partition without the others knowing yet"
                )
            time.sleep(_RETRY_S)


@dataclass(slots=True)
class _Views:
    """The metadata of each broker, by its id; `silent` are known brokers that do not answer."""

    of_broker: dict[int, dict[TopicPartitionId, Any]] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)

    def newest(self, partition: TopicPartitionId) -> Any:  # noqa: ANN401
        """The partition according to the broker with the newest metadata, None if no broker lists
        it."""
        entries = [view[partition] for view in self.of_broker.values() if partition in view]
        return max(entries, key=lambda entry: entry.leader_epoch, default=None)

    def replicas(self, partitions: Iterable[TopicPartitionId]) -> set[int]:
        """The brokers with a replica of one of these partitions, according to any broker."""
        wanted = set(partitions)
        return {
            replica
            for view in self.of_broker.values()
            for partition in wanted & view.keys()
            for replica in view[partition].replica_nodes
        }


def _views(wire: WireClient, topics: Iterable[str]) -> _Views:
    """The partitions of these topics as each broker sees them, for all known brokers."""
    names = sorted(set(topics))
    views = _Views()
    unasked, named = set(wire.broker_ids(operation=_OPERATION)), set[int]()
    while unasked:
        broker = unasked.pop()
        try:
            view = wire.metadata(
                names,
                operation=_OPERATION,
                node=broker,
                timeout_s=min(_ONE_BROKER_S, wire.timeout_s),
                retry=False,
            )
        except ClusterUnavailableError:
            views.silent.add(broker)
            continue
        views.of_broker[broker] = _partitions(view)
        named |= {other.node_id for other in view.brokers}
        unasked |= named - views.of_broker.keys() - views.silent
    if not named:
        raise wire.unavailable(_OPERATION, wire.timeout_s, "no broker answered")
    views.silent &= named
    return views


def _old_leaders(views: _Views, leaders: PartitionLeaders) -> Sequence[str]:
    old: list[str] = []
    for partition, epochs in sorted(leaders.answered.items()):
        newest = views.newest(partition)
        if newest is None:
            continue  # deleted; the recorder notices it by its id
        if newest.leader_id >= 0:
            leaders.remember(partition, newest.leader_id, newest.leader_epoch)
        if epochs != {newest.leader_epoch}:
            old.append(
                f"{partition} changed its leader: answers are of leader epoch"
                f" {', '.join(map(str, sorted(epochs)))}, the newest is {newest.leader_epoch}"
            )
    return old


def _old_coordinator(
    views: _Views, wire: WireClient, leaders: PartitionLeaders, group: str
) -> Sequence[str]:
    """The coordinator is the leader of the group's partition, if that partition is known."""
    asked = wire.asked_coordinators.get(group, set())
    for partition in leaders.answered:
        newest = views.newest(partition)
        if partition.topic != CONSUMER_OFFSETS or newest is None or asked <= {newest.leader_id}:
            continue
        wire.remember_coordinator(Coordinated.GROUP, group, newest.leader_id)
        return [_other_coordinator(group, asked, newest.leader_id)]
    return []


def _disagreement(wire: WireClient, views: _Views, group: str) -> str:
    """Whether a broker names another coordinator; used if its epoch may not be described."""
    asked = wire.asked_coordinators.get(group, set())
    for broker in sorted(views.of_broker):
        response = wire.request(
            lambda: FindCoordinatorRequest(
                key_type=Coordinated.GROUP.value, coordinator_keys=[group], min_version=4
            ),
            operation=_OPERATION,
            node=broker,
        )
        found = response.coordinators[0]
        if asked and (found.error_code or asked != {found.node_id}):
            wire.forget_coordinator(Coordinated.GROUP, group)
            return _other_coordinator(group, asked, found.node_id)
    return ""


def _other_coordinator(group: str, asked: Iterable[int], newest: int) -> str:
    brokers = ", ".join(map(str, sorted(asked)))
    return (
        f"the coordinator of group {group} changed: broker {brokers} was asked, now it is {newest}"
    )


def _ends_request(
    epochs: Mapping[TopicPartitionId, int], leaders: PartitionLeaders
) -> OffsetForLeaderEpochRequest:
    topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    asked = by_topic(
        (
            partition,
            topic.OffsetForLeaderPartition(
                partition=partition.partition,
                current_leader_epoch=leaders.newest_epoch(partition),
                leader_epoch=epoch,
            ),
        )
        for partition, epoch in epochs.items()
    )
    return OffsetForLeaderEpochRequest(
        replica_id=_CONSUMER,
        topics=[topic(topic=name, partitions=entries) for name, entries in asked.items()],
        min_version=_ENDS_VERSION,
        max_version=_ENDS_VERSION,
    )


def _end_answers(response: Any) -> Iterator[tuple[TopicPartitionId, Any]]:  # noqa: ANN401
    for topic in response.topics:
        for answer in topic.partitions:
            yield TopicPartitionId(topic.topic, answer.partition), answer


def _partitions(response: Any) -> dict[TopicPartitionId, Any]:  # noqa: ANN401
    return {id_: entry for id_, entry in answers_in(response) if entry.leader_epoch >= 0}
