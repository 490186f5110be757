"""The settings of a local broker: small, quick, on 127.0.0.1 only."""

import random
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

ClientProtocol = Literal["PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL"]

HOST: Final = "127.0.0.1"
SCRAM_MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
USER: Final = "kstreams-assets"
_PLAIN_LOGIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_SCRAM_LOGIN: Final = "org.apache.kafka.common.security.scram.ScramLoginModule required;"

# Below every system's range for outgoing connections, so that no client takes the port of a broker
# that is down for a moment (Linux: 32768 and up, macOS and Windows: 49152 and up).
_PORTS: Final = range(12000, 32000)

_SMALL: Final[Mapping[str, str]] = {
    "auto.create.topics.enable": "false",
    "background.threads": "2",
    # A killed broker may come back only when its session has ended: 9 s by default.
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
    """Return ports nobody listens on right now, for as many nodes; a race may still be lost."""
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

    Listener CLIENT has the client protocol; INTERNAL is PLAINTEXT and serves the brokers among
    themselves and administration. With `password` every listener, the controller's included, wants
    it of the user kstreams-assets (SASL_PLAINTEXT, PLAIN). With an authorizer (by `overrides`)
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
