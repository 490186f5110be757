"""KTables as Dagster assets: one multi-asset for each application, one step, one JVM."""

import time
from collections.abc import Iterator, Mapping, Sequence

import dagster as dg

from kstreams_assets.backup.check_events import window_check_events, window_check_specs
from kstreams_assets.backup.partitions import WindowCalendar
from kstreams_assets.failure import told_as_failure
from kstreams_assets.ktables.checks import KTABLE_CHECKS, StoreVerdict, judge_snapshot
from kstreams_assets.ktables.from_settings import make_snapshots, table_stores
from kstreams_assets.ktables.lineage import column_lineage
from kstreams_assets.ktables.metadata import column_schema, snapshot_metadata, written_schema
from kstreams_assets.ktables.snapshot import Snapshot, TableStore
from kstreams_assets.ktables.state import written_fields
from kstreams_assets.naming import (
    backup_key,
    folded,
    group,
    ktable_key,
    pool,
    recovery_points_key,
    refuse_collisions,
)
from kstreams_assets.recovery.point import Guarantee
from kstreams_assets.recovery.table import RecoveryPointTable
from kstreams_assets.settings import ApplicationSettings
from spark_resources.session import SparkSessionResource

_Event = dg.MaterializeResult | dg.AssetCheckResult | dg.AssetCheckEvaluation


def build_ktable_assets(settings: ApplicationSettings) -> list[dg.AssetsDefinition]:
    """The state stores of an application as tables, partitioned by window; none without a store.

    Needs the resource `spark` (`SparkSessionResource`).

    Raises:
        CollidingNamesError: Dagster would take two of the stores for one.
        ConfigurationError: Declared lineage names no topic of the application.
    """
    by_key = {
        ktable_key(settings.application_id, store.store): store for store in table_stores(settings)
    }
    if not by_key:
        return []
    refuse_collisions(store.store for store in by_key.values())
    calendar = WindowCalendar(settings.windows)

    @dg.multi_asset(
        name=f"ktable_{folded(settings.application_id)}",
        specs=[_spec(key, store, settings) for key, store in by_key.items()],
        check_specs=window_check_specs(dict.fromkeys(by_key, KTABLE_CHECKS), calendar),
        partitions_def=calendar.partitions,
        backfill_policy=dg.BackfillPolicy.single_run(),
        can_subset=True,
        pool=pool(settings.application_id),
    )
    def ktables(context: dg.AssetExecutionContext, spark: SparkSessionResource) -> Iterator[_Event]:
        stores = {by_key[key].store: by_key[key] for key in context.selected_asset_keys}
        began = time.monotonic()
        with told_as_failure():
            snapshots = make_snapshots(
                settings,
                calendar.windows(context.partition_keys),
                stores=sorted(stores),
                spark=spark,
                run_id=context.run.run_id,
                log=context.log.info,
            )
        context.log.info(f"{len(snapshots)} snapshots, {time.monotonic() - began:.1f} s.")
        yield from _events(context, settings, stores, snapshots)

    return [ktables]


def _spec(key: dg.AssetKey, store: TableStore, settings: ApplicationSettings) -> dg.AssetSpec:
    application_id = settings.application_id
    return dg.AssetSpec(
        key=key,
        deps=[backup_key(application_id, store.topic), recovery_points_key(application_id)],
        description=_description(store, settings),
        group_name=group(application_id, "ktables"),
        kinds={"deltalake", "table"},
        owners=list(settings.owners),
        tags={
            **settings.tags,
            "kstreams/app": application_id,
            f"kstreams/store-kind-{store.format.kind}": "",
        },
        metadata={
            "store": store.store,
            "topic": store.topic,
            "dagster/uri": str(settings.warehouse.ktable(application_id, store.store)),
            "dagster/table_name": f"ktables/{application_id}/{store.store}",
            "dagster/column_schema": column_schema(store),
            "dagster/column_lineage": column_lineage(store, settings),
        },
    )


def _description(store: TableStore, settings: ApplicationSettings) -> str:
    declared = store.format
    what = "Global table" if store.is_global else f"Store of kind `{declared.kind}`"
    read = (
        "Nothing is declared about it: keys and values are bytes. Give its formats under `stores`."
        if declared.undeclared
        else f"Keys are read as `{declared.key.encoding}`, values as `{declared.value.encoding}`."
    )
    checks = "\n".join(f"- `{name}`: {text}" for name, text in KTABLE_CHECKS.items())
    return (
        f"{what}: what `{store.store}` held at the recovery point that ends each window, from topic"
        f" `{store.topic}`. {read}\n\n"
        f"Delta table `{settings.warehouse.ktable(settings.application_id, store.store)}`. One"
        f" key: `kstreams-assets state --app defs.yaml --store {store.store} --key KEY`.\n\n"
        f"**Checks**\n\n{checks}"
    )


def _events(
    context: dg.AssetExecutionContext,
    settings: ApplicationSettings,
    stores: Mapping[str, TableStore],
    snapshots: Sequence[Snapshot],
) -> Iterator[_Event]:
    verdicts = judge_all(settings, snapshots)
    by_store: dict[str, list[Snapshot]] = {}
    for snapshot in snapshots:
        by_store.setdefault(snapshot.store, []).append(snapshot)
    for name, of_store in sorted(by_store.items()):
        key = ktable_key(settings.application_id, name)
        for snapshot in of_store:
            context.add_asset_metadata(snapshot_metadata(snapshot), key, snapshot.window.key)
        yield dg.MaterializeResult(asset_key=key, metadata=_columns(stores[name], settings))
        for check in KTABLE_CHECKS:
            of_check = [v for v in verdicts if (v.store, v.check) == (name, check)]
            yield from window_check_events(context, key, check, of_check)


def judge_all(settings: ApplicationSettings, snapshots: Sequence[Snapshot]) -> list[StoreVerdict]:
    """Every check of these snapshots, in their order."""
    unproved = {snapshot.point_id for snapshot in snapshots if not snapshot.proved}
    points = RecoveryPointTable(settings.warehouse).load(settings.application_id, sorted(unproved))
    guarantees: dict[str, Guarantee] = {point.id: point.guarantee_of_cut for point in points}
    return [
        verdict
        for snapshot in snapshots
        for verdict in judge_snapshot(snapshot, guarantees.get(snapshot.point_id))
    ]


def _columns(
    store: TableStore, settings: ApplicationSettings
) -> dict[str, dg.TableSchema | dg.TableColumnLineage]:
    """Columns as they are in the table: only it knows the fields of registered schemas."""
    declared = column_schema(store)
    fields = written_fields(settings.warehouse.ktable(settings.application_id, store.store))
    return {
        "dagster/column_schema": written_schema(fields, declared) if fields else declared,
        "dagster/column_lineage": column_lineage(store, settings),
    }
