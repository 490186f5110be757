"""Everything that is configured about one application's backups: the blocks of its YAML, resolved.

Each block of the YAML is one class, which its reader makes and everything else uses: the keys are
its attributes, with their defaults and bounds.
"""

import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Discriminator, Field, PrivateAttr, Tag, field_validator, model_validator

from kstreams_assets.app.governance import Governance
from kstreams_assets.app.model import AppTopic, StreamsApplication
from kstreams_assets.app.rules import CompletenessRule, Recomputation, TopicFormat
from kstreams_assets.app.store_format import StoreFormat
from kstreams_assets.block import LOCATED, Block, CronText, Seconds, refused
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.home import expanded
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.registry import RegistryConnection
from kstreams_assets.kafka.throttle import Throttle, throttle
from kstreams_assets.layout import Warehouse
from kstreams_assets.store import ObjectStoreSettings, StorePath, place_at

LEAST_RATE: Final = 10_000
"""Bytes per second; a limit of next to nothing would never end."""
_MIB: Final = 1024**2
_HOUR_S: Final = 3_600


class DeclaredGuarantee(StrEnum):
    """What the application guarantees itself; `auto`: as its records show."""

    AUTO = "auto"
    EXACT = "exact"
    AT_LEAST_ONCE = "at_least_once"


class VerifyExtent(StrEnum):
    """How much is read back: every record, a `sample` of each partition, or `counts` alone."""

    FULL = "full"
    SAMPLE = "sample"
    COUNTS = "counts"


class BackupSettings(Block):
    """How backups are written; defaults fit most applications.

    Limits of bytes hold for all tasks of a process together; None: no limit.
    """

    windows_per_commit: ClassVar[int] = 200
    few_offsets: ClassVar[int] = 100_000
    """Up to so many are read in the process itself, sooner than a Spark job begins."""
    read_stall_s: ClassVar[float] = 30.0
    """How long a partition may give nothing while it is read."""

    compression: str = Field(default="zstd", description="zstd, snappy, lz4_raw, gzip or none.")
    compression_level: int = Field(default=2, description="For zstd; above 2 buys little.")
    commit_bytes: int = Field(
        default=4 * 1024**3,
        description="A long backfill commits about this many bytes at a time; a window of more is"
        " backed up in parts, each a commit.",
    )
    part_bytes: int = Field(
        default=256 * _MIB,
        ge=1,
        description="A part is a 25th of what is left of the window, but this many bytes at least"
        " and commit_bytes at most: what a kill costs.",
    )
    bytes_per_second: int | None = Field(
        default=None,
        ge=LEAST_RATE,
        description="No more is fetched from all brokers together, by all tasks of a process;"
        " counted as Kafka sends it, compressed. Recovery points are not throttled.",
        examples=[50_000_000],
    )
    broker_bytes_per_second: int | None = Field(
        default=None,
        ge=LEAST_RATE,
        description="No more is fetched from each broker.",
        examples=[10_000_000],
    )
    tasks: int | None = Field(
        default=None,
        ge=1,
        description="How many tasks read at a time, each one partition after the other; without it"
        " as many as Spark has cores, in the process itself four.",
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
        description="After the records are read, the logs are looked at for why offsets have none."
        " How long that may go without progress in a partition, before it is left to the next run.",
    )
    scan_connections: int = Field(
        default=4, ge=1, description="How many partitions are looked at side by side then."
    )


