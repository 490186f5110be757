"""Kafka brokers on this machine, for tests, the demo and throwaway targets of restores."""

import functools
import random
import re
import secrets
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Literal, Self

from kstreams_assets.errors import ConfigurationError, KafkaError, LocalClusterError
from kstreams_assets.kafka.clients import java_config
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection, PasswordSasl, SecurityProtocol
from kstreams_assets.local.process import GuardedProcess
from kstreams_assets.secret import Secret
from kstreams_assets.store.locks import locked
from spark_resources.jars import verify_jars
from spark_resources.java import OF_A_JVM, find_java, small_environment

ClientProtocol = Literal["PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL"]

HOST: Final = "127.0.0.1"
SCRAM_MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
USER: Final = "kstreams-assets"
_PLAIN_LOGIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_SCRAM_LOGIN: Final = "org.apache.kafka.common.security.scram.ScramLoginModule required;"

# Below every system's range for outgoing connections, so that no client takes the port of a stopped
# broker (Linux: 32768 and up, macOS and Windows: 49152 and up).
_PORTS: Final = range(12000, 32000)

_SMALL: Final[Mapping[str, str]] = {
    "auto.create.topics.enable": "false",
    "background.threads": "2",
    # A killed broker can only return after its session has ended: 9 s by default.
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
    "group.coordinator.threads": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "16777216",
    "log.cleaner.threads": "1",
    "num.io.threads": "4",
    "num.network.threads": "2",
    "num.recovery.threads.per.data.dir": "1",
    "offsets.topic.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "4",
}


@dataclass(frozen=True, slots=True)
class NodePorts:
    """The ports of one node on 127.0.0.1."""

    client: int
    internal: int
    controller: int


def choose_ports(nodes: int) -> tuple[NodePorts, ...]:
    """Return ports that are free now, for each node; another program may still take one."""
    chosen: list[int] = []
    for port in random.sample(_PORTS, k=len(_PORTS)):
        if _is_free(port):
            chosen.append(port)
        if len(chosen) == 3 * nodes:
            break
    return tuple(NodePorts(*chosen[i : i + 3]) for i in range(0, 3 * nodes, 3))


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as candidate:
        try:
            candidate.bind((HOST, port))
        except OSError:
            return False
    return True


def broker_properties(
    node: int,
    ports: tuple[NodePorts, ...],
    *,
    log_directory: Path,
    client_protocol: ClientProtocol,
    scram: bool,
    password: str | None,
    overrides: Mapping[str, str],
) -> dict[str, str]:
    """Return all properties of one node (numbered from 0; its node.id is one higher).

    Listener CLIENT has the client protocol; INTERNAL is PLAINTEXT, for traffic among brokers and
    for administration. With `password` every listener, including the controller's, requires it from
    the user kstreams-assets (SASL_PLAINTEXT, PLAIN). With an authorizer (in `overrides`)
    User:ANONYMOUS is a super user, which includes clients that SSL alone does not identify.
    """
    own = ports[node]
    replicas = str(min(len(ports), 3))
    min_in_sync = "2" if len(ports) >= 3 else "1"
    properties = {
        "process.roles": "broker,controller",
        "node.id": str(node + 1),
        "controller.quorum.voters": ",".join(
            f"{number}@{HOST}:{other.controller}" for number, other in enumerate(ports, start=1)
        ),
        "listeners": f"CLIENT://{HOST}:{own.client},INTERNAL://{HOST}:{own.internal},"
        f"CONTROLLER://{HOST}:{own.controller}",
        "advertised.listeners": f"CLIENT://{HOST}:{own.client},INTERNAL://{HOST}:{own.internal}",
        "listener.security.protocol.map": f"CLIENT:{client_protocol},INTERNAL:PLAINTEXT,"
        "CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(log_directory),
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": min_in_sync,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": min_in_sync,
        **_SMALL,
    }
    if scram:
        properties["sasl.enabled.mechanisms"] = ",".join(SCRAM_MECHANISMS)
        for mechanism in SCRAM_MECHANISMS:
            key = f"listener.name.client.{mechanism.lower()}.sasl.jaas.config"
            properties[key] = _SCRAM_LOGIN
    if password is not None:
        login = f'{_PLAIN_LOGIN} username="{USER}" password="{password}" user_{USER}="{password}";'
        listeners = ("client", "internal", "controller")
        properties |= {
            "listener.security.protocol.map": ",".join(
                f"{listener.upper()}:SASL_PLAINTEXT" for listener in listeners
            ),
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.mechanism.controller.protocol": "PLAIN",
            **{f"listener.name.{name}.plain.sasl.jaas.config": login for name in listeners},
        }
    if "authorizer.class.name" in overrides:
        properties["super.users"] = "User:ANONYMOUS"
    return properties | dict(overrides)


