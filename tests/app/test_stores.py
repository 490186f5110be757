from collections.abc import Callable

import pytest

from kstreams_assets.app.flow import writers_of
from kstreams_assets.app.topology import Processor, Source, SubTopology, Topology

Topologies = Callable[[str], Topology]


@pytest.mark.parametrize(
    ("text", "store", "writers"),
    [
        ("table_join", "left-STATE-STORE-0000000000", {"KTABLE-SOURCE-0000000002"}),
        ("materialised_table_join", "right-STATE-STORE-0000000003", {"KTABLE-SOURCE-0000000005"}),
        ("stream_table_join_named", "users-STATE-STORE-0000000000", {"user-table"}),
        (
            "foreign_key_join",
            "KTABLE-FK-JOIN-SUBSCRIPTION-STATE-STORE-0000000010",
            {"KTABLE-FK-JOIN-SUBSCRIPTION-PROCESSOR-0000000011"},
        ),
        ("foreign_key_join", "products-STATE-STORE-0000000003", {"KTABLE-SOURCE-0000000005"}),
        ("foreign_key_join", "orders-STATE-STORE-0000000000", {"KTABLE-SOURCE-0000000002"}),
        ("foreign_key_join_named", "enrich-subscription-store", {"enrich-subscription-receive"}),
        ("stream_joins", "match-outer-this-join-store", {"match-this-windowed"}),
        (
            "stream_joins",
            "match-outer-shared-join-store",
            {"match-outer-this-join", "match-outer-other-join"},
        ),
        ("stream_joins", "KSTREAM-JOINTHIS-0000000012-store", {"KSTREAM-WINDOWED-0000000010"}),
    ],
)
def test_writers_in_the_dsl_are_certain(
    text: str, store: str, writers: set[str], topology: Topologies
) -> None:
    block = next(
        block
        for block in topology(text).subtopologies
        if any(store in node.stores for node in block.processors)
    )
    found, certain = writers_of(block, store)
    assert ({node.name for node in found}, certain) == (writers, True)


def test_user_code_may_write_what_it_uses() -> None:
    block = SubTopology(
        0,
        False,
        (
            Source("s", ("a",), None, ("KSTREAM-PROCESSOR-0000000001", "mine")),
            Processor("KSTREAM-PROCESSOR-0000000001", ("store",), (), ("s",)),
            Processor("mine", ("store",), (), ("s",)),
        ),
    )
    found, certain = writers_of(block, "store")
    assert ({node.name for node in found}, certain) == (
        {"KSTREAM-PROCESSOR-0000000001", "mine"},
        False,
    )
