"""Collects the parts of an application while it is being classified."""

from collections.abc import Iterable

from kstreams_assets.app.declarations import Declarations
from kstreams_assets.app.model import (
    AppTopic,
    Finding,
    Store,
    StreamsApplication,
    TopicEdge,
    TopicRole,
)


class ApplicationDraft:
    """An application under construction; what the user declared is applied at the end."""

    def __init__(self, application_id: str, declarations: Declarations) -> None:
        self.application_id = application_id
        self._declarations = declarations
        self._roles: dict[str, set[TopicRole]] = {}
        self._stores_of: dict[str, set[str]] = {}
        self._subtopologies: dict[str, set[int]] = {}
        self._stores: dict[str, Store] = {}
        self._findings: list[Finding] = []

    def add_topic(self, name: str, role: TopicRole, *, subtopology: int | None = None) -> None:
        """Give the topic one more role; `subtopology` reads it or owns its store."""
        self._roles.setdefault(name, set()).add(role)
        if subtopology is not None:
            self._subtopologies.setdefault(name, set()).add(subtopology)

    def add_store(self, store: Store, *, subtopology: int | None = None) -> None:
        """Add a store, and its changelog topic with it (for a global store: its source topic)."""
        self._stores[store.name] = store
        if store.changelog is None:
            return
        role = TopicRole.GLOBAL if store.is_global else TopicRole.CHANGELOG
        self.add_topic(store.changelog, role, subtopology=subtopology)
        self._stores_of.setdefault(store.changelog, set()).add(store.name)

    def add_finding(self, subject: str, statement: str, remedy: str) -> None:
        """Add something for a person to confirm."""
        finding = Finding(subject=subject, statement=statement, remedy=remedy)
        if finding not in self._findings:
            self._findings.append(finding)

    def apply_declarations(self) -> None:
        """Add declared topics, replace roles where declared, drop what is not the application's."""
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

    def roles_of(self, topic: str) -> frozenset[TopicRole]:
        """The roles of a topic so far."""
        return frozenset(self._roles[topic])

    def subtopologies_of(self, topic: str) -> tuple[int, ...]:
        """The sub-topologies that read a topic or own its store, sorted."""
        return tuple(sorted(self._subtopologies.get(topic, ())))

    def finish(self, edges: Iterable[TopicEdge]) -> StreamsApplication:
        """The application, everything in a stable order; edges of dropped topics are dropped."""
        kept = self.topics
        return StreamsApplication(
            application_id=self.application_id,
            topics=tuple(self._topic(name) for name in sorted(kept)),
            stores=self.stores,
            edges=tuple(
                sorted(
                    {edge for edge in edges if edge.source in kept and edge.target in kept},
                    key=lambda edge: (edge.source, edge.target),
                )
            ),
            findings=tuple(self._findings),
            not_mine=self._declarations.not_mine,
        )

    def _topic(self, name: str) -> AppTopic:
        return AppTopic(
            name=name,
            roles=self.roles_of(name),
            stores=tuple(sorted(self._stores_of.get(name, ()))),
            subtopologies=self.subtopologies_of(name),
        )
