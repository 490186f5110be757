"""Restores read back from a real broker: a true copy passes, whatever was changed is named."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from kstreams_assets.errors import ClusterUnavailableError, KStreamsAssetsError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.restore.verify import SAMPLE_ENDS, SAMPLE_RANGE_LENGTH, sampled_ranges, verify
from kstreams_assets.settings import VerifyExtent
from spark_resources.partition_records import SCHEMA
from tests.backup.writing import RawRecord
from tests.restore.verifying import CONFIGS, EXTRA, Workplace, change, produced_as_planned, records
from tests.streams.cluster import unique_name

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def test_a_true_copy_passes_with_every_record_compared(workplace: Workplace) -> None:
    restored = workplace.restore(), workplace.restore(base=5)

    result = workplace.verify(*restored)

    assert result.passed, result.problems
    assert [(p.records, p.compared, p.differing) for p in result.partitions] == [(60, 60, 0)] * 4
    expected = "4 partitions have 240 records, like the backup; all 240 were compared."
    assert result.explanation() == expected
    assert workplace.said[-1] == expected


def test_a_partition_without_records_must_be_empty(workplace: Workplace) -> None:
    backup = {0: records()[0], 1: []}
    true, other = (workplace.restore(backup=backup) for _ in range(2))
    workplace.write(other.plan.target, {1: [EXTRA]})

    result = workplace.verify(true, other)

    assert [str(problem) for problem in result.problems] == [
        f"{other.at(1)} offset 0: the restored records end here, 1 more offsets follow:"
        " another process writes to this topic"
    ]


def test_deleted_records_are_told_once(workplace: Workplace) -> None:
    restored = workplace.restore()
    workplace.cluster.delete_records({restored.at(0): 12})

    result = workplace.verify(restored)

    assert [str(problem) for problem in result.problems] == [
        f"{restored.at(0)} offset 12: the log starts here, records from offset 0 on were deleted"
    ]
    assert [partition.compared for partition in result.partitions] == [48, 60]


def test_an_open_transaction_of_another_writer_is_named(workplace: Workplace) -> None:
    restored = workplace.restore()
    servers = workplace.cluster.connection.bootstrap_servers
    writer = Producer({"bootstrap.servers": servers, "transactional.id": unique_name("tx")})
    writer.init_transactions(20)
    writer.begin_transaction()
    writer.produce(restored.plan.target, b"open", partition=1)
    assert writer.flush(20) == 0

    problems = [str(problem) for problem in workplace.verify(restored).problems]

    writer.abort_transaction(20)
    assert len(problems) == 2
    assert "offset 60: the restored records end here, 1 more offsets follow" in problems[0]
    assert "offset 60: an open transaction begins here" in problems[1]


def test_topics_deleted_or_made_anew_are_named(workplace: Workplace) -> None:
    anew, deleted, true = (workplace.restore() for _ in range(3))
    found = anew.stored.target_topic_id
    anew.stored = replace(anew.stored, target_topic_id="another-id")
    deleted.stored = replace(deleted.stored, target="absent")
    deleted.plan = replace(deleted.plan, target="absent")
    deleted.works = [replace(w, target=TopicPartitionId("absent", 0)) for w in deleted.works[:1]]
    deleted.produced = [replace(deleted.produced[0], target=TopicPartitionId("absent", 0))]

    result = workplace.verify(anew, deleted, true)

    assert [str(problem) for problem in result.problems] == [
        f"{anew.plan.target}: the topic was recreated: its id is {found}, it was another-id",
        "absent: the topic does not exist any more",
    ]
    assert [partition.target for partition in result.partitions] == [true.at(0), true.at(1)]


def test_configs_and_partition_count_must_be_as_the_restore_set_them(
    workplace: Workplace,
) -> None:
    restored = workplace.restore()
    restored.plan = replace(
        restored.plan,
        configs={**CONFIGS, "retention.bytes": "77"},
        partitions=restored.plan.partitions[:1],
    )

    assert [str(problem) for problem in workplace.verify(restored).problems] == [
        f"{restored.plan.target}: has 2 partitions instead of 1",
        f"{restored.plan.target}: config retention.bytes is -1 instead of 77, which the restore"
        " had set",
    ]


@pytest.mark.parametrize("extent", list(VerifyExtent))
def test_counts_alone_notice_a_missing_record(workplace: Workplace, extent: VerifyExtent) -> None:
    true, missing = workplace.restore(), workplace.restore(lambda rows: rows[1].pop(3))

    assert workplace.verify(true, extent=extent).passed
    assert not workplace.verify(true, missing, extent=extent).passed


def test_counts_compare_no_record_and_say_so(workplace: Workplace) -> None:
    result = workplace.verify(
        workplace.restore(change(0, 5, value=b"other")), extent=VerifyExtent.COUNTS
    )

    assert result.passed
    assert result.explanation().endswith("none was compared (verify: counts).")


def test_a_sample_holds_both_ends_and_says_how_much_it_is(workplace: Workplace) -> None:
    count = 5_000
    backup = {0: records(count)[0]}
    sampled = 2 * SAMPLE_ENDS + 10 * SAMPLE_RANGE_LENGTH
    target = TopicPartitionId(workplace.restore(backup=backup).plan.target, 0)

    true = workplace.verify(workplace.restore(backup=backup), extent=VerifyExtent.SAMPLE)
    changed = [
        workplace.restore(change(0, at, value=b"other"), backup=backup) for at in (999, 4_000)
    ]
    stretch = sampled_ranges(target, OffsetRange(0, count), VerifyExtent.SAMPLE)[4]

    result = workplace.verify(*changed, extent=VerifyExtent.SAMPLE)

    assert true.passed
    assert true.compared == sampled
    assert f"; {sampled:,} were compared (verify: sample)" in true.explanation()
    assert [(p.target, p.offset) for p in result.problems] == [
        (changed[0].at(0), 999),
        (changed[1].at(0), 4_000),
    ]
    assert len(stretch) == SAMPLE_RANGE_LENGTH


def test_a_random_stretch_of_a_sample_is_compared(workplace: Workplace) -> None:
    backup = {0: records(5_000)[0]}
    restored = workplace.restore(backup=backup)
    stretch = sampled_ranges(restored.at(0), OffsetRange(0, 5_000), VerifyExtent.SAMPLE)[6]
    file = restored.works[0].files[0]
    table = pq.read_table(file).to_pylist()
    table[stretch.start + 50]["value"] = b"other"
    pq.write_table(pa.Table.from_pylist(table, SCHEMA), file)

    (problem,) = workplace.verify(restored, extent=VerifyExtent.SAMPLE).problems

    assert problem.offset == stretch.start + 50


@pytest.mark.parametrize("count", [0, 1, 2_000, 3_000, 3_011, 10_000, 10**9])
@pytest.mark.parametrize("base", [0, 77])
def test_stretches_of_a_sample_are_in_order_and_disjoint(count: int, base: int) -> None:
    target, span = TopicPartitionId("orders", 0), OffsetRange(base, base + count)

    stretches = sampled_ranges(target, span, VerifyExtent.SAMPLE)

    assert stretches == sampled_ranges(target, span, VerifyExtent.SAMPLE)
    bounds = [bound for stretch in stretches for bound in (stretch.start, stretch.end)]
    assert bounds == sorted(bounds)
    assert all(len(stretch) for stretch in stretches)
    if count:
        assert (bounds[0], bounds[-1]) == (base, base + count)


def test_replaced_timestamps_are_counted_if_accepted_and_named_if_not(
    workplace: Workplace,
) -> None:
    backup = records()
    for number, timestamp_ms in ((4, 0), (9, -1)):
        backup[0][number] = replace(backup[0][number], timestamp_ms=timestamp_ms)

    def replaced(rows: dict[int, list[RawRecord]]) -> None:
        for number in (4, 9):
            rows[0][number] = replace(rows[0][number], timestamp_ms=1_700_000_000_000)

    restored = workplace.restore(replaced, backup=backup)

    accepted = workplace.verify(restored, accept_replaced_timestamps=True)
    refused = workplace.verify(restored)

    assert accepted.passed, accepted.problems
    assert [partition.replaced_timestamps for partition in accepted.partitions] == [2, 0]
    assert "; 2 of them had no timestamp and got the restore's." in accepted.explanation()
    assert [problem.what for problem in refused.problems] == [
        "timestamp is 1700000000000 instead of 0 (source offset 504)",
        "timestamp is 1700000000000 instead of -1 (source offset 509)",
    ]


def test_a_backup_that_lost_a_record_since_is_no_proof(workplace: Workplace) -> None:
    restored = workplace.restore()
    file = restored.works[1].files[0]
    pq.write_table(pq.read_table(file).slice(1), file)

    with pytest.raises(KStreamsAssetsError, match="has 59 records, the plan 60"):
        workplace.verify(restored)


def test_fewer_records_produced_than_planned_are_named(workplace: Workplace) -> None:
    restored = workplace.restore(lambda rows: rows[0].pop())
    shorter = replace(restored.works[0], records=59)
    restored.produced[0] = produced_as_planned(shorter)

    problems = workplace.verify(restored, extent=VerifyExtent.COUNTS).problems

    assert [str(problem) for problem in problems] == [
        f"{restored.at(0)}: 59 records were produced, the backup has 60"
    ]


def test_an_unreachable_target_is_an_error_not_a_verdict(workplace: Workplace) -> None:
    restored = workplace.restore()
    connection = KafkaConnection(bootstrap_servers="127.0.0.1:1", request_timeout_seconds=2)

    with pytest.raises(ClusterUnavailableError):
        verify(
            workplace.spark.spark_session,
            restored.works,
            restored.produced,
            topics=[restored.plan],
            stored=[restored.stored],
            connection=connection,
            extent=VerifyExtent.FULL,
            log=workplace.said.append,
        )
