"""`kstreams-assets discover`: write the YAML of an application that runs on a cluster."""

import os
import shlex
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from kstreams_assets.app.declarations import NOTHING_DECLARED, Declarations
from kstreams_assets.app.discovery import ClusterFacts, with_observed
from kstreams_assets.app.model import AppTopic, Store, StreamsApplication, TopicEdge, TopicRoles
from kstreams_assets.app.names import is_internal_name, owner_of
from kstreams_assets.app.roles import application_from_cluster, application_from_topology
from kstreams_assets.app.topology import Topology, read_topology
from kstreams_assets.app_file.discovered import (
    Written,
    document,
    relevant_ids,
    without_guesses,
    without_roles,
    written,
)
from kstreams_assets.app_file.model import ApplicationModel
from kstreams_assets.app_file.read import load_model, read_attributes
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.checks import Finding
from kstreams_assets.cli.help import Command, option
from kstreams_assets.cli.options import app_option, json_option
from kstreams_assets.cli.outage import window_loss
from kstreams_assets.cli.output import print_json, print_table
from kstreams_assets.errors import ConfigurationError, KStreamsAssetsError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.coordinator_log import TRANSACTION_STATE
from kstreams_assets.public_form import Form
from kstreams_assets.settings import WindowSchedule

_TOPIC = Form(AppTopic, "name roles stores unconfirmed")
_STORE = Form(Store, "name changelog global=is_global unconfirmed")
_EDGE = Form(TopicEdge, "source target")
_FINDING = Form(Finding, "subject statement=found remedy=action")
_SAMPLES = 10
_ADVISED: Mapping[str, str] = {
    "recovery_points.objective_seconds": "recovery_points.objective_seconds (maximum data loss)",
    "owners": "owners (responsible people)",
    "drill.command": "drill.command (start command for restore drills)",
}
_SAMPLE_EVERY_S = 0.2
_FIRST_COMMIT_S = 30.0
"""Maximum wait for the first commit of an application that has just started."""
_ASK_AGAIN_S = 1.0
_LOG_TIMEOUT_S = 15.0


@click.command(
    cls=Command,
    epilog="kstreams-assets discover --application-id shop --bootstrap kafka:9092 \\\n"
    "  --output defs.yaml",
)
@option(
    "--application-id",
    section="Application",
    metavar="ID",
    help="application.id of the application; not needed with --app.",
)
@option(
    "--bootstrap",
    section="Application",
    metavar="HOST:PORT,...",
    help="Bootstrap servers of the cluster; not needed with --app.",
)
@app_option("app_file")
@option(
    "--topology",
    "topology_file",
    section="Application",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Text of Topology.describe(), which gives the exact role of each topic (such as input) and"
    " the connections between topics.",
)
@option(
    "--output",
    section="Output",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the YAML of the application to this file.",
)
@option("--force", section="Output", is_flag=True, help="Replace an existing --output file.")
@option(
    "--warehouse",
    section="Output",
    metavar="PLACE",
    default="warehouse",
    show_default=True,
    help="Warehouse to set in the YAML.",
)
@json_option
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
    """Discover topics and stores of an application

    The command reads a running cluster. With --output it writes the YAML file that all other
    commands take with --app.

    For a secured cluster, first write a YAML file with application_id, connection, warehouse and
    windows. Give it with --app, and another file with --output.
    """
    if output is not None and output.exists() and not force:
        raise ConfigurationError(
            f"{output} already exists and may contain your settings.",
            remedy="Give another --output and compare the files, or replace it with --force.",
        )
    target = _target(application_id, bootstrap, app_file)
    topology_file = topology_file or target.topology_file
    topology = None if topology_file is None else read_topology(topology_file)
    application = _discover(target, topology)
    made = _component(application, target, topology_file, output, warehouse)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(document(made.attributes), encoding="utf-8")
    if as_json:
        print_json(_json(application, made))
        return
    print_table(
        f"{application.application_id} on {target.connection.bootstrap_servers}",
        ["topic", "roles", "stores"],
        [[t.name, ", ".join(sorted(t.roles)), ", ".join(t.stores)] for t in application.topics],
    )
    for finding in application.findings:
        click.echo(f"To confirm, {finding}", err=True)
    for difference in made.not_held:
        click.echo(
            f"The YAML file cannot express what was discovered about {difference}.", err=True
        )
    if output is not None:
        click.echo(f"Written: {output}.")
        for guess in application.guesses:
            click.echo(f"Unconfirmed: {guess.setting}. {guess.remedy}")
        for line in _what_next(made.attributes, output):
            click.echo(line)