class RecoveryPointSettings(Block):
    """How recovery points are taken and kept; defaults fit most applications."""

    every_seconds: int = Field(
        default=10,
        ge=1,
        description="How often the sensor takes a point; Dagster looks every five seconds.",
    )
    objective_seconds: int | None = Field(
        default=None,
        description="Recovery point objective: how old the newest point may be that can be restored"
        " and gives what the application itself guarantees.",
        examples=[900],
    )
    keep_all_hours: float = Field(
        default=24.0,
        ge=0,
        allow_inf_nan=False,
        description="For how long every point is kept; then the last of each window.",
    )
    seal_mib: int = Field(
        default=16,
        ge=0,
        description="How much of the changelogs a point may save, so that it stays exact; counted"
        " as stored in Kafka and uncompressed. The memory that a recorder needs is a small multiple"
        " of it.",
    )
    closing_seal_mib: int = Field(
        default=256, ge=0, description="The same for the point at the end of a backup run."
    )
    lookback_seconds: float = Field(
        default=60.0,
        ge=1,
        allow_inf_nan=False,
        description="How long before the point transactions are looked for: above the"
        " application's transaction timeout plus the brokers' abort scan interval.",
    )
    other_groups: tuple[str, ...] = Field(
        default=(),
        description="Consumer groups, such as readers of outputs, whose committed offsets each"
        " point records. A group that cannot be read is left out of the point.",
        examples=[["billing"]],
    )

    @model_validator(mode="after")
    def _check_objective(self) -> Self:
        if self.objective_seconds is not None and self.objective_seconds < self.every_seconds:
            raise refused(
                f".objective_seconds is {self.objective_seconds}.",
                f"Give a number of at least {self.every_seconds} (every_seconds).",
            )
        return self

    @property
    def keep_all_s(self) -> int:
        """For how long every point is kept, in seconds."""
        return round(self.keep_all_hours * _HOUR_S)

    @property
    def seal_bytes(self) -> int:
        """How much of the changelogs a point of the sensor may save to be sealed."""
        return self.seal_mib * _MIB

    @property
    def closing_seal_bytes(self) -> int:
        """What the point at the end of a backup run may save."""
        return self.closing_seal_mib * _MIB


@dataclass(frozen=True, slots=True)
class KeepLine:
    """One line of a policy: the last restorable point of each period, for `for_s` seconds.

    `name` is that of the line (hourly, daily, weekly, monthly, yearly).
    """

    name: str
    for_s: int


class KeptLogs(StrEnum):
    """What stays of inputs and outputs below the oldest kept point."""

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
            f" is {text!r}: m may mean minutes or months.",
            f"Give {found[1]}min or {found[1]}mo (months of 31 days; earlier releases took m for"
            " months).",
        )
    if found is None or found[2] not in _UNITS_S:
        raise refused(
            f" is {text!r}.",
            "Give a number and a unit: min, h, d, w, mo (31 days) or y, as 36h or 90d.",
        )
    return int(found[1]) * _UNITS_S[found[2]]


