"""The model of a Kafka Streams application: topics with roles, stores, data flow."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from kstreams_assets.app.names import name_problem, owner_of
from kstreams_assets.checks import Finding
from kstreams_assets.errors import ConfigurationError


class TopicRole(StrEnum):
    """The role of a topic in one application; one topic may have two."""

    INPUT = "input"
    GLOBAL = "global"
    REPARTITION = "repartition"
    CHANGELOG = "changelog"
    OUTPUT = "output"


class TopicRoles(frozenset[TopicRole]):
    """The roles of one topic in an application, and what follows from them."""

    __slots__ = ()

    @property
    def is_source(self) -> bool:
        """Whether other applications write it: an input, or a global table's source."""
        return not self.isdisjoint(_SOURCES)

    @property
    def is_changelog(self) -> bool:
        """Whether it rebuilds a store; an input may (`topology.optimization`)."""
        return TopicRole.CHANGELOG in self

    @property
    def is_source_changelog(self) -> bool:
        """Whether it rebuilds a store and other applications write it."""
        return self.is_changelog and self.is_source

    @property
    def rebuilds_store(self) -> bool:
        """Whether a store is built from it, including global stores."""
        return not self.isdisjoint(_STATE)

    @property
    def is_repartition(self) -> bool:
        """Whether it carries records between sub-topologies; these are deleted after processing."""
        return TopicRole.REPARTITION in self

    @property
    def is_input(self) -> bool:
        """Whether the application's group reads it as its input."""
        return TopicRole.INPUT in self

    @property
    def is_output(self) -> bool:
        """Whether the application writes it for others, or for itself."""
        return TopicRole.OUTPUT in self

    @property
    def is_read_by_group(self) -> bool:
        """Whether the application's group commits offsets for it."""
        return not self.isdisjoint(_READ)

    @property
    def is_internal(self) -> bool:
        """Whether Kafka Streams itself created it."""
        return self <= _INTERNAL

    @property
    def is_recomputed_from(self) -> bool:
        """Whether a rebuild starts from it: the application reads but does not write it."""
        return self.is_source and not self.is_output

    @property
    def in_flight_only(self) -> bool:
        """Whether its records matter only until they are processed."""
        return self == _IN_FLIGHT

    @property
    def written_only(self) -> bool:
        """Whether the application continues without it."""
        return self == _WRITTEN

    @property
    def input_only(self) -> bool:
        """Whether it is only read."""
        return self == _INPUT

    @property
    def changelog_only(self) -> bool:
        """Whether it is a store's own changelog, which only the application writes."""
        return self == _CHANGELOG


_INPUT: Final = frozenset({TopicRole.INPUT})
_WRITTEN: Final = frozenset({TopicRole.OUTPUT})
_CHANGELOG: Final = frozenset({TopicRole.CHANGELOG})
_IN_FLIGHT: Final = frozenset({TopicRole.REPARTITION})
_INTERNAL: Final = _IN_FLIGHT | _CHANGELOG
_SOURCES: Final = frozenset({TopicRole.INPUT, TopicRole.GLOBAL})
_STATE: Final = frozenset({TopicRole.CHANGELOG, TopicRole.GLOBAL})
_READ: Final = frozenset({TopicRole.INPUT, TopicRole.REPARTITION})

NO_ROLES: Final = TopicRoles()
"""Unknown, or none."""


class BackupMode(StrEnum):
    """Which roles are backed up.

    `full`: all. `minimal`: inputs (with globals) and changelogs. `logs`: inputs (with globals) and
    outputs.
    """

    FULL = "full"
    MINIMAL = "minimal"
    LOGS = "logs"

    def includes(self, roles: TopicRoles) -> bool:
        """Return whether a topic with these roles is backed up."""
        if self is BackupMode.FULL:
            return True
        return not roles.isdisjoint(
            _SOURCES | (_WRITTEN if self is BackupMode.LOGS else _CHANGELOG)
        )


@dataclass(frozen=True, slots=True)
class AppTopic:
    """A topic of one application, under its name on the cluster."""

    name: str
    roles: TopicRoles
    stores: tuple[str, ...] = ()
    """Stores whose changelog this topic is, or that a global topic fills."""
    subtopologies: tuple[int, ...] = ()
    """Sub-topologies that read this topic or, for a changelog, own its store."""
    unconfirmed: tuple[str, ...] = field(default=(), compare=False)
    """Why its roles are a guess; empty if they are certain, or confirmed by a person."""

    @property
    def is_internal(self) -> bool:
        """Whether Kafka Streams itself created the topic."""
        return self.roles.is_internal