def _what_next(attributes: Mapping[str, Any], file: Path) -> list[str]:
    """Return missing settings, the possible loss with these windows, and the next commands."""
    lines: list[str] = []
    unset = [text for key, text in _ADVISED.items() if not _is_set(attributes, key)]
    if unset:
        lines.append(f"Not set yet: {'; '.join(unset)}.")
    windows = attributes["windows"]
    try:
        window = WindowCalendar(
            WindowSchedule.every(windows["every"], start=windows.get("start"))
        ).closes_next()
        lines.append(window_loss(window.end_ms - window.start_ms))
    except KStreamsAssetsError:
        pass  # a template, or a mistake that the next command reports with its place
    command = "kstreams-assets {} --app " + shlex.quote(str(file))
    lines.append(
        f"Next: {command.format('follow')} takes recovery points and backs up every few seconds."
        f" With a scheduler, run {command.format('recovery-points take')} at least once per window"
        f" and {command.format('backup')} after each window. {command.format('ready')} checks the"
        " result."
    )
    return lines


def _is_set(attributes: Mapping[str, Any], key: str) -> bool:
    value: Any = attributes
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value is not None


@dataclass(frozen=True, slots=True)
class _Target:
    """An application on a cluster.

    `attributes` are those of the given YAML. `model` has the same attributes, validated and with
    resolved templates; None without a YAML.
    """

    application_id: str
    connection: KafkaConnection
    attributes: Mapping[str, Any] = field(default_factory=dict)
    model: ApplicationModel | None = None
    folder: Path = field(default_factory=Path.cwd)

    @property
    def topology_file(self) -> Path | None:
        """Path of the topology text that the given YAML names."""
        if self.model is None or self.model.topology is None:
            return None
        return self.folder / self.model.topology


def _target(application_id: str | None, bootstrap: str | None, app_file: Path | None) -> _Target:
    if app_file is not None:
        component = load_model(app_file, application_id=application_id, bootstrap_servers=bootstrap)
        attributes = read_attributes(app_file, application_id=application_id)
        return _Target(
            component.application_id, component.connection, attributes, component, app_file.parent
        )
    if application_id is None or bootstrap is None:
        raise ConfigurationError(
            "The application or its cluster is not specified.",
            remedy="Give --application-id and --bootstrap, or --app with a YAML file, which can"
            " hold credentials.",
        )
    return _Target(application_id, KafkaConnection(bootstrap_servers=bootstrap))


def _discover(target: _Target, topology: Topology | None) -> StreamsApplication:
    """Combine the cluster, the topology text and confirmed declarations to an application."""
    application_id = target.application_id
    with KafkaCluster(target.connection) as cluster:
        others = frozenset(cluster.group_ids()) - {application_id}
        read = _read_by_group(cluster, application_id)
        topics = cluster.topics()
        written = _written_in_transactions(cluster, application_id)
        # the log also names topics that were deleted since
        written &= topics.keys() | cluster.hidden_topics(written - topics.keys())
        declared = _confirmed(target, topology)
        if topology is not None:
            by_text = {t.name for t in application_from_topology(application_id, topology).topics}
            application = application_from_topology(
                application_id,
                topology,
                declarations=_on_cluster(declared, topics),
                cluster_topics=topics,
                hidden_topics=cluster.hidden_topics(by_text - topics.keys()),
                other_application_ids=others,
                group_topics=read,
                transactional_topics=written,
            )
        else:
            facts = ClusterFacts(
                topics=topics,
                group_topics=read,
                transactional_topics=written,
                other_application_ids=others,
            )
            application = application_from_cluster(
                application_id,
                facts,
                declarations=with_observed(_on_cluster(declared, topics), facts),
            )
    application = replace(application, not_mine=declared.not_mine)
    owners = {t: owner for t in topics if (owner := owner_of(t, {application_id, *others}))}
    return relevant_ids(application, owners)