def properties_text(properties: Iterable[tuple[str, str]]) -> str:
    """Render properties in the format of java.util.Properties (ISO 8859-1, escaped)."""
    return "".join(f"{_escape(key)}={_escape(value)}\n" for key, value in properties)


def _escape(text: str) -> str:
    escaped = []
    for character in text:
        if character in "\\=:#! ":
            escaped.append("\\" + character)
        elif character in "\n\r\t":
            escaped.append({"\n": "\\n", "\r": "\\r", "\t": "\\t"}[character])
        elif not " " <= character <= "~":
            encoded = character.encode("utf-16-be").hex()
            escaped.extend(f"\\u{encoded[i : i + 4]}" for i in range(0, len(encoded), 4))
        else:
            escaped.append(character)
    return "".join(escaped)


CLIENT_PROPERTIES: Final = "client.properties"
"""In the folder of a protected cluster: all settings of a Java client with password (mode 0600)."""

_FORMAT_TIMEOUT_S: Final = 60.0
_START_TIMEOUT_S: Final = 60.0
_LOOK_S: Final = 2.0
_STOP_TIMEOUT_S: Final = 10.0
_PORT_ATTEMPTS: Final = 3
_STARTED: Final = "Kafka Server started"
_LOCK: Final = "in-use.lock"
_PORT_TAKEN: Final = "Address already in use"
_FATAL: Final = "Exiting Kafka due to fatal exception"
_TAIL_LINES: Final = 2_000
"""A broker that cannot bind a port writes some hundred more lines before it ends."""
# A broker logs details at INFO; the reasons why it dies are ERROR.
_LOG_OPTIONS: Final = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config=warn",
)


