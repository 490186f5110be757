"""What a user asks of a restore, on the command line or in the launchpad. Pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final, get_args

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.settings import COMMAND_TIMEOUT_S, VerifyExtent, require_commands
from kstreams_assets.warehouse.judge import Restores
from kstreams_assets.warehouse.restores import InputsAt, OriginalHeaders, RestoreMode

LOCAL: Final = "local"
"""As target: a throwaway cluster on this machine, `local:NAME` for one of this name."""

_NEWEST: Final = "newest"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class InputsExtent(StrEnum):
    """How much of the inputs comes back: `full`, or the `tail` from the committed offsets on."""

    FULL = "full"
    TAIL = "tail"


class ChangelogSource(StrEnum):
    """Where the records of changelogs come from: the `raw` log, or the KTable `snapshot`.

    A snapshot holds one record of each key, so fewer records and bytes are produced. Topics that
    have another role besides (a source topic that serves as changelog) come from the raw log.
    """

    RAW = "raw"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a field of the request is asked for where that does not follow from its name and type.

    `name` is its key in a run's config, `option` its option on the command line. `unset` is the
    word in a run's config for a choice that is not made. `never` is no choice. `of_operator`: the
    command line and the YAML alone say it, a run's config may not.
    """

    name: str = ""
    option: str = ""
    unset: str = ""
    never: str = ""
    of_operator: bool = False


