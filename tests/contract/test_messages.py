"""What goes wrong outside is one line with its cause and a remedy, wherever it comes up.

Each message that an operator gets of Spark, gRPC, Kafka, the environment or a foreign file is
asserted here, without any of them.
"""

import errno
import json
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

import dagster as dg
import grpc
import pytest
from click.testing import CliRunner
from kafka.protocol.metadata import MetadataRequest
from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from rich.console import Console

from kstreams_assets.app.topology import parse_topology, read_topology
from kstreams_assets.app_file.read import application_model, load_settings
from kstreams_assets.cli import main as main_module
from kstreams_assets.cli import output
from kstreams_assets.cli.discover import _what_next
from kstreams_assets.cli.output import print_facts, print_table
from kstreams_assets.errors import (
    ClusterUnavailableError,
    ConfigurationError,
    EngineError,
    SparkJobError,
    SparkLostError,
)
from kstreams_assets.home import NoHomeError, home, home_failure, user_cache
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.wire import WireClient
from kstreams_assets.model.point import Guarantee, Method, PointInstant
from kstreams_assets.model.restorability import PointStatus, Restorability
from kstreams_assets.orchestration.failure import told_as_failure
from kstreams_assets.process_log import cause_in_log
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.restore.selection import choose
from kstreams_assets.store import place_at
from kstreams_assets.store.access import _configured_region
from spark_resources.failures import spark_failure, spark_failures
from spark_resources.session import LazySession
from spark_resources.settings import SparkSettings
from tests.kafka.advertising import advertising
from tests.orchestration.project import attributes
from tests.timing import eventually

_RPC = """<{kind} of RPC that terminated with:
\tstatus = StatusCode.{status}
\tdetails = "{details}"
\tdebug_error_string = "UNKNOWN:Error received from peer {{grpc_status:14, grpc_message:"x"}}"
>"""
_REFUSED = (
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:41987: Failed to"
    " connect to remote host: connect: Connection refused (111)"
)
_RIDDLES = ("<_", "StatusCode", "debug_error_string", "not expected", "RPC that", "\n", "Traceback")


def _rpc(status: str, details: str, kind: str = "_InactiveRpcError") -> Exception:
    return SparkConnectGrpcException(message=_RPC.format(kind=kind, status=status, details=details))


def _answer(text: str) -> Exception:
    return SparkConnectGrpcException(message=text)


def _raised_by_grpc(*, is_stream: bool, is_closed: bool = False) -> Exception:
    """What gRPC itself raises where nothing listens, or on a channel that is closed."""
    channel = grpc.insecure_channel("127.0.0.1:1")
    if is_closed:
        channel.close()
    try:
        if is_stream:
            list(channel.unary_stream("/a/b")(b"", timeout=60))
        else:
            channel.unary_unary("/a/b")(b"", timeout=60)
    except (grpc.RpcError, ValueError) as error:
        return error
    raise AssertionError("it answered")


