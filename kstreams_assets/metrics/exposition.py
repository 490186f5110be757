"""Metrics as a file for node_exporter, and as an HTTP endpoint for Prometheus."""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server, write_to_textfile
from prometheus_client.registry import Collector

from kstreams_assets.closing import SIGNALS_S, Closing
from kstreams_assets.errors import ConfigurationError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

HEALTH: Final = "/health"
"""The page of a readiness probe."""
LIVE: Final = "/live"
"""The page of a liveness probe."""
_STOP_S = 5.0
_LARGEST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Address:
    """The listening address; port 0 selects a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """`127.0.0.1:9464`, `localhost:0`, `[::1]:9464`; raises ConfigurationError."""
    host, _, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not bare or not (port.isascii() and port.isdigit()) or int(port) > _LARGEST_PORT:
        raise ConfigurationError(
            f"--listen is {text!r}.", remedy="Give host:port, such as 127.0.0.1:9464."
        )
    return Address(bare, int(port))


def write_textfile(path: Path, metrics: Collector) -> None:
    """Collect once and replace the file in one step.

    A reader sees the old or the new file, never a part. Raises ConfigurationError if node_exporter
    would not read it, and if the folder cannot be written.
    """
    if path.suffix != ".prom":
        raise ConfigurationError(
            f"--textfile is {str(path)!r}.",
            remedy="Give a name that ends in .prom: node_exporter ignores all others.",
        )
    try:
        write_to_textfile(str(path), _registry(metrics))
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be written: {error.strerror}.",
            remedy="Check the folder of node_exporter's --collector.textfile.directory.",
        ) from error


class MetricsServer(Closing):
    """Serves metrics under `/metrics` until it is closed; each request is a scrape.

    Further `pages`, such as HEALTH, report problems: 503 with their text, 200 if it is empty.

    Raises ConfigurationError if it cannot listen on the address.
    """

    def __init__(
        self,
        address: Address,
        metrics: Collector,
        *,
        pages: Mapping[str, Callable[[], str]] | None = None,
    ) -> None:
        try:
            started = start_http_server(
                address.port, addr=address.host, registry=_registry(metrics)
            )
        except OSError as error:
            raise ConfigurationError(
                f"Cannot listen on {address}: {error.strerror}.",
                remedy="Choose another port, 0 for any free one, or an address of this machine.",
            ) from error
        self._server: WSGIServer = started[0]
        self._server.set_app(_with(pages or {}, make_wsgi_app(_registry(metrics))))
        self._thread: threading.Thread = started[1]
        self.address = Address(address.host, self._server.server_port)

    @property
    def url(self) -> str:
        """The URL for Prometheus."""
        return f"http://{self.address}/metrics"

    @property
    def health_url(self) -> str:
        """The URL for a probe."""
        return f"http://{self.address}{HEALTH}"

    def wait(self) -> None:
        """Wait until the server is closed, or the program interrupted."""
        while self._thread.is_alive():
            self._thread.join(SIGNALS_S)

    def close(self) -> None:
        """Stop listening without waiting for open requests."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=_STOP_S)


def _with(pages: Mapping[str, Callable[[], str]], metrics: "WSGIApplication") -> "WSGIApplication":
    def answer(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        page = pages.get(environ["PATH_INFO"])
        if page is None:
            return metrics(environ, start_response)
        trouble = page()
        status = "503 Service Unavailable" if trouble else "200 OK"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{trouble or 'ok'}\n".encode()]

    return answer


def _registry(metrics: Collector) -> CollectorRegistry:
    """A registry without the client's own metrics of this process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    return registry