def _confirmed(target: _Target, topology: Topology | None) -> Declarations:
    """Return the declarations of the given YAML without unconfirmed guesses.

    An earlier discovery may have written roles without a topology text. The text replaces them for
    the topics that it contains.
    """
    if target.model is None:
        return NOTHING_DECLARED
    declared = target.model.declarations.confirmed
    if topology is None or target.model.topology is not None:
        return declared
    kept = _roles_beside_the_text(target.application_id, declared, topology)
    return replace(declared, topic_roles=kept)


def _roles_beside_the_text(
    application_id: str, declared: Declarations, topology: Topology
) -> dict[str, TopicRoles]:
    by_text = application_from_topology(application_id, topology)
    known = {topic.name for topic in by_text.topics}
    return {
        topic: roles
        for topic, roles in declared.topic_roles.items()
        if topic not in known and not is_internal_name(application_id, topic)
    }


def _on_cluster(declared: Declarations, topics: Collection[str]) -> Declarations:
    """Remove topics of other applications that do not exist: their owners may delete them."""
    return replace(declared, not_mine=declared.not_mine & {*topics})


def _read_by_group(cluster: KafkaCluster, application_id: str) -> frozenset[str]:
    """Return topics with committed offsets; wait for the first commit of an active group."""
    deadline = time.monotonic() + _FIRST_COMMIT_S
    while True:
        found = frozenset(p.topic for p in cluster.group_offsets(application_id))
        state = cluster.group_state(application_id)
        if found or state is None or state.is_empty or time.monotonic() > deadline:
            return found
        time.sleep(_ASK_AGAIN_S)


def _written_in_transactions(cluster: KafkaCluster, application_id: str) -> frozenset[str]:
    """Return topics that transactions of the application wrote.

    They come from the log of the coordinators and from a few samples of open transactions.
    """
    log = cluster.topics().get(TRANSACTION_STATE)
    with cluster.raw_log() as reader:
        found = cluster.written_topics(
            application_id, reader, log_partitions=log, timeout_s=_LOG_TIMEOUT_S
        )
    seen = set(found.topics)
    if found.reason is None or not found.transactional_ids:
        return frozenset(seen)
    for _ in range(_SAMPLES):
        seen |= cluster.transactional_topics(application_id).topics
        time.sleep(_SAMPLE_EVERY_S)
    return frozenset(seen)


def _component(
    application: StreamsApplication,
    target: _Target,
    topology_file: Path | None,
    output: Path | None,
    warehouse: str,
) -> Written:
    """Return the attributes to write: those of the given YAML and what was discovered."""
    attributes: dict[str, Any] = {
        "application_id": application.application_id,
        "connection": {"bootstrap_servers": target.connection.bootstrap_servers},
        "warehouse": warehouse,
        "windows": {"every": "hour"},
        **without_guesses(target.attributes),
    }
    if topology_file is None:
        return written(attributes, application, None)
    topology = read_topology(topology_file)
    if target.model is not None and target.model.topology is None:
        declared = target.model.declarations.confirmed.topic_roles
        kept = _confirmed(target, topology).topic_roles
        attributes = without_roles(attributes, {t: r for t, r in declared.items() if t not in kept})
    folder = output.parent.resolve() if output else Path.cwd()
    attributes["topology"] = os.path.relpath(topology_file.resolve(), folder)
    return written(attributes, application, topology)


def _json(application: StreamsApplication, made: Written) -> dict[str, Any]:
    return {
        "application_id": application.application_id,
        "topics": _TOPIC.documents(application.topics),
        "stores": _STORE.documents(application.stores),
        "not_in_the_yaml": list(made.not_held),
        "edges": _EDGE.documents(application.edges),
        "findings": _FINDING.documents(application.findings),
    }
