"""How topics were described, window by window."""

from dataclasses import replace
from pathlib import Path

import pytest

from kstreams_assets.backup.recorded import facts_of, with_own_configs
from kstreams_assets.kafka.admin import TopicDescription
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.restores import RestoreMode, RestoreState, StoredRestore, StoredTopic
from kstreams_assets.model.spans import TopicFacts
from kstreams_assets.repository.ledger import TopicFactsTable
from tests.backup.samples import FACTS, backup, window


@pytest.fixture
def table(tmp_path: Path) -> TopicFactsTable:
    """The table of one application."""
    return TopicFactsTable(Warehouse(tmp_path), "shop")


def test_the_newest_of_each_topic_at_or_before_an_instant(table: TopicFactsTable) -> None:
    later = TopicFacts("life-2", 4, 1, ())
    table.record([backup(index=0), backup(index=0, topic="u")])
    table.record([backup(index=2, facts=later)])
    assert table.before(window(0).end_ms) == {"t": FACTS, "u": FACTS}
    assert table.before(window(2).end_ms - 1) == {"t": FACTS, "u": FACTS}
    assert table.before(window(2).end_ms) == {"t": later, "u": FACTS}
    assert table.before(window(0).end_ms - 1) == {}


def test_a_window_is_noted_once(table: TopicFactsTable) -> None:
    table.record([backup(index=0), backup(index=1)])
    changed = replace(FACTS, partitions=9)
    table.record([backup(index=0, facts=changed)])
    assert table.before(window(0).end_ms) == {"t": changed}
    assert table.before(window(1).end_ms) == {"t": FACTS}


def test_a_topic_that_is_gone_has_no_facts(table: TopicFactsTable) -> None:
    table.record([backup(index=0, facts=None)])
    table.record([])
    assert table.before(10**15) == {}


def test_configs_are_kept_in_order(table: TopicFactsTable) -> None:
    description = TopicDescription(
        name="t",
        topic_id="life-1",
        partitions=3,
        replication_factor=2,
        explicit_configs={"retention.ms": "5", "cleanup.policy": "compact"},
        effective_configs={"retention.ms": "5", "segment.ms": "7", "max.message.bytes": "1"},
        authorized_operations=frozenset(),
    )
    facts = facts_of({"t": description})["t"]
    assert facts == TopicFacts(
        "life-1",
        3,
        2,
        (("cleanup.policy", "compact"), ("retention.ms", "5")),
        effective_configs=(("max.message.bytes", "1"), ("retention.ms", "5")),
    )
    assert facts.known_configs == {
        "cleanup.policy": "compact",
        "max.message.bytes": "1",
        "retention.ms": "5",
    }
    table.record([backup(index=0, facts=facts)])
    assert table.before(10**15) == {"t": facts}


def test_the_shortest_time_for_which_deletions_were_kept(table: TopicFactsTable) -> None:
    assert table.delete_retention_ms(["t", "u"]) == {}
    for index, kept in enumerate(["700", "500", "600"]):
        configs = (("cleanup.policy", "compact"), ("delete.retention.ms", kept))
        table.record([backup(index=index, facts=replace(FACTS, configs=configs))])
    table.record([backup(index=0, topic="u")])
    assert table.delete_retention_ms(["t", "u"]) == {"t": 500}
    assert table.delete_retention_ms(["u"]) == {}


def test_a_default_of_the_brokers_counts_as_the_time_for_which_deletions_were_kept(
    table: TopicFactsTable,
) -> None:
    effective = (("delete.retention.ms", "300"),)
    table.record([backup(index=0, facts=replace(FACTS, effective_configs=effective))])
    assert table.delete_retention_ms(["t"]) == {"t": 300}


def test_configs_that_a_restore_has_relaxed_are_recorded_as_finish_will_set_them() -> None:
    relaxed = TopicFacts(
        "life-2",
        1,
        1,
        (("cleanup.policy", "compact"), ("retention.ms", "-1"), ("segment.ms", "9")),
        (("cleanup.policy", "compact"), ("retention.ms", "-1")),
    )
    restore = StoredRestore(
        application_id="shop",
        restore_id="r1",
        state=RestoreState.COMMITTED,
        changed_at_ms=2,
        created_at_ms=1,
        run_id="run-1",
        point_id="point-1",
        group="shop",
        target_cluster_id="cluster-2",
        target_bootstrap_servers="b:1",
        mode=RestoreMode.STATE,
        request="{}",
        topics=(
            StoredTopic(
                "t", "t", "life-2", (0,), 5, put_back={"retention.ms": "1000", "segment.ms": None}
            ),
        ),
    )
    facts = with_own_configs({"t": relaxed, "u": FACTS}, [restore])
    assert facts["u"] == FACTS
    assert facts["t"].configs == (("cleanup.policy", "compact"), ("retention.ms", "1000"))
    assert facts["t"].effective_configs == (("cleanup.policy", "compact"), ("retention.ms", "1000"))
    finished = replace(restore, state=RestoreState.FINISHED)
    assert with_own_configs({"t": relaxed}, [finished])["t"] == relaxed
