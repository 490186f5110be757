"""The engine: one warm Spark Connect server of a user on this host, found or started when needed.

Each client of an engine holds a shared lock; an engine that was unused for a while ends. A file
that only the user can read contains the address of an engine and the token for its clients. Engines
differ by their start parameters: settings, jars, interpreter, and the code of these packages, since
Python workers keep imported modules. A client without settings uses any engine.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, Final

from kstreams_assets.aws import LOCATIONS
from kstreams_assets.errors import ConfigurationError, EngineError
from kstreams_assets.home import user_cache
from kstreams_assets.private import keep_private, why_not_private
from kstreams_assets.store import store_at
from kstreams_assets.store.locks import locked
from spark_resources.executors import (
    LOOPBACK,
    PACKAGES,
    ROOT,
    SECRET_SETTING,
    cluster_settings,
    is_local,
    read_secret,
    write_package_archive,
)
from spark_resources.jars import (
    JARS_VARIABLE,
    class_path,
    jars_directory,
    jars_home,
    require_delta_jar,
)
from spark_resources.java import PASSED_ON, find_java
from spark_resources.settings import SparkSettings

ENGINES_VARIABLE: Final = "KSTREAMS_ASSETS_ENGINES"
"""The folder with the descriptions of engines, if it is not the default one."""
_TOKEN_VARIABLE: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 (a name)
_START_S: Final = 120.0
_EXECUTOR_S: Final = 120.0
"""Additional time for the first executor of a cluster."""
_SETTLE_S: Final = 3.0
_BY_DEMAND: Final = "spark.dynamicAllocation.enabled"
_STOP_S: Final = 30.0
_NOTICE_S: Final = 10.0
"""Within this time an engine ends after its JVM has died."""
_CONNECT_S: Final = 2.0
_SOCKETS: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS: Final = "0A"
"""The state LISTEN in these files."""
_POLL_S: Final = 0.05
_LOOK_S: Final = 1.0
_STARTED_WITH: Final = {*SparkSettings.model_fields} - {
    "remote",
    "engine_idle_s",
    "shuffle_partitions",  # of a session
}
_LOG4J: Final = Path(__file__).with_name("log4j2.properties")
_REDACTED: Final = "(?i)secret|password|token|access[.]?key|jaas|private|ssl[.].*key"
"""Spark's default leaves the PEM key of a Kafka client readable in logs and plans."""


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that runs; `since_ms` is epoch milliseconds."""

    key: str
    port: int
    token: str
    pid: int
    jvm_pid: int
    since_ms: int
    version: str
    code: str
    """Digest of jars, interpreter and packages: clients must have the same."""
    settings: Mapping[str, Any]

    @property
    def url(self) -> str:
        """The address for clients, with the token: not for logs."""
        # Only for this name pyspark sends a token without TLS. Sessions connect to LOOPBACK: the
        # name may also mean ::1, on which any user can listen.
        return f"sc://localhost:{self.port}/;token={self.token}"

    def __repr__(self) -> str:
        return f"Engine({self.key}, port {self.port}, pid {self.pid})"


class Lease:
    """The use of an engine: it does not end before this is closed or its process has ended."""

    def __init__(self, place: "_Place", engine: Engine, held: IO[bytes]) -> None:
        self._place, self.engine = place, engine
        self._held: IO[bytes] | None = held

    @property
    def log(self) -> Path:
        """The output of the engine."""
        return self._place.log

    def is_alive(self) -> bool:
        """Whether the engine still runs and accepts clients."""
        found = self._place.engine()
        return found is not None and found.token == self.engine.token

    def close(self) -> None:
        """Let the engine end when it has no other clients."""
        if self._held is not None:
            self._held.close()
            self._held = None


def lease(settings: SparkSettings) -> Lease:
    """Return an engine with these settings, started if necessary, that stays until the lease ends.

    Settings that are not given may have any value in an existing engine.

    Raises:
        EngineError: It did not start.
        JarsMissingError, JavaNotFoundError: It cannot be started.
    """
    code, place = _code(), _Place.of(settings)
    start_s = _start_s(settings)
    deadline = time.monotonic() + start_s
    while True:
        for other in [place, *_places()]:
            engine = other.engine()
            if engine is None or engine.code != code or not _fits(engine, settings):
                continue
            taken = other.lease()
            if taken is not None:
                return taken
        if time.monotonic() >= deadline:
            raise EngineError(f"No engine was found or started within {start_s:.0f} s", place.log)
        place.start(settings)


def engines() -> list[Engine]:
    """Return the running engines of this user."""
    found = [place.engine() for place in _places()]
    return [engine for engine in found if engine is not None]


def is_used(engine: Engine) -> bool:
    """Whether a client holds it."""
    with _lock(_Place(_folder(), engine.key).file("used"), fcntl.LOCK_EX) as free:
        return free is None


def stop(engine: Engine) -> None:
    """End an engine and its jobs.

    Raises EngineError if it still runs after half a minute.
    """
    place = _Place(_folder(), engine.key)
    with contextlib.suppress(ProcessLookupError):
        os.kill(engine.pid, signal.SIGTERM)
    if not place.has_ended_within(_STOP_S):
        raise EngineError(f"Process {engine.pid} did not end within {_STOP_S:.0f} s", place.log)


def _places() -> "list[_Place]":
    return [_Place(file.parent, file.stem) for file in sorted(_folder().glob("*.json"))]


def _fits(engine: Engine, settings: SparkSettings) -> bool:
    given = settings.model_dump(mode="json", include=settings.model_fields_set & _STARTED_WITH)
    return all(engine.settings.get(name) == value for name, value in given.items())


def _code() -> str:
    """Return a digest of what clients and engine must have in common."""
    facts = {
        "jars": str(jars_directory("spark")),
        "python": sys.executable,
        "code": [_stamp(package) for package in PACKAGES],
    }
    return _word(facts)


def _word(facts: object) -> str:
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _folder() -> Path:
    """Return the user's folder of engines; create it, readable by this user only."""
    keep_private()
    folder_name = os.environ.get(ENGINES_VARIABLE)
    folder = Path(folder_name) if folder_name else user_cache("engines")
    folder.mkdir(parents=True, exist_ok=True)
    if why_not_private(folder.resolve()) is not None:
        raise ConfigurationError(
            f"{folder} is accessible to other users, but would contain the tokens of engines.",
            remedy=f"chmod 700 {folder}, or name another folder by {ENGINES_VARIABLE}.",
        )
    return folder


