"""The textfile and the HTTP endpoint."""

import threading
from functools import partial
from pathlib import Path

import pytest
import requests
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.metrics.exposition import Address, MetricsServer, parse_address, write_textfile
from tests.metrics.exposed import Exposed
from tests.timing import DEADLINE_S, eventually


class Counted(Collector):
    """One gauge: how often it was collected."""

    def __init__(self) -> None:
        self.collected = 0

    def collect(self) -> list[MetricFamily]:
        """One more."""
        self.collected += 1
        return [GaugeMetricFamily("kstreams_collected", "How often.", value=self.collected)]


class Broken(Collector):
    """Fails in the middle of a scrape."""

    def collect(self) -> list[MetricFamily]:
        """Never."""
        raise ValueError("broken")


class TestTextfile:
    """For node_exporter's textfile collector."""

    def test_it_is_put_in_place_of_the_one_before(self, tmp_path: Path) -> None:
        file, counted = tmp_path / "kstreams.prom", Counted()
        for number in (1, 2):
            write_textfile(file, counted)
            found = Exposed.of_text(file.read_text("utf-8"))
            assert found.one("kstreams_collected") == number
        assert [*tmp_path.iterdir()] == [file]

    def test_a_scrape_that_fails_leaves_the_file_before(self, tmp_path: Path) -> None:
        file = tmp_path / "kstreams.prom"
        write_textfile(file, Counted())
        before = file.read_bytes()
        with pytest.raises(ValueError, match="broken"):
            write_textfile(file, Broken())
        assert file.read_bytes() == before
        assert [*tmp_path.iterdir()] == [file]

    def test_a_reader_never_sees_a_part(self, tmp_path: Path) -> None:
        file, counted, done = tmp_path / "kstreams.prom", Counted(), threading.Event()
        write_textfile(file, counted)
        seen: list[int] = []

        def read() -> None:
            while not done.is_set():
                seen.append(file.read_text("utf-8").count("kstreams_collected"))

        reader = threading.Thread(target=read)
        reader.start()
        for _ in range(200):
            write_textfile(file, counted)
        assert eventually(lambda: seen)
        done.set()
        reader.join(timeout=20)
        assert set(seen) == {3}  # HELP, TYPE and the value

    @pytest.mark.parametrize("name", ["kstreams.txt", "no/such/folder/kstreams.prom"])
    def test_a_file_nobody_would_read_is_refused(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(ConfigurationError, match=r"kstreams\.(txt|prom)"):
            write_textfile(tmp_path / name, Counted())


class TestServer:
    """The endpoint that Prometheus scrapes."""

    def test_each_request_is_a_scrape(self) -> None:
        with MetricsServer(Address("127.0.0.1", 0), Counted()) as server:
            assert server.address.port > 0
            for number in (1, 2):
                answer = requests.get(server.url, timeout=20)
                assert answer.headers["Content-Type"].startswith("text/plain; version=")
                found = Exposed.of_text(answer.text)
                assert found.one("kstreams_collected") == number
                assert found.names == {"kstreams_collected"}

    def test_nothing_listens_any_more_after_the_end(self) -> None:
        with MetricsServer(Address("127.0.0.1", 0), Counted()) as server:
            waiting = threading.Thread(target=server.wait)
            waiting.start()
        waiting.join(timeout=20)
        assert not waiting.is_alive()
        with pytest.raises(requests.ConnectionError, match="refused"):
            requests.get(server.url, timeout=20)

    def test_two_requests_do_not_wait_for_each_other(self) -> None:
        both = threading.Barrier(2, timeout=DEADLINE_S)

        class Together(Collector):
            def collect(self) -> list[MetricFamily]:
                both.wait()
                return []

        with MetricsServer(Address("127.0.0.1", 0), Together()) as server:
            get = partial(requests.get, server.url, timeout=2 * DEADLINE_S)
            threads = [threading.Thread(target=get) for _ in "ab"]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not both.broken  # each was collected while the other was

    def test_a_port_in_use_is_told(self) -> None:
        with MetricsServer(Address("127.0.0.1", 0), Counted()) as server:
            taken = Address("127.0.0.1", server.address.port)
            with pytest.raises(ConfigurationError, match=f"listen on {taken}: .*in use"):
                MetricsServer(taken, Counted())


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9464", Address("127.0.0.1", 9464)),
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:9464", Address("::1", 9464)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize("text", ["9464", ":9464", "127.0.0.1", "a:70000", "a:-1", "a:x", ""])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--listen is"):
        parse_address(text)
