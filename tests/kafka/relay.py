"""A relay before a broker, which loses the answers of chosen requests, or the requests."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from enum import IntEnum, auto

from tests.relaying import Listener, serving

HOST = b"127.0.0.1"


class Api(IntEnum):
    """Requests, in the numbers of Kafka's protocol."""

    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DESCRIBE_CONFIGS = 32
    INCREMENTAL_ALTER_CONFIGS = 44


class Loss(IntEnum):
    """How an answer gets lost."""

    DONE = auto()
    """The broker has answered, and the connection breaks off before the answer is passed on."""
    NEVER_DONE = auto()
    """The request does not arrive, and the connection stays open without a word."""


class KafkaRelay(Listener):
    """Passes requests and answers on; answers name it as the broker's address."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._broker = port
        self.requests: list[int] = []
        """The kinds of all requests that clients sent."""
        self._losses: dict[int, list[Loss]] = {}

    @contextmanager
    def losing(self, api: Api, loss: Loss, *, times: int = 100) -> Iterator[None]:
        """Lose the answers to the next so many requests of this kind."""
        self._losses[api] = [loss] * times
        try:
            yield
        finally:
            del self._losses[api]

    def _relay(self, client: socket.socket) -> None:
        broker = socket.create_connection(("127.0.0.1", self._broker))
        lost_answers: set[int] = set()
        with closing(client), closing(broker), suppress(OSError):
            threading.Thread(
                target=self._answers, args=(broker, client, lost_answers), daemon=True
            ).start()
            while frame := _frame(client):
                api, _, number = struct.unpack_from(">hhi", frame, 4)
                self.requests.append(api)
                losses = self._losses.get(api)
                loss = losses.pop() if losses else None
                if loss is Loss.DONE:
                    lost_answers.add(number)
                if loss is not Loss.NEVER_DONE:
                    broker.sendall(frame)

    def _answers(
        self, broker: socket.socket, client: socket.socket, lost_answers: set[int]
    ) -> None:
        theirs, ours = (HOST + struct.pack(">i", port) for port in (self._broker, self.port))
        with suppress(OSError):
            while frame := _frame(broker):
                if struct.unpack_from(">i", frame, 4)[0] in lost_answers:
                    break
                client.sendall(frame.replace(theirs, ours))
            client.shutdown(socket.SHUT_RDWR)


def _frame(connection: socket.socket) -> bytes:
    """A request or an answer with its length before it; nothing at the end."""
    data = b""
    size = 4
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            return b""
        data += part
        if len(data) == 4:
            size = 4 + struct.unpack(">i", data)[0]
    return data


@contextmanager
def relaying(port: int) -> Iterator[KafkaRelay]:
    """A relay before the broker at this port."""
    with serving(KafkaRelay(port)) as relay:
        yield relay