class KeepSettings(Block):
    """What `kstreams-assets expire` keeps; times as 90min, 36h, 7d, 4w, 6mo or 2y, not in m.

    Where no point of a period restores exactly, the best there is stays.
    """

    all: str = Field(
        default="2d", description="For how long every recovery point is kept.", examples=["2d"]
    )
    hourly: str | None = Field(
        default=None,
        description="For how long the last restorable point of each hour is kept.",
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
        description="So many points that restore exactly stay, however old they are.",
    )
    logs: KeptLogs = Field(
        default=KeptLogs.NEEDED,
        description="needed: of inputs and outputs what the application needs to go on from the"
        " oldest kept point; whole: what Kafka held of them then, for rebuilds from the inputs.",
    )
    every: CronText | None = Field(
        default=None,
        description="Cron schedule of expire (UTC); without it, it is run by hand.",
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
        """For how long every point is kept, in seconds."""
        return _seconds_of(self.all)

    @property
    def lines(self) -> tuple[KeepLine, ...]:
        """The lines that are given, from hours to years."""
        given = ((name, getattr(self, name)) for name in _LINES)
        return tuple(KeepLine(name, _seconds_of(text)) for name, text in given if text is not None)

    @property
    def keeps_whole_logs(self) -> bool:
        """Whether inputs and outputs stay as Kafka held them at the oldest kept point."""
        return self.logs is KeptLogs.WHOLE


COMMAND_TIMEOUT_S: Final = 300.0
"""Seconds that a command before or after a restore may take."""


_NO_COMMAND: Final = "Write it as for a shell, as kubectl scale deployment/orders --replicas=0."


def _command_problem(command: str | None) -> str | None:
    """Why a command cannot be run, to continue its name."""
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
        description="A command that stops the application before a restore to this target, as"
        " --before-command, which wins: program and arguments, no shell, no secrets. Restores to"
        " another cluster, or under another application id, do not run it.",
        examples=["kubectl scale deployment/orders --replicas=0"],
    )
    after_command: str | None = Field(
        default=None,
        description="A command that starts it once its group offsets are committed, as"
        " --after-command, which wins.",
        examples=["kubectl scale deployment/orders --replicas=3"],
    )
    command_timeout_seconds: Seconds = Field(
        default=COMMAND_TIMEOUT_S,
        description="How long each of these commands may take, and the group's members to leave.",
    )
    pass_on: tuple[str, ...] = Field(
        default=(),
        description="Names of variables that these commands get from the environment of the"
        " restore, besides PATH, HOME, USER, LOGNAME, LANG, LC_ALL, TZ, TMPDIR, JAVA_HOME, the"
        " address of Kubernetes and KUBECONFIG.",
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
        description="Goes before the names of topics and before the application id on this target."
        " {window} is the window that is restored: restores of several windows are side by side.",
        examples=["{window}."],
    )

    @field_validator("prefix")
    @classmethod
    def _check_prefix(cls, prefix: str) -> str:
        if re.fullmatch(r"[A-Za-z0-9._-]*", prefix.replace(WINDOW_IN_PREFIX, "")) is None:
            raise refused(
                f" is {prefix!r}.", "Give letters, digits, '.', '_', '-' and {window}, as {window}."
            )
        return prefix

    @model_validator(mode="after")
    def _check_local(self) -> Self:
        if self.connection is None and (self.before_command or self.after_command):
            raise refused(
                " has a command and no connection.",
                "Leave the command out: no application runs on a throwaway cluster.",
            )
        return self

    @property
    def is_per_window(self) -> bool:
        """Whether each window has topics and a group of its own there."""
        return WINDOW_IN_PREFIX in self.prefix

    def prefix_of(self, window: str) -> str:
        """The prefix for a window, by its key, in characters that names of topics may have."""
        return self.prefix.replace(WINDOW_IN_PREFIX, re.sub(r"[^A-Za-z0-9._-]", "-", window))

    def may_be_group(self, group: str, application_id: str) -> bool:
        """Whether restores to this target may have this group, by its prefix."""
        any_window = re.escape(self.prefix).replace(re.escape(WINDOW_IN_PREFIX), "[A-Za-z0-9._-]+")
        return re.fullmatch(any_window + re.escape(application_id), group) is not None


def _is_name(given: object) -> str:
    return "str" if isinstance(given, str) else "KafkaConnection"


_TargetOrName = Annotated[
    Annotated[str, Tag("str")] | Annotated[KafkaConnection, Tag("KafkaConnection")],
    Discriminator(_is_name),
]


class RestoreSettings(CommandSettings):
    """Where to and how restores go; defaults fit most applications.

    The commands are those of restores to the cluster in `target`.
    """

    target: Annotated[_TargetOrName | None, LOCATED] = Field(
        default=None,
        description="Where restores go that name no target: the name of one of `targets`, or a"
        " cluster in the form of `connection`, which is the target `default`. Without it, the only"
        " one of `targets`.",
        examples=["dr"],
    )
    compression: Literal["none", "lz4", "zstd", "snappy", "gzip"] = Field(
        default="none",
        description="Of the producer: none, lz4, zstd, snappy or gzip; none is fastest on a fast"
        " network.",
    )
    verify: VerifyExtent = Field(
        default=VerifyExtent.FULL,
        description="What is read back and compared: every record, a sample of each partition, or"
        " counts alone.",
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
        description="No more is produced to and read back from all brokers together, by all tasks"
        " of a process; completeness rules on the target count too.",
        examples=[50_000_000],
    )
    broker_bytes_per_second: int | None = Field(
        default=None,
        ge=LEAST_RATE,
        description="No more is produced to and read back from each broker; what brokers copy"
        " among themselves is not counted.",
        examples=[10_000_000],
    )
    tasks: int | None = Field(
        default=None,
        ge=1,
        description="How many tasks write, and then read back, at a time; without it as many as"
        " Spark has cores.",
        examples=[8],
    )


