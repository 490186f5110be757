"""What Dagster shows of a recovery point."""

import dagster as dg

from kstreams_assets.app.model import TopicRole
from kstreams_assets.recovery.point import PartitionCut, RecoveryPoint

_POSITIONS = dg.TableSchema(
    [
        dg.TableColumn("topic", "string"),
        dg.TableColumn("partition", "int"),
        dg.TableColumn("log_start", "int", "First offset that Kafka held"),
        dg.TableColumn("end", "int", "Exclusive end of what belongs to the point"),
        dg.TableColumn("committed", "int", "Committed offset of the application's group"),
    ]
)

_LAG = dg.TableSchema(
    [
        dg.TableColumn("topic", "string"),
        dg.TableColumn("offset_lag", "int", "Offsets that the application has not processed"),
    ]
)


def point_metadata(point: RecoveryPoint) -> dict[str, dg.MetadataValue]:
    """Metadata of the asset `recovery_points/<app>` for a point that was taken."""
    committed = {(o.topic, o.partition): o.offset for o in point.group_offsets}
    lags = input_lags(point)
    values: dict[str, dg.MetadataValue] = {
        "recovery_point": dg.MetadataValue.text(point.id),
        "taken_at": dg.MetadataValue.timestamp(point.taken_at_ms / 1000),
        "method": dg.MetadataValue.text(point.method.value),
        "guarantee": dg.MetadataValue.text(point.guarantee.value),
        "reason": dg.MetadataValue.text(point.reason),
        "sealed": dg.MetadataValue.bool(point.sealed),
        "in_flight": dg.MetadataValue.int(point.in_flight),
        "offset_lag": dg.MetadataValue.int(sum(lags.values())),
        "input_lag": dg.MetadataValue.table(
            [dg.TableRecord({"topic": t, "offset_lag": lag}) for t, lag in sorted(lags.items())],
            schema=_LAG,
        ),
        "took_ms": dg.MetadataValue.int(point.took_ms),
        "attempts": dg.MetadataValue.int(point.attempts),
        "positions": dg.MetadataValue.table(
            [
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
            ],
            schema=_POSITIONS,
        ),
    }
    if point.unsealed_because:
        values["unsealed_because"] = dg.MetadataValue.text(point.unsealed_because)
    return values


def input_lags(point: RecoveryPoint) -> dict[str, int]:
    """Offsets of each input topic that the application had not processed.

    Of a partition without a committed offset it has processed nothing.
    """
    committed = {(o.topic, o.partition): o.offset for o in point.group_offsets}
    lags: dict[str, int] = {}
    for cut in point.partitions:
        reached = committed.get((cut.topic, cut.partition))
        if _is_input(cut, has_committed=reached is not None):
            start = cut.log_start if reached is None else reached
            lags[cut.topic] = lags.get(cut.topic, 0) + max(0, cut.end - start)
    return lags


def _is_input(cut: PartitionCut, *, has_committed: bool) -> bool:
    """Points of the first release do not say which roles a topic has."""
    return TopicRole.INPUT in cut.roles if cut.roles else has_committed
