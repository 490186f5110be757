"""The blocks of the YAML of an application; unknown keys are errors."""

from enum import StrEnum
from typing import Annotated, Any, Final

import dagster as dg
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kstreams_assets.app.declarations import Declarations
from kstreams_assets.app.model import TopicRole, TopicRoles
from kstreams_assets.components.store_models import StoreModel
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.registry import RegistryConnection
from kstreams_assets.settings import (
    BackupSettings,
    RecoveryPointSettings,
    RestoreSettings,
    VerifyExtent,
    WindowSchedule,
)

_MIB: Final = 1024**2
_HOUR_S: Final = 3_600
_POINTS: Final = RecoveryPointSettings()
_RESTORE: Final = RestoreSettings()
_CODECS: Final = ("none", "lz4", "zstd", "snappy", "gzip")


def resolve_connection(context: dg.ResolutionContext, raw: dict[str, Any]) -> KafkaConnection:
    """Templates first: a template is no host:port."""
    return KafkaConnection.model_validate(context.resolve_value(raw))


def _resolve_target(
    context: dg.ResolutionContext, raw: dict[str, Any] | None
) -> KafkaConnection | None:
    return None if raw is None else resolve_connection(context, raw)


class WrongRegistry(BaseModel):
    """A block `schema_registry` that is refused, with the reason.

    Of an error that a resolver raises Dagster shows the lines of the YAML around it, and one of
    them may be a password in clear. So the reason is kept, and raised when the block is used.
    """

    model_config = ConfigDict(frozen=True)

    problem: str
    remedy: str


def resolve_registry(
    context: dg.ResolutionContext, raw: dict[str, Any] | None
) -> RegistryConnection | WrongRegistry | None:
    """The schema registry, or why it is refused."""
    if raw is None:
        return None
    try:
        return RegistryConnection.model_validate(context.resolve_value(raw))
    except ConfigurationError as error:
        return WrongRegistry(problem=error.problem, remedy=error.remedy)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        known = ", ".join(RegistryConnection.model_fields)
        return WrongRegistry(problem=f"schema_registry: {wrong}.", remedy=f"Known are {known}.")


def checked_registry(
    registry: RegistryConnection | WrongRegistry | None,
) -> RegistryConnection | None:
    """The same; raises ConfigurationError if it is refused."""
    if isinstance(registry, WrongRegistry):
        raise ConfigurationError(registry.problem, remedy=registry.remedy)
    return registry


class SensorStatus(StrEnum):
    """Whether the sensors are on before anybody has switched them in the UI."""

    STOPPED = "stopped"
    RUNNING = "running"


class WindowsModel(dg.Resolvable, dg.Model):
    """How wall-clock time is cut into windows."""

    every: str = Field(
        description="`minute`, `hour`, `day`, or a cron schedule of five fields.",
        examples=["hour", "*/15 * * * *"],
    )
    start: str = Field(
        description="The first window: a date, or a date and time (never move it later).",
        examples=["2026-11-01", "2026-11-01-13:30"],
    )
    timezone: str = Field(default="UTC", description="Only for windows of a day or more.")

    def schedule(self) -> WindowSchedule:
        """The schedule; raises ConfigurationError."""
        return WindowSchedule.every(self.every, start=self.start, timezone=self.timezone)


class TopicModel(dg.Resolvable, dg.Model):
    """What is said about one topic: its roles, against what names and topology tell; its format.

    `key` and `value` are as those of a store.
    """

    roles: list[TopicRole] = Field(
        default=[], description="input, global, repartition, changelog, output."
    )
    key: str | dict[str, Any] | None = Field(
        default=None, description="Format of the keys, for completeness rules.", examples=["string"]
    )
    value: str | dict[str, Any] | None = Field(
        default=None,
        description="Format of the values, for completeness rules.",
        examples=[{"format": "json", "schema": "customer_id STRING, amount_cents BIGINT"}],
    )

    @property
    def says_how_to_read(self) -> bool:
        """Whether anything is said about how its records are read."""
        return self.key is not None or self.value is not None


class BackupModel(dg.Resolvable, dg.Model):
    """How backups are written; defaults fit most applications."""

    compression: str = Field(default="zstd", description="zstd, snappy, lz4_raw, gzip or none.")
    compression_level: int = Field(default=1, description="For zstd; above 3 buys nothing.")
    commit_bytes: int = Field(
        default=BackupSettings().commit_bytes,
        description="A long backfill commits about this many bytes at a time.",
    )
    lock_wait_seconds: float = Field(
        default=BackupSettings().lock_wait_s,
        description="How long to wait for another run of the application.",
    )
    stable_wait_seconds: float = Field(
        default=BackupSettings().stable_wait_s,
        description="How long to wait for open transactions at a window's end.",
    )
    scan_stall_seconds: float = Field(
        default=BackupSettings().scan_stall_s,
        description="After the records are read, the logs are looked at for why offsets have none."
        " How long that may go without progress in a partition, before it is left to the next run.",
    )
    scan_connections: int = Field(
        default=BackupSettings().scan_connections,
        description="How many partitions are looked at side by side then.",
    )

    def settings(self) -> BackupSettings:
        """The settings of a run; raises ConfigurationError for numbers out of bounds."""
        _at_least("scan_stall_seconds", self.scan_stall_seconds, 1, block="backup")
        _at_least("scan_connections", self.scan_connections, 1, block="backup")
        return BackupSettings(
            compression=self.compression,
            compression_level=self.compression_level,
            commit_bytes=self.commit_bytes,
            lock_wait_s=self.lock_wait_seconds,
            stable_wait_s=self.stable_wait_seconds,
            scan_stall_s=self.scan_stall_seconds,
            scan_connections=self.scan_connections,
        )


