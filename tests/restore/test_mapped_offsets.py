"""restore/mapped_offsets.py: what is to be committed follows from the point and the maps."""

from dataclasses import replace

from kstreams_assets.app.model import TopicRole
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.restores import RestoreMode, RestoreState, StoredMap, StoredRestore
from kstreams_assets.offsets import OffsetMap, OffsetRun, TopicPartitionId
from kstreams_assets.restore.group_offsets import differing_offsets, mapped_offsets, read_topics
from kstreams_assets.restore.request import RestoreRequest
from tests.backup.samples import point
from tests.restore import outcomes
from tests.restore.outcomes import BETWEEN, ORDERS, TOTALS

POINT = point(
    1,
    group_offsets=[
        GroupOffset(ORDERS, 0, 80, "AgAB"),
        GroupOffset(BETWEEN, 0, 12, ""),
        GroupOffset("not-restored", 0, 5, ""),
        GroupOffset(ORDERS, 7, 5, ""),
    ],
)


def restore(mode: RestoreMode = RestoreMode.STATE) -> StoredRestore:
    """All three topics of the application `shop`."""
    planned = outcomes.plan(RestoreRequest())
    return replace(outcomes.stored(planned, RestoreState.VERIFIED), mode=mode)


def stored_map(topic: str, *runs: OffsetRun, end: int) -> tuple[TopicPartitionId, StoredMap]:
    """The map of partition 0."""
    target = TopicPartitionId(f"new-{topic}", 0)
    return TopicPartitionId(topic, 0), StoredMap(target, OffsetMap(runs, end))


MAPS = dict(
    [
        stored_map(ORDERS, OffsetRun(10, 3, 60), OffsetRun(75, 63, 10), end=73),
        stored_map(BETWEEN, end=4),
        stored_map(TOTALS, OffsetRun(0, 0, 9), end=9),
    ]
)


def test_with_its_state_it_goes_on_at_the_committed_offsets() -> None:
    assert mapped_offsets(restore(), POINT, MAPS) == (
        GroupOffset(f"new-{ORDERS}", 0, 68, "AgAB"),
        GroupOffset(f"new-{BETWEEN}", 0, 4, ""),
    )


def test_to_recompute_it_begins_at_the_first_record_of_what_it_reads() -> None:
    rebuilt = restore(RestoreMode.REBUILD)
    assert read_topics(rebuilt) == {ORDERS}
    assert mapped_offsets(rebuilt, POINT, MAPS) == (GroupOffset(f"new-{ORDERS}", 0, 3, ""),)
    roles = (TopicRole.INPUT.value, TopicRole.OUTPUT.value)
    between = replace(rebuilt.topics[1], roles=roles)
    several = replace(rebuilt, topics=(rebuilt.topics[0], between))
    assert [o.offset for o in mapped_offsets(several, POINT, MAPS)] == [3, 4]


def test_logs_commit_no_offset_of_the_application() -> None:
    logs = restore(RestoreMode.LOGS)
    assert read_topics(logs) == set()
    assert mapped_offsets(logs, POINT, MAPS) == ()


def test_every_difference_is_named() -> None:
    expected = mapped_offsets(restore(), POINT, MAPS)
    assert differing_offsets(expected, expected[::-1]) == []
    one, other = sorted(expected, key=lambda o: o.topic)
    far = replace(one, offset=one.offset + 1)
    assert differing_offsets(expected, (far, replace(other, metadata="x"))) == [
        f"{one.topic}-0 {one.offset + 1} (metadata {one.metadata!r}) instead of"
        f" {one.offset} (metadata {one.metadata!r})",
        f"{other.topic}-0 {other.offset} (metadata 'x') instead of"
        f" {other.offset} (metadata {other.metadata!r})",
    ]
    more = GroupOffset("more", 3, 1, "")
    assert differing_offsets(expected, (one, more)) == [
        "more-3 1 (metadata '') instead of none",
        f"{other.topic}-0 none instead of {other.offset} (metadata {other.metadata!r})",
    ]
