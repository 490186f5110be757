"""Restores the application through Dagster in one run: topics, verification, rules, offsets."""

import time
from dataclasses import dataclass

import dagster as dg

from examples.demo.live import DemoError
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.completeness.on_restores import results_of_restore
from kstreams_assets.model.restores import RestoreState, StoredRestore
from kstreams_assets.model.rule_results import RuleResult
from kstreams_assets.orchestration.keys import group, restore_completeness_key, sanitize_name
from kstreams_assets.repository.coverage import newest_restorable
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings

_QUIET = {"console": {"config": {"log_level": "ERROR"}}}


@dataclass(frozen=True, slots=True)
class Restored:
    """A restore whose group offsets are committed.

    `seconds` are those of the whole run, `rules_s` those in which its rules were evaluated.
    """

    restore: StoredRestore
    run_id: str
    rules: tuple[RuleResult, ...]
    seconds: float
    rules_s: float

    @property
    def records(self) -> int:
        """How many records were restored."""
        return sum(topic.records for topic in self.restore.topics)


def loaded_definitions() -> dg.Definitions:
    """What `workspace.yaml` serves, read with the environment as it is now."""
    from examples.definitions import defs

    return defs()


def restore(
    settings: ApplicationSettings,
    definitions: dg.Definitions,
    bootstrap_servers: str,
    instance: dg.DagsterInstance,
) -> Restored:
    """Restore the window of the newest restorable point of the application onto a cluster.

    The definitions may be those of the lost cluster: the target goes with the run.

    Raises:
        DemoError: The run did not come to its end, in Dagster's words.
    """
    application_id = settings.application_id
    point = newest_restorable(settings).enough
    if point is None:
        raise DemoError("No recovery point can be restored.")
    began = time.monotonic()
    result = definitions.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=instance,
        asset_selection=[
            spec.key
            for spec in definitions.resolve_all_asset_specs()
            if spec.group_name == group(application_id, "restore")
        ],
        run_config={
            "loggers": _QUIET,
            "ops": {
                f"restore_{sanitize_name(application_id)}": {
                    "config": {"dry_run": False, "target": bootstrap_servers}
                }
            },
        },
        partition_key=WindowCalendar(settings.windows).key_at(point.taken_at_ms),
        raise_on_error=False,
    )
    found = Repository.open(settings).restores.of_run(result.run_id)
    if not result.success or not found or found[0].state is not RestoreState.COMMITTED:
        failed = [
            f"{event.step_key}: {event.event_specific_data.error_display_string}"  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
            for event in result.all_events
            if event.is_step_failure
        ]
        raise DemoError("The restore did not come to its end. " + " ".join(failed))
    seconds = time.monotonic() - began
    return Restored(
        found[0],
        result.run_id,
        tuple(results_of_restore(settings, found[0]).values()),
        seconds,
        _seconds_of(result, restore_completeness_key(settings)),
    )


def _seconds_of(result: dg.ExecuteInProcessResult, key: dg.AssetKey) -> float:
    """How long the step of an asset took."""
    events = result.events_for_node(key.to_python_identifier())
    return sum(e.step_success_data.duration_ms for e in events if e.is_step_success) / 1000
