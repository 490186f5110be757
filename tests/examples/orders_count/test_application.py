"""The two versions of the application that counts orders, as they are kept in the definitions."""

import pytest

from examples.orders_count.application import (
    COUNTS,
    COUNTS_V2,
    EXAMPLE,
    EXAMPLE_V2,
    STORE,
    STORE_V2,
)
from examples.orders_created.orders import TOPIC
from examples.streams.application import Example
from tests.restore.example_definition import Definition

pytestmark = pytest.mark.kafka

VERSIONS = [(EXAMPLE, "orders_count_v1"), (EXAMPLE_V2, "orders_count_v2")]


@pytest.mark.parametrize(("example", "folder"), VERSIONS)
def test_describe_equals_the_text_kept_beside_the_component(example: Example, folder: str) -> None:
    kept = Definition(example, folder).path / "topology.txt"
    assert example.describe_topology() == kept.read_text("utf-8")


def test_the_versions_share_the_input_and_nothing_else() -> None:
    assert {*EXAMPLE.topics} & {*EXAMPLE_V2.topics} == {TOPIC}
    first, second = EXAMPLE.describe_topology(), EXAMPLE_V2.describe_topology()
    assert f"(stores: [{STORE}])" in first
    assert f"(topic: {COUNTS})" in first
    assert f"(stores: [{STORE_V2}])" in second
    assert f"(topic: {COUNTS_V2})" in second
