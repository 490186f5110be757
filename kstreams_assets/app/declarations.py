"""The user's declarations of an application, and its model while it is being classified."""

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kstreams_assets.app.model import (
    AppTopic,
    Store,
    StreamsApplication,
    TopicEdge,
    TopicRole,
    TopicRoles,
)
from kstreams_assets.checks import Finding
from kstreams_assets.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class StoreDeclaration:
    """The data from which a store can be rebuilt; exactly one of the three is set.

    Raises ConfigurationError otherwise.
    """

    changelog: str | None = None
    """Changelog topic, under its name on the cluster (if its name does not follow the rule)."""
    source_topic: str | None = None
    """Topic that the store's table reads and that is also its changelog (optimised topology)."""
    logging_disabled: bool = False

    def __post_init__(self) -> None:
        given = (self.changelog is not None) + (self.source_topic is not None)
        if given + self.logging_disabled != 1:
            raise ConfigurationError(
                f"A declared store has {given + self.logging_disabled} of changelog, source_topic"
                " and logging_disabled.",
                remedy="Give exactly one of the three for each store.",
            )


@dataclass(frozen=True, slots=True)
class Declarations:
    """Overrides and additions, by full topic names on the cluster and by store names.

    Raises ConfigurationError if a topic has no role at all, or is both declared and `not_mine`.
    """

    topic_roles: Mapping[str, TopicRoles] = field(default_factory=dict)
    """Exact roles of topics; they override names and topology text."""
    stores: Mapping[str, StoreDeclaration] = field(default_factory=dict)
    inputs: frozenset[str] = frozenset()
    """Topics that are read but not otherwise visible; they gain the role INPUT."""
    outputs: frozenset[str] = frozenset()
    """Topics that are written but not otherwise visible (dynamic sinks, dead letters); OUTPUT."""
    not_mine: frozenset[str] = frozenset()
    """Topics to exclude although names or patterns match."""
    unconfirmed_topics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Why `discover` guessed the roles of a topic; until a person confirms them."""
    unconfirmed_stores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The same for the changelog of a store."""

    def __post_init__(self) -> None:
        for topic, roles in self.topic_roles.items():
            if not roles:
                raise ConfigurationError(
                    f"Topic {topic!r} is declared without any role.",
                    remedy="Give at least one role, or list the topic under not_mine.",
                )
        named = self.topics | {topic for _, topic in self.store_topics()}
        contradictory = sorted(named & self.not_mine)
        if contradictory:
            raise ConfigurationError(
                f"Declared as a topic of the application and as not_mine: {contradictory[0]}.",
                remedy="Remove it from one of the two.",
            )

    @property
    def confirmed(self) -> "Declarations":
        """A copy without the guesses, so that a cluster decides them again."""
        return replace(
            self,
            topic_roles={t: r for t, r in self.topic_roles.items() if not self.is_guess(t)},
            stores={s: d for s, d in self.stores.items() if s not in self.unconfirmed_stores},
            unconfirmed_topics={},
            unconfirmed_stores={},
        )

    def is_guess(self, topic: str) -> bool:
        """Whether the roles of a topic are unconfirmed."""
        return topic in self.unconfirmed_topics

    @property
    def topics(self) -> frozenset[str]:
        """Every topic that is declared to be the application's, except those named by stores."""
        return frozenset(self.topic_roles) | self.inputs | self.outputs

    @property
    def declared_inputs(self) -> frozenset[str]:
        """Topics that are declared as read, by role or as additional inputs."""
        by_role = {t for t, roles in self.topic_roles.items() if TopicRole.INPUT in roles}
        return self.inputs | by_role

    def store_topics(self) -> tuple[tuple[str, str], ...]:
        """(store, topic) for every store that is declared with a topic."""
        return tuple(
            (store, topic)
            for store, declared in self.stores.items()
            for topic in (declared.changelog, declared.source_topic)
            if topic is not None
        )

    @property
    def topic_keys(self) -> tuple[str, ...]:
        """The keys of the YAML that contain names of topics."""
        of_stores = (
            f"stores.{name}.{key}" for name in self.stores for key in ("changelog", "source_topic")
        )
        return ("topics", "inputs", "outputs", "not_mine", *of_stores)

    def denies(self, topic: str, role: TopicRole) -> bool:
        """Whether the user excludes this role for this topic."""
        if topic in self.not_mine:
            return True
        return topic in self.topic_roles and role not in self.topic_roles[topic]


NOTHING_DECLARED = Declarations()


def require_known(
    kind: str, names: Collection[str], known: Collection[str], where: str, *, keys: Sequence[str]
) -> None:
    """Raise ConfigurationError for the first of `names` (sorted) that is not in `known`.

    `keys` are the keys of the YAML that contain the names.
    """
    for name in sorted(names):
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
            hint = f" (near: {', '.join(near)})" if near else ""
            raise ConfigurationError(
                f"The declared {kind} {name!r} is not in {where}{hint}.",
                remedy=f"Correct the name of the {kind} in the declarations, or remove it there.",
                keys=keys,
                value=name,
            )


