"""restore/other_groups.py: offsets of other consumer groups, mapped, from files and clusters."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kstreams_assets.errors import (
    ConfigurationError,
    GroupOffsetsFileError,
    RestoreError,
    RestoreNotVerifiedError,
)
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.offsets import CommittedOffset, OffsetMap, OffsetRun, TopicPartitionId
from kstreams_assets.restore.group_offsets import (
    commit_other_group,
    map_offsets,
    offsets_from_file,
    offsets_on_source,
)
from kstreams_assets.warehouse.restores import (
    OffsetMapsTable,
    PartitionProduced,
    RestoreState,
    StoredMap,
)
from tests.restore.after_commit import AfterCommit, after_commit, now_ms
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
    offsets = {SOURCE: CommittedOffset(offset, "its own", leader_epoch=4)}
    mapped = map_offsets({SOURCE: MAP}, offsets, {SOURCE: 21})
    (of_out,) = mapped.offsets
    assert mapped.to_commit == {TARGET: CommittedOffset(target, "its own")}
    assert (of_out.unread, of_out.is_beyond) == (unread, is_beyond)
    assert mapped.not_restored == ()


def test_partitions_that_were_not_restored_are_told_and_get_nothing() -> None:
    other = TopicPartitionId("out", 1)
    offsets = {other: CommittedOffset(3, ""), SOURCE: CommittedOffset(10, "")}
    mapped = map_offsets({SOURCE: MAP}, offsets, {})
    assert mapped.not_restored == (other,)
    assert mapped.to_commit.keys() == {TARGET}


def test_offsets_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "offsets.csv"
    file.write_text('topic,partition,offset,metadata\nout,0,12,"a,b"\n\n"out",1,0\n', "utf-8")
    assert offsets_from_file(file) == {
        TopicPartitionId("out", 0): CommittedOffset(12, "a,b"),
        TopicPartitionId("out", 1): CommittedOffset(0, ""),
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("out,0\n", "line 1: 2 columns"),
        ("out,0,1\nout,x,1\n", "line 2: partition 'x', offset '1'"),
        ("out,0,-1\n", "line 1: partition '0', offset '-1'"),
        ("out,0,1\nout,0,2\n", "line 2: out-0 is there twice"),
        (",0,1\n", "line 1: no topic"),
        ("topic,partition,offset\n", "no offsets in it"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "offsets.csv"
    file.write_text(text, "utf-8")
    with pytest.raises(GroupOffsetsFileError) as refused:
        offsets_from_file(file)
    assert told in str(refused.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(GroupOffsetsFileError, match="No such file"):
        offsets_from_file(tmp_path / "offsets.csv")


@pytest.fixture
def bench(kafka_cluster: LocalCluster, tmp_path: Path) -> Iterator[AfterCommit]:
    with after_commit(kafka_cluster.bootstrap_servers, tmp_path / "warehouse") as bench:
        yield bench


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
    OffsetMapsTable(bench.settings.warehouse).record(
        restore.application_id, restore.restore_id, [produced]
    )
    group, elsewhere = unique_name("reader"), TopicPartitionId(target, 0)
    bench.cluster.commit_group_offsets(group, {elsewhere: CommittedOffset(3, "")})
    offsets = {
        TopicPartitionId(source, 1): CommittedOffset(16, "\u00e9 metadata", leader_epoch=9),
        TopicPartitionId(source, 2): CommittedOffset(1, ""),
    }
    mapped = commit_other_group(
        bench.settings, restore, bench.cluster, group=group, offsets=offsets
    )
    assert mapped.not_restored == (TopicPartitionId(source, 2),)
    assert bench.cluster.group_offsets(group) == {
        elsewhere: CommittedOffset(3, ""),
        TopicPartitionId(target, 1): CommittedOffset(5, "\u00e9 metadata"),
    }
    with pytest.raises(ConfigurationError, match="application's own"):
        commit_other_group(
            bench.settings, restore, bench.cluster, group=bench.group, offsets=offsets
        )
    unverified = replace(restore, state=RestoreState.PRODUCED)
    with pytest.raises(RestoreNotVerifiedError):
        commit_other_group(
            bench.settings, unverified, bench.cluster, group=unique_name("x"), offsets=offsets
        )


@pytest.mark.kafka
def test_offsets_on_the_source(bench: AfterCommit) -> None:
    id_ = TopicPartitionId(bench.topic(unique_name("out")), 0)
    group = unique_name("reader")
    with pytest.raises(RestoreError, match=group):
        offsets_on_source(bench.settings, group)
    bench.cluster.commit_group_offsets(group, {id_: CommittedOffset(0, "m")})
    assert offsets_on_source(bench.settings, group) == {id_: CommittedOffset(0, "m")}
