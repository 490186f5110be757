"""What Dagster shows of an application's governance."""

import dagster as dg

from kstreams_assets.app.model import StreamsApplication
from kstreams_assets.backup.check_events import metadata_numbers
from kstreams_assets.backup.verdicts import Severity
from kstreams_assets.governance.facts import GovernanceFacts
from kstreams_assets.governance.findings import GovernanceFinding, GovernanceReport
from kstreams_assets.governance.judges_load import lags_of

_FINDINGS = dg.TableSchema(
    [
        dg.TableColumn("subject", "string", "Topic, store or application"),
        dg.TableColumn("found", "string", "What is"),
        dg.TableColumn("expected", "string", "What should be"),
        dg.TableColumn("remedy", "string", "What to do"),
        dg.TableColumn("severity", "string"),
    ]
)
_TOPICS = dg.TableSchema(
    [
        dg.TableColumn("topic", "string"),
        dg.TableColumn("roles", "string"),
        dg.TableColumn("partitions", "int"),
        dg.TableColumn("replication_factor", "int"),
        dg.TableColumn("in_sync", "int", "Fewest replicas in sync of a partition"),
        dg.TableColumn("min_insync_replicas", "int"),
        dg.TableColumn("cleanup_policy", "string"),
        dg.TableColumn("retention_ms", "int"),
        dg.TableColumn("offset_lag", "int", "Offsets that the application has not processed"),
    ]
)


def report_metadata(
    report: GovernanceReport, facts: GovernanceFacts, application: StreamsApplication
) -> dict[str, dg.MetadataValue]:
    """Metadata of the asset `governance/<app>`: numbers to plot, and the topics as they stand."""
    lags = lags_of(facts)
    numbers = {
        "errors": len(report.of_severity(Severity.ERROR)),
        "warnings": len(report.of_severity(Severity.WARN)),
        "failed_checks": sum(not verdict.passed for verdict in report.verdicts),
        "offset_lag": sum(lags.values()),
    }
    return {
        **metadata_numbers(numbers),
        "judged_at": dg.MetadataValue.timestamp(report.judged_at_ms / 1000),
        "cluster_id": dg.MetadataValue.text(report.cluster_id),
        "topics": dg.MetadataValue.table(
            [
                dg.TableRecord(
                    {
                        "topic": name,
                        "roles": ", ".join(sorted(application.topic(name).roles)),
                        "partitions": topic.partitions,
                        "replication_factor": topic.replication_factor,
                        "in_sync": topic.in_sync,
                        "min_insync_replicas": topic.number("min.insync.replicas", 1),
                        "cleanup_policy": ",".join(sorted(topic.policies)),
                        "retention_ms": topic.number("retention.ms", -1),
                        "offset_lag": lags.get(name),
                    }
                )
                for name, topic in sorted(facts.topics.items())
            ],
            schema=_TOPICS,
        ),
    }


def findings_table(findings: tuple[GovernanceFinding, ...]) -> dg.TableMetadataValue:
    """Findings as a table."""
    return dg.MetadataValue.table(
        [
            dg.TableRecord(
                {
                    "subject": finding.subject,
                    "found": finding.found,
                    "expected": finding.expected,
                    "remedy": finding.remedy,
                    "severity": finding.severity.value,
                }
            )
            for finding in findings
        ],
        schema=_FINDINGS,
    )
