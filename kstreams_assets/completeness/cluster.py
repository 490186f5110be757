"""Records of an application on a cluster, as views for rules; they are read once."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kstreams_assets.app.model import TopicRoles
from kstreams_assets.completeness.content import (
    EvaluationPoint,
    Part,
    ViewPart,
    in_flight_from,
    partitions_of_view,
)
from kstreams_assets.completeness.planner import KEPT_BYTES, PointPlanner
from kstreams_assets.completeness.runnable import Verifiability
from kstreams_assets.errors import KafkaError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.point import Guarantee, Method, PartitionCut, RecoveryPoint
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.staging import Staging
from kstreams_assets.rules.view import View, ViewKind
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import few
from spark_resources.work import LoggedRows, LogSource, ReadRange, Spark

if TYPE_CHECKING:
    from spark_resources.cluster_source import TopicFiles


class ClusterContents:
    """The rows of views on a cluster, and their verifiability; like `PointPlanner`.

    `topics` are the topics to read. `backup` is the restored recovery point, if it is known. The
    first view reads the records of all topics into files of `staging`.
    """

    def __init__(
        self,
        settings: ApplicationSettings,
        cluster: KafkaCluster,
        *,
        names: Mapping[str, str],
        committed: Mapping[TopicPartitionId, int],
        point_id: str,
        topics: Mapping[str, TopicRoles],
        backup: PointPlanner | None,
        spark: Spark,
        staging: Staging,
    ) -> None:
        self._settings, self._cluster, self._names = settings, cluster, names
        self._backup, self._spark, self._staging = backup, spark, staging
        self._read: Mapping[str, TopicFiles] | KafkaError | RuntimeError | None = None
        self.evaluation_point = EvaluationPoint(self._as_point(point_id, committed, topics))

    def content(self, asked: ViewPart) -> LoggedRows:
        """Return the rows of a view.

        Raises:
            KafkaError, SparkJobError: The topics cannot be read.
        """
        view = asked.view
        parts = partitions_of_view(view, self.evaluation_point, Part.ALL)
        source = self._source(self._names.get(view.topic, view.topic))
        return LoggedRows(
            format=view.format,
            is_store=view.kind is ViewKind.STORE,
            source=source,
            ranges={one.cut.partition: one.ranges for one in parts},
            in_flight_from=in_flight_from(view, self.evaluation_point),
            records=source.records,
        )

    def _source(self, topic: str) -> LogSource:
        files = self._files().get(topic)
        root = self._staging.root
        if files is None:
            return LogSource(topic, root, (), 0)
        is_whole = files.bytes <= KEPT_BYTES
        return LogSource(topic, root, files.files, files.records, is_whole)

    def _files(self) -> "Mapping[str, TopicFiles]":
        """Read the records of all topics once; a failure is raised again without another read."""
        if self._read is None:
            try:
                self._read = self._read_all()
            except (KafkaError, RuntimeError) as error:  # RuntimeError: raised by a Spark job
                self._read = error
        if isinstance(self._read, Exception):
            raise self._read
        return self._read

    def _read_all(self) -> "Mapping[str, TopicFiles]":
        from spark_resources.cluster_source import read_topics

        ranges = [
            ReadRange(
                TopicPartitionId(self._names.get(cut.topic, cut.topic), cut.partition),
                cut.log_start,
                cut.end,
            )
            for cut in self.evaluation_point.point.partitions
            if cut.log_start < cut.end
        ]
        return read_topics(
            ranges,
            self._staging.folder(),
            connection=self._cluster.connection,
            settings=self._settings,
            spark=lambda: self._spark.spark_session,
            throttle=self._settings.throttle_of_restores,
        )

    def scrub(self, text: str) -> str:
        """Remove secrets of the connection from a text."""
        return self._cluster.connection.scrub(text)

    def verifiability_of(self, views: Sequence[Sequence[ViewPart]]) -> list[Verifiability]:
        """Return the verifiability of each rule, given the views of each."""
        tails = [[text for one in of_rule for text in self._tails(one.view)] for of_rule in views]
        if self._backup is None:
            return [Verifiability(incomplete=few(texts, by="; ")) for texts in tails]
        return self._backup.verifiability_of_restored(views, tails)

    def missing_snapshots(self, views: Sequence[ViewPart]) -> list[str]:
        """Return an empty list: stores are read from their changelogs."""
        return []

    def compacted(self, views: Sequence[ViewPart]) -> str:
        """Describe topics of which compaction removed records before the backup."""
        return "" if self._backup is None else self._backup.compacted(views)

    def _tails(self, view: View) -> list[str]:
        """Return inputs of which only unprocessed records were restored."""
        if view.kind is ViewKind.STORE or view.is_transient or view.is_read_and_written:
            return []
        if not view.roles.is_input or self._backup is None:
            return []
        point = self._backup.evaluation_point.point
        taken_in, here = point.group, self.evaluation_point.point.group
        return [
            f"of {cut.id} only the tail is on the cluster"
            for cut in self.evaluation_point.point.partitions
            if cut.topic == view.topic
            and (source := point.cut(cut.id)) is not None
            and (taken_in.offset_in(cut) or 0) > source.log_start
            and (here.offset_in(cut) or 0) <= cut.log_start
        ]

    def _as_point(
        self,
        point_id: str,
        committed: Mapping[TopicPartitionId, int],
        topics: Mapping[str, TopicRoles],
    ) -> RecoveryPoint:
        """Describe the present state of the cluster as a point, with topic names of the source."""
        there = self._cluster.metadata().topics
        source = {self._names.get(topic, topic): topic for topic in topics}
        partitions = [
            TopicPartitionId(name, number)
            for name in sorted(source.keys() & there.keys())
            for number in range(there[name].partitions)
        ]
        ends = self._cluster.last_stable_offsets(partitions)
        starts = self._cluster.log_start_offsets(partitions)
        return RecoveryPoint(
            id=point_id,
            application_id=self._settings.application_id,
            cluster_id="",
            taken_at_ms=0,
            method=Method.QUIESCED,
            guarantee=Guarantee.EXACT,
            reason="",
            took_ms=0,
            partitions=tuple(
                PartitionCut(
                    topic=source[one.topic],
                    partition=one.partition,
                    topic_id=there[one.topic].topic_id,
                    log_start=starts[one],
                    end=ends[one],
                    roles=topics[source[one.topic]],
                )
                for one in partitions
            ),
            group_offsets=tuple(
                GroupOffset(source[one.topic], one.partition, offset, "")
                for one, offset in committed.items()
                if one.topic in source
            ),
        )
