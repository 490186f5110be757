"""`kstreams-assets discover`: writes the YAML of an application from what a cluster shows."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import yaml

from kstreams_assets.app.discovery import ClusterFacts
from kstreams_assets.app.model import StreamsApplication, TopicRole
from kstreams_assets.app.roles import application_from_cluster, application_from_topology
from kstreams_assets.app.topology import parse_topology
from kstreams_assets.app_file.read import load_model, read_attributes
from kstreams_assets.cli.outage import window_loss
from kstreams_assets.cli.output import print_json, print_table
from kstreams_assets.errors import ConfigurationError, KStreamsAssetsError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.settings import WindowSchedule
from kstreams_assets.warehouse.calendar import WindowCalendar

_REBUILT_FROM = {"changelog", "source_topic", "logging_disabled"}
_SAMPLES = 10
_ADVISED: Mapping[str, str] = {
    "recovery_points.objective_seconds": "recovery_points.objective_seconds (how much may be lost)",
    "owners": "owners (who answers for it)",
    "drill.command": "drill.command (how a restore drill starts it)",
}
_SAMPLE_EVERY_S = 0.2
_FIRST_COMMIT_S = 30.0
"""How long the first commit of an application that has just started is waited for."""
_ASK_AGAIN_S = 1.0


@click.command()
@click.option("--application-id", help="The application.id; not needed with --app.")
@click.option("--bootstrap", help="host:port[,...]; not needed with --app.")
@click.option(
    "--app",
    "app_file",
    type=click.Path(path_type=Path),
    help="A component's YAML whose connection and application id are used.",
)
@click.option(
    "--topology",
    "topology_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Text of Topology.describe(); roles and edges are then exact.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the component's YAML there.",
)
@click.option("--force", is_flag=True, help="Replace the file of --output if it is there.")
@click.option("--warehouse", default="warehouse", show_default=True, help="For the YAML.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def discover(
    application_id: str | None,
    bootstrap: str | None,
    app_file: Path | None,
    topology_file: Path | None,
    output: Path | None,
    force: bool,
    warehouse: str,
    as_json: bool,
) -> None:
    """Find the topics of an application on a live cluster, with their roles.

    \f
    Raises ConfigurationError when it is not said which application on which cluster.
    """
    if output is not None and output.exists() and not force:
        raise ConfigurationError(
            f"{output} is there already, and may hold settings of yours.",
            remedy="Give another --output and compare, or --force to replace it.",
        )
    target = _target(application_id, bootstrap, app_file)
    connection = target.connection
    application, read = _discover(connection, target.application_id, topology_file)
    document = _component(application, read, target, topology_file, output, warehouse)
    if output is not None:
        output.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    if as_json:
        print_json(_json(application))
        return
    print_table(
        f"{application.application_id} on {connection.bootstrap_servers}",
        ["topic", "roles", "stores"],
        [[t.name, ", ".join(sorted(t.roles)), ", ".join(t.stores)] for t in application.topics],
    )
    for finding in application.findings:
        click.echo(f"To confirm, {finding.subject}: {finding.statement} {finding.remedy}", err=True)
    if output is not None:
        click.echo(f"Written: {output}.")
        for line in _what_next(document["attributes"], output):
            click.echo(line)


def _what_next(attributes: Mapping[str, Any], file: Path) -> list[str]:
    """What is not yet set in the YAML, what its windows mean, and the next commands."""
    lines: list[str] = []
    unset = [text for key, text in _ADVISED.items() if not _is_set(attributes, key)]
    if unset:
        lines.append(f"Not yet set: {'; '.join(unset)}.")
    windows = attributes["windows"]
    try:
        window = WindowCalendar(
            WindowSchedule.every(windows["every"], start=windows["start"])
        ).closes_next()
        lines.append(window_loss(window.end_ms - window.start_ms))
    except KStreamsAssetsError:
        pass  # a template, or a mistake that the next command reports with its place
    command = "kstreams-assets {} --app " + str(file)
    lines.append(
        f"Next: {command.format('recovery-points take')} (again and again, at least once a window),"
        f" {command.format('backup')} after each window has closed, and"
        f" {command.format('windows')} to see what is backed up."
    )
    return lines


def _is_set(attributes: Mapping[str, Any], key: str) -> bool:
    value: Any = attributes
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value is not None


@dataclass(frozen=True, slots=True)
class _Target:
    """Which application on which cluster; `attributes` as the given YAML has them."""

    application_id: str
    connection: KafkaConnection
    attributes: Mapping[str, Any] = field(default_factory=dict)


def _target(application_id: str | None, bootstrap: str | None, app_file: Path | None) -> _Target:
    if app_file is not None:
        component = load_model(app_file, application_id=application_id, bootstrap_servers=bootstrap)
        attributes = read_attributes(app_file, application_id=application_id)
        return _Target(component.application_id, component.connection, attributes)
    if application_id is None or bootstrap is None:
        raise ConfigurationError(
            "It is not said which application is meant, or on which cluster.",
            remedy="Give --application-id and --bootstrap, or --app with a component's YAML"
            " (which can hold the credentials of a secured cluster).",
        )
    return _Target(application_id, KafkaConnection(bootstrap_servers=bootstrap))


def _discover(
    connection: KafkaConnection, application_id: str, topology_file: Path | None
) -> tuple[StreamsApplication, frozenset[str]]:
    """The application, and the topics that its group has committed offsets of."""
    with KafkaCluster(connection) as cluster:
        others = set(cluster.group_ids()) - {application_id}
        read = _read_by_group(cluster, application_id)
        if topology_file is not None:
            topology = parse_topology(topology_file.read_text(encoding="utf-8"))
            topics = cluster.topics()
            by_text = {t.name for t in application_from_topology(application_id, topology).topics}
            application = application_from_topology(
                application_id,
                topology,
                cluster_topics=topics,
                hidden_topics=cluster.hidden_topics(by_text - topics.keys()),
                other_application_ids=others,
            )
            return application, read
        written = _written_in_transactions(cluster, application_id)
        facts = ClusterFacts(
            topics=cluster.topics(),
            group_topics=read,
            transactional_topics=written,
            other_application_ids=frozenset(others),
        )
    return application_from_cluster(application_id, facts), read


def _read_by_group(cluster: KafkaCluster, application_id: str) -> frozenset[str]:
    """Topics with committed offsets; asked again for a while if a group at work has none yet."""
    deadline = time.monotonic() + _FIRST_COMMIT_S
    while True:
        found = frozenset(p.topic for p in cluster.group_offsets(application_id))
        state = cluster.group_state(application_id)
        if found or state is None or state.is_empty or time.monotonic() > deadline:
            return found
        time.sleep(_ASK_AGAIN_S)


def _written_in_transactions(cluster: KafkaCluster, application_id: str) -> frozenset[str]:
    """Topics of the transactions seen open in a few samples: the outputs, if it runs."""
    seen: set[str] = set()
    for _ in range(_SAMPLES):
        seen |= cluster.transactional_topics(application_id).topics
        time.sleep(_SAMPLE_EVERY_S)
    return frozenset(seen)


def _component(
    application: StreamsApplication,
    read: frozenset[str],
    target: _Target,
    topology_file: Path | None,
    output: Path | None,
    warehouse: str,
) -> dict[str, Any]:
    """The YAML's content: what the given one says, with the topics that were found."""
    attributes: dict[str, Any] = {
        "application_id": application.application_id,
        "connection": {"bootstrap_servers": target.connection.bootstrap_servers},
        "warehouse": warehouse,
        "windows": {"every": "hour", "start": time.strftime("%Y-%m-%d", time.gmtime())},
        **target.attributes,
    }
    for replaced in ("topology", "topics"):
        attributes.pop(replaced, None)
    if topology_file is not None:
        folder = output.parent.resolve() if output else Path.cwd()
        attributes["topology"] = os.path.relpath(topology_file.resolve(), folder)
        stores = _stores(application, read, attributes.get("stores") or {})
        if stores:
            attributes["stores"] = stores
    else:
        attributes["topics"] = {
            topic.name: {"roles": sorted(role.value for role in topic.roles)}
            for topic in application.topics
        }
    return {
        "type": "kstreams_assets.components.KafkaStreamsAppComponent",
        "attributes": attributes,
    }