class RecoveryPointsModel(dg.Resolvable, dg.Model):
    """How recovery points are taken and kept; defaults fit most applications."""

    every_seconds: int = Field(
        default=_POINTS.every_s,
        description="How often the sensor takes a point; Dagster looks every five seconds.",
    )
    objective_seconds: int | None = Field(
        default=_POINTS.objective_s,
        description="Recovery point objective: how old the newest restorable exact point may be.",
        examples=[900],
    )
    keep_all_hours: float = Field(
        default=_POINTS.keep_all_s / _HOUR_S,
        description="For how long every point is kept; then the last of each window.",
    )
    seal_mib: int = Field(
        default=_POINTS.seal_bytes // _MIB,
        description="How much of the changelogs a point may save, so that it stays exact; counted"
        " as stored in Kafka and uncompressed. The memory that a recorder needs is a small multiple"
        " of it.",
    )
    closing_seal_mib: int = Field(
        default=_POINTS.closing_seal_bytes // _MIB,
        description="The same for the point at the end of a backup run.",
    )
    lookback_seconds: float = Field(
        default=_POINTS.lookback_s,
        description="How long before the point transactions are looked for: above the"
        " application's transaction timeout plus the brokers' abort scan interval.",
    )

    def settings(self) -> RecoveryPointSettings:
        """The settings of the recorder; raises ConfigurationError for numbers out of bounds."""
        _at_least("every_seconds", self.every_seconds, 1)
        if self.objective_seconds is not None:
            _at_least("objective_seconds", self.objective_seconds, self.every_seconds)
        _at_least("keep_all_hours", self.keep_all_hours, 0)
        _at_least("seal_mib", self.seal_mib, 0)
        _at_least("closing_seal_mib", self.closing_seal_mib, 0)
        _at_least("lookback_seconds", self.lookback_seconds, 1)
        return RecoveryPointSettings(
            every_s=self.every_seconds,
            objective_s=self.objective_seconds,
            keep_all_s=round(self.keep_all_hours * _HOUR_S),
            seal_bytes=self.seal_mib * _MIB,
            closing_seal_bytes=self.closing_seal_mib * _MIB,
            lookback_s=self.lookback_seconds,
        )


class RestoreModel(dg.Resolvable, dg.Model):
    """Where to and how restores go; defaults fit most applications."""

    target: Annotated[
        KafkaConnection | None,
        dg.Resolver(
            _resolve_target,
            model_field_type=dict[str, Any] | None,
            description="The cluster that restores go to, in the form of `connection`; a run can"
            " name other bootstrap servers.",
        ),
    ] = None
    compression: str = Field(
        default=_RESTORE.compression,
        description="Of the producer: none, lz4, zstd, snappy or gzip; none is fastest on a fast"
        " network.",
    )
    verify: VerifyExtent = Field(
        default=_RESTORE.verify,
        description="What is read back and compared: every record, a sample of each partition, or"
        " counts alone.",
    )
    delivery_timeout_seconds: float = Field(
        default=_RESTORE.delivery_timeout_s,
        description="How long a record may take to be acknowledged before the restore gives up.",
    )
    lock_wait_seconds: float = Field(
        default=_RESTORE.lock_wait_s,
        description="How long to wait for another restore of the same group on the target.",
    )

    def settings(self) -> RestoreSettings:
        """The settings of a restore; raises ConfigurationError."""
        if self.compression not in _CODECS:
            raise ConfigurationError(
                f"restore.compression is {self.compression!r}.",
                remedy=f"Give one of {', '.join(_CODECS)}.",
            )
        _at_least("delivery_timeout_seconds", self.delivery_timeout_seconds, 1, block="restore")
        _at_least("lock_wait_seconds", self.lock_wait_seconds, 0, block="restore")
        return RestoreSettings(
            target=self.target,
            compression=self.compression,
            delivery_timeout_s=self.delivery_timeout_seconds,
            lock_wait_s=self.lock_wait_seconds,
            verify=self.verify,
        )


def _at_least(setting: str, value: float, lowest: float, *, block: str = "recovery_points") -> None:
    if not lowest <= value < float("inf"):
        raise ConfigurationError(
            f"{block}.{setting} is {value:g}.",
            remedy=f"Give a number of at least {lowest:g}"
            + (" (every_seconds)." if setting == "objective_seconds" else "."),
        )


def declarations(
    *,
    topics: dict[str, TopicModel],
    stores: dict[str, StoreModel],
    inputs: list[str],
    outputs: list[str],
    not_mine: list[str],
) -> Declarations:
    """What the YAML says about topics and stores; raises ConfigurationError."""
    return Declarations(
        topic_roles={
            name: TopicRoles(model.roles)
            for name, model in topics.items()
            if model.roles or not model.says_how_to_read
        },
        stores={
            name: declared
            for name, model in stores.items()
            if (declared := model.declaration(name)) is not None
        },
        inputs=frozenset(inputs),
        outputs=frozenset(outputs),
        not_mine=frozenset(not_mine),
    )
