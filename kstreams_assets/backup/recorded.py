"""Windows as the runs that recorded them would have reported them, from the ledger."""

from operator import itemgetter

from kstreams_assets.backup.planner import load_edges
from kstreams_assets.backup.result import TopicBackup, WindowBackup
from kstreams_assets.backup.run import window_backups
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.calendar import WindowCalendar
from kstreams_assets.warehouse.ledger import Ledger, Recorded, TopicFactsTable
from kstreams_assets.warehouse.points import RecoveryPointTable
from kstreams_assets.warehouse.spans import TopicFacts


def recorded_backups(settings: ApplicationSettings, recorded: Recorded) -> list[WindowBackup]:
    """What these rows of the ledger say of their windows, in order of time.

    Needs no broker. Topics that the application has no longer are left out.
    """
    application_id = settings.application_id
    known = {topic.name: topic for topic in settings.application.topics}
    recorded = {key: rows for key, rows in recorded.items() if key[1] in known}
    if not recorded:
        return []
    windows = sorted({window for window, _ in recorded})
    edges = load_edges(
        application_id,
        windows,
        {topic for _, topic in recorded},
        points=RecoveryPointTable(settings.warehouse),
        ledger=Ledger(settings.warehouse, application_id),
        begins_ms=WindowCalendar(settings.windows).first_ms,
    )
    table = TopicFactsTable(settings.warehouse, application_id)
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
    return window_backups(settings.warehouse, settings.application, windows, backups, edges)
