"""Snapshots of an application's stores as it is configured."""

import difflib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from kstreams_assets.app.model import StreamsApplication, TopicRole
from kstreams_assets.backup.run import Spark
from kstreams_assets.backup.windows import Window
from kstreams_assets.errors import UnknownStoreError
from kstreams_assets.ktables.declared import format_of
from kstreams_assets.ktables.run import KTableRun
from kstreams_assets.ktables.schemas import RegisteredSchema, schemas_of, try_to_save_schemas
from kstreams_assets.ktables.snapshot import Snapshot, TableStore
from kstreams_assets.settings import ApplicationSettings

_log = logging.getLogger(__name__)


def table_stores(settings: ApplicationSettings) -> tuple[TableStore, ...]:
    """The stores of which tables are made, by name: those with a log that is backed up.

    A store of which nothing is declared is read as bytes; where the DSL made its name up, that name
    tells its kind.
    """
    backed_up = {topic.name for topic in settings.topics}
    return tuple(
        TableStore(
            store=store.name,
            topic=store.changelog,
            format=format_of(store.name, settings.store_formats),
            is_global=store.is_global,
            is_changelog_only=_is_changelog_only(settings.application, store.changelog),
        )
        for store in sorted(settings.application.stores, key=lambda store: store.name)
        if store.changelog is not None
        and store.changelog in backed_up
        and store.name not in settings.without_ktable
    )


def make_snapshots(
    settings: ApplicationSettings,
    windows: Sequence[Window],
    *,
    stores: Collection[str] | None = None,
    spark: Spark,
    run_id: str,
    log: Callable[[str], None] = _log.info,
) -> list[Snapshot]:
    """Make the snapshots of these windows, of all stores or those named; see `KTableRun.execute`.

    Raises:
        UnknownStoreError: A store is named of which no table is made.
        KStreamsAssetsError: As `KTableRun.execute`.
    """
    known = table_stores(settings)
    names = [store.store for store in known]
    for name in sorted(set(stores or ()) - set(names)):
        raise UnknownStoreError(
            application_id=settings.application_id,
            store=name,
            known=names,
            near=difflib.get_close_matches(name, names),
        )
    chosen = [store for store in known if stores is None or store.store in stores]
    schemas: Mapping[int, RegisteredSchema] = {}
    if any(store.format.needs_registry for store in chosen):
        # What is stored suffices as a rule; a registry that is down must not keep tables away.
        try_to_save_schemas(settings)
        schemas = schemas_of(settings.warehouse, settings.application_id)
    run = KTableRun(
        application=settings.application,
        warehouse=settings.warehouse,
        spark=spark,
        run_id=run_id,
        settings=settings.backup,
        schemas=schemas,
        log=log,
    )
    return run.execute(chosen, windows)


def _is_changelog_only(application: StreamsApplication, topic: str) -> bool:
    return application.topic(topic).roles == {TopicRole.CHANGELOG}