@dataclass(frozen=True, slots=True)
class _Place:
    """The files of one engine.

    `.json` describes its address, `.log` is its output. `.alive` has the id of its process, which
    locks it while it lives. `.used` is locked by its clients (shared), `.start` by the process that
    starts it.
    """

    folder: Path
    key: str

    @classmethod
    def of(cls, settings: SparkSettings) -> "_Place":
        asked = settings.model_dump(mode="json", include=_STARTED_WITH)
        return cls(_folder(), _word([_code(), asked]))

    @property
    def log(self) -> Path:
        return self.folder / f"{self.key}.log"

    @property
    def description(self) -> Path:
        return self.folder / f"{self.key}.json"

    def file(self, kind: str) -> Path:
        return self.folder / f"{self.key}.{kind}"

    def engine(self) -> Engine | None:
        """Return the engine that clients can use, None without one.

        The process of an engine notices after a moment that its JVM has died. Until then its port
        is closed.
        """
        described = self._described()
        # The description of a killed engine is deleted before the next one takes the lock.
        if described is None or not self._is_alive() or described != self._described():
            return None
        engine = Engine(**described)
        return engine if is_listening(engine.port) else None

    def has_ended_within(self, limit_s: float) -> bool:
        """Wait until the process of its engine has ended, at most for this time."""
        deadline = time.monotonic() + limit_s
        while self._is_alive():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def _is_alive(self) -> bool:
        """Whether a process of an engine runs here, usable or not."""
        with _lock(self.file("alive"), fcntl.LOCK_SH) as free:
            return free is None

    def _pid(self) -> int | None:
        """Return the process that its last engine wrote when it took the lock; None before."""
        try:
            return int(self.file("alive").read_text("ascii"))
        except (FileNotFoundError, ValueError):
            return None

    def _described(self) -> dict[str, Any] | None:
        try:
            described = json.loads(self.description.read_text("utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        # Another release may describe engines differently.
        return described if set(described) == {field.name for field in fields(Engine)} else None

    def lease(self) -> Lease | None:
        """Return the use of the engine, None if there is none or it is about to end."""
        held = locked(self.file("used"), fcntl.LOCK_SH)
        if held is None:
            return None
        engine = self.engine()
        if engine is None:
            held.close()
            return None
        return Lease(self, engine, held)

    def start(self, settings: SparkSettings) -> None:
        """Start it unless another process does; return when that has ended."""
        with _lock(self.file("start"), fcntl.LOCK_EX) as mine:
            if mine is None:
                time.sleep(_POLL_S)
                return
            if self.engine() is not None:
                return
            class_path("spark")
            require_delta_jar()
            find_java()
            if not is_local(settings.master):
                read_secret(settings)
            start_s = _start_s(settings)
            if self._comes_up_within(start_s):
                return
            self._end_unusable()
            self.description.unlink(missing_ok=True)
            with self.log.open("wb") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "spark_resources.engine"],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    env=_environment(),
                    start_new_session=True,
                )
            assert process.stdin is not None  # noqa: S101 (a pipe)
            task = {
                "key": self.key,
                "code": _code(),
                "settings": settings.model_dump(mode="json", exclude={"remote"}),
            }
            with process.stdin as stdin:
                stdin.write(json.dumps(task).encode())
            deadline = time.monotonic() + start_s
            while self.engine() is None:
                if process.poll() is not None:
                    raise EngineError("The engine ended while it started", self.log)
                if time.monotonic() >= deadline:
                    process.kill()
                    raise EngineError(f"The engine did not start in {start_s:.0f} s", self.log)
                time.sleep(_POLL_S)

    def _comes_up_within(self, limit_s: float) -> bool:
        """Wait for an engine that still starts although the process that started it was killed."""
        deadline = time.monotonic() + limit_s
        while self._described() is None and self._is_alive() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return self.engine() is not None

    def _end_unusable(self) -> None:
        """End the process of an unusable engine: it would block the next one.

        Raises EngineError if it still runs.
        """
        if self.has_ended_within(_NOTICE_S):
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            # The lock shows that the process is the one that has written its id.
            pid = self._pid()
            if pid is not None and self._is_alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            if self.has_ended_within(_NOTICE_S):
                return
        raise EngineError("An engine that does not answer cannot be ended", self.log)


