"""The releases of Kafka, and their settings, with which exact cuts and a restore are drilled."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

from scripts.reference.releases_page import RAN, Ran, stored
from spark_resources.jars import JarSet, kafka_release


@dataclass(frozen=True, slots=True)
class Release:
    """Brokers of one jar set, clients of another; `config` of Streams, `topic_configs` of topics.

    With `is_static` each instance has a `group.instance.id` of its own.
    """

    broker: JarSet = "kafka"
    clients: JarSet = "kafka"
    config: Mapping[str, str] = field(default_factory=dict)
    topic_configs: Mapping[str, str] = field(default_factory=dict)
    is_static: bool = False

    def __str__(self) -> str:
        """What is special about it; the id of its test."""
        return " ".join((self.ran.clients, "on", self.ran.broker, *self.ran.settings[:1]))

    @property
    def is_streams_group(self) -> bool:
        """Whether the broker assigns the tasks (KIP-1071)."""
        return self.config.get("group.protocol") == "streams"

    @property
    def ran(self) -> Ran:
        """As it is written down when it has passed."""
        settings = {**self.config, **self.topic_configs}
        return Ran(
            broker=kafka_release(self.broker),
            clients=kafka_release(self.clients),
            settings=(
                *(f"{name}={value}" for name, value in settings.items()),
                *(["group.instance.id"] if self.is_static else []),
            ),
        )


CASES: Final = (
    Release("kafka39", "kafka39"),
    Release("kafka43", "kafka43"),
    Release(),
    Release("kafka", "kafka39"),
    Release(config={"enable.transactional.statestores": "true"}),
    Release(
        config={"group.protocol": "streams"},
        topic_configs={
            "errors.deadletterqueue.group.enable": "true",
            "max.decompressed.message.bytes": "1000000",
            "remote.copy.lag.ms": "60000",
            "remote.copy.lag.bytes": "1000000",
        },
        is_static=True,
    ),
)


def passed(release: Release) -> None:
    """Write a case down; those that are no case any more, of earlier releases, go."""
    found = stored()
    if release.ran not in found:
        rows = [asdict(case.ran) for case in CASES if case.ran in (*found, release.ran)]
        RAN.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