class ApplicationDraft:
    """An application under construction; the user's declarations are applied last."""

    def __init__(self, application_id: str, declarations: Declarations) -> None:
        self.application_id = application_id
        self._declarations = declarations
        self._roles: dict[str, set[TopicRole]] = {}
        self._stores_of: dict[str, set[str]] = {}
        self._subtopologies: dict[str, set[int]] = {}
        self._stores: dict[str, Store] = {}
        self._findings: list[Finding] = []
        self._omitted: list[TopicEdge] = []
        self._guesses: dict[tuple[str, str], list[str]] = {}

    def add_topic(self, name: str, role: TopicRole, *, subtopology: int | None = None) -> None:
        """Add one more role to the topic; `subtopology` reads it or owns its store."""
        self._roles.setdefault(name, set()).add(role)
        if subtopology is not None:
            self._subtopologies.setdefault(name, set()).add(subtopology)

    def add_store(self, store: Store, *, subtopology: int | None = None) -> None:
        """Add a store with its changelog topic (for a global store: its source topic)."""
        self._stores[store.name] = store
        if store.changelog is None:
            return
        role = TopicRole.GLOBAL if store.is_global else TopicRole.CHANGELOG
        self.add_topic(store.changelog, role, subtopology=subtopology)
        self._stores_of.setdefault(store.changelog, set()).add(store.name)

    def add_finding(self, subject: str, statement: str, remedy: str) -> None:
        """Add a finding for a person to confirm."""
        finding = Finding(subject, statement, action=remedy)
        if finding not in self._findings:
            self._findings.append(finding)

    def omit_edge(self, edge: TopicEdge) -> None:
        """Record an edge that would close a cycle."""
        self._omitted.append(edge)

    def guess_store(self, store: str, statement: str, remedy: str) -> None:
        """Add a finding on which the store's changelog depends until a person confirms it."""
        self.add_finding(store, statement, remedy)
        self._guesses.setdefault(("store", store), []).append(statement)

    def guess_topic(self, topic: str, statement: str, remedy: str) -> None:
        """Add a finding on which the topic's roles depend; topics with declared roles get none."""
        if topic in self._declarations.topic_roles:
            return
        self.add_finding(topic, statement, remedy)
        reasons = self._guesses.setdefault(("topic", topic), [])
        if statement not in reasons:
            reasons.append(statement)

    def apply_declarations(self) -> None:
        """Add declared topics, replace declared roles, remove topics of other applications."""
        for topic in self._declarations.inputs:
            self.add_topic(topic, TopicRole.INPUT)
        for topic in self._declarations.outputs:
            self.add_topic(topic, TopicRole.OUTPUT)
        for topic, roles in self._declarations.topic_roles.items():
            self._roles[topic] = set(roles)
        for topic in self._declarations.not_mine:
            self._roles.pop(topic, None)

    @property
    def topics(self) -> frozenset[str]:
        """Names of the topics collected so far."""
        return frozenset(self._roles)

    @property
    def stores(self) -> tuple[Store, ...]:
        """The stores collected so far, sorted by name."""
        return tuple(sorted(self._stores.values(), key=lambda store: store.name))

    def with_role(self, role: TopicRole) -> tuple[str, ...]:
        """Names of the topics that play this role so far, sorted."""
        return tuple(sorted(name for name, roles in self._roles.items() if role in roles))

    def roles_of(self, topic: str) -> TopicRoles:
        """The roles of a topic so far."""
        return TopicRoles(self._roles[topic])

    def subtopologies_of(self, topic: str) -> tuple[int, ...]:
        """The sub-topologies that read a topic or own its store, sorted."""
        return tuple(sorted(self._subtopologies.get(topic, ())))

    def finish(self, edges: Iterable[TopicEdge]) -> StreamsApplication:
        """The application, everything in a stable order; edges of dropped topics are dropped."""
        kept = self.topics
        return StreamsApplication(
            application_id=self.application_id,
            topics=tuple(self._topic(name) for name in sorted(kept)),
            stores=tuple(
                replace(store, unconfirmed=self._unconfirmed("store", store.name))
                for store in self.stores
            ),
            edges=tuple(
                sorted(
                    {edge for edge in edges if edge.source in kept and edge.target in kept},
                    key=lambda edge: (edge.source, edge.target),
                )
            ),
            omitted_edges=tuple(e for e in self._omitted if {e.source, e.target} <= kept),
            findings=tuple(self._findings),
            not_mine=self._declarations.not_mine,
        )

    def _topic(self, name: str) -> AppTopic:
        return AppTopic(
            name=name,
            roles=self.roles_of(name),
            stores=tuple(sorted(self._stores_of.get(name, ()))),
            subtopologies=self.subtopologies_of(name),
            unconfirmed=self._unconfirmed("topic", name),
        )

    def _unconfirmed(self, kind: str, name: str) -> tuple[str, ...]:
        said = self._declarations
        declared = said.unconfirmed_stores if kind == "store" else said.unconfirmed_topics
        return tuple(dict.fromkeys((*declared.get(name, ()), *self._guesses.get((kind, name), ()))))
