"""Write the YAML that describes, without a cluster, the application found by `discover`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import yaml

from kstreams_assets.app.model import AppTopic, Store, StreamsApplication, TopicRole
from kstreams_assets.app.topology import Topology
from kstreams_assets.app_file.model import ApplicationModel
from kstreams_assets.app_file.read import application_model

_REBUILT_FROM: Final = ("changelog", "source_topic", "logging_disabled")
_ADDED: Final = {TopicRole.INPUT: "inputs", TopicRole.OUTPUT: "outputs"}
GUESSES: Final = """\
# `unconfirmed` marks what kstreams-assets discover guessed. Check it, correct it if it is wrong,
# and remove the key `unconfirmed` to confirm it. Until then no table, no completeness rule and no
# restore of mode `state` reads that store or topic; recovery points and backups continue.
"""
"""Header of a YAML with guesses."""
_TARGETS: Final = """\
  # Clusters that restores write to: `restore run --target NAME`, and `target` in Dagster. A single
  # target is the default. `local`, a throwaway cluster on this machine, needs no declaration.
  # targets:
  #   dr:
  #     connection:
  #       bootstrap_servers: dr-kafka-1:9092
"""
"""Footer of the attributes of a YAML without targets."""


@dataclass(frozen=True, slots=True)
class Written:
    """The attributes of a YAML, and a text about the parts of the application they cannot
    express."""

    attributes: dict[str, Any]
    not_held: tuple[str, ...] = ()


def document(attributes: Mapping[str, Any]) -> str:
    """The text of the YAML with these attributes, with a commented target where there is none."""
    whole = {
        "type": "kstreams_assets.components.KafkaStreamsAppComponent",
        "attributes": dict(attributes),
    }
    blocks = [*attributes.get("stores", {}).values(), *attributes.get("topics", {}).values()]
    has_guesses = any(isinstance(about, Mapping) and "unconfirmed" in about for about in blocks)
    head = GUESSES if has_guesses else ""
    tail = "" if "targets" in attributes else _TARGETS
    return head + yaml.safe_dump(whole, sort_keys=False) + tail


def without_guesses(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes without unconfirmed guesses of an earlier `discover`."""
    kept = dict(attributes)
    for name, decided in (("stores", _REBUILT_FROM), ("topics", ("roles",))):
        blocks = {
            key: _without(about, (*decided, "unconfirmed")) if _is_guess(about) else about
            for key, about in (kept.get(name) or {}).items()
        }
        _set(kept, name, {key: about for key, about in blocks.items() if about != {}})
    return kept


def without_roles(attributes: Mapping[str, Any], topics: Mapping[str, object]) -> dict[str, Any]:
    """The attributes without the roles of these topics; formats stay."""
    blocks = {
        key: _without(about, ("roles", "unconfirmed")) if key in topics else about
        for key, about in (attributes.get("topics") or {}).items()
    }
    kept = dict(attributes)
    _set(kept, "topics", {key: about for key, about in blocks.items() if about != {}})
    return kept


def written(
    attributes: Mapping[str, Any], application: StreamsApplication, topology: Topology | None
) -> Written:
    """The attributes with everything that topology text and names do not determine.

    The application that the attributes describe is compared with the given one, and differences are
    added: internal topics with other names in the text, changelogs of stores, further inputs and
    outputs, other roles, and finally topics of other applications.
    """
    made = dict(attributes)
    others = application.other_application_ids | {*(made.get("other_application_ids") or ())}
    _set(made, "other_application_ids", sorted(others))
    if topology is None:
        made.pop("topology", None)
        for topic in application.topics:
            _declare_roles(made, topic)
    for step in (
        _declare_internal,
        _declare_stores,
        _declare_additions,
        _declare_all_roles,
        _deny,
    ):
        step(made, application, _loaded(made, topology))
    loaded = _loaded(made, topology)
    return Written(made, tuple(_differences(application, loaded)))


def _loaded(attributes: Mapping[str, Any], topology: Topology | None) -> StreamsApplication:
    model: ApplicationModel = application_model(dict(attributes))
    return model.described(topology)