_EVERY: Final = {"minute": "* * * * *", "hour": "0 * * * *", "day": "0 0 * * *"}


class WindowSchedule(Block):
    """How wall-clock time is cut into windows.

    Windows of under a day are in UTC, since a local hour may come twice.
    """

    period: str = Field(
        validation_alias="every",
        description="`minute`, `hour`, `day`, or a cron schedule of five fields.",
        examples=["hour", "*/15 * * * *"],
    )
    start: str | None = Field(
        default=None,
        description="The first window: a date, or a date and time (never move it later). Without"
        " it, the window in which the application was first seen.",
        examples=["2026-11-01", "2026-11-01-13:30"],
    )
    timezone: str = Field(default="UTC", description="Only for windows of a day or more.")
    _first_seen_ms: Callable[[], int | None] | None = PrivateAttr(default=None)

    @classmethod
    def every(cls, period: str, *, start: str | None = None, timezone: str = "UTC") -> Self:
        """Windows of a `minute`, an `hour`, a `day`, or of any cron schedule.

        Raises:
            ConfigurationError: The period is neither, or a time zone is given for short windows.
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
                f"windows.timezone is {self.timezone!r} for windows of under a day ({self.cron}).",
                remedy="Leave the time zone out: in a local one an hour can come twice.",
            )
        return self

    @property
    def cron(self) -> str:
        """When windows begin and end."""
        return _EVERY.get(self.period, self.period)

    @property
    def is_daily(self) -> bool:
        """Whether no window is shorter than a day."""
        minute, hour, *_ = self.cron.split()
        return minute.isdigit() and hour.isdigit()

    def seen_since(self, first_seen_ms: Callable[[], int | None]) -> Self:
        """The same, whose first window without `start` is that of these epoch milliseconds."""
        schedule = self.model_copy()
        schedule._first_seen_ms = first_seen_ms  # noqa: SLF001 (its own class)
        return schedule

    def first_seen_ms(self) -> int | None:
        """When the application was first seen; None before that: the open window is the first."""
        return None if self._first_seen_ms is None else self._first_seen_ms()


PLACEHOLDERS: Final = {
    "client_properties": "a file with bootstrap.servers, the password and all else a Kafka client"
    " of the drill's cluster needs, as Java properties",
    "bootstrap_servers": "host:port of the drill's cluster",
    "sasl_jaas_config": "the cluster's sasl.jaas.config, in environment only; security.protocol is"
    " SASL_PLAINTEXT, sasl.mechanism PLAIN",
    "application_id": "the application.id",
    "state_dir": "an empty folder for state.dir",
    "python": "the Python that runs the drill",
}
"""What stands in braces in a command or an environment of a drill, and what it becomes."""
PLACEHOLDER: Final = re.compile(r"\{([A-Za-z_]+)\}")
_CLUSTER: Final = ("bootstrap_servers", "client_properties")
_PASSWORD: Final = ("client_properties", "sasl_jaas_config")


class DrillSettings(Block):
    """How restore drills of the application go.

    The application starts on the drill's cluster, where each topic's name is as it was. The cluster
    listens with a password, which the file `{client_properties}` holds, unless `open_cluster` is
    set.
    """

    command: tuple[str, ...] = Field(
        default=(),
        description="Program and arguments that start the application in a drill;"
        " {client_properties} (a file with bootstrap.servers, the password and all else a client of"
        " the drill's cluster needs), {bootstrap_servers}, {application_id}, {state_dir} and"
        " {python} are filled in.",
        examples=[["java", "-jar", "shop.jar", "--properties", "{client_properties}"]],
    )
    environment: dict[str, str] = Field(
        default={},
        description="Environment of the application; the same is filled in, and"
        " {sasl_jaas_config} (with security.protocol SASL_PLAINTEXT and sasl.mechanism PLAIN).",
    )
    pass_on: tuple[str, ...] = Field(
        default=(),
        description="Names of variables that the application gets from the drill's own environment,"
        " besides PATH, HOME, USER, LOGNAME, LANG, LC_ALL, TZ, TMPDIR and JAVA_HOME.",
        examples=[["KEYSTORE_PASSWORD"]],
    )
    working_directory: str | None = Field(
        default=None, description="Where it runs, relative to this file; without it, as the drill."
    )
    open_cluster: bool = Field(
        default=False,
        description="The drill's cluster listens without a password, for an application that cannot"
        " take one. Every user of the machine can read the restored records during the drill.",
    )
    running_line: str = Field(
        default=r"State transition from REBALANCING to RUNNING",
        description="Regular expression of the line by which the application says it is RUNNING.",
    )
    start_timeout_seconds: Seconds = Field(
        default=300.0, description="How long it may take until it is RUNNING, its stores restored."
    )
    catch_up_timeout_seconds: Seconds = Field(
        default=900.0, description="How long it may take from there until its lag is zero."
    )
    objective_seconds: Seconds | None = Field(
        default=None,
        description="Recovery time objective: from the begin of the restore to caught up.",
        examples=[900],
    )
    every: CronText | None = Field(
        default=None,
        description="Cron schedule of drills (UTC); without it, drills are started by hand.",
        examples=["0 4 * * 0"],
    )

    @field_validator("running_line")
    @classmethod
    def _check_line(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise refused(
                f" is {pattern!r}: {error}.", "Give a regular expression of Python."
            ) from None
        return pattern

    @model_validator(mode="after")
    def _check_command(self) -> Self:
        if not self.command:
            if self.every is not None:
                raise refused(
                    ".every is given, but no drill.command.",
                    "Give drill.command: program and arguments that start the application.",
                )
            return self
        used = {*_used((*self.command, *self.environment.values()))}
        unknown = sorted(used - PLACEHOLDERS.keys())
        if unknown:
            known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
            raise refused(
                f".command has {{{unknown[0]}}}, which is not known.", f"Known are {known}."
            )
        if "sasl_jaas_config" in _used(self.command):
            raise refused(
                ".command has {sasl_jaas_config}: every user of the machine could read it.",
                "Hand it over in drill.environment, or use {client_properties}.",
            )
        _require_one(("state_dir",), used, "or it may find old state")
        _require_one(_CLUSTER, used, "or it would start on its own cluster")
        if not self.open_cluster:
            _require_one(
                _PASSWORD,
                used,
                "whose cluster listens with a password. Where it cannot take one, set"
                " drill.open_cluster: any user of this machine can then read the restored records"
                " while the drill runs",
            )
        return self

    def in_folder(self, folder: Path) -> Self:
        """The same, of a YAML in this folder."""
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
            f": neither drill.command nor drill.environment has {texts}.",
            f"Hand it to the application, {why}.",
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
        description="When it is brought up to date by a schedule, as cron, in UTC.",
        examples=["15 * * * *"],
    )
    bytes_per_second: int | None = Field(
        default=None,
        ge=LEAST_RATE,
        description="No more is copied per second.",
        examples=[20_000_000],
    )
    object_store: Annotated[ObjectStoreSettings | None, LOCATED] = Field(
        default=None,
        description="How the store of the copy is reached, with another profile for instance;"
        " null: as that of the warehouse.",
    )

    @model_validator(mode="after")
    def _check_place(self) -> Self:
        if self.every is not None and self.to is None:
            raise refused(".every is set, but second_copy.to is missing.", "Set second_copy.to.")
        return self

    def beside(self, of_warehouse: ObjectStoreSettings) -> Self:
        """The same, of a warehouse whose store is reached so; raises ConfigurationError."""
        copy = self.model_copy(update={"object_store": self.object_store or of_warehouse})
        _ = copy.place  # which refuses paths that libraries read differently
        return copy

    @property
    def place(self) -> StorePath | None:
        """Where it is; None without a copy."""
        return None if self.to is None else place_at(self.to, self.object_store)


class VerifySettings(Block):
    """When it is looked whether all that the warehouse holds is as it was written."""

    every: CronText | None = Field(
        default=None,
        description="Cron schedule (UTC) of quick looks, or with `sample` of those that read a"
        " share of the files.",
        examples=["0 4 * * *"],
    )
    full_every: CronText | None = Field(
        default=None,
        description="Cron schedule (UTC) of looks that read every file.",
        examples=["0 5 * * 0"],
    )
    sample: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of the files that a look of `every` reads, those not read for longest;"
        " 0 for a quick look.",
        examples=[0.1],
    )
    bytes_per_second: int | None = Field(
        default=None,
        ge=LEAST_RATE,
        description="Read files no faster than this; without it, as fast as it goes.",
    )


WAREHOUSE_STORE: Final = "warehouse_store"
"""Key of the resource by which Dagster's assets reach the object store of a warehouse."""


