"""What is taken from the lines that Kafka Streams writes."""

from kstreams_assets.drill.application import StreamsLog
from kstreams_assets.settings import DrillSettings

_THREAD = "INFO org.apache.kafka.streams - stream-thread [shop-1-StreamThread-1]"


def _log(*lines: str, running_line: str = DrillSettings().running_line) -> StreamsLog:
    log = StreamsLog(running_line)
    for second, line in enumerate(lines):
        log.take(line, float(second))
    return log


def test_a_start() -> None:
    log = _log(
        "Hello",
        f"{_THREAD} State transition from STARTING to PARTITIONS_ASSIGNED",
        f"{_THREAD} Finished restoring changelog shop-a-changelog-0 to store a with a total number"
        " of 40 records",
        f"{_THREAD} Finished restoring changelog shop-a-changelog-1 to store a with a total number"
        " of 2 records",
        f"{_THREAD} State transition from PARTITIONS_ASSIGNED to RUNNING",
        "stream-client [shop-1] State transition from REBALANCING to RUNNING",
        "stream-client [shop-1] State transition from REBALANCING to RUNNING",
    )
    assert log.records == {"shop-a-changelog-0": 40, "shop-a-changelog-1": 2}
    assert log.restoration_s == 2.0
    assert log.running_at_s == 5.0


def test_a_partition_that_is_restored_again_counts_once() -> None:
    line = "Finished restoring changelog x-0 to store x with a total number of {} records"
    assert _log(line.format(7), line.format(0)).records == {"x-0": 7}


def test_an_application_that_says_nothing() -> None:
    log = _log("up", "up and running", running_line="^up and")
    assert log.running_at_s == 1.0
    assert (log.records, log.restoration_s) == ({}, None)
