"""The options of a restore, on the command line or in the launchpad. Pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final, get_args

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.model.restorability import Restorability
from kstreams_assets.model.restores import InputsAt, OriginalHeaders, RestoreMode
from kstreams_assets.settings import COMMAND_TIMEOUT_S, LOCAL, VerifyExtent, require_commands

_NEWEST: Final = "newest"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class InputsExtent(StrEnum):
    """How much of the inputs is restored: `full`, or the `tail` from the committed offsets on."""

    FULL = "full"
    TAIL = "tail"


class ChangelogSource(StrEnum):
    """The source of changelog records: the `raw` log, or the KTable `snapshot`.

    A snapshot has one record of each key, so fewer records and bytes are produced. Topics with
    another role besides (a source topic that serves as changelog) come from the raw log.
    """

    RAW = "raw"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a field of the request is spelled, if that does not follow from its name and type.

    `name` is its key in a run's config, `option` its option on the command line. `unset` is the
    word in a run's config for an unset choice. `never` is not offered. `of_operator`: only the
    command line and the YAML set it, a run's config may not. `of_partition`: in Dagster it is the
    partition of the run. `section` and `metavar` belong to the help of the command line.
    """

    name: str = ""
    option: str = ""
    unset: str = ""
    never: str = ""
    of_operator: bool = False
    of_partition: bool = False
    section: str = "Target"
    metavar: str = ""


