"""Topics as external assets: what an application reads, keeps and writes, with true edges."""

from collections.abc import Iterable, Mapping

import dagster as dg

from kstreams_assets.app.model import AppTopic, StreamsApplication, TopicRole
from kstreams_assets.orchestration.keys import (
    collision,
    group,
    refuse_collisions,
    sanitize_name,
    topic_key,
)
from kstreams_assets.orchestration.translator import APPLICATION_TAG
from kstreams_assets.settings import ApplicationSettings

_WHAT = {
    TopicRole.INPUT: "read by the application",
    TopicRole.GLOBAL: "read whole by every instance, as a GlobalKTable",
    TopicRole.REPARTITION: "records in flight between sub-topologies, purged once processed",
    TopicRole.CHANGELOG: "rebuilds a state store",
    TopicRole.OUTPUT: "written by the application",
}


def topic_specs(settings: ApplicationSettings) -> list[dg.AssetSpec]:
    """One external asset for each topic of the application.

    Raises:
        ConfigurationError: Dagster would take two of the topics for one.
    """
    application = settings.application
    refuse_collisions(topic.name for topic in application.topics)
    return [_spec(topic, settings) for topic in application.topics]


def _spec(topic: AppTopic, settings: ApplicationSettings) -> dg.AssetSpec:
    application = settings.application
    sources = [edge.source for edge in application.edges if edge.target == topic.name]
    read_first = topic.roles & {TopicRole.INPUT, TopicRole.GLOBAL} and not sources
    return dg.AssetSpec(
        key=topic_key(settings, topic.name),
        deps=[topic_key(settings, source) for source in sources],
        description=_description(topic, application),
        group_name=group(application.application_id, "topics"),
        kinds={"kafka", "topic", "source"} if read_first else {"kafka", "topic"},
        owners=list(settings.owners),
        tags={
            **settings.tags,
            "kstreams/app": application.application_id,
            **{f"kstreams/role-{role}": "" for role in sorted(topic.roles)},
        },
        metadata={"topic": topic.name, "roles": ", ".join(sorted(topic.roles))},
    )


def _description(topic: AppTopic, application: StreamsApplication) -> str:
    what = "; ".join(f"**{role}**, {_WHAT[role]}" for role in sorted(topic.roles))
    stores = (
        f" Stores: {', '.join(f'`{store}`' for store in topic.stores)}." if topic.stores else ""
    )
    notes = [
        f"\n\n*To confirm:* {finding.text}"
        for finding in application.findings
        if finding.subject == topic.name or finding.subject in topic.stores
    ]
    return (
        f"Topic `{topic.name}` of `{application.application_id}`: {what}.{stores}{''.join(notes)}"
    )


def share_topics(definitions: dg.Definitions) -> dg.Definitions:
    """Make one asset of a topic that several applications have.

    The output of one application is often the input of another, and two versions of one
    application read the same input. Edges, tags and kinds are joined; the group is that of the
    application that writes the topic.

    Raises:
        ConfigurationError: Dagster would take two topics, or two applications, for one.
    """
    assets = list(definitions.assets or [])
    topics = [a for a in assets if isinstance(a, dg.AssetSpec) and APPLICATION_TAG in a.tags]
    _refuse_key_collisions(topics)
    refuse_collisions(spec.tags[APPLICATION_TAG] for spec in topics)
    by_key: dict[dg.AssetKey, list[dg.AssetSpec]] = {}
    for spec in topics:
        by_key.setdefault(spec.key, []).append(spec)
    if all(len(specs) == 1 for specs in by_key.values()):
        return definitions
    rest = [asset for asset in assets if asset not in topics]
    joined = [_joined(specs) for specs in by_key.values()]
    return dg.Definitions(
        assets=[*rest, *joined],
        asset_checks=definitions.asset_checks,
        jobs=definitions.jobs,
        schedules=definitions.schedules,
        sensors=definitions.sensors,
        resources=definitions.resources,
        executor=definitions.executor,
        loggers=definitions.loggers,
        metadata=definitions.metadata,
    )


def _refuse_key_collisions(topics: Iterable[dg.AssetSpec]) -> None:
    by_identifier: dict[str, dg.AssetSpec] = {}
    for spec in sorted(topics, key=lambda spec: spec.key):
        other = by_identifier.setdefault(spec.key.to_python_identifier(), spec)
        if other.key != spec.key:
            raise collision(other.metadata["topic"], spec.metadata["topic"])


def _joined(specs: Iterable[dg.AssetSpec]) -> dg.AssetSpec:
    ordered = sorted(specs, key=lambda spec: (not list(spec.deps), spec.group_name or ""))
    deps = {dep.asset_key: dep for spec in ordered for dep in spec.deps}
    tags: dict[str, str] = {}
    for spec in reversed(ordered):
        tags.update({**spec.tags, **_also_of(spec.tags)})
    tags[APPLICATION_TAG] = ordered[0].tags[APPLICATION_TAG]
    return ordered[0].replace_attributes(
        deps=list(deps.values()),
        description="\n\n".join(spec.description or "" for spec in ordered),
        kinds=ordered[0].kinds - {"source"} if deps else ordered[0].kinds | {"source"},
        owners=sorted({owner for spec in ordered for owner in spec.owners}),
        tags={k: v for k, v in tags.items() if not k.startswith("dagster/kind/")},
    )


def _also_of(tags: Mapping[str, str]) -> dict[str, str]:
    return {f"kstreams/app-{sanitize_name(tags[APPLICATION_TAG])}": ""}
