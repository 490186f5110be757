"""The page of the metrics, ours and those of the application's JMX."""

from collections.abc import Iterator

from kstreams_assets.metrics.catalogue import METRICS, Metric, Source
from scripts.reference.jmx_texts import JMX
from scripts.reference.markdown import table

_SOURCES = {
    None: "How the scrape itself went.",
    Source.CLUSTER: "Asked of the brokers: the application's topics.",
    Source.GROUP: "Asked of the brokers: the application's consumer group.",
    Source.WAREHOUSE: "Read from the tables; they are there while the brokers are down.",
    Source.SECOND_COPY: "Read from the second copy, where `second_copy.to` says where it is.",
}


def metric_lines() -> Iterator[str]:
    """Every metric, by its source; then what only the application itself can tell."""
    yield "`kstreams-assets metrics` gives these, from brokers and warehouse; how to use them:"
    yield "[watch an application with Prometheus](../how-to/watch-with-prometheus.md). Every metric"
    yield "has the label `application_id` beside those in the table. `role` is the topic's roles,"
    yield "joined with `+` (`input`, `global`, `repartition`, `changelog`, `output`). Times are in"
    yield "seconds since 1970: an age is `time() - ...`."
    for source, text in _SOURCES.items():
        of_it = [metric for metric in METRICS.values() if metric.source is source]
        yield from ("", f"## {source.value if source else 'scrape'}", "", text, "")
        yield from table(("metric", "type", "labels", "what"), map(_cells, of_it))
    yield from ("", "## Of the application itself", "")
    yield "Brokers do not know these. Take them from the application's JMX, with Prometheus' JMX"
    yield "exporter as a Java agent in its process. All are recorded at the default of"
    yield "`metrics.recording.level`, `INFO`; names of Kafka Streams 4.4."
    yield ""
    yield from table(
        ("what", "MBean", "attribute"),
        ((what, f"`{bean}`", f"`{attribute}`") for what, bean, attribute in JMX),
    )


def _cells(metric: Metric) -> tuple[str, str, str, str]:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"`{metric.name}`", metric.kind.value, labels, metric.text
