"""What the user says about an application; it wins over everything derived."""

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from kstreams_assets.app.model import TopicRole
from kstreams_assets.errors import ConfigurationError, DeclaredNotFoundError


@dataclass(frozen=True, slots=True)
class StoreDeclaration:
    """What can rebuild a store: exactly one of the three is given.

    Raises ConfigurationError otherwise.
    """

    changelog: str | None = None
    """Changelog topic, under its name on the cluster (for names that no rule gives)."""
    source_topic: str | None = None
    """Topic that the store's table reads and that serves as its changelog (optimised topology)."""
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

    Raises ConfigurationError when a topic has no role at all, or is both declared and `not_mine`.
    """

    topic_roles: Mapping[str, frozenset[TopicRole]] = field(default_factory=dict)
    """These roles and no others, whatever names and text say."""
    stores: Mapping[str, StoreDeclaration] = field(default_factory=dict)
    inputs: frozenset[str] = frozenset()
    """Topics read that nothing else shows; they gain the role INPUT."""
    outputs: frozenset[str] = frozenset()
    """Topics written that nothing else shows (dynamic sinks, dead letters); they gain OUTPUT."""
    not_mine: frozenset[str] = frozenset()
    """Topics to leave out although names or patterns fit."""

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
    def topics(self) -> frozenset[str]:
        """Every topic declared to be the application's, those named by stores aside."""
        return frozenset(self.topic_roles) | self.inputs | self.outputs

    @property
    def declared_inputs(self) -> frozenset[str]:
        """Topics declared to be read, by role or as additional inputs."""
        by_role = {t for t, roles in self.topic_roles.items() if TopicRole.INPUT in roles}
        return self.inputs | by_role

    def store_topics(self) -> tuple[tuple[str, str], ...]:
        """(store, topic) for every store declared with a topic."""
        return tuple(
            (store, topic)
            for store, declared in self.stores.items()
            for topic in (declared.changelog, declared.source_topic)
            if topic is not None
        )

    def denies(self, topic: str, role: TopicRole) -> bool:
        """Whether the user says that this topic does not play this role."""
        if topic in self.not_mine:
            return True
        return topic in self.topic_roles and role not in self.topic_roles[topic]


NOTHING_DECLARED = Declarations()


def require_known(kind: str, names: Collection[str], known: Collection[str], where: str) -> None:
    """Raise DeclaredNotFoundError for the first of `names` (sorted) that is not `known`."""
    for name in sorted(names):
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
            raise DeclaredNotFoundError(kind=kind, name=name, where=where, near=near)
