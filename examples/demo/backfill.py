"""Materialises windows as one backfill through Dagster, with real run records."""

from collections.abc import Sequence
from dataclasses import dataclass

import dagster as dg

from kstreams_assets.orchestration.keys import backup_key
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.spans import Window

_QUIET = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}


@dataclass(frozen=True, slots=True)
class Backfill:
    """A finished run over a range of windows."""

    run_id: str
    success: bool
    checks: dict[tuple[str, str], list[tuple[str, bool]]]
    """(window, topic) -> (check, passed)."""


def backfill(
    settings: ApplicationSettings, windows: Sequence[Window], instance: dg.DagsterInstance
) -> Backfill:
    """Run the backups of these windows, in order of time without gaps, as a single run."""
    from examples.definitions import defs

    definitions = defs()
    ordered = sorted(windows)
    keys = [backup_key(settings.application_id, topic.name) for topic in settings.topics]
    result = definitions.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=instance,
        asset_selection=keys,
        run_config=_QUIET,
        tags={
            "dagster/asset_partition_range_start": ordered[0].key,
            "dagster/asset_partition_range_end": ordered[-1].key,
        },
        raise_on_error=False,
    )
    checks: dict[tuple[str, str], list[tuple[str, bool]]] = {}
    for evaluation in result.get_asset_check_evaluations():
        if evaluation.partition is not None:
            place = (evaluation.partition, evaluation.asset_key.path[-1])
            checks.setdefault(place, []).append((evaluation.check_name, evaluation.passed))
    return Backfill(result.run_id, result.success, checks)