def is_listening(port: int) -> bool:
    """Whether a process of this user listens on a port of 127.0.0.1.

    If Linux reports the owner, another user's process does not count. It may have taken the port
    since, and clients would send it their token.
    """
    sockets = [file for file in _SOCKETS if file.exists()]
    if not sockets:
        with socket.socket() as client:
            client.settimeout(_CONNECT_S)
            return client.connect_ex((LOOPBACK, port)) == 0
    address = f"{int.from_bytes(socket.inet_aton(LOOPBACK), sys.byteorder):08X}:{port:04X}"
    for file in sockets:
        for line in file.read_text("ascii").splitlines()[1:]:
            _, local, _, state, _, _, _, uid, *_ = line.split()
            if state == _LISTENS and local.endswith(address) and int(uid) == os.getuid():
                return True
    return False


def _start_s(settings: SparkSettings) -> float:
    """Return how long its start may take (s)."""
    return _START_S if is_local(settings.master) else _START_S + _EXECUTOR_S


def _stamp(package: str) -> tuple[str, int]:
    """Return name and version of a package's code."""
    folder = ROOT / package
    return str(folder), max(file.stat().st_mtime_ns for file in folder.rglob("*.py"))


def _environment() -> dict[str, str]:
    """Return the environment of an engine, without secrets: it outlives its starting process."""
    names = (*PASSED_ON, *LOCATIONS)  # tasks look up the keys of a store themselves
    passed = {name: value for name in names if (value := os.environ.get(name))}
    # Spark's workers find these packages in the same place as this process.
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    jars, engines = str(jars_home().absolute()), str(_folder().absolute())
    return {**passed, "PYTHONPATH": path, JARS_VARIABLE: jars, ENGINES_VARIABLE: engines}


