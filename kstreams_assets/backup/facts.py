"""The table `topics`: how each topic was described when a window was backed up."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc

from kstreams_assets.backup.result import TopicBackup, TopicFacts
from kstreams_assets.kafka.topics import TopicDescription
from kstreams_assets.warehouse.column import (
    WINDOW_END,
    WINDOW_KEY,
    ApplicationId,
    Column,
    TopicName,
)
from kstreams_assets.warehouse.layout import Warehouse
from kstreams_assets.warehouse.rows import rows_of
from kstreams_assets.warehouse.table import (
    Table,
    WindowTopic,
    one_of,
    sql_string,
    windows_and_topics,
)


@dataclass(frozen=True, slots=True)
class NotedTopic:
    """A row of the table."""

    application_id: ApplicationId
    window: Annotated[str, WINDOW_KEY]
    window_end_ms: Annotated[int, WINDOW_END]
    topic: TopicName
    role: Annotated[str, Column("Roles, joined with `+`.")]
    facts: TopicFacts


class TopicFactsTable:
    """What topics of one application looked like, window by window."""

    def __init__(self, warehouse: Warehouse, application_id: str) -> None:
        self._table = Table(
            warehouse.control("topics"),
            NotedTopic,
            grows_along="window_end_ms",
            statistics=("window", "window_end_ms", "topic"),
        )
        self._application_id = application_id

    def record(self, backups: Sequence[TopicBackup]) -> None:
        """Put the facts of these windows and topics in place of earlier ones, in one commit."""
        rows = [
            NotedTopic(
                self._application_id,
                backup.window.key,
                backup.window.end_ms,
                backup.topic,
                backup.role,
                backup.facts,
            )
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
        where = pc.field("window_end_ms") <= instant_ms
        rows = self._table.read(application_id=self._application_id, where=where)
        ends_ms = rows["window_end_ms"].to_pylist()
        newest: dict[str, int] = {}
        for index, topic in enumerate(rows["topic"].to_pylist()):
            if ends_ms[index] >= ends_ms[newest.get(topic, index)]:
                newest[topic] = index
        chosen = rows.take(pa.array(newest.values(), pa.int64()))
        return dict(zip(newest, facts_in(chosen), strict=True))

    def of_windows(self, windows: Collection[str]) -> Mapping[WindowTopic, TopicFacts]:
        """What was noted at these windows (keys)."""
        rows = self._table.rows(self._application_id, one_of("window", windows))
        return {WindowTopic(row.window, row.topic): row.facts for row in rows}

    def rows(self, topics: Iterable[str]) -> pa.Table:
        """All that was noted of these topics; columns of `NotedTopic`."""
        return self._table.read(application_id=self._application_id, where=one_of("topic", topics))


def _least_delete_retention_ms(rows: pa.Table) -> Mapping[str, int]:
    told = pc.map_lookup(  # pyright: ignore[reportAttributeAccessIssue] (made at run time)
        rows["configs"], pa.scalar("delete.retention.ms"), "first"
    )
    table = pa.table({"topic": rows["topic"], "ms": told.cast(pa.int64())})
    least = table.filter(pc.field("ms").is_valid()).group_by("topic").aggregate([("ms", "min")])
    return dict(zip(least["topic"].to_pylist(), least["ms_min"].to_pylist(), strict=True))


def facts_in(rows: pa.Table) -> list[TopicFacts]:
    """The facts in rows of the table."""
    return rows_of(NotedTopic).read_part(TopicFacts, rows)


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
