"""Windows as runs report them: just recorded ones, and later those in the ledger."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

from kstreams_assets.backup.context import RunContext
from kstreams_assets.backup.planner import load_edges
from kstreams_assets.backup.result import TopicBackup, UnreadTopic, WindowBackup
from kstreams_assets.backup.windows import WindowEdges
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.kafka.admin import TopicDescription
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.recordings import Recorded
from kstreams_assets.model.restores import StoredRestore
from kstreams_assets.model.spans import TopicFacts, Window
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings


def recorded_backups(settings: ApplicationSettings, recorded: Recorded) -> list[WindowBackup]:
    """Return the windows of these ledger rows, in order of time.

    Needs no broker. Topics that the application no longer has are left out.
    """
    known = {topic.name: topic for topic in settings.application.topics}
    recorded = {key: rows for key, rows in recorded.items() if key[1] in known}
    if not recorded:
        return []
    windows = sorted({window for window, _ in recorded})
    repo = Repository.open(settings)
    edges = load_edges(
        repo,
        windows,
        {topic for _, topic in recorded},
        begins_ms=WindowCalendar(settings.windows).first_ms,
    )
    table = repo.topics
    noted = table.between(windows[0].start_ms, windows[-1].end_ms)
    facts = {(row.window, row.topic): row.facts for row in noted}
    previous: dict[str, TopicFacts] = dict(table.before(windows[0].start_ms))
    backups: list[TopicBackup] = []
    earlier = iter(noted)
    row = next(earlier, None)
    for (window, topic), entries in sorted(recorded.items(), key=itemgetter(0)):
        while row is not None and row.window_end_ms <= window.start_ms:
            previous[row.topic] = row.facts
            row = next(earlier, None)
        backups.append(
            TopicBackup(
                window=window,
                topic=topic,
                role="+".join(sorted(known[topic].roles)),
                spans=tuple(entry.result for entry in entries if entry.has_span),
                facts=facts.get((window.key, topic)),
                previous_facts=previous.get(topic),
                recovery_point_id=entries[0].recovery_point_id,
                delta_version=entries[0].delta_version,
                duration_s=None,
            )
        )
    return window_backups(repo, windows, backups, edges)


def current_facts(
    ctx: RunContext, described: Mapping[str, TopicDescription]
) -> Mapping[str, TopicFacts]:
    """Return the facts of topics, with original configs where a restore has relaxed them."""
    restores = Repository.open(ctx.settings).restores.continued()
    return with_own_configs(facts_of(described), restores)


def facts_of(descriptions: Mapping[str, TopicDescription]) -> Mapping[str, TopicFacts]:
    """Return the facts of each described topic that the table `topics` stores."""
    return {
        name: TopicFacts(
            topic_id=topic.topic_id,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            configs=tuple(sorted(topic.explicit_configs.items())),
            effective_configs=tuple(sorted(topic.record_configs.items())),
        )
        for name, topic in descriptions.items()
    }


def with_own_configs(
    facts: Mapping[str, TopicFacts], restores: Iterable[StoredRestore]
) -> Mapping[str, TopicFacts]:
    """Return facts with the configs that `restore finish` sets, where a restore relaxed them."""
    own = {
        topic.target_topic_id: topic.put_back
        for restore in restores
        if not restore.is_finished
        for topic in restore.topics
    }
    return {
        name: replace(
            one,
            configs=_changed(one.configs, configs),
            effective_configs=_changed(
                one.effective_configs,
                {key: configs[key] for key, _ in one.effective_configs if key in configs},
            ),
        )
        if (configs := own.get(one.topic_id)) is not None
        else one
        for name, one in facts.items()
    }


def _changed(
    configs: Sequence[tuple[str, str]], own: Mapping[str, str | None]
) -> tuple[tuple[str, str], ...]:
    """Apply changed values to configs; None removes a value."""
    changed = {**dict(configs), **own}
    return tuple(sorted((name, value) for name, value in changed.items() if value is not None))


def window_backups(
    repo: Repository,
    windows: Sequence[Window],
    backups: Iterable[TopicBackup],
    edges: WindowEdges,
    unread: Sequence[UnreadTopic] = (),
) -> list[WindowBackup]:
    """Return backups by window, with the points that holes in their logs leave unproven."""
    backups = list(backups)
    thinned = {b.window for b in backups if any(s.first_hole is not None for s in b.spans)}
    points: list[RecoveryPoint] = []
    if thinned:
        ids = [
            instant.id
            for instant in repo.points.instants()
            if any(w.start_ms <= instant.effective_at_ms < w.end_ms for w in thinned)
        ]
        points = repo.points.load(ids)
    restores = tuple(repo.restores.continued())
    return [
        WindowBackup(
            window,
            tuple(
                replace(backup, unproven_points=unproven_points(backup, points))
                for backup in backups
                if backup.window == window
            ),
            edges.point_before(window.start_ms),
            edges.closing_point(window),
            tuple(one for one in unread if one.window == window),
            restores,
        )
        for window in windows
    ]


def unproven_points(backup: TopicBackup, points: Iterable[RecoveryPoint]) -> tuple[str, ...]:
    """Return ids of the points in a backup's window that are above a hole in one of its spans.

    The spans were read after the points were cut. A missing offset may have been compacted away
    because of a record at or above the point. Sealed points are safe from this, except for source
    topics that serve as changelogs: those are not sealed.
    """
    thinned = {span.partition: span for span in backup.spans if span.first_hole is not None}
    inside = range(backup.window.start_ms, backup.window.end_ms)
    return tuple(
        point.id
        for point in points
        if point.effective_at_ms in inside
        and any(
            cut.topic_id == span.plan.topic_id
            and span.first_hole is not None
            and span.first_hole < cut.end
            and cut.log_start < span.plan.end
            for partition, span in thinned.items()
            if (cut := point.cut(partition)) is not None
            and (not point.sealed or cut.roles.is_source)
        )
    )
