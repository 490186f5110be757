"""The target's topics: made with relaxed configs, so that nothing restored is deleted at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kstreams_assets.errors import AuthorizationFailedError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.positions import TopicPartitionId, offsets_of_topic
from kstreams_assets.kafka.topics import TopicDescription, TopicSpec
from kstreams_assets.restore.plan import RestorePlan, TopicPlan
from kstreams_assets.restore.restores_table import StoredRestore, StoredTopic

_NEEDED = ("WRITE", "READ")


@dataclass(frozen=True, slots=True)
class TargetTopics:
    """Makes the topics of a restore and relaxes those that are there."""

    cluster: KafkaCluster

    def intended(self, plan: RestorePlan, stored: StoredRestore | None) -> tuple[StoredTopic, ...]:
        """What is about to be made, as it must be noted before anything is.

        A topic of an earlier attempt keeps what was noted then: its configs are relaxed already, so
        that the values to put back can no longer be read from it.
        """
        known = {topic.target: topic for topic in stored.topics} if stored else {}
        present = self._present(plan)
        return tuple(
            self._intent(topic, known.get(topic.target), present.get(topic.target))
            for topic in plan.topics
        )

    def prepare(
        self, plan: RestorePlan, intended: Sequence[StoredTopic]
    ) -> tuple[StoredTopic, ...]:
        """Create what is missing, relax what is there; the topics with their ids and bases.

        Raises AuthorizationFailedError when they could not be written or read afterwards.
        """
        present = self._present(plan)
        self.cluster.create_topics(
            TopicSpec(topic.target, len(topic.partitions), topic.replication_factor, topic.configs)
            for topic in plan.topics
            if topic.target not in present
        )
        self.cluster.alter_topic_configs(
            {topic.target: topic.configs for topic in plan.topics if topic.target in present}
        )
        described = self.cluster.describe_topics(topic.target for topic in plan.topics)
        _require_rights(described)
        fresh = [topic for topic in intended if not topic.base_offsets]
        ends = self.cluster.high_watermarks(
            TopicPartitionId(topic.target, number)
            for topic in fresh
            for number in range(described[topic.target].partitions)
        )
        return tuple(
            replace(
                topic,
                target_topic_id=described[topic.target].topic_id,
                base_offsets=topic.base_offsets or offsets_of_topic(ends, topic.target),
            )
            for topic in intended
        )

    def _present(self, plan: RestorePlan) -> dict[str, str]:
        """Target topics that are there, with their ids."""
        found = self.cluster.metadata().topics
        return {t.target: found[t.target].topic_id for t in plan.topics if t.target in found}

    def _intent(
        self, topic: TopicPlan, known: StoredTopic | None, topic_id: str | None
    ) -> StoredTopic:
        if known is not None and topic_id is not None and known.target_topic_id in ("", topic_id):
            return known
        return StoredTopic(
            source=topic.source,
            target=topic.target,
            target_topic_id="",
            base_offsets=(),
            records=topic.records,
            roles=tuple(sorted(role.value for role in topic.roles)),
            put_back=dict(topic.put_back),
            created=topic_id is None,
        )


def _require_rights(described: Mapping[str, TopicDescription]) -> None:
    for needed in _NEEDED:
        denied = sorted(
            name
            for name, topic in described.items()
            if not topic.authorized_operations & {needed, "ALL"}
        )
        if denied:
            raise AuthorizationFailedError(
                operation="restore", resource=f"topic {', '.join(denied)}", needed=needed
            )
