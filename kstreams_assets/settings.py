"""Everything that is configured about one application's backups, resolved and checked."""

import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from kstreams_assets.app.governance import Governance
from kstreams_assets.app.model import AppTopic, StreamsApplication
from kstreams_assets.app.rules import CompletenessRule, Recomputation, TopicFormat
from kstreams_assets.app.store_format import StoreFormat
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.registry import RegistryConnection
from kstreams_assets.kafka.throttle import Throttle, throttle
from kstreams_assets.layout import Warehouse
from kstreams_assets.store import StorePath

_EVERY = {"minute": "* * * * *", "hour": "0 * * * *", "day": "0 0 * * *"}


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


@dataclass(frozen=True, slots=True)
class BackupSettings:
    """Bounds of a run and how files are compressed; sizes in bytes, times in seconds.

    Up to `few_offsets` are read in the process itself, sooner than a Spark job begins.
    `read_stall_s` is how long a partition may give nothing while it is read, `scan_stall_s` how
    long the look at its log after that may go without progress; `scan_connections` partitions are
    looked at side by side (connections to each broker). A window of more than `commit_bytes` is
    backed up in parts, each a commit: of `part_bytes` at least, of `commit_bytes` at most. No more
    than `bytes_per_s` are fetched from all brokers together, `broker_bytes_per_s` from each, by all
    tasks of a process; None: no limit. `tasks` run at a time; None: as many as Spark has cores.
    """

    compression: str = "zstd"
    compression_level: int = 2
    commit_bytes: int = 4 * 1024**3
    part_bytes: int = 256 * 1024**2
    bytes_per_s: int | None = None
    broker_bytes_per_s: int | None = None
    tasks: int | None = None
    windows_per_commit: int = 200
    lock_wait_s: float = 60.0
    stable_wait_s: float = 60.0
    few_offsets: int = 100_000
    read_stall_s: float = 30.0
    scan_stall_s: float = 120.0
    scan_connections: int = 4


@dataclass(frozen=True, slots=True)
class RecoveryPointSettings:
    """How recovery points are taken and kept; sizes in bytes, times in seconds.

    `seal_bytes` is how much of the changelogs a point of the sensor may save to be sealed,
    `closing_seal_bytes` what the point at the end of a backup run may. `objective_s` is the age
    that the newest restorable point may have (recovery point objective), None without one. All
    points are kept for `keep_all_s`, then the last of each window.
    """

    every_s: int = 10
    objective_s: int | None = None
    keep_all_s: int = 86_400
    seal_bytes: int = 16 * 1024**2
    closing_seal_bytes: int = 256 * 1024**2
    lookback_s: float = 60.0


@dataclass(frozen=True, slots=True)
class KeepLine:
    """One line of a policy: the last restorable point of each period, for `for_s` seconds.

    `name` is that of the line (hourly, daily, weekly, monthly, yearly).
    """

    name: str
    for_s: int


@dataclass(frozen=True, slots=True)
class KeepSettings:
    """Which recovery points `expire` keeps; times in seconds.

    Every point is kept for `all_s`, then of each hour, day and so on the last one that restores
    exactly (the best there is, where none does), by the `lines`; never fewer than `minimum` exact
    ones. With `whole_logs`, inputs and outputs stay as Kafka held them at the oldest kept point,
    else what the application needs to go on from there. `every` is a cron schedule; None: by hand.
    """

    all_s: int
    lines: tuple[KeepLine, ...] = ()
    minimum: int = 3
    whole_logs: bool = False
    every: str | None = None


COMMAND_TIMEOUT_S: Final = 300.0
"""Seconds that a command before or after a restore may take."""


@dataclass(frozen=True, slots=True)
class CommandSettings:
    """The commands that stop the application before a restore and start it after one.

    Each is a program with its arguments, as for a shell. `pass_on` are variables of this process
    that they get besides those that hold no secret. Times in seconds.
    """

    before: str | None = None
    after: str | None = None
    timeout_s: float = COMMAND_TIMEOUT_S
    pass_on: tuple[str, ...] = ()


def require_commands(
    before: str | None, after: str | None, timeout_s: float, *, block: str = ""
) -> None:
    """Refuse commands that cannot be run; raises ConfigurationError."""
    for name, command in (("before_command", before), ("after_command", after)):
        try:
            if command is None or shlex.split(command):
                continue
            problem = "has no program"
        except ValueError as error:
            problem = f"cannot be split into program and arguments: {error}"
        raise ConfigurationError(
            f"{block}{name} {problem}.",
            remedy="Write it as for a shell, as kubectl scale deployment/orders --replicas=0.",
        )
    timeout = f"{block}command_timeout_seconds" if block else "The timeout of commands"
    if not 0 < timeout_s < math.inf:
        raise ConfigurationError(
            f"{timeout} is {timeout_s:g}.", remedy="Give a number of seconds above 0."
        )


@dataclass(frozen=True, slots=True)
class RestoreSettings:
    """Where to and how restores go; times in seconds.

    `target` is the cluster that restores go to when nothing else is said. `compression` is that of
    the producer (none, lz4, zstd, snappy, gzip), `delivery_timeout_s` how long one record may take
    to be acknowledged before the restore gives up. `verify` is how much is read back by default.
    `bytes_per_s`, `broker_bytes_per_s` and `tasks` are as those of a backup: of what is produced,
    read back, and read by completeness rules. `commands` are those of restores to `target`.
    """

    target: KafkaConnection | None = None
    compression: str = "none"
    delivery_timeout_s: float = 120.0
    lock_wait_s: float = 60.0
    verify: VerifyExtent = VerifyExtent.FULL
    commands: CommandSettings = CommandSettings()
    bytes_per_s: int | None = None
    broker_bytes_per_s: int | None = None
    tasks: int | None = None


