"""The assets of the KTables, their lineage, and what Dagster shows of them."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

import dagster as dg
import pyarrow as pa

from kstreams_assets.app.store_columns import KEY_PARTS, POSITION, RAW, decoded_columns
from kstreams_assets.app.store_format import StoreKind
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.ktables.checks import KTABLE_CHECKS, evaluate_all
from kstreams_assets.ktables.run import make_snapshots
from kstreams_assets.ktables.state import written_fields
from kstreams_assets.ktables.stores import table_stores
from kstreams_assets.model.snapshot import SNAPSHOT, Snapshot, TableStore
from kstreams_assets.orchestration.check_events import window_check_events, window_check_specs
from kstreams_assets.orchestration.failure import repeated_after_outage
from kstreams_assets.orchestration.keys import (
    backup_key,
    group,
    ktable_key,
    pool,
    recovery_points_key,
    refuse_collisions,
    sanitize_name,
    topic_key,
    window_partitions,
)
from kstreams_assets.orchestration.metadata import metadata
from kstreams_assets.orchestration.translator import AssetKind, translator_of
from kstreams_assets.settings import ApplicationSettings
from spark_resources.resource import SparkSessionResource

_AS_THEY_ARE = ("partition", "offset", "timestamp_ms", "headers", "key", "value")


def column_lineage(store: TableStore, settings: ApplicationSettings) -> dg.TableColumnLineage:
    """Where each column comes from: the topic's backup, and what the user declares beyond it.

    Declared sources are columns `value.<field>` of the backup of another topic, or of the topic
    itself where that has no backup.

    Raises:
        ConfigurationError: A declared source names no topic of the application.
    """
    log = backup_key(settings, store.topic)
    columns = {name: [(log, name)] for name in _AS_THEY_ARE}
    part_of = "timestamp_ms" if store.format.kind is StoreKind.VERSIONED else "key"
    columns |= {name: [(log, part_of)] for name, _, _ in KEY_PARTS.get(store.format.kind, ())}
    for side in ("key", "value"):
        columns |= {name: [(log, side)] for name, _ in decoded_columns(store.format, side)}
    columns["decode_error"] = [(log, "key"), (log, "value")]
    for target, sources in store.format.lineage:
        name = f"decoded_value.{target}" if target else "decoded_value"
        here = columns.setdefault(name, [(log, "value")])
        here += [_source(source, store, settings) for source in sources]
    return dg.TableColumnLineage(
        {
            name: [dg.TableColumnDep(asset_key=key, column_name=column) for key, column in deps]
            for name, deps in columns.items()
        }
    )


def _source(
    source: str, store: TableStore, settings: ApplicationSettings
) -> tuple[dg.AssetKey, str]:
    topic, field = split_source(source, store, settings)
    column = f"value.{field}" if field else "value"
    if topic in {backed_up.name for backed_up in settings.topics}:
        return backup_key(settings, topic), column
    return topic_key(settings, topic), column


def split_source(source: str, store: TableStore, settings: ApplicationSettings) -> tuple[str, str]:
    """Topic and field of a declared source `topic.field`; topics may have dots in their names.

    Raises:
        ConfigurationError: No topic of the application has such a name.
    """
    names = [topic.name for topic in settings.application.topics]
    fitting = [name for name in names if source == name or source.startswith(f"{name}.")]
    if not fitting:
        raise ConfigurationError(
            f"The lineage of store {store.store!r} names {source!r}, and no topic of"
            f" {settings.application_id} has such a name.",
            remedy=f"Give topic.field; the topics are {', '.join(names)}.",
        )
    topic = max(fitting, key=len)
    return topic, source[len(topic) + 1 :]


def declared_fields(
    stores: Iterable[TableStore], settings: ApplicationSettings
) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """The fields of each topic's values of which stores are declared to be computed: topic -> field
    -> columns `store.field`.

    Raises:
        ConfigurationError: A declared source names no topic of the application.
    """
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for store in stores:
        for target, sources in store.format.lineage:
            column = f"{store.store}.{target}" if target else store.store
            for source in sources:
                topic, field = split_source(source, store, settings)
                if field:
                    fields = found.setdefault(topic, {})
                    fields[field] = (*fields.get(field, ()), column)
    return found


def column_schema(store: TableStore) -> dg.TableSchema:
    """The columns as declared, fields of structures dotted (`decoded_value.total_cents`)."""
    sources = dict(store.format.lineage)
    described = [
        *POSITION,
        *KEY_PARTS.get(store.format.kind, ()),
        *((name, kind, "From the key") for name, kind in decoded_columns(store.format, "key")),
        *(
            (name, kind, _from_value(name, sources))
            for name, kind in decoded_columns(store.format, "value")
        ),
        *RAW,
    ]
    return dg.TableSchema([dg.TableColumn(*column) for column in described])


def _from_value(column: str, sources: dict[str, tuple[str, ...]]) -> str:
    declared = sources.get(column.removeprefix("decoded_value").lstrip("."), ())
    return f"From the value; computed from {', '.join(declared)}" if declared else "From the value"


def written_schema(fields: Iterable[pa.Field], declared: dg.TableSchema) -> dg.TableSchema:
    """The columns as they are in the table, with the texts of the declared ones.

    Only the table knows the fields of Avro, Protobuf and buffers.
    """
    texts = {column.name: column.description for column in declared.columns}
    columns: list[dg.TableColumn] = []

    def add(name: str, kind: pa.DataType) -> None:
        struct = pa.types.is_struct(kind)
        side = "key" if name.startswith("decoded_key") else "value"
        text = texts.get(name) or f"From the {side}"
        columns.append(dg.TableColumn(name, "struct" if struct else sql_type(kind), text))
        if struct:
            for inner in kind:
                add(f"{name}.{inner.name}", inner.type)

    for field in fields:
        add(field.name, field.type)
    return dg.TableSchema(columns)


_SQL_TYPES = {
    "int64": "bigint",
    "int32": "int",
    "int16": "smallint",
    "int8": "tinyint",
    "double": "double",
    "float": "float",
    "bool": "boolean",
    "large_string": "string",
    "string_view": "string",
    "large_binary": "binary",
    "binary_view": "binary",
    "date32[day]": "date",
}


def sql_type(kind: pa.DataType) -> str:
    """A type as Spark writes it."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{sql_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{sql_type(kind.key_type)}, {sql_type(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{f.name}: {sql_type(f.type)}' for f in kind)}>"
    if pa.types.is_timestamp(kind):
        return "timestamp"
    return _SQL_TYPES.get(str(kind), str(kind))