@contextmanager
def _lock(path: Path, how: int) -> Iterator[IO[bytes] | None]:
    file = locked(path, how)
    try:
        yield file
    finally:
        if file is not None:
            file.close()


def main() -> None:
    """Serve, as standard input specifies, until the engine is not needed, or SIGTERM."""
    task = json.load(sys.stdin)
    settings, place = SparkSettings(**task["settings"]), _Place(_folder(), task["key"])
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with _lock(place.file("alive"), fcntl.LOCK_EX) as alive:
        if alive is None:
            return
        alive.truncate(0)
        alive.write(str(os.getpid()).encode("ascii"))
        alive.flush()
        server = _Server(settings, place.file("zip"))
        try:
            described = asdict(server.engine(place.key, task["code"], task["settings"]))
            store_at(place.description).put_text(json.dumps(described), durable=False)
            server.serve(place.file("used"), ended)
        finally:
            place.description.unlink(missing_ok=True)
            server.stop()


class _Server:
    """A JVM with a Spark context that Connect clients share."""

    def __init__(self, settings: SparkSettings, archive: Path) -> None:
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway

        java = find_java()
        self._idle_s = settings.engine_idle_s
        self._token, self._port = secrets.token_urlsafe(32), _free_port()
        # By the environment: every user of the host can read the options of a JVM.
        os.environ[_TOKEN_VARIABLE] = self._token
        # pyspark's launcher and its workers read these only from the environment.
        os.environ["JAVA_HOME"] = str(java.home)
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ["PYSPARK_PYTHON"] = settings.cluster_python or sys.executable
        conf = SparkConf(loadDefaults=False)
        for name, value in launch_settings(settings, self._port, archive).items():
            conf.set(name, value)
        on_cluster = not is_local(settings.master)
        if on_cluster:
            write_package_archive(archive)
        self._archive = archive
        gateway = launch_gateway(conf)
        secret = read_secret(settings) if on_cluster else None
        if secret is not None:
            # Not before: pyspark passes settings to the JVM as arguments, which are visible to all.
            conf.set(SECRET_SETTING, secret)
        self._context = SparkContext(gateway=gateway, conf=conf)
        self._jvm: Any = self._context._jvm  # noqa: SLF001 - no public way to the driver's JVM
        if on_cluster and self._context.getConf().get(_BY_DEMAND) != "true":
            self._await_executor(settings.master)

    def engine(self, key: str, code: str, settings: Mapping[str, Any]) -> Engine:
        """Return the description of the engine for clients."""
        return Engine(
            key=key,
            port=self._port,
            token=self._token,
            pid=os.getpid(),
            jvm_pid=int(self._jvm.java.lang.ProcessHandle.current().pid()),
            since_ms=time.time_ns() // 1_000_000,
            version=version("kstreams-assets"),
            code=code,
            settings=settings,
        )

    def serve(self, used: Path, ended: threading.Event) -> None:
        """Return when asked to end, or when the engine was unused for its idle time."""
        idle_since = time.monotonic()
        while not ended.wait(_LOOK_S):
            self._jvm.java.lang.System.nanoTime()  # raises if the JVM has died
            file = locked(used, fcntl.LOCK_EX)
            if file is None:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since < self._idle_s:
                file.close()
            else:
                return  # with the lock: no new client can come

    def stop(self) -> None:
        """End the JVM."""
        self._context.stop()
        self._archive.unlink(missing_ok=True)

    def _await_executor(self, master: str) -> None:
        """Wait for executors: without any, the first job would wait forever without an error.

        Executors that start soon after the first one are awaited: jobs are split by their cores.
        """
        context: Any = self._context
        status = context._jsc.sc().statusTracker()  # noqa: SLF001
        begun, changed = 0, time.monotonic()
        while begun == 0 or time.monotonic() - changed < _SETTLE_S:
            found = len(status.getExecutorInfos()) - 1  # without the engine itself
            if found != begun:
                begun, changed = found, time.monotonic()
            if begun == 0 and time.monotonic() - changed >= _EXECUTOR_S:
                self.stop()
                raise SystemExit(f"No executor of {master} has started within {_EXECUTOR_S:.0f} s.")
            time.sleep(_POLL_S)


