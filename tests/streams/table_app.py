"""Starts and stops TableApp.java; makes its topics and knows what this project sees of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Final

from examples.streams.process import StreamsProcess
from kstreams_assets.app.model import AppTopic, Store, StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from spark_resources.java import JavaProgram

PROGRAM: Final = JavaProgram(Path(__file__).with_name("TableApp.java"))
STORE: Final = "customers"


@dataclass(frozen=True, slots=True)
class TableTopics:
    """The names of every topic of one TableApp."""

    application_id: str
    prefix: str = ""

    @property
    def changes(self) -> str:
        """Input: key customer, value the new content."""
        return f"{self.prefix}changes"

    @property
    def customers(self) -> str:
        """Written by the application, read as a table, and that table's changelog."""
        return f"{self.prefix}customers"

    @property
    def out(self) -> str:
        """Output: every change of the table."""
        return f"{self.prefix}out"

    @property
    def application(self) -> StreamsApplication:
        """The application as this project sees it."""
        roles = {
            self.changes: {TopicRole.INPUT},
            self.customers: {TopicRole.INPUT, TopicRole.CHANGELOG, TopicRole.OUTPUT},
            self.out: {TopicRole.OUTPUT},
        }
        found = tuple(AppTopic(name, TopicRoles(roles[name])) for name in sorted(roles))
        stores = (Store(STORE, self.customers),)
        return StreamsApplication(self.application_id, found, stores)

    def create(self, cluster: KafkaCluster, *, partitions: int) -> None:
        """Create all three: the application makes none itself."""
        names = (self.changes, self.customers, self.out)
        cluster.create_topics([TopicSpec(name, partitions) for name in names])


class TableApp(StreamsProcess):
    """One instance of the application, as a context manager; `config` are Streams properties."""

    def __init__(
        self,
        bootstrap_servers: str,
        topics: TableTopics,
        *,
        state_dir: Path,
        config: Mapping[str, str] | None = None,
    ) -> None:
        said = {
            "bootstrap.servers": bootstrap_servers,
            "application.id": topics.application_id,
            "state.dir": str(state_dir.absolute()),
            "commit.interval.ms": "100",
            "num.stream.threads": "2",
            **(config or {}),
        }
        arguments = [topics.prefix, *(text for pair in said.items() for text in pair)]
        log_file = state_dir.parent / f"{state_dir.name}-table-app.log"
        super().__init__(PROGRAM, arguments, log_file=log_file, heap_mb=256)

    def topology(self) -> str:
        """The text of its topology, as the instance printed it when it was started."""
        lines = self.log_file.read_text().split("\n")
        begin = lines.index("Topologies:")
        indented = takewhile(lambda line: not line.strip() or line[0] == " ", lines[begin + 1 :])
        return "\n".join(["Topologies:", *indented])
