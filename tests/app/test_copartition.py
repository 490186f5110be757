"""Which topics need equally many partitions, on real topology texts."""

from collections.abc import Callable

import pytest

from kstreams_assets.app.declarations import Declarations
from kstreams_assets.app.roles import application_from_topology
from kstreams_assets.app.topology import Topology

Topologies = Callable[[str], Topology]

FK = "app-KTABLE-FK-JOIN-SUBSCRIPTION"

GROUPS = {
    "filter": [],
    "repartitioned_count": [],
    "global_table_session": [],
    "table_join": [{"left", "right"}],
    "materialised_table_join": [{"left", "right"}],
    "stream_table_join": [{"clicks", "users"}],
    "foreign_key_join": [
        {f"{FK}-REGISTRATION-0000000006-topic", "products"},
        {f"{FK}-RESPONSE-0000000014-topic", "orders"},
    ],
}


@pytest.mark.parametrize("name", GROUPS)
def test_topics_that_meet_in_one_store(name: str, topology: Topologies) -> None:
    application = application_from_topology("app", topology(name))
    assert [set(group) for group in application.copartitioned] == GROUPS[name]


def test_a_topic_that_is_not_the_applications_counts_for_nothing(topology: Topologies) -> None:
    said = Declarations(not_mine=frozenset({"left"}))
    application = application_from_topology("app", topology("table_join"), declarations=said)
    assert application.copartitioned == ()
