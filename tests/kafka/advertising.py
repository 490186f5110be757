"""A broker that answers the first requests of a client, and advertises another address."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_API_VERSIONS, _METADATA = 18, 3
_UNSUPPORTED = 35


@contextmanager
def advertising(host: str, port: int) -> Iterator[str]:
    """Its own address; the cluster's only broker, with the id 1, is said to be elsewhere."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_serve, args=(server, host, port), daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def _serve(server: socket.socket, host: str, port: int) -> None:
    while True:
        try:
            client, _ = server.accept()
        except OSError:
            return
        threading.Thread(target=_answer, args=(client, host, port), daemon=True).start()


def _answer(client: socket.socket, host: str, port: int) -> None:
    with client, suppress(OSError, struct.error):
        while True:
            (size,) = struct.unpack(">i", _exactly(client, 4))
            key, version, number = struct.unpack_from(">hhi", _exactly(client, size))
            body = _versions(version) if key == _API_VERSIONS else _metadata(host, port)
            client.sendall(struct.pack(">ii", len(body) + 4, number) + body)


def _exactly(client: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = client.recv(size - len(found))
        if not part:
            raise OSError("the client has left")
        found += part
    return found


def _versions(version: int) -> bytes:
    ranges = [(_API_VERSIONS, 0, 0), (_METADATA, 8, 8)]
    body = struct.pack(">hi", _UNSUPPORTED if version else 0, len(ranges))
    return body + b"".join(struct.pack(">hhh", *one) for one in ranges)


def _metadata(host: str, port: int) -> bytes:
    """Version 8: one broker, no topic."""
    broker = struct.pack(">i", 1) + _text(host) + struct.pack(">ih", port, -1)
    head = struct.pack(">ii", 0, 1) + broker + _text("cluster") + struct.pack(">i", 1)
    return head + struct.pack(">ii", 0, -(2**31))


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()
