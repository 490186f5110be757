"""Looks at an application's cluster, judges it, and writes down what was found."""

from kstreams_assets.backup.partitions import WindowCalendar
from kstreams_assets.governance.facts import Declared, GovernanceFacts
from kstreams_assets.governance.findings import GovernanceReport
from kstreams_assets.governance.gather import gather
from kstreams_assets.governance.judge import judge
from kstreams_assets.governance.table import FindingsTable
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.ktables.store_format import format_of
from kstreams_assets.settings import ApplicationSettings


def check_governance(
    settings: ApplicationSettings, *, run_id: str
) -> tuple[GovernanceReport, GovernanceFacts]:
    """Every check of an application, as its cluster stands now, and the facts behind them.

    Raises:
        ClusterUnavailableError: No broker answered in time; nothing was written down.
        AuthorizationFailedError: A right is missing; it names what on.
        KStreamsAssetsError: As `gather`.
    """
    with KafkaCluster(settings.connection) as cluster:
        facts = gather(settings, cluster)
    report = GovernanceReport(
        application_id=settings.application_id,
        run_id=run_id,
        cluster_id=facts.cluster_id,
        judged_at_ms=facts.taken_at_ms,
        verdicts=judge(facts, declared_of(settings)),
    )
    FindingsTable(settings.warehouse).record(report)
    return report, facts


def declared_of(settings: ApplicationSettings) -> Declared:
    """What the settings of an application say that its cluster should be like."""
    window = WindowCalendar(settings.windows).newest_closed()
    stores = settings.application.stores
    return Declared(
        application=settings.application,
        governance=settings.governance,
        formats={s.name: format_of(s.name, settings.store_formats) for s in stores},
        owners=settings.owners,
        objective_s=settings.recovery_points.objective_s,
        recovery_time_s=settings.drill.objective_s,
        window_ms=None if window is None else window.end_ms - window.start_ms,
        backed_up_topics=frozenset(topic.name for topic in settings.topics),
    )