def _never() -> None:
    """Not a lambda: settings go to other processes."""


@dataclass(frozen=True, slots=True)
class WindowSchedule:
    """How wall-clock time is cut into windows.

    `cron` says when windows begin and end. `start` is the first window (ISO date or date and
    time); windows of under a day are in UTC, since a local hour may come twice. Without it, the
    first window is that of `first_seen_ms` (epoch milliseconds), or the open one while that is
    None.
    """

    cron: str
    start: str | None = None
    timezone: str = "UTC"
    first_seen_ms: Callable[[], int | None] = field(default=_never, compare=False, repr=False)

    @classmethod
    def every(
        cls, period: str, *, start: str | None = None, timezone: str = "UTC"
    ) -> "WindowSchedule":
        """Windows of a `minute`, an `hour`, a `day`, or of any cron schedule.

        Raises:
            ConfigurationError: The period is neither, or a time zone is given for short windows.
        """
        cron = _EVERY.get(period, period)
        if len(cron.split()) != 5:
            raise ConfigurationError(
                f"windows.every is {period!r}.",
                remedy="Give minute, hour, day, or a cron schedule of five fields.",
            )
        schedule = cls(cron, start, timezone)
        if timezone != "UTC" and not schedule.is_daily:
            raise ConfigurationError(
                f"windows.timezone is {timezone!r} for windows of under a day ({cron}).",
                remedy="Leave the time zone out: in a local one an hour can come twice.",
            )
        return schedule

    @property
    def is_daily(self) -> bool:
        """Whether no window is shorter than a day."""
        minute, hour, *_ = self.cron.split()
        return minute.isdigit() and hour.isdigit()


@dataclass(frozen=True, slots=True)
class DrillSettings:
    """How the application is started on the drill's cluster, and what is expected of it.

    `command` are program and arguments; `{client_properties}`, `{application_id}`, `{state_dir}`
    are filled in, and each topic's name is as it was. The cluster listens with a password, which
    the file `{client_properties}` holds, unless `open_cluster` is set. The application's
    environment is `environment`, the variables named in `pass_on` as the drill has them, and a few
    that hold no secret (PATH, HOME, JAVA_HOME, ...). `running_line` is a regular expression of the
    line by which it says that it is RUNNING. `objective_s` is the declared recovery time
    objective: from the begin of the restore to the application having caught up. Times in seconds.
    """

    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    pass_on: tuple[str, ...] = ()
    working_directory: str | None = None
    open_cluster: bool = False
    running_line: str = r"State transition from REBALANCING to RUNNING"
    start_timeout_s: float = 300.0
    catch_up_timeout_s: float = 900.0
    objective_s: float | None = None
    every: str | None = None
    """Cron schedule of the drill; None for drills by hand only."""


@dataclass(frozen=True, slots=True)
class SecondCopySettings:
    """Where the second copy of the warehouse is, and when it is brought up to date.

    `every` is a cron expression, None: only when somebody asks for it. `bytes_per_s` limits it.
    """

    to: StorePath | None = None
    every: str | None = None
    bytes_per_s: int | None = None


@dataclass(frozen=True, slots=True)
class VerifySettings:
    """When the warehouse is verified, as cron schedules (UTC); None: by hand only.

    `sample` is the share of the files that a look of `every` reads, 0 for a quick look. A look of
    `full_every` reads them all. `bytes_per_s` bounds how fast files are read.
    """

    every: str | None = None
    full_every: str | None = None
    sample: float = 0.0
    bytes_per_s: int | None = None


@dataclass(frozen=True, slots=True)
class ApplicationSettings:
    """One application: what it is, where it runs, what of it is backed up, when and where to."""

    application: StreamsApplication
    topics: tuple[AppTopic, ...]
    """The topics that are backed up."""
    connection: KafkaConnection
    warehouse: Warehouse
    windows: WindowSchedule
    backup: BackupSettings = BackupSettings()
    recovery_points: RecoveryPointSettings = RecoveryPointSettings()
    guarantee: DeclaredGuarantee = DeclaredGuarantee.AUTO
    """What is asked of recovery points, see `warehouse.yardstick`."""
    keep: KeepSettings | None = None
    """What `expire` keeps; None: everything."""
    restore: RestoreSettings = RestoreSettings()
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
    second_copy: SecondCopySettings = SecondCopySettings()
    verify: VerifySettings = VerifySettings()
    registry: RegistryConnection | None = None
    """The schema registry of the application's Avro and Protobuf records."""
    sensors_running: bool = False
    """Whether the sensors (recovery points, backups, follow-up) are on from the start."""
    owners: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    description: str = ""

    @property
    def application_id(self) -> str:
        """The Kafka Streams `application.id`."""
        return self.application.application_id

    @property
    def throttle_of_restores(self) -> Throttle | None:
        """What everything pays into that is moved for a restore; None without a limit."""
        restore = self.restore
        return throttle(
            f"restore {self.application_id}",
            restore.bytes_per_s,
            restore.broker_bytes_per_s,
            tasks=restore.tasks,
        )