@dataclass(frozen=True, slots=True)
class Store:
    """A state store; `changelog` is the topic that can rebuild it, None without logging."""

    name: str
    changelog: str | None
    is_global: bool = False
    unconfirmed: tuple[str, ...] = field(default=(), compare=False)
    """Why `changelog` is a guess; empty if it is certain, or confirmed by a person."""


@dataclass(frozen=True, slots=True)
class TopicEdge:
    """Records flow from `source` into `target` (both names of topics on the cluster)."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Guess:
    """An assumption of `discover` about one store or topic; `setting` is its block in the YAML."""

    setting: str
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.setting} is unconfirmed: {' '.join(self.reasons)}"

    @property
    def remedy(self) -> str:
        """How to confirm it."""
        return (
            f"Check {self.setting} in the YAML, correct it if it is wrong, and remove"
            f" {self.setting}.unconfirmed to confirm it."
        )


@dataclass(frozen=True, slots=True)
class StreamsApplication:
    """One `application.id`: its topics (sorted by name), stores and topic-to-topic data flow."""

    application_id: str
    topics: tuple[AppTopic, ...]
    stores: tuple[Store, ...] = ()
    edges: tuple[TopicEdge, ...] = ()
    omitted_edges: tuple[TopicEdge, ...] = field(default=(), kw_only=True)
    """Edges that would close a cycle of topics; `edges` has none."""
    findings: tuple[Finding, ...] = ()
    """Findings that a person must confirm."""
    copartitioned: tuple[frozenset[str], ...] = ()
    """Topics that one store joins and that therefore need equal partition counts; sorted by
    names."""
    not_mine: frozenset[str] = frozenset()
    """Topics that are not the application's according to the user, despite names or offsets."""
    other_application_ids: frozenset[str] = frozenset()
    """Other known applications of the cluster, whose topics must not be claimed."""

    def __post_init__(self) -> None:
        # The id is part of topic names and here also of folder names.
        problem = name_problem(self.application_id)
        if problem is not None:
            raise ConfigurationError(
                f"The application id {self.application_id!r} {problem}.",
                remedy="Give the application.id of the Kafka Streams configuration.",
            )

    def topic(self, name: str) -> AppTopic:
        """The topic of this name; KeyError if the application has none."""
        for topic in self.topics:
            if topic.name == name:
                return topic
        raise KeyError(name)

    @property
    def guesses(self) -> tuple[Guess, ...]:
        """Every unconfirmed guess: of stores first, then of topics."""
        stores = (Guess(f"stores.{s.name}", s.unconfirmed) for s in self.stores)
        topics = (Guess(f"topics.{t.name}", t.unconfirmed) for t in self.topics)
        return tuple(guess for guess in (*stores, *topics) if guess.reasons)

    def guesses_about(
        self, *, topics: Collection[str] = (), stores: Collection[str] = ()
    ) -> tuple[Guess, ...]:
        """The guesses about these topics, and about these stores with their changelogs."""
        names = {f"topics.{topic}" for topic in topics} | {f"stores.{store}" for store in stores}
        names |= {f"topics.{s.changelog}" for s in self.stores if s.name in stores}
        return tuple(guess for guess in self.guesses if guess.setting in names)

    def undeclared_internal(
        self, topics: Iterable[str], *, others: Collection[str] = ()
    ) -> frozenset[str]:
        """Those of these topics that have the application's names but are not declared.

        Excludes `not_mine` topics and those that match another known application better; `others`
        are application ids in addition to `other_application_ids`.
        """
        ids = {self.application_id, *self.other_application_ids, *others}
        known = self.not_mine | {topic.name for topic in self.topics}
        return frozenset(
            topic
            for topic in topics
            if topic not in known and owner_of(topic, ids) == self.application_id
        )

    def with_role(self, role: TopicRole) -> tuple[AppTopic, ...]:
        """The topics with this role, sorted by name."""
        return tuple(topic for topic in self.topics if role in topic.roles)