class RestoreRequest(BaseModel):
    """What to restore, from when, to where, and under which names.

    Options of the command line and keys of a run's config derive from these fields. `accept` is
    the minimum restorability, None until the application's guarantee is known. `application_id`
    renames the application with its internal topics, `prefix` is added to the name of every other
    topic, `topics` (source name -> target name) wins over both. `inputs_are_at` must say where the
    group continues in an excluded topic in which it had committed offsets.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: Annotated[str | None, Spelling(metavar="NAME|HOST:PORT,...")] = Field(
        default=None,
        description="Target in the YAML by name, bootstrap servers of another cluster, or"
        " local[:NAME] for a throwaway cluster on this machine (default: restore.target in the"
        " YAML).",
    )
    as_of_ms: Annotated[
        int | None,
        Spelling(name="as_of", option="--as-of", section="Selection", metavar="TIME"),
    ] = Field(
        default=None,
        description="Restore the newest restorable point that was completely taken by this time"
        " (ISO 8601, such as 2026-11-21T14:30:00Z).",
    )
    point_id: Annotated[
        str | None, Spelling(option="--point", section="Selection", metavar="ID")
    ] = Field(
        default=None,
        description="Restore this recovery point (default: the newest restorable one).",
    )
    window: Annotated[
        str | None, Spelling(of_partition=True, section="Selection", metavar="WINDOW")
    ] = Field(
        default=None,
        description="Restore the last restorable point of this window, closed or open.",
    )
    mode: Annotated[RestoreMode, Spelling(section="Selection")] = Field(
        default=RestoreMode.STATE,
        description="state: continue at the point; rebuild: recompute from inputs before the point;"
        " inputs_until: rebuild that requires --point, --as-of or --window; logs: only inputs and"
        " outputs.",
    )
    inputs: Annotated[InputsExtent, Spelling(section="Selection")] = Field(
        default=InputsExtent.FULL,
        description="Restore all input records, or only those from the committed offsets on"
        " (tail).",
    )
    changelog_source: Annotated[ChangelogSource, Spelling(section="Selection")] = Field(
        default=ChangelogSource.RAW,
        description="raw: restore every changelog record; snapshot: restore only the last record of"
        " each key, from the KTable snapshot at the point (see `ktables make`).",
    )
    application_id: Annotated[
        str | None, Spelling(option="--target-application-id", metavar="ID")
    ] = Field(
        default=None,
        description="Use another application.id on the target: renames the group and internal"
        " topics.",
    )
    prefix: Annotated[str, Spelling(metavar="PREFIX")] = Field(
        default="", description="Add this prefix to the names of inputs and outputs."
    )
    topics: Annotated[
        Mapping[str, str], Spelling(option="--topic-name", metavar="SOURCE=TARGET")
    ] = Field(
        default={}, description="Name of a topic on the target; overrides other renaming options."
    )
    exclude: Annotated[tuple[str, ...], Spelling(section="Selection", metavar="GLOB")] = Field(
        default=(), description="Skip topics that match this glob."
    )
    inputs_are_at: Annotated[InputsAt | None, Spelling(unset="restored")] = Field(
        default=None,
        description="If the target has an input that you --exclude, the group starts there at the"
        " recovery point (mapped) or at its end (latest: unproven restore).",
    )
    accept: Annotated[
        Restorability | None,
        Spelling(never=Restorability.NOTHING, unset="as_the_application", section="Checks"),
    ] = Field(
        default=None,
        description="Weakest recovery point that you accept; at_least_once: some records repeat;"
        " unproven: records may be missing (default: exact for exactly-once applications, otherwise"
        " at_least_once).",
    )
    verify: Annotated[VerifyExtent, Spelling(unset="as_configured", section="Checks")] = Field(
        default=VerifyExtent.FULL,
        description="Read back and compare every record, a sample of each partition, or record"
        " counts (default: restore.verify in the YAML).",
    )
    original_headers: Annotated[OriginalHeaders, Spelling()] = Field(
        default=OriginalHeaders(),
        description="Add each record's offset, timestamp or partition on the source as a header"
        " (careful: this can change the state of an application that stores headers).",
    )
    accept_replaced_timestamps: Annotated[bool, Spelling(section="Checks")] = Field(
        default=False,
        description="Use this only to continue a restore of an earlier kstreams-assets release,"
        " which replaced timestamps of 0 or below: they are not compared.",
    )
    replication_factor: Annotated[int | None, Spelling(metavar="N")] = Field(
        default=None, description="Replication factor of new topics (default: as on the source)."
    )
    skip_completeness: Annotated[bool, Spelling(section="Checks")] = Field(
        default=False,
        description="Commit group offsets without evaluating completeness rules; the report of the"
        " restore mentions this.",
    )
    before_command: Annotated[
        str | None, Spelling(of_operator=True, section="Commands", metavar="COMMAND")
    ] = Field(
        default=None,
        description="Command that stops the application on the target; runs without a shell before"
        " the restore.",
    )
    after_command: Annotated[
        str | None, Spelling(of_operator=True, section="Commands", metavar="COMMAND")
    ] = Field(
        default=None,
        description="Command that starts the application; runs after the group offsets are"
        " committed.",
    )
    command_timeout_s: Annotated[
        float,
        Spelling(
            option="--command-timeout", of_operator=True, section="Commands", metavar="SECONDS"
        ),
    ] = Field(
        default=COMMAND_TIMEOUT_S,
        description="Timeout of --before-command, of --after-command, and of the wait until all"
        " members have left the group.",
    )

    @classmethod
    def asked(cls, values: Mapping[str, Any], *, verify: VerifyExtent) -> "RestoreRequest":
        """Return the request from plain values by field; None counts as not given.

        `verify` is the configured extent. Raises ConfigurationError for contradictory values.
        """
        given: dict[str, Any] = {"verify": verify}
        given |= {name: value for name, value in values.items() if value is not None}
        if "as_of_ms" in given and "point_id" in given:
            raise ConfigurationError(
                f"Both as_of ({given['as_of_ms']}) and point_id ({given['point_id']}) are given.",
                remedy="Give one of them, or neither for the newest point.",
            )
        if given.get("replication_factor", 1) < 1:
            raise ConfigurationError(
                f"replication_factor is {given['replication_factor']}.",
                remedy="Give a number of at least 1, or none for the source's.",
            )
        if "as_of_ms" in given:
            given["as_of_ms"] = parse_instant(given["as_of_ms"])
        require_commands(
            given.get("before_command"),
            given.get("after_command"),
            given.get("command_timeout_s", COMMAND_TIMEOUT_S),
        )
        request = cls.model_validate(given)
        if request.local_name is not None and (request.before_command or request.after_command):
            raise ConfigurationError(
                f"A command before or after the restore is given, and target {request.target}.",
                remedy="Leave the commands out: no application runs on a throwaway cluster.",
            )
        if request.replication_factor is None and request.local_name is not None:
            return request.model_copy(update={"replication_factor": 1})
        return request

    @property
    def least(self) -> Restorability:
        """The minimum restorability of the recovery point."""
        return self.accept or Restorability.EXACT

    @property
    def local_name(self) -> str | None:
        """Name of the local cluster that the target means, None for another cluster.

        The name of `local` derives from the requested point or window, so that each inspected state
        has its own cluster, and the same request continues in the same one.
        """
        if self.target is None or self.target.partition(":")[0] != LOCAL:
            return None
        name = self.target.partition(":")[2]
        if name.isdecimal():  # a broker on a host of that name
            return None
        if name:
            return name
        if self.point_id is not None or (self.window is not None and self.as_of_ms is None):
            return re.sub(r"[^A-Za-z0-9._-]", "_", self.point_id or self.window or "")
        if self.as_of_ms is not None:
            at = datetime.fromtimestamp(self.as_of_ms / 1000, tz=UTC)
            return f"{at:%Y%m%dT%H%M%S}.{self.as_of_ms % 1000:03d}Z"
        return _NEWEST


def fields_of_request() -> Iterator[tuple[str, FieldInfo, Spelling]]:
    """Yield each field with its spelling, in the order of the command line."""
    for name, field in RestoreRequest.model_fields.items():
        spelling = next((m for m in field.metadata if isinstance(m, Spelling)), Spelling())
        yield name, field, spelling


def choices_of(field: FieldInfo, spelling: Spelling) -> list[str]:
    """Return the allowed values of a field, empty if they are not listed."""
    kinds = get_args(field.annotation) or (field.annotation,)
    enums = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, StrEnum)]
    return [value.value for kind in enums for value in kind if value != spelling.never]


def parse_instant(text: str) -> int:
    """Return an ISO 8601 time with a time zone as epoch milliseconds, rounded down.

    Raises:
        ConfigurationError: The text is invalid or has no time zone: an hour off is another state.
    """
    try:
        instant = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigurationError(
            f"as_of is {text!r}.",
            remedy="Write an ISO 8601 time, such as 2026-11-21T14:30:00Z or"
            " 2026-11-21T15:30:00.250+01:00.",
        ) from None
    if instant.tzinfo is None:
        raise ConfigurationError(
            f"as_of is {text!r}, without a time zone.",
            remedy="Add Z for UTC or an offset such as +01:00.",
        )
    return (instant - _EPOCH) // timedelta(milliseconds=1)
