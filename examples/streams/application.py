"""Starts and stops an example application, makes its topics, and asks for what its stores hold."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from examples.streams.process import StreamsProcess
from kstreams_assets.errors import ProcessError
from spark_resources.java import JavaProgram

Guarantee = Literal["exactly_once_v2", "at_least_once"]

LAUNCHER: Final = Path(__file__).with_name("Launcher.java")

_DESCRIBE_TIMEOUT_S: Final = 60.0
_ADMIN_TIMEOUT_S: Final = 30.0
_QUERY_TIMEOUT_S: Final = 30.0
_HTTP = re.compile(r"^HTTP (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Example:
    """An example application: its Java source, its default application id, the topics it needs.

    `topics` are those that the application does not create itself, without prefix, with their
    configs. `config` are Streams properties it always runs with, `also` further Java sources.
    """

    source: Path
    application_id: str
    topics: Mapping[str, Mapping[str, str]]
    config: Mapping[str, str] = field(default_factory=dict)
    also: tuple[Path, ...] = ()

    @property
    def program(self) -> JavaProgram:
        """The program, with what all examples share."""
        return JavaProgram(self.source, also=(LAUNCHER, *self.also))

    def describe_topology(self, *, topic_prefix: str = "") -> str:
        """What `Topology.describe()` says.

        Raises ProcessError, JarsMissingError, JavaNotFoundError.
        """
        arguments = ["--describe", "--topic-prefix", topic_prefix]
        for key, value in self.config.items():
            arguments += ["--config", f"{key}={value}"]
        return self.program.run(arguments, timeout_s=_DESCRIBE_TIMEOUT_S)

    def create_topics(
        self,
        bootstrap_servers: str,
        *,
        topic_prefix: str = "",
        partitions: int = 4,
        replication_factor: int = 1,
    ) -> tuple[str, ...]:
        """Create what the application does not create itself; topics that exist stay as they are.

        Returns their names. Raises KafkaException when one cannot be created within 30 s.
        """
        admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        new = [
            NewTopic(topic_prefix + name, partitions, replication_factor, config=dict(configs))
            for name, configs in self.topics.items()
        ]
        for created in admin.create_topics(new, request_timeout=_ADMIN_TIMEOUT_S).values():
            try:
                created.result(timeout=_ADMIN_TIMEOUT_S)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        return tuple(topic_prefix + name for name in self.topics)


class ExampleApplication(StreamsProcess):
    """An example as a process of this machine, as a context manager; it needs its topics.

    `state_dir` keeps its stores from one start to the next; its output goes to
    `<application id>.log` beside that folder. `config` has further Streams properties. With
    `queries` its stores can be asked (`query`). Raises ProcessError, JarsMissingError,
    JavaNotFoundError.
    """

    def __init__(
        self,
        example: Example,
        bootstrap_servers: str,
        *,
        state_dir: Path,
        application_id: str | None = None,
        topic_prefix: str = "",
        guarantee: Guarantee = "exactly_once_v2",
        commit_interval_ms: int | None = None,
        threads: int = 1,
        config: Mapping[str, str] | None = None,
        heap_mb: int = 256,
        queries: bool = False,
    ) -> None:
        name = application_id or example.application_id
        arguments = [
            *("--bootstrap", bootstrap_servers),
            *("--application-id", name),
            *("--guarantee", guarantee),
            *("--state-dir", str(state_dir.absolute())),
            *("--threads", str(threads)),
            *("--topic-prefix", topic_prefix),
        ]
        if commit_interval_ms is not None:
            arguments += ["--commit-interval-ms", str(commit_interval_ms)]
        if queries:
            arguments += ["--http-port", "0"]
        for key, value in {**example.config, **(config or {})}.items():
            arguments += ["--config", f"{key}={value}"]
        log_file = state_dir.parent / f"{state_dir.name}-{name}.log"
        super().__init__(example.program, arguments, log_file=log_file, heap_mb=heap_mb)

    def query(self, store: str, *, keys: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Every entry of a store on this instance, through its HTTP endpoint.

        Each has `key` and `value` as JSON, and where the store has them `timestamp`, `start`, `end`
        (epoch milliseconds). Of a versioned store the versions of `keys`, with `from` and `to`.
        Raises ProcessError when the store cannot be queried.
        """
        suffix = f"?keys={quote(','.join(keys))}" if keys else ""
        address = f"http://127.0.0.1:{self._http_port()}/stores/{quote(store)}{suffix}"
        try:
            with urlopen(address, timeout=_QUERY_TIMEOUT_S) as answer:
                return [json.loads(line) for line in answer.read().splitlines()]
        except HTTPError as error:
            raise ProcessError(
                f"Store {store} was not answered: {error.read().decode(errors='replace').strip()}",
                remedy=f"Read {self.log_file}; ask again once the application is RUNNING.",
            ) from error

    def _http_port(self) -> int:
        found = _HTTP.findall(self.log_file.read_text(encoding="utf-8", errors="replace"))
        if not found:
            raise ProcessError(
                "The application serves no queries.", remedy="Start it with queries=True."
            )
        return int(found[-1])
