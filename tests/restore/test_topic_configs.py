"""restore/topic_configs.py: what counted on the source counts on the target."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer

from kstreams_assets.app.model import TopicRole, TopicRoles
from kstreams_assets.errors import KafkaRequestError, KStreamsAssetsError
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.model.spans import TopicFacts
from kstreams_assets.restore.plan import TopicPlan
from kstreams_assets.restore.target_topics import of_new_topic
from kstreams_assets.restore.topic_configs import (
    KAFKA_DEFAULTS,
    differences,
    own_configs,
    without_refused,
)
from tests.streams.cluster import passing_cluster

OWN = {"segment.bytes": "1048576"}
FACTS = TopicFacts("id", 1, 1, (*OWN.items(),), (*KAFKA_DEFAULTS.items(),))
EARLIER = TopicFacts("id", 1, 1, (*OWN.items(),))


def plan(
    configs: Mapping[str, str], name: str = "t", defaults: Mapping[str, str] = KAFKA_DEFAULTS
) -> TopicPlan:
    """A topic to create with these configs and the relaxed ones."""
    found = of_new_topic(name, configs, replication_factor=1, known=defaults)
    return TopicPlan(
        source=name,
        target=name,
        roles=TopicRoles({TopicRole.INPUT}),
        partitions=(),
        replication_factor=1,
        configs=found.configs,
        put_back=found.put_back,
    )


class TestDefaults:
    def test_nothing_is_set_where_the_defaults_are_the_same(self) -> None:
        assert own_configs("t", FACTS, KAFKA_DEFAULTS) == (OWN, ())

    def test_what_counted_is_set_where_they_differ(self) -> None:
        there = {**KAFKA_DEFAULTS, "cleanup.policy": "compact", "retention.ms": "1000"}
        configs, notes = own_configs("t", FACTS, there)
        assert configs == {**OWN, "cleanup.policy": "delete", "retention.ms": "604800000"}
        assert "cleanup.policy=delete (target: compact)" in notes[0]

    def test_all_is_set_where_the_target_does_not_report_them(self) -> None:
        assert own_configs("t", FACTS, {}) == ({**OWN, **KAFKA_DEFAULTS}, ())

    def test_backups_of_earlier_releases_name_the_difference(self) -> None:
        assert own_configs("t", EARLIER, KAFKA_DEFAULTS) == (OWN, ())
        configs, notes = own_configs("t", EARLIER, {**KAFKA_DEFAULTS, "cleanup.policy": "compact"})
        assert configs == OWN
        assert "cleanup.policy=compact" in notes[0]

    def test_an_existing_topic_with_other_configs_is_named(self) -> None:
        there = {**KAFKA_DEFAULTS, "cleanup.policy": "compact", "retention.ms": "-1"}
        (note,) = differences("t", FACTS, there, {"retention.ms": "604800000"})
        assert "cleanup.policy is compact instead of delete" in note
        assert "retention.ms" not in note
        assert differences("t", FACTS, KAFKA_DEFAULTS, {}) == ()


class TestRefused:
    def _without(self, topic: TopicPlan, *refused: str) -> tuple[TopicPlan, tuple[str, ...]]:
        """The topic where a target refuses these `name` or `name=value`."""

        def validate(specs: Sequence[TopicSpec]) -> Mapping[str, KStreamsAssetsError]:
            error = KafkaRequestError(operation="create", resource="t", reason="No thanks")
            return {
                spec.name: error
                for spec in specs
                if any(one in refused for n, v in spec.configs.items() for one in (n, f"{n}={v}"))
            }

        (found,), notes = without_refused([topic], validate)
        return found, notes

    def test_what_changes_no_record_is_left_out_and_named(self) -> None:
        topic = plan({"remote.storage.enable": "true", "retention.ms": "5"})
        found, notes = self._without(topic, "remote.storage.enable")
        assert found.configs.keys() == topic.configs.keys() - {"remote.storage.enable"}
        assert "remote.storage.enable (No thanks)" in notes[0]

    def test_also_what_the_restore_adds(self) -> None:
        topic = plan({})
        gone = "message.timestamp.before.max.ms", "segment.ms", "min.compaction.lag.ms"
        found, notes = self._without(topic, *gone)
        assert found.configs.keys() == topic.configs.keys() - {*gone}
        assert found.put_back.keys() == topic.put_back.keys() - {*gone}
        assert all(name in notes[0] for name in gone)

    def test_what_decides_about_records_stays(self) -> None:
        compacted = plan({"cleanup.policy": "compact"})
        for name in ("retention.ms", "cleanup.policy"):
            assert self._without(compacted, name) == (compacted, ())
        assert self._without(compacted, "min.compaction.lag.ms") == (compacted, ())

    def test_a_limit_falls_back_to_the_own_value(self) -> None:
        topic = plan({"max.message.bytes": "2000000"})
        found, _ = self._without(topic, "max.message.bytes=104857600")
        assert found.configs["max.message.bytes"] == "2000000"

    def test_what_finish_sets_is_tried_as_well(self) -> None:
        topic = plan({"max.message.bytes": "7"})
        found, notes = self._without(topic, "max.message.bytes=7")
        assert found.configs == topic.configs
        assert found.put_back["max.message.bytes"] is None
        assert "max.message.bytes" in notes[0]


def produced(bootstrap_servers: str, topic: str, value: bytes) -> int | None:
    """What the broker says to a record in a compressed batch."""
    config = {"bootstrap.servers": bootstrap_servers, "compression.type": "zstd", "log_level": 0}
    producer = Producer({**config, "message.timeout.ms": 20_000})
    errors: list[int | None] = []
    producer.produce(topic, value, on_delivery=lambda e, _: errors.append(e.code() if e else None))
    assert producer.flush(30) == 0
    return errors[0]


@pytest.mark.kafka
def test_a_target_with_other_defaults_and_without_tiered_storage(tmp_path: Path) -> None:
    other = {
        "log.cleanup.policy": "compact",
        "log.retention.hours": "1",
        "max.decompressed.message.bytes": "1000",
    }
    with (
        passing_cluster(tmp_path, properties=other) as b,
        KafkaCluster(KafkaConnection(bootstrap_servers=b.bootstrap_servers)) as cluster,
    ):
        defaults = cluster.topic_defaults()
        assert defaults["cleanup.policy"] == "compact"
        assert defaults["retention.ms"] == "3600000"
        cluster.create_topics([TopicSpec("probe", 1)])
        described = cluster.describe_topics(["probe"])["probe"].record_configs
        assert {name: described[name] for name in defaults} == defaults
        facts = TopicFacts(
            "id",
            1,
            1,
            (("remote.storage.enable", "true"), ("local.retention.ms", "1000"), ("future.x", "1")),
            (*KAFKA_DEFAULTS.items(),),
        )
        configs, _ = own_configs("t", facts, defaults)
        topic = plan(configs, defaults=defaults)

        def validate(specs: Sequence[TopicSpec]) -> Mapping[str, KStreamsAssetsError]:
            return cluster.validate_topics([TopicSpec(s.name, 1, 1, s.configs) for s in specs])

        (found,), notes = without_refused([topic], validate)
        assert found.configs["cleanup.policy"] == "delete"
        assert found.put_back["retention.ms"] == KAFKA_DEFAULTS["retention.ms"]
        gone = topic.configs.keys() - found.configs.keys()
        assert {"remote.storage.enable", "future.x"} <= gone <= {*dict(facts.configs)}
        assert "remote.storage.enable" in notes[0]
        cluster.create_topics([TopicSpec("t", 1, 1, found.configs)])
        assert produced(b.bootstrap_servers, "t", bytes(5_000)) is None
        cluster.alter_topic_configs({"t": found.put_back})
        assert produced(b.bootstrap_servers, "t", bytes(5_000)) == KafkaError.INVALID_RECORD
