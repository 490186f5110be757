"""Configs of the topics that a restore creates: effective ones of the source, as the target allows.

A config without its own value has the brokers' default, which may differ between source and target.
A target may also refuse a config: of tiered storage, of another version, beyond the limits of a
policy. Configs that affect records are never left out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from kstreams_assets.errors import KafkaRequestError, KStreamsAssetsError
from kstreams_assets.kafka.admin import RECORD_CONFIGS, TopicSpec
from kstreams_assets.model.spans import TopicFacts
from kstreams_assets.restore.plan import TopicPlan
from kstreams_assets.restore.target_topics import MAX_DECOMPRESSED, NO_DECOMPRESSED_LIMIT

KAFKA_DEFAULTS: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "retention.ms": "604800000",
    "retention.bytes": "-1",
    "delete.retention.ms": "86400000",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": str(2**63 - 1),
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
}
"""Kafka's own defaults, if they are equal in all supported releases."""
_LATER_DEFAULTS: Final[Mapping[str, str]] = {MAX_DECOMPRESSED: NO_DECOMPRESSED_LIMIT}
"""Defaults of configs that the oldest supported release does not have: absence is equal."""
_DIFFERENCE: Final = "message.timestamp.difference.max.ms"
_POLICY: Final = "cleanup.policy"
_LIMITS: Final = (
    "max.message.bytes",
    MAX_DECOMPRESSED,
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
)
"""A broker refuses records beyond these with an error; it never changes or deletes any."""
_COMPACTION: Final = ("min.compaction.lag.ms", "max.compaction.lag.ms", "delete.retention.ms")

Validate = Callable[[Sequence[TopicSpec]], Mapping[str, KStreamsAssetsError]]


def _same(name: str, first: str | None, second: str | None) -> bool:
    if name == _POLICY and first is not None and second is not None:
        return set(first.split(",")) == set(second.split(","))
    return first == second