@dataclass(frozen=True, slots=True)
class ApplicationSettings:
    """One application: what it is, where it runs, what of it is backed up, when and where to."""

    application: StreamsApplication
    topics: tuple[AppTopic, ...]
    """The topics that are backed up."""
    connection: KafkaConnection
    warehouse: Warehouse
    windows: WindowSchedule
    backup: BackupSettings = field(default_factory=BackupSettings)
    recovery_points: RecoveryPointSettings = field(default_factory=RecoveryPointSettings)
    guarantee: DeclaredGuarantee = DeclaredGuarantee.AUTO
    """What is asked of recovery points, see `RecoveryPointTable.yardstick`."""
    keep: KeepSettings | None = None
    """What `expire` keeps; None: everything."""
    restore: RestoreSettings = field(default_factory=RestoreSettings)
    targets: Mapping[str, TargetSettings] = field(default_factory=dict)
    """The targets of restores by name, without the one in `restore.target`."""
    store_formats: Mapping[str, StoreFormat] = field(default_factory=dict)
    """How stores are read, by name, for those of which the user says something."""
    without_ktable: frozenset[str] = frozenset()
    """Stores of which no tables are made."""
    topic_formats: Mapping[str, TopicFormat] = field(default_factory=dict)
    """How records of topics are read, by topic, for those of which the user says something."""
    completeness: tuple[CompletenessRule, ...] = ()
    """The rules by which the business knows that nothing is lost."""
    recomputed: tuple[Recomputation, ...] = ()
    """Stores that are recomputed from their inputs and compared."""
    governance: Governance = field(default_factory=Governance)
    drill: DrillSettings = field(default_factory=DrillSettings)
    second_copy: SecondCopySettings = field(default_factory=SecondCopySettings)
    verify: VerifySettings = field(default_factory=VerifySettings)
    registry: RegistryConnection | None = None
    """The schema registry of the application's Avro and Protobuf records."""
    sensors_running: bool = False
    """Whether the sensors (recovery points, backups, follow-up) are on from the start."""
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
        """Name of the target of restores that name none; None where none is declared as such."""
        if self.restore.target is None:
            return next(iter(self.targets)) if len(self.targets) == 1 else None
        return self.restore.target if isinstance(self.restore.target, str) else DEFAULT_TARGET

    @property
    def throttle_of_restores(self) -> Throttle | None:
        """What everything pays into that is moved for a restore; None without a limit."""
        restore = self.restore
        return throttle(
            f"restore {self.application_id}",
            restore.bytes_per_second,
            restore.broker_bytes_per_second,
            tasks=restore.tasks,
        )