_Event = dg.MaterializeResult | dg.AssetCheckResult | dg.AssetCheckEvaluation


def build_ktable_assets(settings: ApplicationSettings) -> list[dg.AssetsDefinition]:
    """The state stores of an application as tables, partitioned by window; none without a store.

    Needs the resource `spark` (`SparkSessionResource`).

    Raises:
        ConfigurationError: Dagster would take two of the stores for one.
        ConfigurationError: Declared lineage names no topic of the application.
    """
    by_key = {ktable_key(settings, store.store): store for store in table_stores(settings)}
    if not by_key:
        return []
    refuse_collisions(store.store for store in by_key.values())
    calendar = WindowCalendar(settings.windows)
    partitions = window_partitions(settings.windows)
    retries = translator_of(settings).get_retry_policy(AssetKind.KTABLE)

    @dg.multi_asset(
        name=f"ktable_{sanitize_name(settings.application_id)}",
        specs=[_spec(key, store, settings) for key, store in by_key.items()],
        check_specs=window_check_specs(dict.fromkeys(by_key, KTABLE_CHECKS), partitions),
        partitions_def=partitions,
        backfill_policy=dg.BackfillPolicy.single_run(),
        can_subset=True,
        pool=pool(settings.application_id),
    )
    def ktables(context: dg.AssetExecutionContext, spark: SparkSessionResource) -> Iterator[_Event]:
        stores = {by_key[key].store: by_key[key] for key in context.selected_asset_keys}
        began = time.monotonic()
        with repeated_after_outage(context, retries):
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
        deps=[backup_key(settings, store.topic), recovery_points_key(settings)],
        description=_description(store, settings),
        code_version=store.format.fingerprint,
        group_name=group(application_id, "ktables"),
        kinds={"deltalake", "table", "spark"},
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
    verdicts = evaluate_all(settings, snapshots)
    by_store: dict[str, list[Snapshot]] = {}
    for snapshot in snapshots:
        by_store.setdefault(snapshot.store, []).append(snapshot)
    for name, of_store in sorted(by_store.items()):
        key = ktable_key(settings, name)
        for snapshot in of_store:
            context.add_asset_metadata(metadata(SNAPSHOT, snapshot), key, snapshot.window.key)
        yield dg.MaterializeResult(asset_key=key, metadata=_columns(stores[name], settings))
        for check in KTABLE_CHECKS:
            of_check = [v for v in verdicts if (v.subject, v.check) == (name, check)]
            yield from window_check_events(context, key, check, of_check)


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
