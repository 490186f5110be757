"""The settings of one application's backups: the blocks of its YAML, resolved.

Each block of the YAML is one class. The reader of the YAML creates it and everything else uses it.
The keys are its attributes, with their defaults and bounds.
"""

import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Discriminator, Field, PrivateAttr, Tag, field_validator, model_validator

from kstreams_assets.app.governance import Governance
from kstreams_assets.app.model import AppTopic, StreamsApplication
from kstreams_assets.app.rules import CompletenessRule, Recomputation, TopicFormat
from kstreams_assets.app.store_format import StoreFormat
from kstreams_assets.block import LOCATED, Block, CronText, Seconds, refused
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.home import expanded
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.registry import RegistryConnection, problem_of_url
from kstreams_assets.kafka.throttle import Throttle, throttle
from kstreams_assets.layout import Warehouse
from kstreams_assets.secret import Secret
from kstreams_assets.store import ObjectStoreSettings, StorePath, place_at

LEAST_RATE: Final = 10_000
"""Bytes per second; with a limit near zero an operation would never end."""
COMMITS_ON_DEMAND_S: Final = 3.0
"""How long a point waits for commits that it can ask for."""
_MIB: Final = 1024**2
_HOUR_S: Final = 3_600


class DeclaredGuarantee(StrEnum):
    """The processing guarantee of the application; `auto`: derived from its records."""

    AUTO = "auto"
    EXACT = "exact"
    AT_LEAST_ONCE = "at_least_once"


class VerifyExtent(StrEnum):
    """How much is read back: every record, a `sample` of each partition, or only `counts`."""

    FULL = "full"
    SAMPLE = "sample"
    COUNTS = "counts"


class BackupSettings(Block):
    """How backups are written; the defaults fit most applications.

    Limits of bytes apply to all tasks of a process together; None: no limit.
    """

    windows_per_commit: ClassVar[int] = 200
    read_stall_s: ClassVar[float] = 30.0
    """How long a partition may deliver nothing while it is read."""

    compression: str = Field(default="zstd", description="zstd, snappy, lz4_raw, gzip or none.")
    compression_level: int = Field(default=2, description="For zstd; above 2 saves little.")
    commit_bytes: int = Field(
        default=4 * 1024**3,
        description="A long backfill commits about this many bytes at a time. A larger window is"
        " backed up in parts, each with its own commit.",
    )
    part_bytes: int = Field(
        default=256 * _MIB,
        ge=1,
        description="A part is a 25th of the rest of the window, at least this many bytes and at"
        " most commit_bytes. A kill costs at most one part.",
    )
    bytes_per_second: int | None = Field(
        default=None,
        ge=LEAST_RATE,
        description="Limit of bytes per second that are fetched from all brokers together, by all"
        " tasks of a process; counted as Kafka sends them, compressed. Recovery points are not"
        " throttled.",
        examples=[50_000_000],
    )
    broker_bytes_per_second: int | None = Field(
        default=None,
        ge=LEAST_RATE,
        description="Limit of bytes per second that are fetched from each broker.",
        examples=[10_000_000],
    )
    tasks: int | None = Field(
        default=None,
        ge=1,
        description="How many tasks read at a time, each one partition after the other. Default:"
        " as many as Spark has cores, or four in the process itself.",
        examples=[8],
    )
    lock_wait_seconds: float = Field(
        default=60.0, description="How long to wait for another run of the application."
    )
    stable_wait_seconds: float = Field(
        default=60.0, description="How long to wait for open transactions at a window's end."
    )
    scan_stall_seconds: float = Field(
        default=120.0,
        ge=1,
        allow_inf_nan=False,
        description="After the records are read, the logs are inspected to find out why offsets"
        " have no record. After this time without progress in a partition, the partition is left"
        " to the next run.",
    )
    scan_connections: int = Field(
        default=4, ge=1, description="How many partitions are inspected at the same time."
    )


