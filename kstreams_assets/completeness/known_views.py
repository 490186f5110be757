"""Looks up what rules name; says of what they cannot name why. Pure."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kstreams_assets.completeness.rule import Scope
from kstreams_assets.completeness.view import BEFORE, STORE_PREFIX, View, views_of
from kstreams_assets.settings import ApplicationSettings

_SHOWN: Final = 30


class RuleTextError(ValueError):
    """A text of a rule that is refused; whoever reads the YAML names rule and file.

    `line` is that of the text (from 1), None where none is to blame.
    """

    def __init__(self, problem: str, *, remedy: str, line: int | None = None) -> None:
        super().__init__(f"{problem}. {remedy}")
        self.problem = problem
        self.remedy = remedy
        self.line = line


@dataclass(frozen=True, slots=True)
class NamedView:
    """A view as a rule names it; `name` may be an alias and may end with `@before`."""

    name: str
    view: View

    @property
    def is_before(self) -> bool:
        """Whether it holds what there was at the point of the window before."""
        return self.name.endswith(BEFORE)


@dataclass(frozen=True, slots=True)
class KnownViews:
    """The views that rules of an application can name.

    `without_backup` says of topics and stores that there are, but in no backup, why.
    """

    views: Mapping[str, View]
    without_backup: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: ApplicationSettings) -> "KnownViews":
        """Those of an application."""
        views = views_of(settings)
        backed_up = {topic.name for topic in settings.topics}
        without = {
            topic.name: "the topic is excluded from the backup"
            for topic in settings.application.topics
            if topic.name not in backed_up
        }
        prefix = f"{settings.application_id}-"
        for topic in settings.application.topics:
            if topic.is_internal and topic.name in without:
                without.setdefault(topic.name.removeprefix(prefix), without[topic.name])
        for store in settings.application.stores:
            if store.changelog not in backed_up:
                why = (
                    "the store has no changelog"
                    if store.changelog is None
                    else f"its changelog {store.changelog} is excluded from the backup"
                )
                for name in (store.name, f"{STORE_PREFIX}{store.name}"):
                    without.setdefault(name, why)
        return cls(views, without)

    def find(self, name: str, scope: Scope) -> NamedView | None:
        """The view of this name; None where there is none.

        Names are compared without case, as Spark compares those of views, unless that leaves two.

        Raises:
            RuleTextError: It is in no backup, or is `@before` where there is none.
        """
        plain = name.removesuffix(BEFORE)
        found = self._spelling(plain)
        if found is None:
            if plain in self.without_backup:
                raise RuleTextError(
                    f"{plain!r} is in no backup: {self.without_backup[plain]}",
                    remedy="Back it up (mode, include and exclude), or leave it out of the rule.",
                )
            return None
        if plain == name:
            return NamedView(found, self.views[found])
        return self._before(found, scope)

    def near(self, name: str) -> str:
        """The names that look like this one, else all, as a part of a message."""
        plain = name.removesuffix(BEFORE)
        shown = sorted(known for known in self.views if not self._is_second_name(known))
        near = difflib.get_close_matches(plain, shown, n=3, cutoff=0.5)
        if near:
            return f"near: {', '.join(near)}"
        more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
        return f"there are: {', '.join(shown[:_SHOWN])}{more}"

    def _is_second_name(self, name: str) -> bool:
        """Whether it is `store:<name>` where `<name>` suffices."""
        short = name.removeprefix(STORE_PREFIX)
        return short != name and self.views.get(short) is self.views[name]

    def _spelling(self, name: str) -> str | None:
        if name in self.views:
            return name
        alike = [known for known in self.views if known.lower() == name.lower()]
        return alike[0] if len(alike) == 1 else None

    def _before(self, name: str, scope: Scope) -> NamedView:
        view = self.views[name]
        if scope is not Scope.WINDOW:
            raise RuleTextError(
                f"{name}{BEFORE} is only there in rules with scope: window",
                remedy="Give the rule scope: window, or leave @before out.",
            )
        if not view.has_before:
            raise RuleTextError(
                f"there is no {name}{BEFORE}: in a rule with scope: window {name} holds only what"
                " is new",
                remedy="Stores, repartition topics and topics that the application both writes and"
                " reads have one.",
            )
        return NamedView(f"{name}{BEFORE}", view)
