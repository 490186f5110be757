"""What a Kafka Streams application is to this project: topics with roles, stores, data flow."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from kstreams_assets.app.names import name_problem, owner_of
from kstreams_assets.errors import ConfigurationError


class TopicRole(StrEnum):
    """The part a topic plays in one application; one topic may play two."""

    INPUT = "input"
    GLOBAL = "global"
    REPARTITION = "repartition"
    CHANGELOG = "changelog"
    OUTPUT = "output"


class BackupMode(StrEnum):
    """Which roles are backed up: `full` all, `minimal` inputs (with globals) and changelogs."""

    FULL = "full"
    MINIMAL = "minimal"


@dataclass(frozen=True, slots=True)
class AppTopic:
    """A topic of one application, under its name on the cluster."""

    name: str
    roles: frozenset[TopicRole]
    stores: tuple[str, ...] = ()
    """Stores whose changelog this topic is, or that a global topic fills."""
    subtopologies: tuple[int, ...] = ()
    """Sub-topologies that read this topic, or (changelog) own its store."""

    def has_role(self, role: TopicRole) -> bool:
        """Whether the topic plays this role."""
        return role in self.roles

    @property
    def is_internal(self) -> bool:
        """Whether Kafka Streams itself created the topic."""
        return self.roles <= {TopicRole.REPARTITION, TopicRole.CHANGELOG}


@dataclass(frozen=True, slots=True)
class Store:
    """A state store; `changelog` is the topic that can rebuild it, None without logging."""

    name: str
    changelog: str | None
    is_global: bool = False


@dataclass(frozen=True, slots=True)
class TopicEdge:
    """Records flow from `source` into `target` (both names of topics on the cluster)."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about the application that a person must confirm, with what to do about it."""

    subject: str
    statement: str
    remedy: str


@dataclass(frozen=True, slots=True)
class StreamsApplication:
    """One `application.id`: its topics (sorted by name), stores and topic-to-topic data flow."""

    application_id: str
    topics: tuple[AppTopic, ...]
    stores: tuple[Store, ...] = ()
    edges: tuple[TopicEdge, ...] = ()
    findings: tuple[Finding, ...] = ()
    copartitioned: tuple[frozenset[str], ...] = ()
    """Topics that meet in one store, hence need equally many partitions; sorted by names."""
    not_mine: frozenset[str] = frozenset()
    """Topics that the user says are not the application's, whatever names or offsets say."""
    other_application_ids: frozenset[str] = frozenset()
    """Applications of the cluster that are known besides, so that their topics are not taken."""

    def __post_init__(self) -> None:
        # It is part of topic names, and here of names of folders too.
        problem = name_problem(self.application_id)
        if problem is not None:
            raise ConfigurationError(
                f"The application id {self.application_id!r} {problem}.",
                remedy="Give the application.id of the Kafka Streams configuration.",
            )

    def topic(self, name: str) -> AppTopic:
        """The topic of this name; KeyError when the application has none."""
        for topic in self.topics:
            if topic.name == name:
                return topic
        raise KeyError(name)

    def undeclared_internal(
        self, topics: Iterable[str], *, others: Collection[str] = ()
    ) -> frozenset[str]:
        """Of these topics those that are the application's by their names, but not declared.

        Left out is what is `not_mine`, and what fits a known application better; `others` are
        application ids known besides `other_application_ids`.
        """
        ids = {self.application_id, *self.other_application_ids, *others}
        known = self.not_mine | {topic.name for topic in self.topics}
        return frozenset(
            topic
            for topic in topics
            if topic not in known and owner_of(topic, ids) == self.application_id
        )

    def with_role(self, role: TopicRole) -> tuple[AppTopic, ...]:
        """The topics that play this role, sorted by name."""
        return tuple(topic for topic in self.topics if role in topic.roles)