class RecoveryPointSettings(Block):
    """How recovery points are taken and kept; the defaults fit most applications."""

    every_seconds: int = Field(
        default=10,
        ge=1,
        description="How often the sensor takes a point; Dagster checks every five seconds.",
    )
    objective_seconds: int | None = Field(
        default=None,
        description="Recovery point objective: maximum age of the newest point that can be"
        " restored with the application's own guarantee.",
        examples=[900],
    )
    commit_wait_seconds: float | None = Field(
        default=None,
        ge=0,
        le=600,
        allow_inf_nan=False,
        description="How long a point waits for commits of a running at-least-once application, so"
        " that it can be exact; meanwhile no other point is taken. Dagster's sensor waits up to 20"
        " s. 0: no point waits. Default: points of `follow` wait if the application commits so"
        " often that a point takes up to 10 s; others wait 3 s if `control_topic` or `control_urls`"
        " is set.",
        examples=[90],
    )
    keep_all_hours: float = Field(
        default=24.0,
        ge=0,
        allow_inf_nan=False,
        description="How long every point is kept. After that, the last point of each window is"
        " kept.",
    )
    seal_mib: int = Field(
        default=16,
        ge=0,
        description="How many MiB of the changelogs a point may save, so that it stays exact;"
        " counted as stored in Kafka and uncompressed. A recorder needs a small multiple of it as"
        " memory.",
    )
    closing_seal_mib: int = Field(
        default=256, ge=0, description="The same for the point at the end of a backup run."
    )
    lookback_seconds: float = Field(
        default=60.0,
        ge=1,
        allow_inf_nan=False,
        description="How long before the point transactions are searched: more than the"
        " application's transaction timeout plus the brokers' abort scan interval.",
    )
    other_groups: tuple[str, ...] = Field(
        default=(),
        description="Consumer groups, such as readers of outputs, whose committed offsets each"
        " point records. A group that cannot be read is left out of the point.",
        examples=[["billing"]],
    )
    journal_topic: str | None = Field(
        default=None,
        description="Commit journal that the companion of an at-least-once application writes"
        " (its property kstreams.assets.journal.topic). Default: the application id with the suffix"
        " -commit-journal.",
        examples=["shop-commits"],
    )
    control_topic: str | None = Field(
        default=None,
        description="Topic in which the companion of an at-least-once application reads requests to"
        " commit (its property kstreams.assets.control.topic). With it, a recorder asks for commits"
        " where it would wait for them. Default: it does not ask.",
        examples=["shop-commit-control"],
    )
    control_urls: tuple[str, ...] = Field(
        default=(),
        description="Instead of `control_topic`: http addresses at which the companion accepts"
        " these requests (its property kstreams.assets.control.http.address). A request goes to all"
        " addresses of each host name.",
        examples=[["http://shop-control:7071"]],
    )
    control_token: Secret | None = Field(
        default=None,
        description="Token for `control_urls` (the property kstreams.assets.control.http.token), as"
        " {env: NAME}, {file: PATH} or {aws: {name: NAME}}.",
        examples=[{"env": "SHOP_CONTROL_TOKEN"}],
    )

    def wait_s(self, longest_s: float = math.inf) -> float:
        """Return how long a point waits for commits if its caller does not say it, up to a limit.

        Commits on demand need no configured wait.
        """
        told = self.commit_wait_seconds
        asks = self.control_topic is not None or self.control_urls
        default = COMMITS_ON_DEMAND_S if asks else 0.0
        return min(default if told is None else told, longest_s)

    @model_validator(mode="after")
    def _check_objective(self) -> Self:
        if self.objective_seconds is not None and self.objective_seconds < self.every_seconds:
            raise refused(
                f".objective_seconds is {self.objective_seconds}.",
                f"Give a number of at least {self.every_seconds} (every_seconds).",
            )
        return self

    @field_validator("control_urls")
    @classmethod
    def _check_urls(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        # The value is not shown: it may contain a password.
        for number, url in enumerate(urls, 1):
            problem = problem_of_url(url, ["http"])
            if problem is None and (urlsplit(url).port is None or urlsplit(url).path.strip("/")):
                problem = "is not of the form http://host:port"
            if problem is not None:
                raise refused(
                    f": address {number} {problem}.",
                    "Set host and port, such as http://shop-control:7071.",
                )
        return urls

    @model_validator(mode="after")
    def _check_control(self) -> Self:
        if bool(self.control_urls) != (self.control_token is not None):
            raise refused(
                ".control_urls and .control_token must be set together; one is missing.",
                "Set both to send requests by HTTP, or neither.",
            )
        if self.control_urls and self.control_topic is not None:
            raise refused(
                ".control_topic and .control_urls are both set.",
                "Keep the one that the application reads.",
            )
        return self

    @property
    def keep_all_s(self) -> int:
        """How long every point is kept, in seconds."""
        return round(self.keep_all_hours * _HOUR_S)

    @property
    def seal_bytes(self) -> int:
        """How many bytes of the changelogs a point of the sensor may save to be sealed."""
        return self.seal_mib * _MIB

    @property
    def closing_seal_bytes(self) -> int:
        """How many bytes the point at the end of a backup run may save."""
        return self.closing_seal_mib * _MIB


@dataclass(frozen=True, slots=True)
class KeepLine:
    """One line of a policy: the last restorable point of each period is kept for `for_s` seconds.

    `name` is the name of the line (hourly, daily, weekly, monthly, yearly).
    """

    name: str
    for_s: int


class KeptLogs(StrEnum):
    """The records of inputs and outputs below the oldest kept point that are kept."""

    NEEDED = "needed"
    WHOLE = "whole"


_UNITS_S: Final = {
    "s": 1,
    "min": 60,
    "h": 3_600,
    "d": 86_400,
    "w": 7 * 86_400,
    "mo": 31 * 86_400,
    "y": 366 * 86_400,
}
_LINES: Final = ("hourly", "daily", "weekly", "monthly", "yearly")


def _seconds_of(text: str) -> int:
    found = re.fullmatch(r"(\d+) *([a-z]+)", text.strip())
    if found is not None and found[2] == "m":
        raise refused(
            f" is {text!r}: m could mean minutes or months.",
            f"Give {found[1]}min or {found[1]}mo (months of 31 days; earlier releases read m as"
            " months).",
        )
    if found is None or found[2] not in _UNITS_S:
        raise refused(
            f" is {text!r}.",
            "Give a number and a unit: min, h, d, w, mo (31 days) or y, for example 36h or 90d.",
        )
    return int(found[1]) * _UNITS_S[found[2]]


class KeepSettings(Block):
    """The points that `kstreams-assets expire` keeps; times as 90min, 36h, 7d, 4w, 6mo or 2y, not
    in m.

    If no point of a period restores exactly, the best one is kept.
    """

    all: str = Field(
        default="2d", description="How long every recovery point is kept.", examples=["2d"]
    )
    hourly: str | None = Field(
        default=None,
        description="How long the last restorable point of each hour is kept.",
        examples=["7d"],
    )
    daily: str | None = Field(
        default=None,
        description="The same for days (in the time zone of the windows).",
        examples=["90d"],
    )
    weekly: str | None = Field(default=None, description="The same for weeks, from Monday on.")
    monthly: str | None = Field(default=None, description="The same for months.")
    yearly: str | None = Field(default=None, description="The same for years.")
    minimum: int = Field(
        default=3,
        ge=1,
        description="At least this many exactly restorable points are kept, regardless of their"
        " age.",
    )
    logs: KeptLogs = Field(
        default=KeptLogs.NEEDED,
        description="needed: of inputs and outputs, the records that the application needs to"
        " continue from the oldest kept point; whole: all records that Kafka had at that time, for"
        " rebuilds from the inputs.",
    )
    every: CronText | None = Field(
        default=None,
        description="Cron schedule of expire (UTC); without it, you run expire by hand.",
        examples=["30 2 * * *"],
    )

    @field_validator("all", *_LINES)
    @classmethod
    def _check_duration(cls, text: str | None) -> str | None:
        if text is not None:
            _seconds_of(text)
        return text

    @property
    def all_s(self) -> int:
        """How long every point is kept, in seconds."""
        return _seconds_of(self.all)

    @property
    def lines(self) -> tuple[KeepLine, ...]:
        """The configured lines, from hours to years."""
        given = ((name, getattr(self, name)) for name in _LINES)
        return tuple(KeepLine(name, _seconds_of(text)) for name, text in given if text is not None)

    @property
    def keeps_whole_logs(self) -> bool:
        """Whether inputs and outputs are kept as Kafka had them at the oldest kept point."""
        return self.logs is KeptLogs.WHOLE


COMMAND_TIMEOUT_S: Final = 300.0
"""Time limit in seconds of a command before or after a restore."""


_NO_COMMAND: Final = (
    "Write program and arguments, for example kubectl scale deployment/orders --replicas=0."
)


def _command_problem(command: str | None) -> str | None:
    """The reason why a command cannot be run, to be appended to its name."""
    try:
        return None if command is None or shlex.split(command) else " has no program."
    except ValueError as error:
        return f" cannot be split into program and arguments: {error}."


def require_commands(before: str | None, after: str | None, timeout_s: float) -> None:
    """Refuse commands that cannot be run; raises ConfigurationError."""
    for name, command in (("before_command", before), ("after_command", after)):
        if (problem := _command_problem(command)) is not None:
            raise ConfigurationError(f"{name}{problem}", remedy=_NO_COMMAND)
    if not 0 < timeout_s < math.inf:
        raise ConfigurationError(
            f"The timeout of commands is {timeout_s:g}.",
            remedy="Give a number of seconds above 0.",
        )


class CommandSettings(Block):
    """The commands around restores to a target."""

    before_command: str | None = Field(
        default=None,
        description="A command that stops the application before a restore to this target, like"
        " --before-command, which takes precedence: program and arguments, no shell, no secrets."
        " Restores to another cluster, or under another application id, do not run it.",
        examples=["kubectl scale deployment/orders --replicas=0"],
    )
    after_command: str | None = Field(
        default=None,
        description="A command that starts the application after its group offsets are committed,"
        " like --after-command, which takes precedence.",
        examples=["kubectl scale deployment/orders --replicas=3"],
    )
    command_timeout_seconds: Seconds = Field(
        default=COMMAND_TIMEOUT_S,
        description="Time limit of each of these commands, and of the wait until the group's"
        " members have left.",
    )
    pass_on: tuple[str, ...] = Field(
        default=(),
        description="Names of variables that these commands get from the environment of the"
        " restore, in addition to PATH, HOME, USER, LOGNAME, LANG, LC_ALL, TZ, TMPDIR, JAVA_HOME,"
        " the address of Kubernetes and KUBECONFIG.",
        examples=[["AWS_PROFILE"]],
    )

    @field_validator("before_command", "after_command")
    @classmethod
    def _check_command(cls, command: str | None) -> str | None:
        if (problem := _command_problem(command)) is not None:
            raise refused(problem, _NO_COMMAND)
        return command


DEFAULT_TARGET: Final = "default"
"""Name of the target that `restore.target` describes."""
LOCAL: Final = "local"
"""Name of the target that is a throwaway cluster on this machine; needs no declaration."""
WINDOW_IN_PREFIX: Final = "{window}"


class TargetSettings(CommandSettings):
    """One target of restores."""

    connection: Annotated[KafkaConnection | None, LOCATED] = Field(
        default=None,
        description="The cluster, in the form of `connection`. Without it, a throwaway cluster on"
        " this machine.",
    )
    prefix: str = Field(
        default="",
        description="Prefix of topic names and of the application id on this target. {window} is"
        " the key of the restored window: with it, restores of several windows can be compared on"
        " one cluster.",
        examples=["{window}."],
    )

    @field_validator("prefix")
    @classmethod
    def _check_prefix(cls, prefix: str) -> str:
        if re.fullmatch(r"[A-Za-z0-9._-]*", prefix.replace(WINDOW_IN_PREFIX, "")) is None:
            raise refused(
                f" is {prefix!r}.",
                "Give letters, digits, '.', '_', '-' and {window}, for example {window}.",
            )
        return prefix

    @model_validator(mode="after")
    def _check_local(self) -> Self:
        if self.connection is None and (self.before_command or self.after_command):
            raise refused(
                " has a command but no connection.",
                "Remove the command: no application runs on a throwaway cluster.",
            )
        return self

    @property
    def is_per_window(self) -> bool:
        """Whether each window has its own topics and group on this target."""
        return WINDOW_IN_PREFIX in self.prefix

    def prefix_of(self, window: str) -> str:
        """The prefix for a window, by its key, in characters that topic names may contain."""
        return self.prefix.replace(WINDOW_IN_PREFIX, re.sub(r"[^A-Za-z0-9._-]", "-", window))

    def may_be_group(self, group: str, application_id: str) -> bool:
        """Whether restores to this target may use this group, by its prefix."""
        any_window = re.escape(self.prefix).replace(re.escape(WINDOW_IN_PREFIX), "[A-Za-z0-9._-]+")
        return re.fullmatch(any_window + re.escape(application_id), group) is not None


def _is_name(given: object) -> str:
    return "str" if isinstance(given, str) else "KafkaConnection"


_TargetOrName = Annotated[
    Annotated[str, Tag("str")] | Annotated[KafkaConnection, Tag("KafkaConnection")],
    Discriminator(_is_name),
]


class RestoreSettings(CommandSettings):
    """How restores run, and to which target; the defaults fit most applications.

    The commands apply to restores to the cluster in `target`.
    """

    target: Annotated[_TargetOrName | None, LOCATED] = Field(
        default=None,
        description="Default target of restores: the name of one of `targets`, or a cluster in the"
        " form of `connection`, which becomes the target `default`. Without it, the default is the"
        " only one of `targets`.",
        examples=["dr"],
    )
    compression: Literal["none", "lz4", "zstd", "snappy", "gzip"] = Field(
        default="none",
        description="Compression of the producer: none, lz4, zstd, snappy or gzip; none is fastest"
        " on a fast network.",
    )
    verify: VerifyExtent = Field(
        default=VerifyExtent.FULL,
        description="Which records are read back and compared: every record, a sample of each"
        " partition, or only counts.",
    )
    delivery_timeout_seconds: float = Field(
        default=120.0,
        ge=1,
        allow_inf_nan=False,
        description="How long a record may take to be acknowledged before the restore gives up.",
    )
    lock_wait_seconds: float = Field(
        default=60.0,
        ge=0,
        allow_inf_nan=False,
        description="How long to wait for another restore of the same group on the target.",
    )
    bytes_per_second: int | None = Field(
        default=None,
        ge=LEAST_RATE,
        description="Limit of bytes per second that are produced to and read back from all brokers"
        " together, by all tasks of a process; completeness rules on the target count, too.",
        examples=[50_000_000],
    )
    broker_bytes_per_second: int | None = Field(
        default=None,
        ge=LEAST_RATE,
        description="Limit of bytes per second that are produced to and read back from each"
        " broker; replication among brokers is not counted.",
        examples=[10_000_000],
    )
    tasks: int | None = Field(
        default=None,
        ge=1,
        description="How many tasks write, and then read back, at a time. Default: as many as"
        " Spark has cores.",
        examples=[8],
    )


_EVERY: Final = {"minute": "* * * * *", "hour": "0 * * * *", "day": "0 0 * * *"}


class WindowSchedule(Block):
    """How wall-clock time is divided into windows.

    Windows shorter than a day are in UTC, because a local hour may occur twice.
    """

    period: str = Field(
        validation_alias="every",
        description="`minute`, `hour`, `day`, or a cron schedule of five fields.",
        examples=["hour", "*/15 * * * *"],
    )
    start: str | None = Field(
        default=None,
        description="The first window: a date, or a date and time (never move it later). Default:"
        " the window in which the application was first seen.",
        examples=["2026-11-01", "2026-11-01-13:30"],
    )
    timezone: str = Field(default="UTC", description="Only for windows of a day or more.")
    _first_seen_ms: Callable[[], int | None] | None = PrivateAttr(default=None)

    @classmethod
    def every(cls, period: str, *, start: str | None = None, timezone: str = "UTC") -> Self:
        """Windows of a `minute`, an `hour`, a `day`, or of any cron schedule.

        Raises:
            ConfigurationError: The period is invalid, or a time zone is given for short windows.
        """
        return cls.model_validate({"every": period, "start": start, "timezone": timezone})

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.cron.split()) != 5:
            raise ConfigurationError(
                f"windows.every is {self.period!r}.",
                remedy="Give minute, hour, day, or a cron schedule of five fields.",
            )
        if self.timezone != "UTC" and not self.is_daily:
            raise ConfigurationError(
                f"windows.timezone is {self.timezone!r} for windows shorter than a day"
                f" ({self.cron}).",
                remedy="Remove the time zone: in a local one an hour can occur twice.",
            )
        return self

    @property
    def cron(self) -> str:
        """The cron schedule on which windows start and end."""
        return _EVERY.get(self.period, self.period)

    @property
    def is_daily(self) -> bool:
        """Whether no window is shorter than a day."""
        minute, hour, *_ = self.cron.split()
        return minute.isdigit() and hour.isdigit()

    def seen_since(self, first_seen_ms: Callable[[], int | None]) -> Self:
        """A copy whose first window, without `start`, contains this time (epoch milliseconds)."""
        schedule = self.model_copy()
        schedule._first_seen_ms = first_seen_ms  # noqa: SLF001 (its own class)
        return schedule

    def first_seen_ms(self) -> int | None:
        """When the application was first seen; None before that: the open window is the first."""
        return None if self._first_seen_ms is None else self._first_seen_ms()


