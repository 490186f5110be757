"""restore/other_groups.py: offsets of other consumer groups, mapped, from files and clusters."""

from dataclasses import replace
from pathlib import Path

import pytest

from kstreams_assets.errors import ConfigurationError, KStreamsAssetsError
from kstreams_assets.model.groups import ConsumerGroup, GroupOffset
from kstreams_assets.model.restores import PartitionProduced, RestoreState, StoredMap
from kstreams_assets.offsets import CommittedOffset, OffsetMap, OffsetRun, TopicPartitionId
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore.group_offsets import (
    commit_other_group,
    map_offsets,
    offsets_from_file,
    offsets_on_source,
)
from tests.restore.after_commit import AfterCommit, now_ms
from tests.streams.cluster import unique_name

SOURCE = TopicPartitionId("out", 0)
TARGET = TopicPartitionId("new-out", 0)
# source records 10-14 and 17-19, with control records at 15, 16 and 20
MAP = StoredMap(TARGET, OffsetMap([OffsetRun(10, 0, 5), OffsetRun(17, 5, 3)], 8))


@pytest.mark.parametrize(
    ("offset", "target", "unread", "is_beyond"),
    [
        (0, 0, 8, False),
        (12, 2, 6, False),
        (15, 5, 3, False),
        (17, 5, 3, False),
        (20, 8, 0, False),
        (21, 8, 0, False),
        (22, 8, 0, True),
    ],
)
def test_mapped(offset: int, target: int, unread: int, is_beyond: bool) -> None:
    reader = ConsumerGroup("reader", (GroupOffset("out", 0, offset, "its own"),))
    mapped = map_offsets({SOURCE: MAP}, reader, {SOURCE: 21})
    (of_out,) = mapped.offsets
    assert mapped.as_group("reader").committed == {TARGET: CommittedOffset(target, "its own")}
    assert (of_out.unread, of_out.is_beyond) == (unread, is_beyond)
    assert mapped.not_restored == ()


def test_partitions_that_were_not_restored_are_told_and_get_nothing() -> None:
    other = TopicPartitionId("out", 1)
    offsets = (GroupOffset("out", 0, 10, ""), GroupOffset("out", 1, 3, ""))
    mapped = map_offsets({SOURCE: MAP}, ConsumerGroup("reader", offsets), {})
    assert mapped.not_restored == (other,)
    assert mapped.as_group("reader").committed.keys() == {TARGET}


def test_offsets_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "offsets.csv"
    file.write_text('topic,partition,offset,metadata\nout,0,12,"a,b"\n\n"out",1,0\n', "utf-8")
    offsets = (GroupOffset("out", 0, 12, "a,b"), GroupOffset("out", 1, 0, ""))
    assert offsets_from_file(file, "reader") == ConsumerGroup("reader", offsets)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("out,0\n", "line 1: 2 columns"),
        ("out,0,1\nout,x,1\n", "line 2: partition 'x', offset '1'"),
        ("out,0,-1\n", "line 1: partition '0', offset '-1'"),
        ("out,0,1\nout,0,2\n", "line 2: out-0 is listed twice"),
        (",0,1\n", "line 1: no topic"),
        ("topic,partition,offset\n", "no offsets in it"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "offsets.csv"
    file.write_text(text, "utf-8")
    with pytest.raises(ConfigurationError) as refused:
        offsets_from_file(file, "reader")
    assert told in str(refused.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        offsets_from_file(tmp_path / "offsets.csv", "reader")


@pytest.mark.kafka
def test_committed_on_the_target(bench: AfterCommit) -> None:
    source, target = unique_name("out"), unique_name("new-out")
    bench.topic(target, partitions=2, timestamps_ms=[now_ms()] * 8)
    restore = bench.restore({}, state=RestoreState.VERIFIED)
    produced = PartitionProduced(
        source=TopicPartitionId(source, 1),
        target=TopicPartitionId(target, 1),
        runs=MAP.map.runs,
        records=8,
        resumed=0,
        end=8,
    )
    Repository(bench.settings.warehouse, restore.application_id).offset_maps.record(
        restore.restore_id, [produced]
    )
    group, elsewhere = unique_name("reader"), TopicPartitionId(target, 0)
    bench.cluster.commit_group_offsets(group, {elsewhere: CommittedOffset(3, "")})
    committed = {
        TopicPartitionId(source, 1): CommittedOffset(16, "\u00e9 metadata", leader_epoch=9),
        TopicPartitionId(source, 2): CommittedOffset(1, ""),
    }
    reader = ConsumerGroup.of(group, committed)
    mapped = commit_other_group(
        bench.settings, restore, bench.cluster, group=reader, target_group=group
    )
    assert mapped.not_restored == (TopicPartitionId(source, 2),)
    assert bench.cluster.group_offsets(group) == {
        elsewhere: CommittedOffset(3, ""),
        TopicPartitionId(target, 1): CommittedOffset(5, "\u00e9 metadata"),
    }
    with pytest.raises(ConfigurationError, match="application's own"):
        commit_other_group(
            bench.settings, restore, bench.cluster, group=reader, target_group=bench.group
        )
    unverified = replace(restore, state=RestoreState.PRODUCED)
    with pytest.raises(KStreamsAssetsError, match="is produced: restore group-offsets is"):
        commit_other_group(
            bench.settings, unverified, bench.cluster, group=reader, target_group=unique_name("x")
        )


@pytest.mark.kafka
def test_offsets_on_the_source(bench: AfterCommit) -> None:
    id_ = TopicPartitionId(bench.topic(unique_name("out")), 0)
    group = unique_name("reader")
    with pytest.raises(KStreamsAssetsError, match=f"Group {group} has no committed offsets"):
        offsets_on_source(bench.settings, group)
    bench.cluster.commit_group_offsets(group, {id_: CommittedOffset(0, "m")})
    assert offsets_on_source(bench.settings, group).committed == {id_: CommittedOffset(0, "m")}
