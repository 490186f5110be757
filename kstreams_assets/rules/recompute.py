"""Declared stores of counts and sums, recomputed from their inputs in SQL and compared. Pure.

Kafka Streams ignores records without a key and, in stores without windows, records without a value.
A tumbling or hopping window drops a record if the window's end is more than `grace` before the
greatest timestamp that its task has seen since its start. Late records therefore may or may not
count.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kstreams_assets.app.rules import Recomputation, WindowedBy
from kstreams_assets.rules.view import (
    FRACTIONS,
    NUMBERS,
    RELATIVE_TOLERANCE,
    View,
    ViewKind,
    column_type,
)

RULE_PREFIX: Final = "recompute_"
"""Prefix of the rule name of a store's recomputation: `recompute_<store>`."""
_START: Final = "recomputed_window_start_ms"
_WHOLE: Final = NUMBERS - FRACTIONS
_HAS_VALUE: Final = "(`_value` IS NOT NULL OR coalesce(`_decode_error`, '') LIKE '%value: %')"


@dataclass(frozen=True, slots=True)
class RecomputeSql:
    """SQL of a recomputation, over the views `views`.

    `sql` returns a row for each different field: `key`, `window_start_ms` (windowed stores),
    `field`, `expected`, `found`; null if a row is missing or unexpected. `late_sql` (windowed
    stores) returns one number: if it is not 0, records may have been too late to count, and the
    result cannot be verified exactly, whatever `sql` returns.
    """

    sql: str
    late_sql: str | None
    views: tuple[str, ...]


def recompute_sql(declared: Recomputation, views: Mapping[str, View]) -> RecomputeSql:
    """The SQL that recomputes a declared store; `declared` has passed `check_recomputation`."""
    sql = _Sql(declared, store_view(declared.store, views), views)
    return RecomputeSql(
        sql=sql.differences(),
        late_sql=sql.late() if declared.windowed_by is not None else None,
        views=tuple(name for name in (declared.source, declared.through, sql.store) if name),
    )


def store_view(store: str, views: Mapping[str, View]) -> str:
    """The name of the view of a store, `store:<name>` if a topic has its name.

    Raises KeyError if the store is not backed up.
    """
    for name, view in views.items():
        if view.kind is ViewKind.STORE and view.store is not None and view.store.store == store:
            return name
    raise KeyError(store)