class RestoreRequest(BaseModel):
    """What to restore, from when, to where, and under which names.

    Options of the command line and keys of a run's config derive from these fields. `accept` is the
    least that will do, None until it is known what the application guarantees. `application_id`
    renames the application with its internal topics, `prefix` goes before the name of every other
    topic, `topics` (source name -> target name) wins over both.
    `inputs_are_at` must say where the group goes on in an excluded topic in which it had committed
    offsets.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: str | None = Field(
        default=None,
        description="host:port[,...] of the target cluster, with the other settings of"
        " restore.target in the YAML; `local` or `local:NAME` for a throwaway cluster on this"
        " machine (`kstreams-assets restore serve` starts it again); without it, restore.target.",
    )
    as_of_ms: Annotated[int | None, Spelling(name="as_of", option="--as-of")] = Field(
        default=None,
        description="Restore the newest recovery point that was complete at this time: ISO 8601"
        " with a time zone, as 2026-11-21T14:30:00Z.",
    )
    point_id: Annotated[str | None, Spelling(option="--point")] = Field(
        default=None, description="Restore this recovery point."
    )
    mode: RestoreMode = Field(
        default=RestoreMode.STATE,
        description="state: everything, to continue where the application stood. rebuild: all"
        " inputs, to recompute everything. inputs_until: the same, up to the recovery point.",
    )
    inputs: InputsExtent = Field(
        default=InputsExtent.FULL,
        description="full: all records of the inputs. tail: only from the committed offsets on.",
    )
    changelog_source: ChangelogSource = Field(
        default=ChangelogSource.RAW,
        description="raw: changelogs get every record of the backup. snapshot: they get the rows of"
        " the KTable snapshots, one for each key; only points that close a window with proved"
        " snapshots can be restored so.",
    )
    application_id: Annotated[str | None, Spelling(option="--target-application-id")] = Field(
        default=None,
        description="Another application.id on the target; renames group and internal topics.",
    )
    prefix: str = Field(default="", description="Goes before the name of every other topic.")
    topics: Annotated[Mapping[str, str], Spelling(option="--topic-name")] = Field(
        default={}, description="Target names of topics, by source name; win over all else."
    )
    exclude: tuple[str, ...] = Field(
        default=(), description="Globs of topics that are not restored."
    )
    inputs_are_at: Annotated[InputsAt | None, Spelling(unset="restored")] = Field(
        default=None,
        description="Where the group goes on in excluded inputs, which the target has already."
        " mapped: at the same records, which another restore of this warehouse has brought back, or"
        " which never went. latest: at the end; what lies in them is not read, so that the restore"
        " is not exact.",
    )
    accept: Annotated[
        Restores | None, Spelling(never=Restores.NOTHING, unset="as_the_application")
    ] = Field(
        default=None,
        description="The least that the recovery point has to give; without it, what the"
        " application itself guarantees (`guarantee` in the YAML): of one that processes exactly"
        " once it has to be exact.",
    )
    verify: Annotated[VerifyExtent, Spelling(unset="as_configured")] = Field(
        default=VerifyExtent.FULL,
        description="How much is read back: every record, a sample of each partition, or counts"
        " alone; without it, restore.verify in the YAML.",
    )
    original_headers: OriginalHeaders = Field(
        default=OriginalHeaders(),
        description="Headers that are added to each restored record. Headers can be state.",
    )
    accept_replaced_timestamps: bool = Field(
        default=False,
        description="Not needed any more: every timestamp is restored as it was. Verification then"
        " passes over those of 0 or below, which an earlier release replaced.",
    )
    replication_factor: int | None = Field(
        default=None, description="Of the topics that are created; without it, the source's."
    )
    skip_completeness: bool = Field(
        default=False,
        description="Commit the group offsets without evaluating completeness rules on the target;"
        " it is noted in the restore.",
    )
    before_command: Annotated[str | None, Spelling(of_operator=True)] = Field(
        default=None,
        description="A command that stops the application on the target, as `kubectl scale"
        " deployment/orders --replicas=0`: program and arguments, no shell, no secrets. It runs"
        " when nothing else stands against the restore, and the group's members are awaited to"
        " leave; if it fails, nothing is restored.",
    )
    after_command: Annotated[str | None, Spelling(of_operator=True)] = Field(
        default=None,
        description="A command that starts the application, run once its group offsets are"
        " committed and read back. If it fails that is an error; the restore is done all the same.",
    )
    command_timeout_s: Annotated[float, Spelling(option="--command-timeout", of_operator=True)] = (
        Field(
            default=COMMAND_TIMEOUT_S,
            description="Seconds that each of these commands may take before it is killed, and the"
            " group's members to leave.",
        )
    )

    @classmethod
    def asked(cls, values: Mapping[str, Any], *, verify: VerifyExtent) -> "RestoreRequest":
        """The request from plain values by field; None is as if it were not given.

        `verify` is what is configured. Raises ConfigurationError where values contradict each
        other.
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
    def least(self) -> Restores:
        """The least that the recovery point has to give."""
        return self.accept or Restores.EXACT

    @property
    def local_name(self) -> str | None:
        """Name of the local cluster that the target means, None for another cluster.

        `local` alone takes its name from the point that is asked for, so that each state that is
        looked at has a cluster of its own, and the same request goes on in the same one.
        """
        if self.target is None or self.target.partition(":")[0] != LOCAL:
            return None
        name = self.target.partition(":")[2]
        if name.isdecimal():  # a broker on a host of that name
            return None
        if name:
            return name
        if self.point_id is not None:
            return re.sub(r"[^A-Za-z0-9._-]", "_", self.point_id)
        if self.as_of_ms is not None:
            at = datetime.fromtimestamp(self.as_of_ms / 1000, tz=UTC)
            return f"{at:%Y%m%dT%H%M%S}.{self.as_of_ms % 1000:03d}Z"
        return _NEWEST


def fields_of_request() -> Iterator[tuple[str, FieldInfo, Spelling]]:
    """Each field with how it is asked for, in the order of the command line."""
    for name, field in RestoreRequest.model_fields.items():
        spelling = next((m for m in field.metadata if isinstance(m, Spelling)), Spelling())
        yield name, field, spelling


def choices_of(field: FieldInfo, spelling: Spelling) -> list[str]:
    """The values that a field may have, none where they are not listed."""
    kinds = get_args(field.annotation) or (field.annotation,)
    enums = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, StrEnum)]
    return [value.value for kind in enums for value in kind if value != spelling.never]


def parse_instant(text: str) -> int:
    """An ISO 8601 time with a time zone as epoch milliseconds, rounded down.

    Raises:
        ConfigurationError: It is none, or names no time zone: an hour off is another state.
    """
    try:
        instant = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigurationError(
            f"as_of is {text!r}.",
            remedy="Write an ISO 8601 time, as 2026-11-21T14:30:00Z or"
            " 2026-11-21T15:30:00.250+01:00.",
        ) from None
    if instant.tzinfo is None:
        raise ConfigurationError(
            f"as_of is {text!r}, without a time zone.",
            remedy="Add Z for UTC or an offset such as +01:00.",
        )
    return (instant - _EPOCH) // timedelta(milliseconds=1)
