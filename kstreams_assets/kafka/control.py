"""Ask the companion of an application (`companion/`) for commits, through its control topic."""

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from kstreams_assets.errors import KafkaError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.librdkafka import LOG, librdkafka_config

if TYPE_CHECKING:
    from confluent_kafka import Producer

_SEND_S: Final = 5.0

Kind = Literal["commit", "hold", "release"]


@dataclass(slots=True)
class CommitControl:
    """Writes requests into the control topic of an application, which must exist.

    Needs WRITE and DESCRIBE on the topic. The connection is opened for the first request.

    Example:
        control = CommitControl(connection, "shop-control")
        request = control.send("commit")
    """

    connection: KafkaConnection
    topic: str
    _producer: "Producer | None" = field(init=False, default=None)

    def send(self, kind: Kind, request: str = "") -> str:
        """Send a request; return its identity, a new one unless given.

        Raises KafkaError if no broker has acknowledged it within 5 s.
        """
        request = request or secrets.token_hex(8)
        if self._producer is None:
            self._producer = self._open()
        failures: list[str] = []
        self._producer.produce(
            self.topic,
            key=kind,
            value=request,
            partition=0,
            on_delivery=lambda error, _: failures.append(str(error)) if error else None,
        )
        waiting = self._producer.flush(_SEND_S)
        if waiting or failures:
            reason = failures[0] if failures else f"no answer within {_SEND_S:g} s"
            raise KafkaError(
                f"The request to {kind} was not written to topic {self.topic}: {reason}.",
                remedy="Give the recorder WRITE and DESCRIBE on the topic.",
            )
        return request

    def _open(self) -> "Producer":
        from confluent_kafka import KafkaException, Producer

        own = {"acks": "all", "linger.ms": 0, "message.timeout.ms": round(1000 * _SEND_S)}
        try:
            return Producer({**own, **librdkafka_config(self.connection)}, logger=LOG)
        except KafkaException as error:
            raise KafkaError(
                "librdkafka does not accept the connection:"
                f" {self.connection.scrub(error.args[0].str()).rstrip('.')}.",
                remedy="Check extra_librdkafka, then the blocks ssl and sasl of the connection.",
            ) from None
