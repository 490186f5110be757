"""What the steps of a restore's run have in common."""

import dagster as dg

from kstreams_assets.restore.restores_table import RestoresTable, StoredRestore
from kstreams_assets.settings import ApplicationSettings


def restore_of_run(
    context: dg.AssetExecutionContext, settings: ApplicationSettings
) -> StoredRestore:
    """The restore that this run, or the run that it retries, has made."""
    table = RestoresTable(settings.warehouse)
    run: dg.DagsterRun | None = context.run
    while run is not None:
        restores = table.of_run(settings.application_id, run.run_id)
        if restores:
            return restores[0]
        parent = run.parent_run_id
        run = context.instance.get_run_by_id(parent) if parent else None
    raise dg.Failure(
        description=f"No restore of {settings.application_id} belongs to this run. Materialise all"
        " assets of its restore together, with the same configuration as before: what is restored"
        " already is found and not written again.",
        allow_retries=False,
    )