class LocalCluster:
    """KRaft brokers (combined mode) on free ports of 127.0.0.1, as a context manager.

    Nodes are numbered from 0. `properties` are broker properties that override the small-machine
    settings; SSL listeners take their `ssl.*` properties from there. `scram_users` maps names to
    passwords (SCRAM-SHA-256 and -512). With `protected` every listener requires the password that
    is created at the first start and stored in `data_dir` (mode 0600), readable only by the owner;
    `connection` contains it. A later cluster with the same number of nodes can use `data_dir`
    again, and then has the earlier data. `jars` is the folder of the Kafka jars, by default the
    downloaded ones. Raises JarsMissingError, JavaNotFoundError, LocalClusterError.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        nodes: int = 1,
        properties: Mapping[str, str] = {},
        client_protocol: ClientProtocol = "PLAINTEXT",
        scram_users: Mapping[str, str] = {},
        protected: bool = False,
        heap_mb: int = 512,
        jars: Path | None = None,
    ) -> None:
        self.data_dir: Final = data_dir.absolute()
        self._size = nodes
        if any("," in text for user in scram_users.items() for text in user):
            raise ConfigurationError(
                "A SCRAM user name or password of a local cluster contains a comma.",
                remedy="Choose one without a comma: Kafka's StorageTool cannot parse it.",
            )
        self._properties = dict(properties)
        self._client_protocol: ClientProtocol = client_protocol
        self._scram_users = dict(scram_users)
        self._protected = protected
        self._heap_mb = heap_mb
        self._jars = jars
        self._ports: tuple[NodePorts, ...] = ()
        self._processes: dict[int, GuardedProcess] = {}
        self._lock: IO[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        """Addresses of the client listener of every node, including stopped ones."""
        return ",".join(f"{HOST}:{ports.client}" for ports in self._ports)

    @property
    def internal_bootstrap_servers(self) -> str:
        """Addresses of the PLAINTEXT listener of every node, for administration in tests."""
        return ",".join(f"{HOST}:{ports.internal}" for ports in self._ports)

    @property
    def connection(self) -> KafkaConnection:
        """The connection to the cluster; with a password if it is protected."""
        return self._connection(self.bootstrap_servers)

    @property
    def client_properties(self) -> Path:
        """Settings of a Java client of a protected cluster, password included (mode 0600)."""
        return self.data_dir / CLIENT_PROPERTIES

    def log_file(self, node: int) -> Path:
        """Return the log of one node."""
        return self.data_dir / f"node-{node}.log"

    def pid(self, node: int) -> int | None:
        """Return the process id of a node, None if it is not running."""
        process = self._processes.get(node)
        return process.pid if process is not None and process.running else None

    def start(self) -> None:
        """Start every stopped node and wait until the metadata of each names all nodes.

        Takes 2 to 4 s for one node; fails after 60 s. After a failure nothing is running.
        """
        self.data_dir.mkdir(parents=True, exist_ok=True)
        cluster_id = self._cluster_id()
        if self._protected and not self._password_file.exists():
            self._write_private(self._password_file, secrets.token_urlsafe(24))
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            nodes = [node for node in range(self._size) if self.pid(node) is None]
            if not nodes:
                return
            self._lock_data()
            self._ports = self._ports if attempt == 1 and self._ports else choose_ports(self._size)
            try:
                for node in nodes:
                    self._write_properties(node)
                with ThreadPoolExecutor(max_workers=len(nodes)) as pool:
                    list(pool.map(self._format, nodes, [cluster_id] * len(nodes)))
                for node in nodes:
                    self._launch(node)
                self._await_ready(nodes)
                if self._protected:
                    settings = java_config(self.connection)
                    self._write_private(self.client_properties, properties_text(settings.items()))
                return
            except LocalClusterError as error:
                self.stop(timeout_s=0.0)
                if _PORT_TAKEN not in error.reason or attempt == _PORT_ATTEMPTS:
                    raise
            except BaseException:
                self.stop(timeout_s=0.0)
                raise

    def stop(self, *, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        """Stop every node: SIGTERM to all, SIGKILL to those still running after `timeout_s`."""
        for process in self._processes.values():
            process.terminate()
        deadline = time.monotonic() + timeout_s
        for process in self._processes.values():
            process.stop(timeout_s=max(0.0, deadline - time.monotonic()))
        self._processes.clear()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def kill_node(self, node: int) -> None:
        """Kill one node with SIGKILL."""
        process = self._processes.pop(node, None)
        if process is not None:
            process.kill()

    def stop_node(self, node: int) -> None:
        """Stop one node in an orderly way (SIGKILL after 10 s)."""
        process = self._processes.pop(node, None)
        if process is not None:
            process.stop(timeout_s=_STOP_TIMEOUT_S)

    def start_node(self, node: int) -> None:
        """Start a stopped or killed node again, on its ports and its data, and wait for it."""
        if self.pid(node) is not None:
            return
        self._launch(node)
        try:
            self._await_ready([node])
        except BaseException:
            self.kill_node(node)
            raise

    def _node_dir(self, node: int) -> Path:
        return self.data_dir / f"node-{node}"

    def _write_properties(self, node: int) -> None:
        properties = broker_properties(
            node,
            self._ports,
            log_directory=self._node_dir(node),
            client_protocol=self._client_protocol,
            scram=bool(self._scram_users),
            password=self._password_file.read_text("ascii") if self._protected else None,
            overrides=self._properties,
        )
        self._write_private(self._properties_file(node), properties_text(properties.items()))

    def _properties_file(self, node: int) -> Path:
        return self.data_dir / f"node-{node}.properties"

    @property
    def _password_file(self) -> Path:
        return self.data_dir / "password"

    def _connection(self, bootstrap_servers: str) -> KafkaConnection:
        if not self._protected:
            return KafkaConnection(bootstrap_servers=bootstrap_servers)
        return KafkaConnection(
            bootstrap_servers=bootstrap_servers,
            security_protocol=SecurityProtocol.SASL_PLAINTEXT,
            sasl=PasswordSasl(
                mechanism="PLAIN",
                username=USER,
                password=Secret(file=str(self._password_file)),
            ),
        )

    @staticmethod
    def _write_private(file: Path, text: str) -> None:
        """Write it under another name first: readers never see a partial file, or one with wider
        rights."""
        written = file.with_name(f".{file.name}")
        written.unlink(missing_ok=True)
        written.touch(mode=0o600, exist_ok=False)
        written.write_text(text, "ascii")
        written.replace(file)

    @functools.cached_property
    def _java(self) -> tuple[str, ...]:
        jars = self._jars if self._jars is not None else verify_jars("kafka", hashes=False)
        # The serial collector needs less memory and fewer threads; pauses are short with a small
        # heap.
        return (
            str(find_java().executable),
            "-XX:+UseSerialGC",
            f"-Xmx{self._heap_mb}m",
            *_LOG_OPTIONS,
            "-cp",
            f"{jars}/*",
        )

    def _cluster_id(self) -> str:
        """Return the id of the cluster in this data directory, created at its first start."""
        file = self.data_dir / "cluster.id"
        if not file.exists():
            # A leading "-" would be parsed as an option on the command line.
            file.write_text("K" + secrets.token_urlsafe(16)[1:], "ascii")
        return file.read_text("ascii")

    def _format(self, node: int, cluster_id: str) -> None:
        """Format the directory of a node if it is not yet formatted."""
        if (self._node_dir(node) / "meta.properties").exists():
            return
        command = [*self._java, "-XX:TieredStopAtLevel=1", "kafka.tools.StorageTool"]
        command += ["format", "-t", cluster_id, "-c", str(self._properties_file(node))]
        for name, password in self._scram_users.items():
            for mechanism in SCRAM_MECHANISMS:
                command += ["--add-scram", f'{mechanism}=[name="{name}",password="{password}"]']
        try:
            result = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_FORMAT_TIMEOUT_S,
                env=small_environment(OF_A_JVM),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise self._failure(node, f"formatting took over {_FORMAT_TIMEOUT_S:g} s") from error
        if result.returncode != 0:
            self.log_file(node).write_bytes(result.stdout)
            raise self._failure(node, _reason(result.stdout.decode("utf-8", "replace")))

    def _launch(self, node: int) -> None:
        self._processes[node] = GuardedProcess(
            [*self._java, "kafka.Kafka", str(self._properties_file(node))],
            log_file=self.log_file(node),
        )

    def _await_ready(self, nodes: Sequence[int]) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        for node in nodes:
            # An open port proves nothing: it may belong to another program.
            while not self._processes[node].has_logged(_STARTED):
                self._pause(node, nodes, deadline, "it has not reported its start")
        for node in nodes:
            self._await_metadata(node, nodes, deadline)

    def _await_metadata(self, node: int, nodes: Sequence[int], deadline: float) -> None:
        address = f"{HOST}:{self._ports[node].internal}"
        connection = self._connection(address)
        while True:
            with KafkaCluster(connection, timeout_s=_LOOK_S) as cluster:
                try:
                    known = cluster.broker_ids()
                except KafkaError:
                    known = []
            running = sum(process.running for process in self._processes.values())
            if node + 1 in known and len(known) >= running:
                return
            self._pause(node, nodes, deadline, f"it knows {len(known)} of {running} brokers")

    def _pause(self, node: int, nodes: Sequence[int], deadline: float, state: str) -> None:
        """Wait briefly; raise LocalClusterError if one of the nodes has died or time is up."""
        for other in nodes:
            process = self._processes[other]
            if not process.running:
                raise self._failure(other, _reason(process.log_tail(_TAIL_LINES)))
        if time.monotonic() > deadline:
            raise self._failure(node, f"not ready after {_START_TIMEOUT_S:g} s, {state}")
        time.sleep(0.05)

    def _lock_data(self) -> None:
        """Lock the folder for this cluster.

        Kafka's own lock comes too late: a second broker may change the log of the first, which
        dies.
        """
        if self._lock is not None:
            return
        self._lock = locked(self.data_dir / _LOCK)
        if self._lock is None:
            reason = f"the lock {self.data_dir / _LOCK} is held by another process or cluster"
            raise self._failure(0, f"{reason}, which uses this directory")

    def _failure(self, node: int, reason: str) -> LocalClusterError:
        return LocalClusterError(node=node, reason=reason, log_file=self.log_file(node))


def _reason(log: str) -> str:
    """Find in a broker's output why it died: the exception it names, else its last lines."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    taken = [line for line in lines if _PORT_TAKEN in line]
    if taken:
        return max(taken, key=len).rstrip(".")  # the longest one names the port
    # Later lines are consequences of the shutdown.
    fatal = next((i for i, line in enumerate(lines) if _FATAL in line), len(lines))
    for line in reversed(lines[: fatal + 2]):
        if re.search(r"(Exception|Error)(:|$)", line) and not line.startswith("at "):
            return line.removeprefix('Exception in thread "main" ').rstrip(".")
    return " / ".join(lines[-3:]).rstrip(".") or "no output"
