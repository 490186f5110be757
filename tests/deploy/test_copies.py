"""Files that exist twice, because a chart and an example must be complete folders, are equal."""

from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
_TOPOLOGY = "examples/defs/order_processor/topology.txt"
_MONITORING = "deploy/kubernetes/monitoring"
_CHART = "deploy/helm/kstreams-assets/files"


@pytest.mark.parametrize(
    ("copy", "source"),
    [
        *(
            (f"examples/{example}/topology.txt", _TOPOLOGY)
            for example in ("confluent_cloud", "msk", "spring_boot", "strimzi")
        ),
        *(
            (f"{_CHART}/{name}", f"{_MONITORING}/{name}")
            for name in ("rules.yaml", "kstreams-assets.json")
        ),
    ],
)
def test_a_copy_equals_its_source(copy: str, source: str) -> None:
    assert not (CHECKOUT / copy).is_symlink()  # Archives and patches do not preserve links.
    assert (CHECKOUT / copy).read_bytes() == (CHECKOUT / source).read_bytes()
