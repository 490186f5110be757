"""Restores the application through Dagster: topics, verification, group offsets in one run."""

import time
from dataclasses import dataclass

import dagster as dg

from examples.demo.live import DemoError
from kstreams_assets.naming import folded, group_offsets_key, restore_key
from kstreams_assets.restore.restores_table import RestoresTable, RestoreState, StoredRestore
from kstreams_assets.settings import ApplicationSettings

_QUIET = {"console": {"config": {"log_level": "ERROR"}}}


@dataclass(frozen=True, slots=True)
class Restored:
    """A restore whose group offsets are committed."""

    restore: StoredRestore
    run_id: str
    seconds: float

    @property
    def records(self) -> int:
        """How many records were restored."""
        return sum(topic.records for topic in self.restore.topics)


def restore(
    settings: ApplicationSettings, bootstrap_servers: str, instance: dg.DagsterInstance
) -> Restored:
    """Materialise every restore asset of the application onto a cluster, newest exact point."""
    from kstreams_assets.definitions import defs

    application_id = settings.application_id
    began = time.monotonic()
    topics = [restore_key(application_id, topic.name) for topic in settings.application.topics]
    result = (
        defs()
        .resolve_implicit_global_asset_job_def()
        .execute_in_process(
            instance=instance,
            asset_selection=[*topics, group_offsets_key(application_id)],
            run_config={
                "loggers": _QUIET,
                "ops": {
                    f"restore_{folded(application_id)}": {
                        "config": {"dry_run": False, "target": bootstrap_servers}
                    }
                },
            },
            raise_on_error=False,
        )
    )
    found = RestoresTable(settings.warehouse).of_run(application_id, result.run_id)
    if not result.success or not found or found[0].state is not RestoreState.COMMITTED:
        failed = [
            f"{event.step_key}: {event.event_specific_data.error_display_string}"  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
            for event in result.all_events
            if event.is_step_failure
        ]
        raise DemoError("The restore did not come to its end. " + " ".join(failed))
    return Restored(found[0], result.run_id, time.monotonic() - began)
