"""Metrics as Prometheus wants them."""

import re

import pytest

from kstreams_assets.metrics.catalogue import METRICS, Kind, Metric, Source, families
from tests.metrics.exposed import Exposed

STATE = Metric("kstreams_state", Kind.GAUGE, "State.", ("thing", "state"), Source.GROUP)
TOTAL = Metric("kstreams_things_total", Kind.COUNTER, "Things.", ("thing",), Source.CLUSTER)


def test_samples_of_applications_become_one_family_each() -> None:
    found = families({"b": [TOTAL.sample(2, thing="x")], "a": [TOTAL.sample(1, thing="x")]})
    assert [(f.name, f.type, f.documentation) for f in found] == [
        ("kstreams_things", "counter", "Things.")
    ]
    assert [(s.name, s.labels, s.value) for s in found[0].samples] == [
        ("kstreams_things_total", {"application_id": "b", "thing": "x"}, 2.0),
        ("kstreams_things_total", {"application_id": "a", "thing": "x"}, 1.0),
    ]


@pytest.mark.parametrize("labels", [{}, {"thing": "x", "other": "y"}, {"other": "y"}])
def test_labels_are_those_of_the_metric(labels: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="kstreams_things_total has labels"):
        TOTAL.sample(1, **labels)


@pytest.mark.parametrize(("current", "found"), [("b", [0, 1]), ("new", [0, 0, 1])])
def test_a_state_is_one_of_those_known_or_a_new_one(current: str, found: list[int]) -> None:
    samples = [*STATE.one_of(current, ("a", "b"), thing="x")]
    assert [sample.value for sample in samples] == found
    assert samples[-1].labels == ("x", current)


def test_any_text_may_stand_in_a_label() -> None:
    odd = 'a "b"\\c\nd é'
    exposed = Exposed.of_samples([TOTAL.sample(7, thing=odd)])
    assert exposed.one("kstreams_things_total", application_id="shop", thing=odd) == 7


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda m: m.name)
def test_names_follow_the_conventions(metric: Metric) -> None:
    assert re.fullmatch(r"kstreams(_[a-z]+)+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert not re.search(r"_(ms|s|kb|mib|count|sum|bucket)$", metric.name)
    assert metric.text.endswith(".")
    assert all(re.fullmatch(r"[a-z]+", label) for label in metric.labels)
