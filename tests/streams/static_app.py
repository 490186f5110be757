"""Starts and stops StaticApp.java; makes its topics and knows their roles."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from examples.streams.process import StreamsProcess
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from spark_resources.java import JavaProgram

PROGRAM: Final = JavaProgram(Path(__file__).with_name("StaticApp.java"))
APPLICATION_ID: Final = "static-app"
ROLES: Final[Mapping[str, str]] = {
    "orders": "input",
    "customers": "input",
    "regions": "global",
    f"{APPLICATION_ID}-by-region-repartition": "repartition",
    f"{APPLICATION_ID}-names-changelog": "changelog",
    f"{APPLICATION_ID}-totals-changelog": "changelog",
    "totals": "output",
}


def create_topics(cluster: KafkaCluster) -> None:
    """Create those that the application does not create itself."""
    names = ("orders", "customers", "regions", "totals")
    cluster.create_topics([TopicSpec(name, 2) for name in names])


class StaticApp(StreamsProcess):
    """One instance of the application, as a context manager."""

    def __init__(self, bootstrap_servers: str, *, state_dir: Path) -> None:
        said = {
            "bootstrap.servers": bootstrap_servers,
            "application.id": APPLICATION_ID,
            "state.dir": str(state_dir.absolute()),
            "commit.interval.ms": "100",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "1500",
        }
        arguments = [text for pair in said.items() for text in pair]
        log_file = state_dir.parent / f"{state_dir.name}-static-app.log"
        super().__init__(PROGRAM, arguments, log_file=log_file, heap_mb=256)
