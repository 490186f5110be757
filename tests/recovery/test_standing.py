"""What a cut does with each topic of an application."""

from collections.abc import Mapping

from kstreams_assets.app.model import AppTopic, StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.kafka.topics import TopicIdentity
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.cut import Written
from kstreams_assets.recovery.standing import Standing

INPUT, GLOBAL, OUTPUT = TopicRole.INPUT, TopicRole.GLOBAL, TopicRole.OUTPUT
CHANGELOG, REPARTITION = TopicRole.CHANGELOG, TopicRole.REPARTITION

ROLES: Mapping[str, set[TopicRole]] = {
    "in": {INPUT},
    "rates": {GLOBAL},
    "names": {INPUT, CHANGELOG},
    "customers": {INPUT, CHANGELOG, OUTPUT},
    "between": {INPUT, OUTPUT},
    "out": {OUTPUT},
    "app-x-changelog": {CHANGELOG},
    "app-y-repartition": {REPARTITION},
}


def _standing(*absent: str) -> Standing:
    topics = tuple(AppTopic(name, TopicRoles(roles)) for name, roles in sorted(ROLES.items()))
    there = {name: TopicIdentity(name, f"{name}-id", 1) for name in ROLES if name not in absent}
    return Standing(StreamsApplication("app", topics), there, tuple(sorted(absent)))


def _of(*names: str) -> set[TopicPartitionId]:
    return {TopicPartitionId(name, 0) for name in names}


def test_what_the_application_writes_is_evaluated_by_transactions() -> None:
    standing = _standing()
    assert dict(standing.written) == {
        **dict.fromkeys(_of("app-x-changelog", "app-y-repartition"), Written.BY_APPLICATION),
        **dict.fromkeys(_of("customers", "between", "out"), Written.BY_ANYBODY),
    }
    assert set(standing.inputs) == _of("in", "rates", "names")
    assert set(standing.changelogs) == _of("app-x-changelog")
    assert set(standing.partitions) == {*standing.written, *standing.inputs}


def test_an_absent_output_is_not_needed_for_a_restore() -> None:
    assert list(_standing("out", "customers", "rates").needed_but_absent) == ["customers", "rates"]