def _cores(master: str) -> int:
    """Return the cores of a local master."""
    match = re.fullmatch(r"local\[(\d+)(?:,\d+)?\]", master)
    return int(match[1]) if match else os.cpu_count() or 1


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _class_data(archive: Path) -> list[str]:
    """Use the archive, or write it when the JVM ends (its header last: half of one is invalid).

    An archive of other jars, or of another JVM, is ignored.
    """
    use = "SharedArchiveFile" if archive.exists() else "ArchiveClassesAtExit"
    return [f"-XX:{use}={archive.absolute()}", "-Xlog:cds=error", "-Xlog:cds+dynamic=error"]


def launch_settings(settings: SparkSettings, port: int, archive: Path) -> Mapping[str, str]:
    """Return Spark's settings for an engine; `archive` is the code for executors."""
    options = [
        "-XX:+UseParallelGC",
        "-Duser.timezone=UTC",
        f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}",
    ]
    if settings.class_data_archive:
        options += _class_data(Path(settings.class_data_archive))
    if settings.java_options:
        options.append(settings.java_options)
    return {
        "spark.app.name": "kstreams-assets",
        "spark.master": settings.master,
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraClassPath": class_path("spark"),
        "spark.driver.extraJavaOptions": " ".join(options),
        # Hadoop sets the modes of files and folders itself, independent of the JVM's umask.
        "spark.hadoop.fs.permissions.umask-mode": "077",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.speculation": "false",
        "spark.redaction.regex": _REDACTED,
        "spark.sql.redaction.options.regex": _REDACTED,
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": f"{_folder()}/spark-warehouse",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.python.daemon.module": "spark_resources.daemon",
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": LOOPBACK,
        "spark.connect.grpc.binding.port": str(port),
        # Jobs of a killed client end soon after it: the server notices the end of a client
        # only when a stream ends.
        "spark.connect.execute.reattachable.senderMaxStreamDuration": "5s",
        "spark.connect.execute.manager.detachedTimeout": "5s",
        "spark.connect.execute.manager.maintenanceInterval": "1s",
        # Sessions have no code of their own; otherwise each would start its own Python workers.
        "spark.sql.artifact.isolation.enabled": "false",
        **settings.session_settings(),
        **(
            _local_settings(settings.master)
            if is_local(settings.master)
            else cluster_settings(settings, archive)
        ),
        **{name: str(value) for name, value in settings.spark_config.items()},
    }


def _local_settings(master: str) -> Mapping[str, str]:
    return {
        "spark.default.parallelism": str(_cores(master)),
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        # All users of this host reach the driver's ports, and tasks carry secrets of Kafka.
        # Spark creates a secret for a local master by itself.
        "spark.authenticate": "true",
    }


if __name__ == "__main__":
    main()