PLACEHOLDERS: Final = {
    "client_properties": "a file with bootstrap.servers, the password and all other settings of a"
    " Kafka client of the drill's cluster, as Java properties",
    "bootstrap_servers": "host:port of the drill's cluster",
    "sasl_jaas_config": "the cluster's sasl.jaas.config, in environment only; security.protocol is"
    " SASL_PLAINTEXT, sasl.mechanism PLAIN",
    "application_id": "the application.id",
    "state_dir": "an empty folder for state.dir",
    "python": "the Python that runs the drill",
}
"""The placeholders in commands and environments of drills, and their values."""
PLACEHOLDER: Final = re.compile(r"\{([A-Za-z_]+)\}")
_CLUSTER: Final = ("bootstrap_servers", "client_properties")
_PASSWORD: Final = ("client_properties", "sasl_jaas_config")


class DrillSettings(Block):
    """How restore drills of the application run.

    The application starts on the drill's cluster, where all topics have their original names.
    Unless `open_cluster` is set, the cluster requires a password; the file `{client_properties}`
    contains it.
    """

    command: tuple[str, ...] = Field(
        default=(),
        description="Program and arguments that start the application in a drill;"
        " {client_properties} (a file with bootstrap.servers, the password and all other settings"
        " of a client of the drill's cluster), {bootstrap_servers}, {application_id}, {state_dir}"
        " and {python} are replaced.",
        examples=[["java", "-jar", "shop.jar", "--properties", "{client_properties}"]],
    )
    environment: dict[str, str] = Field(
        default={},
        description="Environment of the application; the same placeholders are replaced, and"
        " {sasl_jaas_config} (with security.protocol SASL_PLAINTEXT and sasl.mechanism PLAIN).",
    )
    pass_on: tuple[str, ...] = Field(
        default=(),
        description="Names of variables that the application gets from the drill's own"
        " environment, in addition to PATH, HOME, USER, LOGNAME, LANG, LC_ALL, TZ, TMPDIR and"
        " JAVA_HOME.",
        examples=[["KEYSTORE_PASSWORD"]],
    )
    working_directory: str | None = Field(
        default=None,
        description="Where it runs, relative to this file; by default where the drill runs.",
    )
    open_cluster: bool = Field(
        default=False,
        description="The drill's cluster accepts clients without a password, for an application"
        " that cannot use one. Every user of the machine can read the restored records during the"
        " drill.",
    )
    running_line: str = Field(
        default=r"State transition from REBALANCING to RUNNING",
        description="Regular expression of the log line in which the application reports RUNNING.",
    )
    start_timeout_seconds: Seconds = Field(
        default=300.0, description="Time limit until it is RUNNING with restored stores."
    )
    catch_up_timeout_seconds: Seconds = Field(
        default=900.0, description="Time limit from then until its lag is zero."
    )
    objective_seconds: Seconds | None = Field(
        default=None,
        description="Recovery time objective: from the start of the restore until the application"
        " has caught up.",
        examples=[900],
    )
    every: CronText | None = Field(
        default=None,
        description="Cron schedule of drills (UTC); without it, you start drills by hand.",
        examples=["0 4 * * 0"],
    )

    @field_validator("running_line")
    @classmethod
    def _check_line(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise refused(
                f" is {pattern!r}: {error}.", "Give a Python regular expression."
            ) from None
        return pattern

    @model_validator(mode="after")
    def _check_command(self) -> Self:
        if not self.command:
            if self.every is not None:
                raise refused(
                    ".every is set, but drill.command is missing.",
                    "Set drill.command: program and arguments that start the application.",
                )
            return self
        used = {*_used((*self.command, *self.environment.values()))}
        unknown = sorted(used - PLACEHOLDERS.keys())
        if unknown:
            known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
            raise refused(
                f".command has the unknown placeholder {{{unknown[0]}}}.",
                f"Known placeholders: {known}.",
            )
        if "sasl_jaas_config" in _used(self.command):
            raise refused(
                ".command has {sasl_jaas_config}: every user of the machine could read it.",
                "Pass it in drill.environment, or use {client_properties}.",
            )
        _require_one(("state_dir",), used, "or it may find old state")
        _require_one(_CLUSTER, used, "or it would start on its own cluster")
        if not self.open_cluster:
            _require_one(
                _PASSWORD,
                used,
                "whose cluster requires a password. If it cannot use one, set drill.open_cluster:"
                " any user of this machine can then read the restored records while the drill"
                " runs",
            )
        return self

    def in_folder(self, folder: Path) -> Self:
        """A copy for a YAML in this folder."""
        if self.working_directory is None:
            return self
        directory = (folder / expanded(self.working_directory)).resolve()
        return self.model_copy(update={"working_directory": str(directory)})


def _used(texts: Iterable[str]) -> list[str]:
    return [name for text in texts for name in PLACEHOLDER.findall(text)]


def _require_one(names: tuple[str, ...], used: set[str], why: str) -> None:
    if used.isdisjoint(names):
        texts = " or ".join(f"{{{name}}}" for name in names)
        raise refused(
            f": neither drill.command nor drill.environment contains {texts}.",
            f"Pass it to the application, {why}.",
        )


class SecondCopySettings(Block):
    """A second copy of the warehouse, best in another account."""

    to: str | None = Field(
        default=None,
        description="A folder, or s3://bucket/prefix.",
        examples=["s3://backup-copies/shop"],
    )
    every: CronText | None = Field(
        default=None,
        description="Cron schedule (UTC) of updates of the copy.",
        examples=["15 * * * *"],
    )
    bytes_per_second: int | None = Field(
        default=None,
        ge=LEAST_RATE,
        description="Limit of bytes per second that are copied.",
        examples=[20_000_000],
    )
    object_store: Annotated[ObjectStoreSettings | None, LOCATED] = Field(
        default=None,
        description="Connection settings of the copy's store, for example another profile; null:"
        " those of the warehouse.",
    )

    @model_validator(mode="after")
    def _check_place(self) -> Self:
        if self.every is not None and self.to is None:
            raise refused(".every is set, but second_copy.to is missing.", "Set second_copy.to.")
        return self

    def beside(self, of_warehouse: ObjectStoreSettings) -> Self:
        """A copy for a warehouse whose store has these settings; raises ConfigurationError."""
        copy = self.model_copy(update={"object_store": self.object_store or of_warehouse})
        _ = copy.place  # refuses paths that libraries read differently
        return copy

    @property
    def place(self) -> StorePath | None:
        """Where the copy is; None without a copy."""
        return None if self.to is None else place_at(self.to, self.object_store)


class ExecutorSettings(Block):
    """Where tasks run that read Kafka: in the Python process itself, or on Spark."""

    from_offsets: int = Field(
        default=100_000,
        ge=0,
        description="Reads of at least this many offsets run on Spark. Smaller ones run in the"
        " Python process itself, which needs neither jars nor Java. 0: always Spark.",
        examples=[0, 1_000_000],
    )

    def needs_spark(self, offsets: int) -> bool:
        """Whether a read of this many offsets runs on Spark."""
        return offsets >= self.from_offsets


class VerifySettings(Block):
    """When a schedule checks the warehouse for missing or altered files."""

    every: CronText | None = Field(
        default=None,
        description="Cron schedule (UTC) of quick checks, or with `sample` of checks that read a"
        " share of the files.",
        examples=["0 4 * * *"],
    )
    full_every: CronText | None = Field(
        default=None,
        description="Cron schedule (UTC) of checks that read every file.",
        examples=["0 5 * * 0"],
    )
    sample: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of the files that a check of `every` reads, those read longest ago"
        " first; 0 for a quick check.",
        examples=[0.1],
    )
    bytes_per_second: int | None = Field(
        default=None,
        ge=LEAST_RATE,
        description="Limit of bytes per second that are read from files; without it, no limit.",
    )


