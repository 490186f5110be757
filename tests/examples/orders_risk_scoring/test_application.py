"""The application that sorts orders by risk, as it is kept in the definitions."""

import pytest

from examples.orders_risk_scoring.application import EXAMPLE
from tests.restore.example_definition import Definition


@pytest.mark.kafka
def test_describe_equals_the_text_kept_beside_the_component() -> None:
    kept = Definition(EXAMPLE, "orders_risk_scoring").path / "topology.txt"
    assert EXAMPLE.describe_topology() == kept.read_text("utf-8")
