"""The block `drill` of the YAML."""

import re
from pathlib import Path
from typing import Final

import dagster as dg
from pydantic import Field

from kstreams_assets.drill.command import check_placeholders
from kstreams_assets.drill.settings import DrillSettings
from kstreams_assets.errors import ConfigurationError

_DEFAULTS: Final = DrillSettings()


class DrillModel(dg.Resolvable, dg.Model):
    """How restore drills of the application go."""

    command: list[str] = Field(
        default=[],
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
    pass_on: list[str] = Field(
        default=[],
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
        default=_DEFAULTS.running_line,
        description="Regular expression of the line by which the application says it is RUNNING.",
    )
    start_timeout_seconds: float = Field(
        default=_DEFAULTS.start_timeout_s,
        description="How long it may take until it is RUNNING, its stores restored.",
    )
    catch_up_timeout_seconds: float = Field(
        default=_DEFAULTS.catch_up_timeout_s,
        description="How long it may take from there until its lag is zero.",
    )
    objective_seconds: float | None = Field(
        default=None,
        description="Recovery time objective: from the begin of the restore to caught up.",
        examples=[900],
    )
    every: str | None = Field(
        default=None,
        description="Cron schedule of drills (UTC); without it, drills are started by hand.",
        examples=["0 4 * * 0"],
    )

    def settings(self, folder: Path | None = None) -> DrillSettings:
        """The settings of drills; `folder` is where the YAML lies. Raises ConfigurationError."""
        for name, value in (
            ("start_timeout_seconds", self.start_timeout_seconds),
            ("catch_up_timeout_seconds", self.catch_up_timeout_seconds),
            ("objective_seconds", self.objective_seconds),
        ):
            if value is not None and not 0 < value < float("inf"):
                raise ConfigurationError(
                    f"drill.{name} is {value:g}.", remedy="Give a number of seconds above 0."
                )
        self._check_line()
        self._check_schedule()
        settings = DrillSettings(
            command=tuple(self.command),
            environment=dict(self.environment),
            pass_on=tuple(self.pass_on),
            working_directory=self._directory(folder),
            open_cluster=self.open_cluster,
            running_line=self.running_line,
            start_timeout_s=self.start_timeout_seconds,
            catch_up_timeout_s=self.catch_up_timeout_seconds,
            objective_s=self.objective_seconds,
            every=self.every,
        )
        if settings.command:
            check_placeholders(settings)
        return settings

    def _check_line(self) -> None:
        try:
            re.compile(self.running_line)
        except re.error as error:
            raise ConfigurationError(
                f"drill.running_line is {self.running_line!r}: {error}.",
                remedy="Give a regular expression of Python.",
            ) from None

    def _check_schedule(self) -> None:
        if self.every is None:
            return
        try:
            dg.ScheduleDefinition(job_name="drill", cron_schedule=self.every)
        except dg.DagsterInvalidDefinitionError:
            raise ConfigurationError(
                f"drill.every is {self.every!r}.",
                remedy="Give a cron schedule of five fields, as 0 4 * * 0.",
            ) from None
        if not self.command:
            raise ConfigurationError(
                "drill.every is given, but no drill.command.",
                remedy="Give drill.command: program and arguments that start the application.",
            )

    def _directory(self, folder: Path | None) -> str | None:
        if self.working_directory is None:
            return None
        directory = Path(self.working_directory).expanduser()
        return str(directory if folder is None else (folder / directory).resolve())