def _declare_internal(
    made: dict[str, Any], decided: StreamsApplication, loaded: StreamsApplication
) -> None:
    names = {topic.name for topic in loaded.topics}
    for topic in decided.topics:
        if topic.roles.is_repartition and topic.name not in names:
            _declare_roles(made, topic)


def _declare_stores(
    made: dict[str, Any], decided: StreamsApplication, loaded: StreamsApplication
) -> None:
    others = {store.name: store for store in loaded.stores}
    blocks = dict(made.get("stores") or {})
    for store in decided.stores:
        other = others.get(store.name)
        about = dict(blocks.get(store.name) or {})
        if other is None or other.changelog != store.changelog or store.unconfirmed:
            about = {**_without(about, _REBUILT_FROM), **_rebuilt_from(store, decided)}
        if store.unconfirmed:
            about["unconfirmed"] = list(store.unconfirmed)
        if about:
            blocks[store.name] = about
    _set(made, "stores", blocks)


def _rebuilt_from(store: Store, application: StreamsApplication) -> dict[str, Any]:
    if store.changelog is None:
        return {"logging_disabled": True}
    named = {topic.name: topic for topic in application.topics}
    topic = named.get(store.changelog)
    is_source = topic is not None and topic.roles.is_input
    return {"source_topic" if is_source else "changelog": store.changelog}


def _declare_additions(
    made: dict[str, Any], decided: StreamsApplication, loaded: StreamsApplication
) -> None:
    there = {topic.name: topic.roles for topic in loaded.topics}
    for role, setting in _ADDED.items():
        further = {
            topic.name
            for topic in decided.topics
            if role in topic.roles and role not in there.get(topic.name, ())
        }
        _set(made, setting, sorted({*(made.get(setting) or ()), *further}))


def _declare_all_roles(
    made: dict[str, Any], decided: StreamsApplication, loaded: StreamsApplication
) -> None:
    there = {topic.name: topic.roles for topic in loaded.topics}
    for topic in decided.topics:
        if there.get(topic.name) != topic.roles or topic.unconfirmed:
            _declare_roles(made, topic)


def _deny(made: dict[str, Any], decided: StreamsApplication, loaded: StreamsApplication) -> None:
    names = {topic.name for topic in loaded.topics}
    surplus = names - {topic.name for topic in decided.topics}
    _set(made, "not_mine", sorted({*(made.get("not_mine") or ()), *surplus}))


def _declare_roles(made: dict[str, Any], topic: AppTopic) -> None:
    blocks = dict(made.get("topics") or {})
    about = _without(blocks.get(topic.name) or {}, ("roles", "unconfirmed"))
    blocks[topic.name] = {"roles": sorted(role.value for role in topic.roles), **about}
    if topic.unconfirmed:
        blocks[topic.name]["unconfirmed"] = list(topic.unconfirmed)
    made["topics"] = blocks


def _differences(decided: StreamsApplication, loaded: StreamsApplication) -> Iterator[str]:
    """The parts of the application that the YAML does not describe, in words."""
    pairs = (
        ("topic", _by_name(decided.topics), _by_name(loaded.topics)),
        ("store", _by_name(decided.stores), _by_name(loaded.stores)),
    )
    for what, mine, other in pairs:
        for name in sorted(mine.keys() | other.keys()):
            here, there = mine.get(name), other.get(name)
            if here != there or (here and there and here.unconfirmed != there.unconfirmed):
                yield f"{what} {name}"


def _by_name(things: tuple[AppTopic, ...] | tuple[Store, ...]) -> dict[str, AppTopic | Store]:
    return {thing.name: thing for thing in things}


def relevant_ids(application: StreamsApplication, owners: Mapping[str, str]) -> StreamsApplication:
    """The application with only those other ids that could claim its topics."""
    ids = {i for i in owners.values() if i.startswith(f"{application.application_id}-")}
    return replace(application, other_application_ids=frozenset(ids))


def _is_guess(about: object) -> bool:
    return isinstance(about, Mapping) and bool(about.get("unconfirmed"))


def _without(about: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in about.items() if key not in keys}


def _set(attributes: dict[str, Any], name: str, value: Any) -> None:  # noqa: ANN401 - YAML
    """Set a value that is not empty; remove the key if nothing is left."""
    if value:
        attributes[name] = value
    else:
        attributes.pop(name, None)
