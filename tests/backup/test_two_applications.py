"""Two applications in one warehouse, backed up at once by two processes."""

import dataclasses
from collections import Counter

import pytest

from kstreams_assets.repository.delta_log import delta_table
from tests.backup.driving import driver
from tests.backup.reading import consume, stored
from tests.backup.writing import write
from tests.streams.cluster import unique_name
from tests.streams.workbench import Workbench

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.drill]


def test_neither_has_a_row_of_the_other(workbench: Workbench) -> None:
    name = unique_name("orders")
    benches = [
        dataclasses.replace(workbench, application_id=application_id, roles={}, windows=[])
        for application_id in (name, f"{name}-eu")
    ]
    for bench in benches:
        bench.topic(bench.application_id)
        for _ in range(4):
            write(bench, next(iter(bench.roles)), 50)
            bench.close_window()
    ours, theirs = benches
    with driver(theirs, theirs.windows) as other:
        other.await_milestone("planned")
        for window in ours.windows:  # many small commits while the other is at work
            ours.back_up(window)
        other.await_milestone("writing")
        ours.back_up()
        other.await_milestone("done")
        assert other.process.wait(60) == 0

    for bench in benches:
        (topic,) = bench.roles
        assert stored(bench, topic) == consume(bench.bootstrap_servers, topic)
        rows = delta_table(bench.records_path).to_pyarrow_table(columns=["topic"])
        assert set(rows["topic"].to_pylist()) == {topic}
        assert len(bench.ledger.entries()) == 4
        assert {entry.result.partition.topic for entry in bench.ledger.entries()} == {topic}
        cuts = {cut.topic for point in bench.points() for cut in point.partitions}
        assert cuts == {topic}
    for table in ("recovery_points", "windows", "topics"):
        rows = delta_table(workbench.warehouse.root / table).to_pyarrow_table()
        # of the points one at the end of each run
        expected = {
            bench.application_id: 4 + (count if table == "recovery_points" else 0)
            for bench, count in ((ours, 5), (theirs, 1))
        }
        assert Counter(rows["application_id"].to_pylist()) == expected
