"""Starts and stops WideApp.java; makes its topics and knows what this project sees of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from examples.streams.process import StreamsProcess
from kstreams_assets.app.model import AppTopic, StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.topics import TopicSpec
from spark_resources.java import JavaProgram

PROGRAM: Final = JavaProgram(Path(__file__).with_name("WideApp.java"))

_OUTPUTS: Final = ("sums", "finals", "closed", "alarms")
_STORES: Final = ("sums", "per-window", "closing", "alarms")
_SUPPRESS: Final = "final-store"


@dataclass(frozen=True, slots=True)
class WideTopics:
    """The names of every topic of one WideApp."""

    application_id: str
    prefix: str = ""

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
        return tuple(self.prefix + name for name in _OUTPUTS)

    @property
    def closed(self) -> str:
        """Output of the windows that are emitted when they close."""
        return f"{self.prefix}closed"

    @property
    def changelogs(self) -> tuple[str, ...]:
        """Changelogs of the stores; the suppress buffer's is `buffer`."""
        return tuple(f"{self.application_id}-{store}-changelog" for store in _STORES)

    @property
    def buffer(self) -> str:
        """Changelog of the suppress buffer."""
        return f"{self.application_id}-{_SUPPRESS}-changelog"

    @property
    def repartition(self) -> str:
        """Numbers by sensor."""
        return f"{self.application_id}-by-sensor-repartition"

    @property
    def application(self) -> StreamsApplication:
        """The application as this project sees it."""
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

    def create(self, cluster: KafkaCluster, *, partitions: int) -> None:
        """Create what the application does not create itself."""
        names = (self.readings, self.raised, *self.outputs)
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
            *("--application-id", topics.application_id),
            *("--topic-prefix", topics.prefix),
            *("--state-dir", str(state_dir.absolute())),
            *("--commit-interval-ms", str(commit_interval_ms)),
            *("--threads", str(threads)),
        ]
        for key, value in (config or {}).items():
            arguments += ["--config", f"{key}={value}"]
        log_file = state_dir.parent / f"{state_dir.name}-wide-app.log"
        super().__init__(PROGRAM, arguments, log_file=log_file, heap_mb=heap_mb)


def _only(*roles: TopicRole) -> TopicRoles:
    return TopicRoles(roles)
