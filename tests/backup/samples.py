"""Windows, recovery points and backups made by hand."""

from collections.abc import Sequence

from kstreams_assets.app.model import AppTopic, StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.backup.result import TopicBackup, UnreadTopic, WindowBackup
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.point import Guarantee, Method, PartitionCut, RecoveryPoint
from kstreams_assets.model.spans import Gap, SpanContent, SpanPlan, SpanResult, TopicFacts, Window
from kstreams_assets.offsets import TopicPartitionId

APPLICATION_ID = "shop"
STEP_MS = 10


def window(index: int) -> Window:
    """The window of this number; windows are `STEP_MS` long and begin at 0."""
    return Window(index * STEP_MS, (index + 1) * STEP_MS, f"w{index:04d}")


def cut(
    partition: int, end: int, *, topic: str = "t", topic_id: str = "life-1", log_start: int = 0
) -> PartitionCut:
    """Where a partition stood."""
    return PartitionCut(topic, partition, topic_id, log_start, end)


def point(
    taken_at_ms: int,
    *cuts: PartitionCut,
    closes_window_end_ms: int | None = None,
    point_id: str | None = None,
    application_id: str = APPLICATION_ID,
    group_offsets: Sequence[GroupOffset] = (),
    absent_topics: Sequence[str] = (),
) -> RecoveryPoint:
    """A recovery point of these cuts."""
    return RecoveryPoint(
        id=point_id or f"point-{taken_at_ms}",
        application_id=application_id,
        cluster_id="cluster",
        taken_at_ms=taken_at_ms,
        method=Method.OFFSETS_FIRST,
        guarantee=Guarantee.AT_LEAST_ONCE,
        reason="Offsets, then ends.",
        took_ms=7,
        partitions=tuple(cuts),
        group_offsets=tuple(group_offsets),
        closes_window_end_ms=closes_window_end_ms,
        absent_topics=tuple(absent_topics),
    )


def span(
    start: int,
    end: int,
    *,
    index: int = 0,
    topic: str = "t",
    partition: int = 0,
    topic_id: str = "life-1",
    read_start: int | None = None,
    continues: bool = True,
    gaps: Sequence[Gap] = (),
    log_start: int = 0,
) -> SpanPlan:
    """The plan of one span."""
    return SpanPlan(
        window=window(index),
        partition=TopicPartitionId(topic, partition),
        topic_id=topic_id,
        start=start,
        end=end,
        read_start=start if read_start is None else read_start,
        continues=continues,
        gaps=tuple(gaps),
        log_start=log_start,
    )


def result(
    plan: SpanPlan, *gaps: Gap, records: int | None = None, kept: bool = False
) -> SpanResult:
    """A span after its backup; `records` is by default all that is not in a gap."""
    if records is None:
        records = plan.end - plan.start - sum(gap.offsets or 0 for gap in gaps)
    return SpanResult(plan, SpanContent(records=records), gaps, kept)


FACTS = TopicFacts("life-1", 1, 3, (("retention.ms", "1000"),))


def backup(
    *spans: SpanResult,
    index: int = 0,
    topic: str = "t",
    facts: TopicFacts | None = FACTS,
    previous_facts: TopicFacts | None = FACTS,
) -> TopicBackup:
    """One topic in one window."""
    return TopicBackup(
        window=window(index),
        topic=topic,
        spans=spans,
        role="input",
        facts=facts,
        previous_facts=previous_facts,
        recovery_point_id="point-1",
        delta_version=3,
        duration_s=0.5,
    )


def window_backup(
    *topics: TopicBackup, of: Window | None = None, unread: Sequence[UnreadTopic] = ()
) -> WindowBackup:
    """A window of these topics, between points that saw the partitions of their spans."""
    of = of or (topics[0].window if topics else window(0))
    cuts = [
        cut(s.partition.partition, s.plan.end, topic=s.partition.topic, topic_id=s.plan.topic_id)
        for topic in topics
        for s in topic.spans
    ]
    opening = point(of.start_ms - 1, *cuts)
    closing = point(of.start_ms, *cuts, point_id="point-1")
    return WindowBackup(of, topics, opening, closing, tuple(unread))


def application(*topics: AppTopic) -> StreamsApplication:
    """An application of these topics, one input `t` by default."""
    return StreamsApplication(
        APPLICATION_ID, topics or (AppTopic("t", TopicRoles({TopicRole.INPUT})),)
    )
