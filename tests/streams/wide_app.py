"""Starts and stops WideApp.java; makes its topics and knows what this project sees of them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from examples.streams.process import StreamsProcess
from kstreams_assets.app.declarations import Declarations, StoreDeclaration
from kstreams_assets.app.model import AppTopic, StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.app.roles import application_from_topology
from kstreams_assets.app.topology import parse_topology
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from spark_resources.java import JavaProgram

PROGRAM: Final = JavaProgram(Path(__file__).with_name("WideApp.java"))

_OUTPUTS: Final = ("sums", "finals", "closed", "alarms")
_STORES: Final = ("sums", "per-window", "closing", "alarms")
_SUPPRESS: Final = "final-store"
_JOIN_OUTPUTS: Final = ("described", "traced", "alerts")
_JOIN_STORES: Final = ("traces", "alerts", "placed-subscription-store")
_TABLES: Final = ("calibrations", "places")
_GLOBAL: Final = "units"
_DESCRIBE_S: Final = 60.0
_TASKS: Final = re.compile(r"^TASKS (\d+),(\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class WideTopics:
    """The names of every topic of one WideApp; `joins` adds what its option `--joins` does."""

    application_id: str
    prefix: str = ""
    joins: bool = False

    @property
    def readings(self) -> str:
        """Input: key id of the reading, value "place/sensor,number"."""
        return f"{self.prefix}readings"

    @property
    def raised(self) -> str:
        """Intermediate topic, written and read."""
        return f"{self.prefix}alarms-raised"

    @property
    def outputs(self) -> tuple[str, ...]:
        """What others read; `closed` has the windows emitted when they close."""
        names = (*_OUTPUTS, *_JOIN_OUTPUTS) if self.joins else _OUTPUTS
        return tuple(self.prefix + name for name in names)

    @property
    def tables(self) -> tuple[str, ...]:
        """Inputs of joined tables, which serve as changelogs; the last one is a global table's."""
        return tuple(self.prefix + name for name in (*_TABLES, _GLOBAL)) if self.joins else ()

    @property
    def arguments(self) -> tuple[str, ...]:
        """The options of the program that these names follow from."""
        own = ("--application-id", self.application_id, "--topic-prefix", self.prefix)
        return (*own, "--joins", "true") if self.joins else own

    @property
    def closed(self) -> str:
        """Output of the windows that are emitted when they close."""
        return f"{self.prefix}closed"

    @property
    def changelogs(self) -> tuple[str, ...]:
        """Changelogs of the stores; the suppress buffer's is `buffer`."""
        stores = (*_STORES, *_JOIN_STORES) if self.joins else _STORES
        return tuple(map(self.changelog, stores))

    @property
    def buffer(self) -> str:
        """Changelog of the suppress buffer."""
        return self.changelog(_SUPPRESS)

    def changelog(self, store: str) -> str:
        """Changelog of a store."""
        return f"{self.application_id}-{store}-changelog"

    @property
    def repartition(self) -> str:
        """Numbers by sensor."""
        return f"{self.application_id}-by-sensor-repartition"

    @property
    def application(self) -> StreamsApplication:
        """The application as this project sees it, without joins."""
        roles = {
            self.readings: _only(TopicRole.INPUT),
            self.raised: _only(TopicRole.INPUT, TopicRole.OUTPUT),
            self.repartition: _only(TopicRole.REPARTITION),
            self.buffer: _only(TopicRole.CHANGELOG),
            **dict.fromkeys(self.changelogs, _only(TopicRole.CHANGELOG)),
            **dict.fromkeys(self.outputs, _only(TopicRole.OUTPUT)),
        }
        found = tuple(AppTopic(name, roles[name]) for name in sorted(roles))
        return StreamsApplication(self.application_id, found)

    def discovered(self, cluster: KafkaCluster) -> StreamsApplication:
        """The optimised application by its topology text and the topics that it has by now."""
        described = PROGRAM.run(
            # It connects to nothing.
            ["--bootstrap", "127.0.0.1:1", *self.arguments, "--describe", "true"],
            timeout_s=_DESCRIBE_S,
        )
        confirmed = {name: StoreDeclaration(source_topic=self.prefix + name) for name in _TABLES}
        return application_from_topology(
            self.application_id,
            parse_topology(described),
            declarations=Declarations(stores=confirmed),
            cluster_topics=cluster.topics(),
        )

    def create(self, cluster: KafkaCluster, *, partitions: int) -> None:
        """Create what the application does not create itself."""
        names = (self.readings, *self.tables, self.raised, *self.outputs)
        cluster.create_topics([TopicSpec(name, partitions) for name in names])


class WideApp(StreamsProcess):
    """One instance of the application, as a context manager; it needs its topics.

    `config` are further Streams properties.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topics: WideTopics,
        *,
        state_dir: Path,
        commit_interval_ms: int = 100,
        threads: int = 2,
        config: Mapping[str, str] | None = None,
        heap_mb: int = 256,
    ) -> None:
        arguments = [
            *("--bootstrap", bootstrap_servers),
            *topics.arguments,
            *("--state-dir", str(state_dir.absolute())),
            *("--commit-interval-ms", str(commit_interval_ms)),
            *("--threads", str(threads)),
        ]
        for key, value in (config or {}).items():
            arguments += ["--config", f"{key}={value}"]
        log_file = state_dir.parent / f"{state_dir.name}-wide-app.log"
        super().__init__(PROGRAM, arguments, log_file=log_file, heap_mb=heap_mb)

    @property
    def tasks(self) -> tuple[int, int]:
        """How many active and how many standby tasks the instance has now."""
        said = _TASKS.findall(self.log_file.read_text("utf-8"))
        active, standby = said[-1] if said else (0, 0)
        return int(active), int(standby)


def _only(*roles: TopicRole) -> TopicRoles:
    return TopicRoles(roles)