def own_configs(
    topic: str, facts: TopicFacts, defaults: Mapping[str, str]
) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Return the configs to set on a topic, independent of the target's `defaults`, and notes.

    If the target's default of a config is unknown, the source's effective value is set.
    """
    own, effective = dict(facts.configs), dict(facts.effective_configs)
    if not effective:
        others = [
            f"{name}={defaults[name]}"
            for name, value in KAFKA_DEFAULTS.items()
            if name not in own and name in defaults and not _same(name, defaults[name], value)
        ]
        if not others:
            return own, ()
        return own, (
            f"The backups of {topic} recorded no effective configs. It gets the target's defaults,"
            f" which differ from Kafka's: {', '.join(others)}. Create the topic with the configs"
            " that it needs before the restore, if these are not right.",
        )
    added = {
        name: effective[name]
        for name in RECORD_CONFIGS
        if name in effective
        and name not in own
        and name != _DIFFERENCE
        and not _same(name, defaults.get(name, _LATER_DEFAULTS.get(name)), effective[name])
    }
    differing = [
        f"{name}={value} (target: {defaults[name]})"
        for name, value in added.items()
        if name in defaults
    ]
    if not differing:
        return {**own, **added}, ()
    return {**own, **added}, (
        f"The target's brokers have other defaults: {topic} gets the effective values of the"
        f" source: {', '.join(differing)}.",
    )


def differences(
    topic: str, facts: TopicFacts, there: Mapping[str, str], relaxed: Mapping[str, str | None]
) -> tuple[str, ...]:
    """Return a note on an existing topic whose effective configs differ from the source.

    `relaxed` are configs that `finish` restores, with their values afterwards.
    """
    known = facts.known_configs
    later = {**there, **{name: value for name, value in relaxed.items() if value is not None}}
    found = [
        f"{name} is {later[name]} instead of {known[name]}"
        for name in RECORD_CONFIGS
        if name in known and name in later and not _same(name, later[name], known[name])
    ]
    if not found:
        return ()
    return (
        f"Topic {topic} exists on the target with other configs than on the source:"
        f" {', '.join(found)}. They decide which records stay: change them unless you"
        " intend that.",
    )


def _may_be_left_out(name: str, configs: Mapping[str, str]) -> bool:
    """Whether no record changes or is lost without this config."""
    if name in _COMPACTION:
        return "compact" not in configs.get(_POLICY, "delete")
    return name not in RECORD_CONFIGS or name in _LIMITS


def without_refused(
    topics: Sequence[TopicPlan], validate: Validate
) -> tuple[tuple[TopicPlan, ...], tuple[str, ...]]:
    """Return the topics without refused configs that affect no record, and notes.

    Both the configs during the restore and those that `finish` sets are tried. A topic that is
    refused for another reason stays unchanged.
    """
    changed = {topic.target: topic for topic in topics}
    notes: list[str] = []
    refused = _refused(topics, {t.target: t.configs for t in topics}, validate)
    kept = _accepted([t for t in topics if t.target in refused], validate, lambda t: t.configs)
    for name, configs in kept.items():
        topic = changed[name]
        gone = sorted(topic.configs.keys() - configs.keys())
        if "max.message.bytes" in gone and topic.put_back.get("max.message.bytes") is not None:
            own = str(topic.put_back["max.message.bytes"])
            trial = {**configs, "max.message.bytes": own}
            if not _refused([topic], {name: trial}, validate):
                configs = trial
        put_back = {config: value for config, value in topic.put_back.items() if config in configs}
        changed[name] = replace(topic, configs=configs, put_back=put_back)
        notes.append(_note(topic.source, gone, refused[name]))
    finals = {name: _final(topic) for name, topic in changed.items()}
    refused = _refused(list(changed.values()), finals, validate)
    kept = _accepted([changed[name] for name in refused], validate, _final)
    for name, configs in kept.items():
        topic, final = changed[name], finals[name]
        gone = sorted(final.keys() - configs.keys())
        put_back = {n: None if n in gone else value for n, value in topic.put_back.items()}
        changed[name] = replace(topic, put_back=put_back)
        notes.append(_note(topic.source, gone, refused[name]))
    return tuple(changed.values()), tuple(notes)


def _final(topic: TopicPlan) -> Mapping[str, str]:
    """Return the configs of a topic after `finish`."""
    stay = {name: value for name, value in topic.configs.items() if name not in topic.put_back}
    return {**stay, **{n: value for n, value in topic.put_back.items() if value is not None}}


def _note(topic: str, gone: Sequence[str], refused: KStreamsAssetsError) -> str:
    reason = refused.reason if isinstance(refused, KafkaRequestError) else refused.problem
    return (
        f"The target refuses configs of {topic} that change no record; they are left out:"
        f" {', '.join(gone)} ({reason.rstrip('.')})."
    )


def _refused(
    topics: Sequence[TopicPlan], configs: Mapping[str, Mapping[str, str]], validate: Validate
) -> dict[str, KStreamsAssetsError]:
    """Return why the target would not create these topics with these configs, by target name."""
    specs = [
        TopicSpec(t.target, len(t.partitions), t.replication_factor, configs[t.target])
        for t in topics
        if not t.exists
    ]
    found = validate(specs) if specs else {}
    return {name: e for name, e in found.items() if isinstance(e, KafkaRequestError)}


def _accepted(
    topics: Sequence[TopicPlan],
    validate: Validate,
    configs_of: Callable[[TopicPlan], Mapping[str, str]],
) -> dict[str, Mapping[str, str]]:
    """Return the accepted configs of refused topics; each round is one request for all topics.

    Topics that are refused even without all optional configs are absent.
    """
    optional = {
        t.target: [n for n in sorted(configs_of(t)) if _may_be_left_out(n, configs_of(t))]
        for t in topics
    }
    kept: dict[str, Mapping[str, str]] = {
        t.target: {n: v for n, v in configs_of(t).items() if n not in optional[t.target]}
        for t in topics
    }
    refused = _refused(topics, kept, validate)
    open_ = [t for t in topics if t.target not in refused]
    for number in range(max((len(optional[t.target]) for t in open_), default=0)):
        tried = [t for t in open_ if number < len(optional[t.target])]
        trial = {
            t.target: {**kept[t.target], name: configs_of(t)[name]}
            for t in tried
            for name in [optional[t.target][number]]
        }
        refused = _refused(tried, trial, validate)
        kept |= {name: configs for name, configs in trial.items() if name not in refused}
    return {t.target: kept[t.target] for t in open_}
