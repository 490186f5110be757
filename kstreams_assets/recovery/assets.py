"""Recovery points as a Dagster asset: a click takes one now."""

import dagster as dg

from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.naming import group, recovery_points_key
from kstreams_assets.recovery.point import RecoveryPoint
from kstreams_assets.recovery.recorder import Recorder
from kstreams_assets.settings import ApplicationSettings


def build_recovery_points_asset(settings: ApplicationSettings) -> dg.AssetsDefinition:
    """The recovery points of an application; materialising takes one and stores it."""
    application_id = settings.application_id

    @dg.asset(
        key=recovery_points_key(application_id),
        description=(
            f"Consistent cuts of `{application_id}`. Materialise to take one now: control calls"
            " only, no JVM. Windows end where recovery points stand."
        ),
        group_name=group(application_id, "backups"),
        kinds={"deltalake", "kafka"},
        owners=list(settings.owners),
        tags={**settings.tags, "kstreams/app": application_id},
        metadata={"dagster/uri": str(settings.warehouse.control("recovery_points"))},
    )
    def recovery_points() -> dg.MaterializeResult:
        try:
            with KafkaCluster(settings.connection) as cluster:
                point = Recorder(settings.application, cluster, settings.warehouse).take()
        except KStreamsAssetsError as error:
            raise dg.Failure(description=str(error), allow_retries=False) from error
        return dg.MaterializeResult(metadata=_metadata(point))

    return recovery_points


def _metadata(point: RecoveryPoint) -> dict[str, dg.MetadataValue]:
    committed = {(o.topic, o.partition): o.offset for o in point.group_offsets}
    rows = [
        dg.TableRecord(
            {
                "topic": cut.topic,
                "partition": cut.partition,
                "log_start": cut.log_start,
                "end": cut.end,
                "committed": committed.get((cut.topic, cut.partition)),
            }
        )
        for cut in point.partitions
    ]
    lag = sum(
        cut.end - committed[cut.topic, cut.partition]
        for cut in point.partitions
        if (cut.topic, cut.partition) in committed
    )
    return {
        "recovery_point": dg.MetadataValue.text(point.id),
        "method": dg.MetadataValue.text(point.method.value),
        "guarantee": dg.MetadataValue.text(point.guarantee.value),
        "reason": dg.MetadataValue.text(point.reason),
        "took_ms": dg.MetadataValue.int(point.took_ms),
        "offset_lag": dg.MetadataValue.int(lag),
        "positions": dg.MetadataValue.table(rows),
    }