_LOST: tuple[tuple[Callable[[], Exception], str, str], ...] = (
    (
        lambda: _rpc("UNAVAILABLE", _REFUSED),
        "at 127.0.0.1:41987 does not answer",
        "run the command again",
    ),
    (
        lambda: _rpc("UNAVAILABLE", "Socket closed", "_MultiThreadedRendezvous"),
        "does not answer: Socket closed.",
        "engine status",
    ),
    (
        lambda: _rpc("UNAVAILABLE", "recvmsg:Connection reset by peer", "_MultiThreadedRendezvous"),
        "does not answer: Connection reset by peer.",
        "KSTREAMS_ASSETS_SPARK_REMOTE",
    ),
    (
        lambda: _rpc("DEADLINE_EXCEEDED", "Deadline Exceeded"),
        "does not answer",
        "run the command again",
    ),
    (lambda: _rpc("UNKNOWN", "Stream removed"), "ended the connection: Stream removed", "run the"),
    (
        lambda: _rpc("INTERNAL", "something"),
        "The Spark server failed: something",
        "run the command again",
    ),
    (
        lambda: _rpc("CANCELLED", "Stream removed (RST_STREAM (Received RST_STREAM with error 8))"),
        "The Spark server ended the connection",
        "run the command again",
    ),
    (
        lambda: _rpc("UNAVAILABLE", ""),
        "does not answer: only the status UNAVAILABLE",
        "run the command again",
    ),
    (lambda: _rpc("UNAUTHENTICATED", "No Authorization token"), "refuses this client", ";token="),
    (
        lambda: _rpc("INTERNAL", "[INVALID_HANDLE.SESSION_NOT_FOUND] Session not found."),
        "has ended the session",
        "Run the command again",
    ),
    (
        lambda: _answer("[INVALID_HANDLE.SESSION_CLOSED] The handle a is invalid. Session was"),
        "has ended the session",
        "Run the command again",
    ),
    (lambda: _answer("[NO_ACTIVE_SESSION] No active Spark session"), "ended the session", "again"),
    (lambda: _answer("Session closed"), "has ended the session", "Run the command again"),
    (
        lambda: _answer(
            "(org.apache.spark.SparkException) Job 5 cancelled because SparkContext was shut down"
        ),
        "was stopped while it ran a job",
        "run the command again",
    ),
    (
        lambda: _raised_by_grpc(is_stream=False),
        "127.0.0.1:1 does not answer",
        "run the command again",
    ),
    (
        lambda: _raised_by_grpc(is_stream=True),
        "127.0.0.1:1 does not answer",
        "run the command again",
    ),
    (
        lambda: _raised_by_grpc(is_stream=False, is_closed=True),
        "has ended the session: Cannot invoke RPC on closed channel.",
        "Run the command again",
    ),
)
_FAILED: tuple[tuple[Callable[[], Exception], str, str], ...] = (
    (lambda: _rpc("UNIMPLEMENTED", "unknown service"), "not a Spark Connect server", "Check host"),
    (
        lambda: _rpc("UNAVAILABLE", "Ssl handshake failed: WRONG_VERSION_NUMBER"),
        "not a Spark Connect server",
        "use_ssl",
    ),
    (lambda: _rpc("CANCELLED", "Locally cancelled by application!"), "job was cancelled", "again"),
    (lambda: _rpc("RESOURCE_EXHAUSTED", "Received message larger than max"), "too large", "Raise"),
    (lambda: _answer("[OPERATION_CANCELED] Operation has been canceled."), "cancelled", "again"),
    (
        lambda: _answer("Job aborted: Python worker exited unexpectedly (crashed)\n\tat Some.java"),
        "A Python worker of Spark died",
        "memory",
    ),
    (
        lambda: _answer("[UNRESOLVED_COLUMN] A column `session_closed` cannot be resolved.\n\tat"),
        "A column `session_closed` cannot be resolved",
        "Fix the cause that the reason names",
    ),
)


@pytest.mark.parametrize(("made", "cause", "remedy"), [*_LOST, *_FAILED])
def test_a_failure_of_spark_is_one_line(
    made: Callable[[], Exception], cause: str, remedy: str
) -> None:
    with pytest.raises(SparkJobError) as found, spark_failures():
        raise made()
    _is_helpful(str(found.value), cause, remedy)
    assert cause in found.value.problem
    assert remedy in found.value.remedy


def test_a_lost_server_is_told_from_a_failed_job() -> None:
    assert all(isinstance(spark_failure(made()), SparkLostError) for made, *_ in _LOST)
    assert not any(isinstance(spark_failure(made()), SparkLostError) for made, *_ in _FAILED)
    assert spark_failure(ValueError("no")) is None
    assert spark_failure(LookupError("Session closed")) is None


