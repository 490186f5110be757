"""Configs of restored topics: relaxed, and put back afterwards."""

from kstreams_assets.restore.target_topics import of_existing_topic, of_new_topic

FOR_EVER = "9223372036854775807"
RELAXED = {
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.before.max.ms": FOR_EVER,
    "message.timestamp.after.max.ms": FOR_EVER,
    "min.compaction.lag.ms": FOR_EVER,
    "max.compaction.lag.ms": FOR_EVER,
    "segment.ms": FOR_EVER,
}
NEW = {**RELAXED, "message.timestamp.type": "CreateTime", "max.message.bytes": "104857600"}


def test_a_new_topic_has_the_source_s_configs_and_relaxed_limits() -> None:
    source = {"cleanup.policy": "compact", "retention.ms": "3600000", "segment.bytes": "1000000"}
    found = of_new_topic("t", source, replication_factor=1)
    assert found.configs == {**source, **NEW}
    assert found.put_back == {**dict.fromkeys(NEW), "retention.ms": "3600000"}
    assert found.notes == ()


def test_log_append_time_comes_back_afterwards() -> None:
    source = {"message.timestamp.type": "LogAppendTime"}
    found = of_new_topic("t", source, replication_factor=1)
    assert found.configs["message.timestamp.type"] == "CreateTime"
    assert found.put_back["message.timestamp.type"] == "LogAppendTime"


def test_the_larger_limit_of_message_sizes_holds() -> None:
    for own, expected in (("1000", "104857600"), ("209715200", "209715200")):
        found = of_new_topic("t", {"max.message.bytes": own}, replication_factor=1)
        assert found.configs["max.message.bytes"] == expected
        assert found.put_back["max.message.bytes"] == own


def test_what_the_replicas_cannot_fulfil_is_lowered_and_told() -> None:
    source = {"min.insync.replicas": "2"}
    lowered = of_new_topic("t", source, replication_factor=1)
    assert lowered.configs["min.insync.replicas"] == "1"
    assert "min.insync.replicas of t is 1 instead of 2" in lowered.notes[0]
    assert "min.insync.replicas" not in lowered.put_back
    kept = of_new_topic("t", source, replication_factor=2)
    assert (kept.configs["min.insync.replicas"], kept.notes) == ("2", ())


def test_configs_that_mean_nothing_there_are_left_out_and_told() -> None:
    source = {
        "leader.replication.throttled.replicas": "0:1",
        "message.timestamp.difference.max.ms": "5",
    }
    found = of_new_topic("t", source, replication_factor=1)
    assert found.configs == NEW
    assert all(name in found.notes[0] for name in source)


def test_an_existing_topic_keeps_type_and_size_of_its_records() -> None:
    own = {"retention.ms": "5", "max.message.bytes": "7", "message.timestamp.type": "CreateTime"}
    found = of_existing_topic(own)
    assert found.configs == RELAXED
    assert found.put_back == {**dict.fromkeys(RELAXED), "retention.ms": "5"}
