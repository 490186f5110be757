"""Starts and stops the order processor, and makes its topics."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from examples.streams.application import LAUNCHER, Guarantee
from examples.streams.process import StreamsProcess
from spark_resources.java import JavaProgram

TOPICS: Final = ("orders", "customer-totals", "orders-rejected")
PROGRAM: Final = JavaProgram(Path(__file__).with_name("OrderProcessor.java"), also=(LAUNCHER,))

_DESCRIBE_TIMEOUT_S: Final = 60.0
_ADMIN_TIMEOUT_S: Final = 30.0


def create_topics(
    bootstrap_servers: str,
    *,
    topic_prefix: str = "",
    partitions: int = 4,
    replication_factor: int = 1,
    client: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """Create the topics the application does not create itself; those that exist stay as they are.

    Returns their names. Raises KafkaException when a topic cannot be created within 30 s.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, **(client or {})})
    names = tuple(topic_prefix + topic for topic in TOPICS)
    new = [NewTopic(name, partitions, replication_factor) for name in names]
    for created in admin.create_topics(new, request_timeout=_ADMIN_TIMEOUT_S).values():
        try:
            created.result(timeout=_ADMIN_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    return names


def describe_topology(*, topic_prefix: str = "") -> str:
    """Return what the application's Topology.describe() says.

    Raises ProcessError, JarsMissingError, JavaNotFoundError.
    """
    arguments = ("--describe", "--topic-prefix", topic_prefix)
    return PROGRAM.run(arguments, timeout_s=_DESCRIBE_TIMEOUT_S)


class OrderProcessor(StreamsProcess):
    """The application as a process of this machine, as a context manager.

    It needs its topics (`create_topics`). `state_dir` keeps its stores from one start to the next;
    its output goes to `order-processor.log` beside that folder. `config` has further Streams
    properties. Raises ProcessError, JarsMissingError, JavaNotFoundError.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        state_dir: Path,
        application_id: str = "orders",
        guarantee: Guarantee = "exactly_once_v2",
        commit_interval_ms: int | None = None,
        threads: int = 1,
        topic_prefix: str = "",
        config: Mapping[str, str] | None = None,
        heap_mb: int = 256,
        program: JavaProgram = PROGRAM,
    ) -> None:
        arguments = [
            *("--bootstrap", bootstrap_servers),
            *("--application-id", application_id),
            *("--guarantee", guarantee),
            *("--state-dir", str(state_dir.absolute())),
            *("--threads", str(threads)),
            *("--topic-prefix", topic_prefix),
        ]
        if commit_interval_ms is not None:
            arguments += ["--commit-interval-ms", str(commit_interval_ms)]
        for key, value in (config or {}).items():
            arguments += ["--config", f"{key}={value}"]
        log_file = state_dir.parent / f"{state_dir.name}-order-processor.log"
        super().__init__(program, arguments, log_file=log_file, heap_mb=heap_mb)