@pytest.mark.parametrize(("made", "cause", "remedy"), [*_LOST, *_FAILED])
def test_the_command_line_says_the_same(
    made: Callable[[], Exception],
    cause: str,
    remedy: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise made()

    monkeypatch.setattr(main_module.cli, "main", fail)
    with pytest.raises(SystemExit) as end:
        main_module.main()
    assert end.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("Error: ")
    _is_helpful(told.removesuffix("\n"), cause, remedy)


@pytest.mark.parametrize(("made", "cause", "remedy"), [*_LOST, *_FAILED])
def test_a_dagster_run_says_the_same(
    made: Callable[[], Exception], cause: str, remedy: str
) -> None:
    with pytest.raises(dg.Failure) as found, told_as_failure():
        raise made()
    _is_helpful(found.value.description or "", cause, remedy)


def test_a_fault_of_our_own_code_on_spark_keeps_its_trace() -> None:
    with pytest.raises(SparkJobError), told_as_failure():
        raise SparkJobError("ZeroDivisionError: division by zero")


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("Invalid maximum heap size: -Xmx2x\nError: Could not create the Java Virtual Machine.\n"
         "Error: A fatal exception has occurred. Program will exit.\n",
         "Invalid maximum heap size: -Xmx2x"),
        ("a\nTraceback (most recent call last):\n  File\nModuleNotFoundError: No module named 'y'",
         "ModuleNotFoundError: No module named 'y'"),
        ("No executor of spark://m:7077 has started within 120 s.\n",
         "No executor of spark://m:7077 has started within 120 s"),
        ("OpenJDK: There is insufficient memory for the Java Runtime.\n# a\n",
         "OpenJDK: There is insufficient memory for the Java Runtime"),
        ('Exception in thread "main" java.lang.IllegalArgumentException: basedir must be absolute\n'
         "\tat x\nTraceback (most recent call last):\nPySparkRuntimeError: [JAVA_GATEWAY] x\n",
         "java.lang.IllegalArgumentException: basedir must be absolute"),
        ("WARNING: Using incubator modules\n\n", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_why_an_engine_did_not_start(tmp_path: Path, log: str, cause: str) -> None:
    path = tmp_path / "engine.log"
    path.write_text(log, "utf-8")
    assert cause_in_log(path) == cause
    error = EngineError("The engine ended while it started", path)
    shown = f" (its log: {cause})" if cause else ""
    assert error.problem == f"The engine ended while it started{shown}."
    _is_helpful(str(error), error.problem, f"Read {path}")
    assert cause_in_log(path.with_name("none")) == ""


@pytest.mark.parametrize(
    ("host", "port", "reason"), [("broker.invalid", 9092, "DNS"), ("127.0.0.1", 1, "ECONNREFUSED")]
)
def test_a_broker_that_advertises_an_address_that_cannot_be_reached(
    host: str, port: int, reason: str
) -> None:
    with advertising(host, port) as bootstrap:
        wire = WireClient(KafkaConnection(bootstrap_servers=bootstrap), timeout_s=0.5)
        asked: list[Callable[[], object]] = [
            lambda: wire.request(lambda: MetadataRequest(topics=[]), operation="ask"),
            lambda: wire.request(
                lambda: MetadataRequest(topics=[]), operation="ask", node=1, retry=False
            ),
            lambda: wire.connected_socket(1, operation="ask", timeout_s=0.5),
        ]
        for ask in asked:
            found = _refused(ask)
            text = str(found)
            _is_helpful(text, f"broker 1 at {host}:{port}", "correct advertised.listeners")
            assert text.startswith(f"Kafka at {bootstrap} answers, but it advertises")
            assert reason in text
            assert f"{host}:{port}" in found.reason  # what readers of the log pass on
        wire.close()


def _refused(ask: Callable[[], object]) -> ClusterUnavailableError:
    """Why, once the broker has answered at all: to a busy machine half a second is short."""
    found: list[ClusterUnavailableError] = []

    def has_answered() -> bool:
        with pytest.raises(ClusterUnavailableError) as error:
            ask()
        found.append(error.value)
        return "did not answer" not in str(error.value)

    assert eventually(has_answered), found[-1]
    return found[-1]


def test_a_broker_that_is_down_is_no_question_of_what_it_advertises() -> None:
    wire = WireClient(KafkaConnection(bootstrap_servers="127.0.0.1:1"), timeout_s=0.5)
    with pytest.raises(ClusterUnavailableError, match="did not answer within") as found:
        wire.request(lambda: MetadataRequest(topics=[]), operation="ask")
    assert "advertised" not in str(found.value)


@pytest.mark.parametrize("servers", ["PLAINTEXT://kafka:9092", "http://kafka:9092/", "a:1,b://c:2"])
def test_bootstrap_servers_with_a_scheme(servers: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is not host:port, it has a scheme") as found:
        KafkaConnection(bootstrap_servers=servers)
    assert found.value.remedy.startswith(("Write kafka:9092;", "Write c:2;"))


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user has no entry in passwd."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", _no_entry)


def _no_entry(uid: int) -> object:
    raise KeyError(f"getpwuid(): uid not found: {uid}")


@pytest.mark.usefixtures("homeless")
def test_a_user_without_a_home_folder() -> None:
    asked: list[Callable[[], object]] = [
        home,
        lambda: user_cache("jars"),
        lambda: place_at("~/warehouse"),
        lambda: _as_home_failure(Path.home),
    ]
    for ask in asked:
        with pytest.raises(NoHomeError) as found:
            ask()
        _is_helpful(str(found.value), "HOME is not set", "KSTREAMS_ASSETS_ENGINES")
    assert _configured_region.__wrapped__(None) is None


@pytest.mark.usefixtures("homeless")
def test_spark_for_a_user_without_an_entry_in_passwd() -> None:
    with pytest.raises(ConfigurationError) as found:
        LazySession(SparkSettings()).check()
    _is_helpful(str(found.value), "has no entry in passwd: Spark does not start", "/etc/passwd")


def _as_home_failure(ask: Callable[[], object]) -> None:
    try:
        ask()
    except RuntimeError as error:
        failure = home_failure(error)
        assert failure is not None
        raise failure from error


def test_a_home_folder_of_somebody_else() -> None:
    failure = home_failure(PermissionError(errno.EACCES, "Permission denied", "/.cache"))
    assert failure is not None
    _is_helpful(str(failure), "/.cache cannot be used by this user", "KSTREAMS_ASSETS_ENGINES")
    assert home_failure(PermissionError(errno.EACCES, "Permission denied", "/backup/x")) is None
    assert home_failure(RuntimeError("another")) is None


@pytest.mark.usefixtures("homeless")
def test_the_command_line_names_what_to_set_without_a_home(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main_module.cli, "main", lambda **_: Path.home())
    with pytest.raises(SystemExit):
        main_module.main()
    _is_helpful(capsys.readouterr().err.strip(), "has no home folder", "KSTREAMS_ASSETS_ENGINES")
    with pytest.raises(dg.Failure, match="KSTREAMS_ASSETS_ENGINES"), told_as_failure():
        Path.home()


_FOREIGN: dict[str, tuple[str, str]] = {
    "strimzi": (
        "apiVersion: kafka.strimzi.io/v1\nkind: KafkaConnector\nmetadata: {name: a}\nspec: {}\n",
        "a Kubernetes manifest of Strimzi (KafkaConnector, kafka.strimzi.io/v1)",
    ),
    "topic": (
        "apiVersion: kafka.strimzi.io/v1beta2\nkind: KafkaTopic\nspec: {partitions: 3}\n",
        "a Kubernetes manifest of Strimzi (KafkaTopic,",
    ),
    "kubernetes": (
        "---\napiVersion: apps/v1\nkind: Deployment\n---\napiVersion: v1\nkind: Service\n",
        "a Kubernetes manifest (Deployment, apps/v1)",
    ),
    "kafka-backup": (
        "mode: backup\nbackup_id: daily\nsource:\n  bootstrap_servers: [kafka:9092]\nstorage: {}\n",
        "a configuration of kafka-backup (osodevops)",
    ),
    "properties": (
        'application.id=orders\nbootstrap.servers=kafka:9092\nsasl.jaas.config=a b="c";\n',
        "a file of Java properties of Kafka Streams",
    ),
    "properties with colons": (
        "application.id: orders\nsasl.jaas.config: x: y\n",
        "a file of Java properties of Kafka Streams",
    ),
    "compose": ("services:\n  kafka: {image: apache/kafka}\n", "a file of Docker Compose"),
    "topology": ("Topologies:\n   Sub-topology: 0\n", "the text of a topology"),
    "connector": (
        '{"name": "a", "config": {"connector.class": "S3Sink"}}',
        "the configuration of a connector of Kafka Connect",
    ),
    "component": (
        "type: dagster_dbt.DbtProjectComponent\nattributes: {project: x}\n",
        "another component of Dagster (dagster_dbt.DbtProjectComponent)",
    ),
    "attributes alone": (
        "application_id: a\nconnection: {bootstrap_servers: 'a:1'}\n",
        "the attributes of an application without `type` and `attributes` around them",
    ),
    "no attributes": (
        "type: kstreams_assets.components.KafkaStreamsAppComponent\n",
        "a component without `attributes`",
    ),
    "workspace": ("load_from: []\n", "a workspace file of Dagster"),
    "unknown": ("colour: red\nsize: 3\n", "a YAML of another kind (its keys: colour, size)"),
    "empty": ("# nothing\n", "an empty file"),
    "text": ("hello\n", "a text, not a YAML of keys"),
}


@pytest.mark.parametrize("name", _FOREIGN)
def test_the_file_of_another_tool_is_named(name: str, tmp_path: Path) -> None:
    text, what = _FOREIGN[name]
    path = tmp_path / "given.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as found:
        load_settings(path)
    _is_helpful(
        str(found.value), f"{path}: it contains no application of type", "kstreams-assets discover"
    )
    assert what in str(found.value)
    assert "jaas" not in str(found.value)


def test_a_policy_in_m_is_refused() -> None:
    with pytest.raises(ConfigurationError) as found:
        application_model(attributes(keep={"daily": "30m"}))
    _is_helpful(
        str(found.value),
        "keep.daily is '30m': m could mean minutes or months",
        "Give 30min or 30mo",
    )


_ID: Final = "20261127T090000123Z-0b7f1a2c-9d3e-4f5a-8b6c-7d8e9f0a1b2c"


@pytest.mark.parametrize("width", [80, 100])
def test_ids_are_whole_and_plain_on_a_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    console = partial(Console, width=width, force_terminal=True, no_color=True)
    monkeypatch.setattr(output, "_console", console)
    columns = ["restore", "point", "pid", "changed_at_ms", "records", "reason"]
    print_table("t", columns, [[_ID, _ID, 29529, 1795724461221, 29529, "because it is so"]])
    print_facts("f", {"pid": 29529, "started_at_ms": 1795724461221, "records": 29529})
    said = capsys.readouterr().out
    assert said.count(_ID) == 2
    assert said.count("29529") == said.count("29,529") == 2
    assert said.count("2026-11-26T20:21:01.221+00:00 (") == 2
    assert "1,795" not in said
    assert "1795" not in said


def test_discover_says_how_to_go_on() -> None:
    lines = " ".join(_what_next({"windows": {"every": "hour"}}, Path("my app/defs.yaml")))
    assert "kstreams-assets follow --app 'my app/defs.yaml'" in lines


def test_init_says_how_to_install_what_its_next_step_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kstreams_assets.cli.init.find_spec", lambda _: None)
    done = CliRunner().invoke(main_module.cli, ["init", str(tmp_path / "backups")])
    assert done.exit_code == 0, done.output
    install, last = done.output.splitlines()[-2:]
    assert re.search(r"pip install dagster-webserver==[\d.]+ .*\[ui\]", install)
    assert last.endswith("dagster dev")


def test_a_plan_beside_a_follower_says_nothing_of_points_it_is_about_to_cover() -> None:
    def judge(ids: Iterable[str]) -> list[PointStatus]:
        return [
            PointStatus(
                id=each,
                taken_at_ms=1_000 * int(each[1:]),
                method=Method.TRANSACTIONS,
                guarantee=Guarantee.EXACT,
                sealed=True,
                covered=each == "p1",
                restorability=Restorability.EXACT if each == "p1" else Restorability.NOTHING,
                reason="Not covered: t-0: offsets 5 to 6 are not backed up.",
                is_pending=each == "p2",
                has_increments=True,
            )
            for each in ids
        ]

    def notes(newest: int) -> tuple[str, ...]:
        points = [PointInstant(f"p{n}", 1_000 * n, 1_000 * n) for n in range(1, newest + 1)]
        return choose(points, judge, RestoreRequest()).notes

    assert notes(2) == ()
    (note,) = notes(3)
    assert note.startswith(
        "1 newer point(s) cannot be restored. p3 has restorability nothing: Not covered"
    )


_TOPOLOGY: Final = """Topologies:
   Sub-topology: 0
    Source: KSTREAM-SOURCE-0000000000 (topics: [deals])
      --> KSTREAM-AGGREGATE-0000000002
    Processor: KSTREAM-AGGREGATE-0000000002 (stores: [per-desk])
      --> none
      <-- KSTREAM-SOURCE-0000000000

"""


@pytest.mark.parametrize(
    "data",
    [
        f"10:02:17.331 [main] INFO  Desk - {_TOPOLOGY}10:02:17.402 INFO up\n".encode(),
        "".join(f"pod-7c9 | {line}\n" for line in _TOPOLOGY.splitlines()).encode(),
        f"Processing topology\n-----\n{_TOPOLOGY}".encode(),
        f"```\n{_TOPOLOGY}```\n".encode(),
        b"\xef\xbb\xbf" + _TOPOLOGY.encode(),
        _TOPOLOGY.encode("utf-16"),
        json.dumps([_TOPOLOGY]).encode(),
    ],
)
def test_topology_texts_as_people_have_them(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "topology.txt"
    file.write_bytes(data)
    assert read_topology(file) == parse_topology(_TOPOLOGY)


@pytest.mark.parametrize(
    ("data", "problem", "remedy"),
    [
        (_TOPOLOGY.replace("desk", "b\xfcro").encode("latin-1"), "is not text in UTF-8", "iconv"),
        (_TOPOLOGY.removeprefix("Topologies:\n").encode(), "expected 'Topologies:'", "describe()"),
        (_TOPOLOGY.replace("[deals]", "[]").encode(), "names no topic", "describe()"),
        (b"x" * 5_000, "Line 1 of the topology text", "describe()"),
    ],
)
def test_topology_texts_that_are_refused(
    data: bytes, problem: str, remedy: str, tmp_path: Path
) -> None:
    file = tmp_path / "topology.txt"
    file.write_bytes(data)
    with pytest.raises(ConfigurationError) as found:
        read_topology(file)
    _is_helpful(str(found.value), problem, remedy)
    assert len(str(found.value)) < 600


def _is_helpful(text: str, cause: str, remedy: str) -> None:
    assert cause in text
    assert remedy in text
    for riddle in _RIDDLES:
        assert riddle not in text, text
