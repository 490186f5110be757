"""What a user writes to ask for a restore, in the launchpad or on the command line."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

import dagster as dg
from pydantic import Field

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.restore.request import (
    ChangelogSource,
    InputsAt,
    InputsExtent,
    OriginalHeaders,
    RestoreMode,
    RestoreRequest,
    VerifyExtent,
)
from kstreams_assets.restore.target import local_name
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.judge import Restores

AS_CONFIGURED: Final = "as_configured"
RESTORED: Final = "restored"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class HeadersConfig(dg.Config):
    """Which headers are added to each restored record; off by default, headers can be state."""

    offset: bool = Field(default=False, description="Adds x-original-offset.")
    timestamp: bool = Field(default=False, description="Adds x-original-timestamp.")
    partition: bool = Field(default=False, description="Adds x-source-partition.")


class RestoreConfig(dg.Config):
    """One restore; as it stands it is a dry run of the newest exact recovery point."""

    dry_run: bool = Field(
        default=True,
        description="Only plan: shows what would be restored and all that stands against it;"
        " writes nothing.",
    )
    as_of: str | None = Field(
        default=None,
        description="Restore the newest recovery point that was complete at this time: ISO 8601"
        " with a time zone, as 2026-11-21T14:30:00Z.",
    )
    point_id: str | None = Field(default=None, description="Restore this recovery point.")
    mode: Literal["state", "rebuild", "inputs_until"] = Field(
        default="state",
        description="state: everything, to continue where the application stood. rebuild: all"
        " inputs, to recompute everything. inputs_until: the same, up to the recovery point.",
    )
    inputs: Literal["full", "tail"] = Field(
        default="full",
        description="full: all records of the inputs. tail: only from the committed offsets on.",
    )
    changelog_source: Literal["raw", "snapshot"] = Field(
        default="raw",
        description="raw: changelogs get every record of the backup. snapshot: they get the rows of"
        " the KTable snapshots, one for each key; only points that close a window with proved"
        " snapshots can be restored so.",
    )
    target: str | None = Field(
        default=None,
        description="host:port[,...] of the target cluster, with the other settings of"
        " restore.target in the YAML; `local` or `local:NAME` for a throwaway cluster on this"
        " machine (`kstreams-assets restore serve` starts it again); without it, restore.target.",
    )
    application_id: str | None = Field(
        default=None,
        description="Another application.id on the target; renames group and internal topics.",
    )
    prefix: str = Field(default="", description="Goes before the name of every other topic.")
    topics: dict[str, str] = Field(
        default={}, description="Target names of topics, by source name; win over all else."
    )
    exclude: list[str] = Field(default=[], description="Globs of topics that are not restored.")
    inputs_are_at: Literal["restored", "mapped", "latest"] = Field(
        default="restored",
        description="Where the group goes on in excluded inputs, which the target has already."
        " restored: none is excluded. mapped: at the same records, which another restore of this"
        " warehouse has brought back, or which never went. latest: at the end; what lies in them is"
        " not read, so that the restore is not exact.",
    )
    replication_factor: int | None = Field(
        default=None, description="Of the topics that are created; without it, the source's."
    )
    original_headers: HeadersConfig = HeadersConfig()
    accept: Literal["exact", "at_least_once", "unproven"] = Field(
        default="exact", description="The least that the recovery point has to give."
    )
    accept_replaced_timestamps: bool = Field(
        default=False,
        description="Let records with a timestamp of 0 or below get the time of the restore.",
    )
    verify: Literal["as_configured", "full", "sample", "counts"] = Field(
        default="as_configured",
        description="How much is read back: every record, a sample of each partition, counts;"
        " as_configured: restore.verify in the YAML.",
    )
    skip_completeness: bool = Field(
        default=False,
        description="Commit the group offsets without evaluating completeness rules on the target;"
        " it is noted in the restore.",
    )

    def request(self, settings: ApplicationSettings) -> RestoreRequest:
        """The request; raises ConfigurationError where settings contradict each other."""
        if self.as_of is not None and self.point_id is not None:
            raise ConfigurationError(
                f"Both as_of ({self.as_of}) and point_id ({self.point_id}) are given.",
                remedy="Give one of them, or neither for the newest point.",
            )
        if self.replication_factor is not None and self.replication_factor < 1:
            raise ConfigurationError(
                f"replication_factor is {self.replication_factor}.",
                remedy="Give a number of at least 1, or none for the source's.",
            )
        headers = self.original_headers
        configured = self.verify == AS_CONFIGURED
        request = RestoreRequest(
            mode=RestoreMode(self.mode),
            point_id=self.point_id,
            as_of_ms=None if self.as_of is None else parse_instant(self.as_of),
            accept=Restores(self.accept),
            inputs=InputsExtent(self.inputs),
            application_id=self.application_id,
            prefix=self.prefix,
            topics=dict(self.topics),
            exclude=tuple(self.exclude),
            inputs_are_at=None if self.inputs_are_at == RESTORED else InputsAt(self.inputs_are_at),
            replication_factor=self.replication_factor,
            original_headers=OriginalHeaders(
                offset=headers.offset, timestamp=headers.timestamp, partition=headers.partition
            ),
            accept_replaced_timestamps=self.accept_replaced_timestamps,
            verify=settings.restore.verify if configured else VerifyExtent(self.verify),
            changelog_source=ChangelogSource(self.changelog_source),
            skip_completeness=self.skip_completeness,
        )
        if request.replication_factor is None and local_name(self.target, request) is not None:
            return replace(request, replication_factor=1)
        return request


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