@dataclass(frozen=True, slots=True)
class _Sql:
    declared: Recomputation
    store: str
    views: Mapping[str, View]

    @property
    def _fields(self) -> list[tuple[str, str, str]]:
        """Alias, displayed name of the field, and aggregate."""
        return [
            (f"v{number}", field or "_value", aggregate)
            for number, (field, aggregate) in enumerate(sorted(self.declared.aggregates.items()))
        ]

    def differences(self) -> str:
        """Rows with differences."""
        start = "window_start_ms, " if self.declared.windowed_by else ""
        stacked = ",\n    ".join(
            f"'{field}', CAST(expected_{alias} AS STRING), CAST(found_{alias} AS STRING),"
            f" {self._differs(alias, field)}"
            for alias, field, _ in self._fields
        )
        return (
            f"SELECT key, {start}field, expected, found\n"
            f"FROM (\n  SELECT key, {start}stack({len(self._fields)},\n    {stacked}\n  )"
            f" AS (field, expected, found, differs)\n  FROM (\n{self._joined()}\n  )\n)\n"
            f"WHERE differs"
        )

    def late(self) -> str:
        """The number of records that may have been too late to count."""
        windows = self.declared.windowed_by
        assert windows is not None  # noqa: S101 (asked of windowed stores alone)
        before = (
            "max(`_timestamp_ms`) OVER (PARTITION BY `_partition` ORDER BY `_offset`"
            " ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
        )
        first_end = f"{_first_start(windows)} + {windows.size_ms}"
        late = (
            f"SELECT count(*) AS late FROM (\n  SELECT {first_end} AS first_end,"
            f" {before} - {windows.grace_ms} AS closed\n"
            f"  FROM `{self.declared.source}`\n)\nWHERE first_end <= closed"
        )
        if self.declared.through is None:
            return late
        return f"SELECT sum(late) AS late FROM (\n{late}\nUNION ALL\n{self._overtaken(windows)}\n)"

    def _overtaken(self, windows: WindowedBy) -> str:
        """Windows without records that records of other partitions may have overtaken.

        A repartition topic mixes partitions in an unknown order.
        """
        newest = f"(SELECT max(`_timestamp_ms`) FROM `{self.declared.source}`)"
        partitions = f"(SELECT count(DISTINCT `_partition`) FROM `{self.declared.source}`)"
        missing_records = " OR ".join(
            f"coalesce(found_{alias} < expected_{alias}, found_n IS NULL)"
            for alias, _, _ in self._fields
        )
        return (
            f"SELECT count(*) AS late FROM (\n{self._joined()}\n)\n"
            f"WHERE ({missing_records}) AND {partitions} > 1\n"
            f"  AND window_start_ms + {windows.size_ms} <= {newest} - {windows.grace_ms}"
        )

    def _joined(self) -> str:
        """Expected and found values, a row per key (and window)."""
        windowed = self.declared.windowed_by is not None
        keys = ["key", "window_start_ms"] if windowed else ["key"]
        on = " AND ".join(f"e.{key} <=> f.{key}" for key in keys)
        shown = ", ".join(f"coalesce(e.{key}, f.{key}) AS {key}" for key in keys)
        values = ", ".join(
            f"e.{alias} AS expected_{alias}, f.{alias} AS found_{alias}"
            for alias, _, _ in self._fields
        )
        joined = (
            f"SELECT {shown}, {values}, f.n AS found_n\nFROM (\n{self._expected(keys)}\n) e\n"
            f"FULL OUTER JOIN (\n{self._found()}\n) f\nON {on}"
        )
        return joined + self._not_expired()

    def _expected(self, keys: list[str]) -> str:
        """Aggregates over the source minus those of the records in flight."""
        named = ", ".join(keys)
        sums = ", ".join(f"sum({alias}) AS {alias}" for alias, _, _ in self._fields)
        parts = "\nUNION ALL\n".join(self._parts())
        return (
            f"SELECT {named}, {sums} FROM (\n{parts}\n)\n"
            # A key whose records are all in flight has no row yet.
            f"GROUP BY {named} HAVING sum(n) <> 0"
        )

    def _parts(self) -> Iterator[str]:
        yield self._part(self.declared.source, self.declared.key, sign="")
        if self.declared.through is not None:
            yield self._part(self.declared.through, "`_key`", sign="-")

    def _part(self, view: str, key: str, *, sign: str) -> str:
        windows = self.declared.windowed_by
        counts = [f"({key}\n) IS NOT NULL", "`_timestamp_ms` >= 0" if windows else _HAS_VALUE]
        if self.declared.where:
            counts.append(f"({self.declared.where}\n)")
        values = ", ".join(
            f"{sign}coalesce({aggregate}\n, 0) AS {alias}" for alias, _, aggregate in self._fields
        )
        start = f"`{_START}` AS window_start_ms, " if windows else ""
        rows = f"`{view}` WHERE {' AND '.join(counts)}"
        if windows:
            starts = f"explode({_starts(windows)}) AS `{_START}`"
            rows = f"(SELECT *, {starts} FROM {rows})"
        return (
            f"SELECT ({key}\n) AS key, {start}{values}, {sign}count(*) AS n FROM {rows}\n"
            f"GROUP BY ({key}\n){f', `{_START}`' if windows else ''}"
        )

    def _found(self) -> str:
        start = "`window_start_ms`, " if self.declared.windowed_by else ""
        values = ", ".join(f"{_path(field)} AS {alias}" for alias, field, _ in self._fields)
        return f"SELECT `_key` AS key, {start}{values}, 1 AS n FROM `{self.store}`"

    def _not_expired(self) -> str:
        """Windows beyond the store's retention are in neither."""
        retention_ms = self.views[self.store].format.retention_ms
        if self.declared.windowed_by is None or retention_ms is None:
            return ""
        newest = f"(SELECT max(`window_start_ms`) FROM `{self.store}`)"
        return (
            f"\nWHERE coalesce(e.window_start_ms, f.window_start_ms) >"
            f" coalesce({newest}, 0) - {retention_ms}"
        )

    def _differs(self, alias: str, field: str) -> str:
        expected, found = f"expected_{alias}", f"found_{alias}"
        if self._type(field) in _WHOLE:
            return f"NOT ({expected} <=> {found})"
        difference = f"{expected} - {found}"
        return (
            f"NOT ({expected} <=> {found}) AND coalesce(isnan(CAST({difference} AS DOUBLE))"
            f" OR abs({difference}) > if(typeof({difference}) = 'double',"
            f" greatest(abs({expected}), abs({found})) * {RELATIVE_TOLERANCE}, 0), true)"
        )

    def _type(self, field: str) -> str | None:
        return column_type(self.views[self.store], value_path(field))


def value_path(field: str) -> tuple[str, ...]:
    """The path of a field of a store's value in its view; `_value` or empty means the whole
    value."""
    return ("_value",) if field in ("", "_value") else ("_value", *field.split("."))


def _path(field: str) -> str:
    return ".".join(f"`{part}`" for part in value_path(field))


def _first_start(windows: WindowedBy) -> str:
    """Start of the first window of a record with this timestamp."""
    earliest = f"greatest(0, `_timestamp_ms` - {windows.size_ms} + {windows.step_ms})"
    return f"{earliest} DIV {windows.step_ms} * {windows.step_ms}"


def _starts(windows: WindowedBy) -> str:
    """Starts of all windows of a record with this timestamp."""
    return f"sequence({_first_start(windows)}, `_timestamp_ms`, CAST({windows.step_ms} AS BIGINT))"