def _stores(
    application: StreamsApplication, read: frozenset[str], said: Mapping[str, Any]
) -> dict[str, Any]:
    """What the text does not say and the cluster shows: stores whose source topic is their log.

    Only where the application has processed that topic: before its first start it has none of its
    internal topics, and each table would look like this.
    """
    stores = {name: dict(about or {}) for name, about in said.items()}
    sources = read & {topic.name for topic in application.with_role(TopicRole.INPUT)}
    for store in application.stores:
        about = stores.get(store.name, {})
        if store.changelog in sources and not store.is_global and not about.keys() & _REBUILT_FROM:
            stores[store.name] = {**about, "source_topic": store.changelog}
    return stores


def _json(application: StreamsApplication) -> dict[str, Any]:
    return {
        "application_id": application.application_id,
        "topics": [
            {"name": t.name, "roles": sorted(r.value for r in t.roles), "stores": list(t.stores)}
            for t in application.topics
        ],
        "stores": [
            {"name": s.name, "changelog": s.changelog, "global": s.is_global}
            for s in application.stores
        ],
        "edges": [{"source": e.source, "target": e.target} for e in application.edges],
        "findings": [
            {"subject": f.subject, "statement": f.statement, "remedy": f.remedy}
            for f in application.findings
        ],
    }
