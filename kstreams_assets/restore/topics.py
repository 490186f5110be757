"""The target's topics: made with relaxed configs, so that nothing restored is deleted at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kstreams_assets.errors import (
    AuthorizationFailedError,
    KafkaRequestError,
    RestoreRefusedError,
)
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.topics import TopicDescription, TopicSpec
from kstreams_assets.offsets import TopicPartitionId, offsets_of_topic
from kstreams_assets.restore.plan import SOMEBODY_ELSE, RestorePlan, TopicPlan, identity
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
        return tuple(_intent(topic, stored) for topic in plan.topics)

    def prepare(
        self, plan: RestorePlan, intended: Sequence[StoredTopic]
    ) -> tuple[StoredTopic, ...]:
        """Create what the plan has not seen, relax the rest; the topics with their ids and bases.

        Raises:
            RestoreRefusedError: Topics are not as the plan saw them: somebody else has created,
                recreated, deleted or written one since.
            AuthorizationFailedError: They could not be written or read afterwards.
        """
        found = self.cluster.metadata().topics
        ids = {
            topic.target: found[topic.target].topic_id
            for topic in plan.topics
            if topic.target in found
        }
        _require_as_planned(plan, ids)
        try:
            self.cluster.create_topics(
                TopicSpec(t.target, len(t.partitions), t.replication_factor, t.configs)
                for t in plan.topics
                if not t.exists
            )
        except KafkaRequestError as error:
            # Brokers create a topic once: whoever came first has it.
            name = error.resource.removeprefix("topic ")
            if name in self.cluster.metadata().topics:
                raise _refused(plan, {name: "It was created after that"}) from error
            raise
        self.cluster.alter_topic_configs(
            {topic.target: topic.configs for topic in plan.topics if topic.exists}
        )
        described = self.cluster.describe_topics(topic.target for topic in plan.topics)
        _require_rights(described)
        created = {topic.target for topic in plan.topics if not topic.exists}
        _require_as_planned(
            plan, {n: one.topic_id for n, one in described.items() if n not in created}
        )
        return self._with_bases(plan, intended, described)

    def _with_bases(
        self,
        plan: RestorePlan,
        intended: Sequence[StoredTopic],
        described: Mapping[str, TopicDescription],
    ) -> tuple[StoredTopic, ...]:
        """The topics with their ids, and the ends at which the plan saw them: nothing else counts
        as the beginning of a restore."""
        planned = {topic.target: topic for topic in plan.topics}
        fresh = [topic.target for topic in intended if not topic.base_offsets]
        ends = self.cluster.high_watermarks(
            TopicPartitionId(name, number)
            for name in fresh
            for number in range(described[name].partitions)
        )
        bases = {
            name: tuple(partition.base_offset for partition in planned[name].partitions)
            for name in fresh
        }
        changed = {
            name: f"It ends at {_listed(offsets_of_topic(ends, name))} instead of"
            f" {_listed(bases[name])}"
            for name in fresh
            if offsets_of_topic(ends, name) != bases[name]
        }
        if changed:
            raise _refused(plan, changed)
        return tuple(
            replace(
                topic,
                target_topic_id=described[topic.target].topic_id,
                base_offsets=topic.base_offsets or bases[topic.target],
            )
            for topic in intended
        )


def _intent(topic: TopicPlan, stored: StoredRestore | None) -> StoredTopic:
    if stored is not None and topic.target_topic_id is not None:
        known = stored.own_topic(topic.target, topic.target_topic_id)
        if known is not None:
            return known
    return StoredTopic(
        source=topic.source,
        target=topic.target,
        target_topic_id=topic.target_topic_id or "",
        base_offsets=(),
        records=topic.records,
        roles=tuple(sorted(role.value for role in topic.roles)),
        put_back=dict(topic.put_back),
        created=not topic.exists,
    )


def _require_as_planned(plan: RestorePlan, ids: Mapping[str, str]) -> None:
    """Refuse topics that others have created, deleted or recreated since the plan.

    `ids` are those of the topics that are there; a topic that the plan is to create must be absent.
    """
    changed = {
        topic.target: f"It {identity(ids.get(topic.target))} now,"
        f" then it {identity(topic.target_topic_id)}"
        for topic in plan.topics
        if ids.get(topic.target) != topic.target_topic_id
    }
    if changed:
        raise _refused(plan, changed)


def _refused(plan: RestorePlan, changed: Mapping[str, str]) -> RestoreRefusedError:
    return RestoreRefusedError(
        application_id=plan.application_id,
        refusals=[
            f"topic {name}: It is not as the plan saw it a moment ago. {what}. {SOMEBODY_ELSE}"
            for name, what in sorted(changed.items())
        ],
    )


def _listed(offsets: Sequence[int]) -> str:
    return ", ".join(map(str, offsets))


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
