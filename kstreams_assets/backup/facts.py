"""The table `topics`: how each topic was described when a window was backed up."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kstreams_assets.backup.result import TopicBackup, TopicFacts
from kstreams_assets.kafka.topics import TopicDescription
from kstreams_assets.warehouse.control_table import ControlTable, one_of
from kstreams_assets.warehouse.layout import Warehouse
from kstreams_assets.warehouse.predicate import WindowTopic, sql_string, windows_and_topics

SCHEMA = pa.schema(
    [
        pa.field("application_id", pa.string(), nullable=False),
        pa.field("window", pa.string(), nullable=False),
        pa.field("window_end_ms", pa.int64(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("role", pa.string(), nullable=False),
        pa.field("topic_id", pa.string(), nullable=False),
        pa.field("partitions", pa.int32(), nullable=False),
        pa.field("replication_factor", pa.int32(), nullable=False),
        pa.field("configs", pa.map_(pa.string(), pa.string())),
    ]
)


class TopicFactsTable:
    """What topics of one application looked like, window by window."""

    def __init__(self, warehouse: Warehouse, application_id: str) -> None:
        self._table = ControlTable(
            warehouse.control("topics"),
            SCHEMA,
            grows_along="window_end_ms",
            statistics=("window", "window_end_ms", "topic"),
        )
        self._application_id = application_id

    def record(self, backups: Sequence[TopicBackup]) -> None:
        """Put the facts of these windows and topics in place of earlier ones, in one commit."""
        rows = [
            {
                "application_id": self._application_id,
                "window": backup.window.key,
                "window_end_ms": backup.window.end_ms,
                "topic": backup.topic,
                "role": backup.role,
                "topic_id": backup.facts.topic_id,
                "partitions": backup.facts.partitions,
                "replication_factor": backup.facts.replication_factor,
                "configs": list(backup.facts.configs),
            }
            for backup in backups
            if backup.facts is not None
        ]
        if not rows:
            return
        pairs = windows_and_topics(WindowTopic(b.window.key, b.topic) for b in backups)
        application = sql_string(self._application_id)
        ends_ms = [backup.window.end_ms for backup in backups]
        self._table.replace(
            rows,
            where=f"application_id = {application} AND window_end_ms >= {min(ends_ms)}"
            f" AND window_end_ms <= {max(ends_ms)} AND ({pairs})",
        )

    def delete_retention_ms(self, topics: Collection[str]) -> Mapping[str, int]:
        """The shortest time for which topics were ever set to keep deletions, where it is set."""
        wanted = set(topics)
        least: dict[str, int] = {}
        for of_file in self._table.fold(
            self._application_id, ["topic", "configs"], _least_delete_retention_ms
        ):
            for topic in wanted & of_file.keys():
                least[topic] = min(of_file[topic], least.get(topic, of_file[topic]))
        return least

    def before(self, instant_ms: int) -> Mapping[str, TopicFacts]:
        """Of each topic, what was noted at the last window that ended at or before an instant."""
        rows = self._table.read(
            application_id=self._application_id,
            where=pc.field("window_end_ms") <= instant_ms,
        )
        newest = rows.group_by("topic").aggregate([("window_end_ms", "max")]).to_pylist()
        chosen = {(row["topic"], row["window_end_ms_max"]) for row in newest}
        return {
            row["topic"]: facts_in(row)
            for row in rows.to_pylist()
            if (row["topic"], row["window_end_ms"]) in chosen
        }

    def of_windows(self, windows: Collection[str]) -> Mapping[WindowTopic, TopicFacts]:
        """What was noted at these windows (keys)."""
        rows = self._table.read(
            application_id=self._application_id, where=one_of("window", windows)
        ).to_pylist()
        return {WindowTopic(row["window"], row["topic"]): facts_in(row) for row in rows}

    def rows(self, topics: Iterable[str]) -> pa.Table:
        """All that was noted of these topics; columns as in `SCHEMA`."""
        return self._table.read(application_id=self._application_id, where=one_of("topic", topics))


def _least_delete_retention_ms(rows: pa.Table) -> Mapping[str, int]:
    told = pc.map_lookup(  # pyright: ignore[reportAttributeAccessIssue] (made at run time)
        rows["configs"], pa.scalar("delete.retention.ms"), "first"
    )
    table = pa.table({"topic": rows["topic"], "ms": told.cast(pa.int64())})
    least = table.filter(pc.field("ms").is_valid()).group_by("topic").aggregate([("ms", "min")])
    return dict(zip(least["topic"].to_pylist(), least["ms_min"].to_pylist(), strict=True))


def facts_in(row: Mapping[str, Any]) -> TopicFacts:
    """The facts in a row of the table."""
    return TopicFacts(
        topic_id=row["topic_id"],
        partitions=row["partitions"],
        replication_factor=row["replication_factor"],
        configs=tuple(row["configs"] or ()),
    )


def facts_of(descriptions: Mapping[str, TopicDescription]) -> Mapping[str, TopicFacts]:
    """The facts that are kept of each described topic."""
    return {
        name: TopicFacts(
            topic_id=topic.topic_id,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            configs=tuple(sorted(topic.explicit_configs.items())),
        )
        for name, topic in descriptions.items()
    }