WAREHOUSE_STORE: Final = "warehouse_store"
"""Key of the resource through which Dagster's assets access the object store of a warehouse."""


@dataclass(frozen=True, slots=True)
class ApplicationSettings:
    """One application: its topology and connection, which topics are backed up, when and where."""

    application: StreamsApplication
    topics: tuple[AppTopic, ...]
    """The topics that are backed up."""
    connection: KafkaConnection
    warehouse: Warehouse
    windows: WindowSchedule
    backup: BackupSettings = field(default_factory=BackupSettings)
    recovery_points: RecoveryPointSettings = field(default_factory=RecoveryPointSettings)
    guarantee: DeclaredGuarantee = DeclaredGuarantee.AUTO
    """The required guarantee of recovery points, see `RecoveryPointTable.yardstick`."""
    keep: KeepSettings | None = None
    """The policy of `expire`; None keeps everything."""
    restore: RestoreSettings = field(default_factory=RestoreSettings)
    targets: Mapping[str, TargetSettings] = field(default_factory=dict)
    """The targets of restores by name, without the one in `restore.target`."""
    store_formats: Mapping[str, StoreFormat] = field(default_factory=dict)
    """The formats of stores that the user declares, by store name."""
    without_ktable: frozenset[str] = frozenset()
    """Stores without tables."""
    topic_formats: Mapping[str, TopicFormat] = field(default_factory=dict)
    """The formats of topics whose records the user describes, by topic."""
    completeness: tuple[CompletenessRule, ...] = ()
    """The user's rules that detect lost records."""
    recomputed: tuple[Recomputation, ...] = ()
    """Stores that are recomputed from their inputs and compared."""
    governance: Governance = field(default_factory=Governance)
    drill: DrillSettings = field(default_factory=DrillSettings)
    second_copy: SecondCopySettings = field(default_factory=SecondCopySettings)
    verify: VerifySettings = field(default_factory=VerifySettings)
    spark: ExecutorSettings = field(default_factory=ExecutorSettings)
    registry: RegistryConnection | None = None
    """The schema registry of the application's Avro and Protobuf records."""
    sensors_running: bool = False
    """Whether the sensors (recovery points, backups, follow-up) run from the start."""
    object_store_resource: str = WAREHOUSE_STORE
    """Key of the `S3Resource` of the warehouse in Dagster."""
    owners: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    description: str = ""

    @property
    def application_id(self) -> str:
        """The Kafka Streams `application.id`."""
        return self.application.application_id

    @property
    def declared_targets(self) -> Mapping[str, TargetSettings]:
        """The targets of restores by name; a cluster in `restore.target` is `DEFAULT_TARGET`."""
        restore = self.restore
        if not isinstance(restore.target, KafkaConnection):
            return self.targets
        commands = {name: getattr(restore, name) for name in CommandSettings.model_fields}
        own = TargetSettings(connection=restore.target, **commands)
        return {DEFAULT_TARGET: own, **self.targets}

    @property
    def default_target(self) -> str | None:
        """Name of the target of restores that name none; None if no target is the default."""
        if self.restore.target is None:
            return next(iter(self.targets)) if len(self.targets) == 1 else None
        return self.restore.target if isinstance(self.restore.target, str) else DEFAULT_TARGET

    @property
    def throttle_of_restores(self) -> Throttle | None:
        """The byte limit of everything that a restore moves; None without a limit."""
        restore = self.restore
        return throttle(
            f"restore {self.application_id}",
            restore.bytes_per_second,
            restore.broker_bytes_per_second,
            tasks=restore.tasks,
        )
