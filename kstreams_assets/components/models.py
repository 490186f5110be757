"""The blocks of the YAML of an application; unknown keys are errors."""

import dagster as dg
from pydantic import Field

from kstreams_assets.app.declarations import Declarations, StoreDeclaration
from kstreams_assets.app.model import TopicRole
from kstreams_assets.settings import BackupSettings, WindowSchedule


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
    """What is said about one topic, against what names and topology tell."""

    roles: list[TopicRole] = Field(description="input, global, repartition, changelog, output.")


class StoreModel(dg.Resolvable, dg.Model):
    """What is said about one state store; exactly one of the three."""

    changelog: str | None = Field(default=None, description="Changelog topic of the store.")
    source_topic: str | None = Field(
        default=None, description="Source topic that serves as changelog (topology.optimization)."
    )
    logging_disabled: bool = Field(default=False, description="The store has no changelog.")


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

    def settings(self) -> BackupSettings:
        """The settings of a run."""
        return BackupSettings(
            compression=self.compression,
            compression_level=self.compression_level,
            commit_bytes=self.commit_bytes,
            lock_wait_s=self.lock_wait_seconds,
            stable_wait_s=self.stable_wait_seconds,
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
        topic_roles={name: frozenset(model.roles) for name, model in topics.items()},
        stores={
            name: StoreDeclaration(
                changelog=model.changelog,
                source_topic=model.source_topic,
                logging_disabled=model.logging_disabled,
            )
            for name, model in stores.items()
        },
        inputs=frozenset(inputs),
        outputs=frozenset(outputs),
        not_mine=frozenset(not_mine),
    )
