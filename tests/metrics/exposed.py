"""What Prometheus gets, as values by name and labels."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from kstreams_assets.metrics.catalogue import Sample, families
from tests.timing import eventually


@dataclass(frozen=True)
class Exposed:
    """An exposition as it was parsed."""

    families: Mapping[str, MetricFamily]

    @classmethod
    def of_text(cls, text: str) -> "Exposed":
        """As Prometheus reads it."""
        return cls({f.name: f for f in text_string_to_metric_families(text)})

    @classmethod
    def of(cls, collector: Collector) -> "Exposed":
        """One scrape."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        return cls.of_text(generate_latest(registry).decode())

    @classmethod
    def of_samples(cls, samples: Iterable[Sample]) -> "Exposed":
        """What samples of application `shop` become."""

        class _Samples(Collector):
            def collect(self) -> list[MetricFamily]:
                return families({"shop": samples})

        return cls.of(_Samples())

    @property
    def names(self) -> set[str]:
        """The metrics that are there, as a query names them."""
        return {sample.name for family in self.families.values() for sample in family.samples}

    def all(self, name: str, **labels: str) -> list[float]:
        """The values of a metric with these labels, whatever the others."""
        return [
            sample.value
            for family in self.families.values()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]

    def one(self, name: str, **labels: str) -> float:
        """The only value."""
        (value,) = self.all(name, **labels)
        return value


def when_up(scrape: Callable[[], Exposed], **labels: str) -> Exposed:
    """The first scrape in which this source is up: on a busy machine it may be late at first."""
    scrapes: list[Exposed] = []

    def is_up() -> bool:
        scrapes.append(scrape())
        return scrapes[-1].one("kstreams_up", **labels) == 1

    assert eventually(is_up)
    return scrapes[-1]
