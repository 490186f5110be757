"""The public form of a result: the values that users see, declared once next to its class.

JSON documents, tables on the terminal and Dagster's metadata derive from it.

>>> form = Form(CopyResult, "source files_copied=files", Value("took_s", Seconds))
>>> form.document(CopyResult(source="s3://a/b", files=3, took_s=1.5))
{'source': 's3://a/b', 'files_copied': 3, 'took_s': 1.5}
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Final, NewType, get_args, get_type_hints

from kstreams_assets.texts import iso_time

Markdown = NewType("Markdown", str)
"""Kind of a text that Dagster shows as Markdown."""
Timestamp = NewType("Timestamp", int)
"""Kind of a time in epoch milliseconds: ISO 8601 in JSON, a timestamp in Dagster."""
Seconds = NewType("Seconds", float)
"""Kind of a duration, shown to the millisecond."""
Rounded = NewType("Rounded", float)
"""Kind of a number that is shown with two decimals."""
_DECIMALS: Final[Mapping[Any, int]] = {Seconds: 3, Rounded: 2}

JSON: Final = frozenset({"json"})
DAGSTER: Final = frozenset({"dagster"})
TABLE: Final = frozenset[str]()
"""Shown only in tables on the terminal, which list their columns."""


@dataclass(frozen=True, slots=True)
class Value:
    """One value of a public form, by default the attribute of this name.

    `of` is another attribute, also one of a part as in `plan.records` (None if there is no such
    part), or a function of the result. `kind` is needed if the class does not define it. `form` is
    that of the value itself, or of each of several. `heading` and `text` are those of a column.
    `where` limits it to JSON or to Dagster, which omits None.
    """

    name: str
    kind: Any = None
    of: Callable[[Any], Any] | str = ""
    form: "Form | None" = None
    heading: str = ""
    text: str = ""
    where: Set[str] = JSON | DAGSTER

    def get(self, result: object) -> Any:  # noqa: ANN401 (of any kind)
        """The value of a result, unconverted."""
        if callable(self.of):
            return self.of(result)
        value: Any = result
        for name in (self.of or self.name).split("."):
            value = None if value is None else getattr(value, name)
        return value

    def plain(self, result: object) -> Any:  # noqa: ANN401 (whatever JSON has)
        """The value as a JSON type."""
        value = self.get(result)
        if self.form is not None and value is not None:
            several = isinstance(value, Sequence) and not hasattr(value, "_fields")
            return self.form.documents(value) if several else self.form.document(value)
        if value is not None and self.kind is Timestamp:
            return iso_time(value)
        if value is not None and self.kind in _DECIMALS:
            return round(value, _DECIMALS[self.kind])
        return _plain(value)


def only(where: Set[str], *values: Value | str) -> tuple[Value, ...]:
    """Values that are shown in these places only."""
    return tuple(replace(one, where=where) for one in _values(values) if where <= one.where)


def of_kind(kind: Any, *values: Value | str) -> tuple[Value, ...]:  # noqa: ANN401
    """Values of one kind."""
    return tuple(replace(one, kind=kind) for one in _values(values))


def _values(values: Iterable[Value | str]) -> Iterator[Value]:
    for one in values:
        if isinstance(one, str):
            yield from (
                Value(name, of=of) for name, _, of in (w.partition("=") for w in one.split())
            )
        else:
            yield one


class Form:
    """The public form of the results of a class: its values in order.

    A text lists names of attributes, or `name=attribute` if the value has another name. Documents
    omit values that are None or empty if the form `omits_empty`.
    """

    def __init__(self, of: type, *values: Value | str, omits_empty: bool = False) -> None:
        self._of = of
        self._omits_empty = omits_empty
        self.values = tuple(_values(values))

    def document(self, result: object) -> dict[str, Any]:
        """A result as a JSON document."""
        shown = {v.name: v.plain(result) for v in self.values if "json" in v.where}
        if self._omits_empty:
            return {name: one for name, one in shown.items() if one not in (None, "", [])}
        return shown

    def part(self, name: str) -> tuple[Value, ...]:
        """The values as those of a part, for results that have such a part as this attribute."""
        whole = attrgetter(name)
        return tuple(
            replace(value, kind=self.kind(value), of=lambda result, v=value: v.get(whole(result)))
            for value in self.values
        )

    def documents(self, results: Iterable[object]) -> list[dict[str, Any]]:
        """Several results as JSON documents."""
        return [self.document(result) for result in results]

    def table(self, results: Iterable[object], *names: str) -> tuple[list[str], list[list[object]]]:
        """The headings and rows of a table of results, with the values of these names or with
        all."""
        by_name = {value.name: value for value in self.values}
        columns = [by_name[name] for name in names or by_name]
        rows = [[column.plain(result) for column in columns] for result in results]
        return [column.heading or column.name for column in columns], rows

    def kind(self, value: Value) -> Any:  # noqa: ANN401 (types, and kinds declared here)
        """The kind of a value: the declared one, or the type of the attribute in the class."""
        path = value.of or value.name
        if value.kind is not None or callable(path):
            return value.kind or str
        hint: Any = self._of
        for name in path.split("."):
            found = getattr(hint, name, None)
            owner, key = (found.fget, "return") if isinstance(found, property) else (hint, name)
            hint = get_type_hints(owner)[key]
            if isinstance(hint, UnionType):
                hint = next(kind for kind in get_args(hint) if kind is not NoneType)
        return hint


def _plain(value: Any) -> Any:  # noqa: ANN401 (whatever JSON has)
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {_plain(key): _plain(one) for key, one in value.items()}
    if isinstance(value, Set):
        return sorted(map(_plain, value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(one) for one in value]
    return value
