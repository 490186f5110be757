"""A relay before a store, which may stop answering without closing a connection."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from urllib.parse import urlsplit

from tests.relaying import Listener, serving

_BYTES = 65_536


class Relay(Listener):
    """Passes requests and answers on, except those that a test drops."""

    def __init__(self, endpoint: str) -> None:
        super().__init__()
        parts = urlsplit(endpoint)
        self._store = (parts.hostname or "", parts.port or 80)
        self._drops_request: Callable[[bytes], bool] = lambda _: False
        self._drops_answer: Callable[[bytes], bool] = lambda _: False

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Take requests meanwhile and never answer them, also not later."""
        self._drops_request = lambda _: True
        try:
            yield
        finally:
            self._drops_request = lambda _: False

    @contextmanager
    def losing_answers(self, method: bytes) -> Iterator[None]:
        """Pass requests of this method on meanwhile, but not their answers."""
        self._drops_answer = lambda request: request.startswith(method)
        try:
            yield
        finally:
            self._drops_answer = lambda _: False

    def _relay(self, client: socket.socket) -> None:
        """Serve a connection; once something of it was dropped, nothing more is passed on."""
        with closing(client), closing(socket.create_connection(self._store)) as store:
            is_dropped = threading.Event()

            def answer() -> None:
                with suppress(OSError):
                    while data := store.recv(_BYTES):
                        if not is_dropped.is_set():
                            client.sendall(data)
                    if not is_dropped.is_set():
                        client.shutdown(socket.SHUT_RDWR)

            threading.Thread(target=answer, daemon=True).start()
            with suppress(OSError):
                while data := client.recv(_BYTES):
                    if self._drops_answer(data):
                        is_dropped.set()
                    if self._drops_request(data):
                        is_dropped.set()
                    else:
                        store.sendall(data)


@contextmanager
def relaying(endpoint: str) -> Iterator[Relay]:
    """A relay before this endpoint."""
    with serving(Relay(endpoint)) as relay:
        yield relay
