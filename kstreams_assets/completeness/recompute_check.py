"""Checks what is declared of a recomputed store, before anything runs. Pure."""

from collections.abc import Mapping
from typing import Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from kstreams_assets.app.model import TopicRole, TopicRoles
from kstreams_assets.completeness.column_types import NUMBERS, MissingColumnError, column_type
from kstreams_assets.completeness.known_views import KnownViews, RuleTextError
from kstreams_assets.completeness.recomputation import Recomputation, WindowedBy
from kstreams_assets.completeness.recompute import store_view, value_path
from kstreams_assets.completeness.rule import Scope
from kstreams_assets.completeness.sql_check import check_rule_sql
from kstreams_assets.completeness.view import View, ViewKind
from kstreams_assets.ktables.store_format import StoreKind

_READ: Final = TopicRoles({TopicRole.INPUT, TopicRole.GLOBAL})


def check_recomputation(declared: Recomputation, known: KnownViews) -> None:
    """Raise RuleTextError for a declared recomputation that cannot be what was meant."""
    view = _store(declared, known)
    _check_windows(declared.windowed_by, view)
    source = _topic("source", declared.source, known)
    if not source.roles & _READ:
        raise RuleTextError(
            f"source {declared.source!r} is no input of the application",
            remedy="Recompute from a topic that the application reads and that is kept (repartition"
            " topics are purged).",
        )
    _check_values(declared.values, view)
    _check_expressions(declared, known)
    if declared.through is not None:
        through = _topic("through", declared.through, known)
        if TopicRole.REPARTITION not in through.roles:
            raise RuleTextError(
                f"through {declared.through!r} is no repartition topic",
                remedy="Name the repartition topic between source and store, or leave it out.",
            )


def _store(declared: Recomputation, known: KnownViews) -> View:
    try:
        return known.views[store_view(declared.store, known.views)]
    except KeyError:
        why = known.without_backup.get(declared.store, "the application has no such store")
        raise RuleTextError(
            f"the store {declared.store!r} is in no backup: {why}",
            remedy="Back its changelog up, or leave recompute out.",
        ) from None


def _topic(what: str, name: str, known: KnownViews) -> View:
    found = known.find(name, Scope.EVERYTHING)
    if found is None or found.view.kind is not ViewKind.TOPIC or found.name != name:
        raise RuleTextError(
            f"{what}: there is no topic {name!r} ({known.near(name)})",
            remedy="Give the name of a topic of the application.",
        )
    return found.view


def _check_windows(windows: WindowedBy | None, view: View) -> None:
    is_windowed = view.format.kind is StoreKind.WINDOW
    if view.format.kind not in (StoreKind.KEY_VALUE, StoreKind.WINDOW):
        raise RuleTextError(
            f"stores of kind {view.format.kind} cannot be recomputed",
            remedy="Only counts and sums in stores of kind key_value and window can.",
        )
    if is_windowed != (windows is not None):
        said = "no windowed_by" if is_windowed else "windowed_by"
        raise RuleTextError(
            f"the store is of kind {view.format.kind} and recompute has {said}",
            remedy="Give windowed_by for windows, and kind: window with it.",
        )
    if windows is None:
        return
    if not (0 < windows.advance_ms <= windows.size_ms and windows.grace_ms >= 0):
        raise RuleTextError(
            f"windowed_by has size_ms {windows.size_ms}, advance_ms {windows.advance_ms}, grace_ms"
            f" {windows.grace_ms}",
            remedy="Give 0 < advance_ms <= size_ms and grace_ms >= 0, as the application does.",
        )
    if view.format.retention_ms is None:
        raise RuleTextError(
            "the retention of the windowed store is not declared",
            remedy="Give stores.<name>.retention_ms: windows that have passed it are in no store.",
        )


def _check_values(values: Mapping[str, str], view: View) -> None:
    if not values:
        raise RuleTextError(
            "it has no values", remedy="Give count(*) or sum(...), or leave it out."
        )
    for field, aggregate in values.items():
        name = f"values.{field}" if field else "values"
        if not _is_aggregate(aggregate):
            raise RuleTextError(
                f"{name} is {aggregate!r}",
                remedy="Give count(*), count(...) or sum(...): of others what is in flight cannot"
                " be taken away.",
            )
        try:
            found = column_type(view, value_path(field))
        except MissingColumnError as error:
            there = f" (there are: {', '.join(error.available)})" if error.available else ""
            raise RuleTextError(
                f"the value of the store has no field {field!r}{there}",
                remedy="Name fields as stores.<name>.value does.",
            ) from None
        if found is not None and found not in NUMBERS:
            raise RuleTextError(
                f"{name} is a number, and the store's value {f'field {field} ' if field else ''}is"
                f" {found}",
                remedy="Declare the format of the store's value, or name the fields.",
            )


def _is_aggregate(text: str) -> bool:
    try:
        parsed = sqlglot.parse_one(text, dialect="spark")
    except SqlglotError:
        return False
    if isinstance(parsed, exp.Filter):
        parsed = parsed.this
    return isinstance(parsed, exp.Count | exp.Sum) and not isinstance(parsed.this, exp.Distinct)


def _check_expressions(declared: Recomputation, known: KnownViews) -> None:
    """Key, condition and aggregates are SQL over the source; the latter two over `through`, too."""
    for what, view, key in (
        ("source", declared.source, declared.key),
        ("through", declared.through, "_key"),
    ):
        if view is None:
            continue
        where = f" WHERE ({declared.where}\n)" if declared.where else ""
        values = "\n, ".join(declared.values.values())
        # The key first: `count(*)` beside a column needs no GROUP BY to be checked.
        sql = f"SELECT {key}\n, {values}\n FROM `{view}`{where}"
        try:
            check_rule_sql(sql, known, Scope.EVERYTHING)
        except RuleTextError as error:
            raise RuleTextError(
                f"key, where and values do not fit {what} {view}: {error.problem}",
                remedy=error.remedy,
            ) from None
