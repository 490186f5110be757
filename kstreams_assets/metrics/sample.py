"""Metrics, and what was measured of them. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as MetricFamily

APPLICATION = "application_id"
"""The label that every metric has."""


class Kind(StrEnum):
    """Prometheus' own types: a counter only rises, until what it counts begins anew."""

    GAUGE = "gauge"
    COUNTER = "counter"


class Source(StrEnum):
    """Where numbers come from: each is asked by itself, and may fail by itself.

    `cluster`: topics and the ends of their logs. `group`: the consumer group's coordinator.
    `warehouse`: the tables.
    """

    CLUSTER = "cluster"
    GROUP = "group"
    WAREHOUSE = "warehouse"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; `labels` are those beside `application_id`, in their order.

    `source` is None for what says how the sources answered.
    """

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...]
    source: Source | None

    def sample(self, value: float, **labels: str) -> "Sample":
        """One measured value; raises ValueError unless the labels are those of the metric."""
        if labels.keys() != set(self.labels):
            message = f"{self.name} has labels {self.labels}, not {sorted(labels)}"
            raise ValueError(message)
        return Sample(self, tuple(labels[name] for name in self.labels), float(value))

    def one_of(self, current: str, known: Iterable[str], **labels: str) -> Iterator["Sample"]:
        """1 for the current state and 0 for every other known one; the last label is the state."""
        name = self.labels[-1]
        for state in dict.fromkeys([*known, current]):
            yield self.sample(state == current, **labels, **{name: state})


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of one metric; `labels` are in the metric's order."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


def families(samples: Mapping[str, Iterable[Sample]]) -> list[MetricFamily]:
    """What Prometheus reads, from the samples of each application; ordered by name."""
    found: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    for application_id, of_it in samples.items():
        for sample in of_it:
            family = found.setdefault(sample.metric.name, _family(sample.metric))
            family.add_metric([application_id, *sample.labels], sample.value)
    return [found[name] for name in sorted(found)]


def _family(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily:
    labels = [APPLICATION, *metric.labels]
    if metric.kind is Kind.COUNTER:
        return CounterMetricFamily(metric.name, metric.text, labels=labels)
    return GaugeMetricFamily(metric.name, metric.text, labels=labels)
