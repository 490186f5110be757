"""What relays before a server have in common: they take connections until they are closed."""

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar


class Listener(ABC):
    """Takes connections at a free port; each is relayed in a thread of its own."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))

    @property
    def port(self) -> int:
        """Where clients connect."""
        return self._server.getsockname()[1]

    def serve(self) -> None:
        """Take connections until it is closed."""
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._server.shutdown(socket.SHUT_RDWR)  # a blocked accept() ends with this only
        self._server.close()

    @abstractmethod
    def _relay(self, client: socket.socket) -> None:
        """Serve a connection until it ends."""


L = TypeVar("L", bound=Listener)


@contextmanager
def serving(relay: L) -> Iterator[L]:
    """The relay, at work until the block ends."""
    threading.Thread(target=relay.serve, daemon=True).start()
    try:
        yield relay
    finally:
        relay.close()
