"""What another user of the host, and whoever listens nearby, gets from an engine: nothing."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import psutil
import pytest

from kstreams_assets.kafka.connection import CarriedConnection, KafkaConnection
from spark_resources.engine import ENGINES_VARIABLE, Engine, engines, lease, stop
from spark_resources.partition_tasks import run_partition_tasks
from spark_resources.session import LazySession, loopback_channel
from spark_resources.settings import SparkSettings
from tests.spark_resources import spy

_NOBODY = 65534
_SECRET = "hunter2-the-password-of-kafka"


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place for engines of this test alone, which others could reach if it let them."""
    with tempfile.TemporaryDirectory(prefix="kstreams-assets-doors-") as name:
        monkeypatch.setenv(ENGINES_VARIABLE, f"{name}/engines")
        yield Path(name) / "engines"
        for engine in engines():
            stop(engine)


def _slow(_: CarriedConnection) -> int:
    time.sleep(8)
    return 1


def _look(engine: Engine, folder: Path, secrets: list[str]) -> "subprocess.Popen[str]":
    jvm, process = psutil.Process(engine.jvm_pid), psutil.Process(engine.pid)
    listens = [
        one.laddr.port
        for one in [*jvm.net_connections("inet"), *process.net_connections("inet")]
        if one.status == psutil.CONN_LISTEN
    ]
    assert engine.port in listens
    temporary = Path(tempfile.gettempdir())
    folders = [folder, *temporary.glob("spark-*"), *temporary.glob("blockmgr-*")]
    task = {
        "uid": _NOBODY,
        "ports": sorted(set(listens) - {engine.port}),
        "pids": [engine.pid, engine.jvm_pid, *(one.pid for one in jvm.children(recursive=True))],
        "folders": [str(one) for one in folders],
        "secrets": secrets,
    }
    return subprocess.Popen(
        [sys.executable, "-m", spy.__name__, json.dumps(task)],
        stdin=subprocess.PIPE,  # whose end ends it
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.spark
@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user, which only root can")
@pytest.mark.parametrize(
    ("config", "finds"),
    [
        pytest.param({}, False, id="as it is"),
        # The look itself would find something.
        pytest.param({"spark.authenticate": "false"}, True, id="without authentication"),
    ],
)
def test_another_user_finds_no_secret(
    folder: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, str], *, finds: bool
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", _SECRET)
    connection = KafkaConnection.model_validate(
        {
            "bootstrap_servers": "kafka:9096",
            "security_protocol": "SASL_PLAINTEXT",
            "sasl": {
                "mechanism": "SCRAM-SHA-512",
                "username": "backup",
                "password": {"env": "KAFKA_PASSWORD"},
            },
        }
    )
    settings = SparkSettings(
        driver_memory="512m",
        master="local[1]",
        java_options="-XX:TieredStopAtLevel=1",
        spark_config=config,
    )
    spark = LazySession(settings)
    held = lease(settings)
    try:
        _ = spark.spark_session
        looks = _look(held.engine, folder, [_SECRET, held.engine.token])
        run_partition_tasks(spark.spark_session, [CarriedConnection.of(connection)], _slow)
        out, err = looks.communicate(timeout=60)
    finally:
        spark.stop()
        held.close()
    assert err == ""
    assert out.startswith("found in port" if finds else "looked at some bytes"), out


class _Listens(grpc.GenericRpcHandler):
    """Keeps the tokens that it is sent."""

    def __init__(self) -> None:
        self.tokens: list[object] = []

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> None:
        """No method is known here."""
        told = dict(handler_call_details.invocation_metadata or ())
        self.tokens.append(told.get("authorization"))


def _server(address: str) -> tuple[_Listens, grpc.Server]:
    listens = _Listens()
    server = grpc.server(
        futures.ThreadPoolExecutor(1), handlers=[listens], options=[("grpc.so_reuseport", 0)]
    )
    server.add_secure_port(address, grpc.local_server_credentials())
    server.start()
    return listens, server


def test_the_token_goes_to_the_engine_whatever_localhost_means(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    engine = Engine("k", port, "the-token", 1, 2, 3, "v", "c", {})
    ours, server = _server(f"127.0.0.1:{port}")
    try:
        builder = loopback_channel(engine.url)
        assert builder.endpoint == f"127.0.0.1:{port}"
        with builder.toChannel() as channel:
            call = channel.unary_unary("/spark.connect.SparkConnectService/Config")
            with pytest.raises(grpc.RpcError):
                call(b"", timeout=60)
    finally:
        server.stop(None).wait(5)
    assert ours.tokens == ["Bearer the-token"]
