"""Have topics as many partitions as Kafka Streams needs? Pure."""

from collections.abc import Iterable, Iterator

from kstreams_assets.app.model import AppTopic, TopicRole, TopicRoles
from kstreams_assets.governance.facts import Declared, GovernanceFacts
from kstreams_assets.governance.findings import GovernanceFinding, GovernanceVerdict, verdict
from kstreams_assets.governance.remedies import add_partitions

_READ = TopicRoles({TopicRole.INPUT, TopicRole.REPARTITION})


def partitions_as_needed(facts: GovernanceFacts, declared: Declared) -> GovernanceVerdict:
    """Declared counts, co-partitioned topics, changelogs and repartition topics.

    The rules are those of `RepartitionTopics` and `ChangelogTopics` of Kafka Streams 4.x: a
    changelog has as many partitions as the widest topic that its sub-topology reads; a repartition
    topic as many as the topics it is joined with, else as the widest that its writers read.
    """
    said = dict(declared.governance.partitions)
    counts = {name: topic.partitions for name, topic in facts.topics.items()}
    apart = list(_apart(facts, declared, counts))
    findings = [
        GovernanceFinding(
            topic,
            f"{counts[topic]} partitions",
            f"{count}, as declared in governance.partitions",
            _remedy(facts, declared, topic, counts[topic], count),
        )
        for topic, count in sorted(said.items())
        if counts.get(topic, count) != count
    ]
    findings += [finding for finding, _ in apart]
    unclear = {topic for _, group in apart for topic in group}
    for topic in declared.application.topics:
        if topic.name in counts and topic.name not in said and topic.name not in unclear:
            findings += _internal(facts, declared, topic, counts)
    return verdict(
        "partitions_as_needed",
        f"Topics: {len(counts)}; groups of them that meet in one store:"
        f" {len(declared.application.copartitioned)}.",
        findings,
        _not_judged(declared),
    )


def _not_judged(declared: Declared) -> Iterator[str]:
    if not declared.governance.partitions:
        yield "governance.partitions is not declared."
    if declared.internal and not any(t.subtopologies for t in declared.application.topics):
        yield "which topics belong together: there is no text of Topology.describe()."


def _apart(
    facts: GovernanceFacts, declared: Declared, counts: dict[str, int]
) -> Iterator[tuple[GovernanceFinding, frozenset[str]]]:
    """Groups whose topics that users make differ: Kafka Streams cannot put that right."""
    for group in declared.application.copartitioned:
        made = {t: counts[t] for t in sorted(group - declared.internal) if t in counts}
        if len(set(made.values())) < 2:
            continue
        widest = max(made.values())
        narrow = [topic for topic, count in made.items() if count < widest]
        found = ", ".join(f"{topic} has {count}" for topic, count in made.items())
        commands = "; ".join(add_partitions(facts.bootstrap_servers, t, widest) for t in narrow)
        finding = GovernanceFinding(
            ", ".join(made),
            f"different numbers of partitions ({found})",
            f"{widest} each, since their records meet in one store",
            "Kafka Streams refuses to start a join of them, and keys that meet otherwise lie in"
            " different tasks. Stop the application and give all the same number (existing keys"
            f" then lie in other partitions; rebuild its state from the inputs): {commands}.",
        )
        yield finding, group


def _internal(
    facts: GovernanceFacts, declared: Declared, topic: AppTopic, counts: dict[str, int]
) -> Iterator[GovernanceFinding]:
    if not topic.is_internal:
        return
    needed = _needed(declared, topic, counts)
    if not needed or counts[topic.name] == max(needed.values()):
        return
    count = max(needed.values())
    widest = ", ".join(sorted(name for name, n in needed.items() if n == count))
    own = (
        ""
        if TopicRole.CHANGELOG in topic.roles
        else " If the application itself sets the number (Repartitioned.withNumberOfPartitions),"
        f" declare it: governance.partitions: {{{topic.name}: {counts[topic.name]}}}."
    )
    yield GovernanceFinding(
        topic.name,
        f"{counts[topic.name]} partitions",
        f"{count}, as {widest}",
        _remedy(facts, declared, topic.name, counts[topic.name], count) + own,
    )


def _needed(declared: Declared, topic: AppTopic, counts: dict[str, int]) -> dict[str, int]:
    """The topics that decide how many partitions an internal topic needs, with their counts."""
    if TopicRole.CHANGELOG in topic.roles:
        return _read_by(declared, topic.subtopologies, counts)
    for group in declared.application.copartitioned:
        if topic.name in group and (made := group - declared.internal) & counts.keys():
            return {name: counts[name] for name in made if name in counts}
    sources = {edge.source for edge in declared.application.edges if edge.target == topic.name}
    writers = {
        subtopology
        for source in declared.application.topics
        if source.name in sources
        for subtopology in source.subtopologies
    }
    return _read_by(declared, writers, counts)


def _read_by(
    declared: Declared, subtopologies: Iterable[int], counts: dict[str, int]
) -> dict[str, int]:
    wanted = set(subtopologies)
    return {
        topic.name: counts[topic.name]
        for topic in declared.application.topics
        if topic.roles & _READ and set(topic.subtopologies) & wanted and topic.name in counts
    }


def _remedy(facts: GovernanceFacts, declared: Declared, topic: str, count: int, needed: int) -> str:
    if topic in declared.internal:
        return (
            "Kafka Streams refuses to start with it (StreamsException: invalid partitions), as"
            " after an input was given more partitions. Stop the application, reset it"
            f" (kafka-streams-application-reset.sh --bootstrap-server {facts.bootstrap_servers}"
            f" --application-id {declared.application_id} --input-topics ...) and rebuild its state"
            " from the inputs: keys lie in other partitions than before."
        )
    if count < needed:
        return f"{add_partitions(facts.bootstrap_servers, topic, needed)}."
    return (
        "Partitions cannot be taken away. If the number is meant, declare it; otherwise create the"
        " topic anew, and restore it from the backup."
    )
