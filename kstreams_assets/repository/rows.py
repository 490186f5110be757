"""Row classes (see `model/column.py`): the Arrow schema, the conversion to columns and back."""

import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import repeat
from operator import attrgetter
from typing import Annotated, Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

import pyarrow as pa

from kstreams_assets.model.column import Column, Columns

R = TypeVar("R")
P = TypeVar("P")

Plain = Mapping[str, list[Any]]
"""By name the values of columns: texts, numbers, lists, dicts."""

_Convert = Callable[[Any], object]

_SCALARS: Mapping[Any, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    bool: pa.bool_(),
    float: pa.float64(),
    bytes: pa.binary(),
}


class Rows(Generic[R]):
    """The columns of a row class, and the conversion of rows to columns and back.

    Raises:
        TypeError: A field cannot be stored, or has neither a column nor a default.
    """

    def __init__(self, row: type[R]) -> None:
        self._parts: dict[type, _Group] = {}
        self._row = _group(row, (), None)
        self._found = dict(self._row.found())
        self.columns = tuple(sorted(self._row.columns(), key=lambda c: c.column.last))
        self.schema = pa.schema([column.field for column in self.columns])

    def write(self, rows: Sequence[R]) -> pa.Table:
        """Rows as a table with these columns."""
        arrays = [pa.array(c.write(rows), c.field.type) for c in self.columns]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def plain(self, row: R) -> dict[str, Any]:
        """A row as it is stored, by column."""
        return {column.name: column.write([row])[0] for column in self.columns}

    def read(self, table: pa.Table) -> list[R]:
        """The rows of a table with all columns."""
        return self.of_plain(plain_columns(table))

    def of_plain(self, columns: Plain) -> list[R]:
        """The same, from the result of `plain_columns`."""
        return self._row.read(columns)

    def names(self, part: type[Any]) -> list[str]:
        """The columns of another row class, see `read_part`."""
        return [column.name for column in self._part(part).columns()]

    def read_part(self, part: type[P], table: pa.Table) -> list[P]:
        """Rows of another class, whose fields have the names of fields or columns of these rows.

        The table needs only the columns `names`. Other fields have their defaults.
        """
        return self._part(part).read(plain_columns(table))

    def _part(self, part: type[Any]) -> "_Group":
        if part not in self._parts:
            hints = get_type_hints(part)
            sources = {}
            for name in _defaults(part):
                found = self._found.get((name, dataclasses.is_dataclass(hints[name])))
                if found is not None:
                    sources[name] = found
            self._parts[part] = _Group(part, sources, is_shared=False)
        return self._parts[part]


def rows_of(row: type[R]) -> Rows[R]:
    """`Rows` of a class; created once."""
    return _rows(row)


_rows = cache(Rows)


def plain_columns(table: pa.Table) -> Plain:
    """The columns of a table as Python values."""
    return {name: _plain(table.column(name).combine_chunks()) for name in table.column_names}


def _plain(array: pa.Array) -> list[Any]:
    """Like `to_pylist`, which is ten times slower for lists and structs."""
    if pa.types.is_list(array.type):
        lengths, values = array.value_lengths().to_pylist(), _plain(array.flatten())
        found, start = [], 0
        for length in lengths:
            end = start + (length or 0)
            found.append(None if length is None else values[start:end])
            start = end
        return found
    if pa.types.is_struct(array.type) and array.null_count == 0:
        names = [field.name for field in array.type]
        columns = (_plain(values) for values in array.flatten())
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    return array.to_pylist()


@dataclass(frozen=True, slots=True)
class _Kind:
    """How values of a type are stored; without `write` and `read` as Arrow returns them."""

    arrow: pa.DataType
    write: _Convert | None = None
    read: _Convert | None = None
    is_optional: bool = False

    @property
    def is_many(self) -> bool:
        return pa.types.is_list(self.arrow) or pa.types.is_map(self.arrow)


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """One column: the position of its values in a row, and its meaning."""

    field: pa.Field
    column: Column
    path: str
    """Names of the fields on the path to it, with dots."""
    kind: _Kind
    default: Any

    @property
    def name(self) -> str:
        """Its name in the table."""
        return self.field.name

    def write(self, rows: Sequence[Any]) -> list[Any]:
        """Its values in these rows, in stored form."""
        values = map(attrgetter(self.path), rows)
        if self.kind.write is not None:
            values = map(self.kind.write, values)
        if self.kind.is_many and self.column.nullable:
            return [value or None for value in values]
        return list(values)

    def read(self, columns: Plain) -> list[Any]:
        """The values of the field."""
        values, read = columns[self.name], self.kind.read
        if self.column.nullable and not (self.kind.is_optional or self.kind.is_many):
            read = read or _same
            return [self.default if value is None else read(value) for value in values]
        return values if read is None else list(map(read, values))

    def columns(self) -> Iterator["StoredColumn"]:
        """Itself."""
        yield self


@dataclass(frozen=True, slots=True)
class _Group:
    """Values of a class with several columns.

    `sources` are its stored fields, in the order of the columns. `is_shared`: many rows have equal
    values, which are created once.
    """

    cls: type
    sources: "Mapping[str, StoredColumn | _Group]"
    is_shared: bool

    def columns(self) -> Iterator[StoredColumn]:
        """Its columns."""
        for source in self.sources.values():
            yield from source.columns()

    def found(self) -> "Iterator[tuple[tuple[str, bool], StoredColumn | _Group]]":
        """Everything that rows of other classes can have: by name, and whether it is a group."""
        for name, source in self.sources.items():
            if isinstance(source, _Group):
                yield (name, True), source
                yield from source.found()
            else:
                yield (name, False), source
                yield (source.name, False), source

    def read(self, columns: Plain) -> list[Any]:
        """One value for each row."""
        defaults = _defaults(self.cls)
        parts = [
            self.sources[name].read(columns) if name in self.sources else repeat(default)
            for name, default in defaults.items()
        ]
        make: Callable[..., Any] = self.cls
        if any(field.kw_only for field in dataclasses.fields(self.cls)):
            make = _by_keyword(self.cls, list(defaults))
        if not self.is_shared:
            return list(map(make, *parts))
        known: dict[tuple[Any, ...], Any] = {}
        found = []
        for values in zip(*parts, strict=False):  # defaults are repeated without end
            one = known.get(values)
            if one is None:
                one = known[values] = make(*values)
            found.append(one)
        return found


def _by_keyword(cls: type, names: Sequence[str]) -> Callable[..., Any]:
    return lambda *values: cls(**dict(zip(names, values, strict=True)))


def _defaults(cls: type) -> dict[str, Any]:
    """The fields of a class, with their defaults; None without one."""
    found = {}
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        if field.default_factory is not dataclasses.MISSING:
            found[field.name] = field.default_factory()
        else:
            found[field.name] = None if field.default is dataclasses.MISSING else field.default
    return found


def _group(cls: type, path: tuple[str, ...], named: Columns | None) -> _Group:
    hints = get_type_hints(cls, include_extras=True)
    defaults = _defaults(cls)
    sources: dict[str, StoredColumn | _Group] = {}
    for name in named.by_field if named else defaults:
        hint, notes = _annotated(hints[name])
        column = named.by_field[name] if named else _one(notes, Column)
        here = (*path, name)
        if column is not None:
            sources[name] = _stored(hint, column, here, defaults[name])
        elif dataclasses.is_dataclass(hint) and isinstance(hint, type):
            group = _group(hint, here, _one(notes, Columns))
            if group.sources:
                sources[name] = group
    for field in dataclasses.fields(cls):
        is_needed = field.default is field.default_factory is dataclasses.MISSING
        if sources and field.init and is_needed and field.name not in sources:
            raise TypeError(f"{cls.__name__}.{field.name} has neither a column nor a default.")
    return _Group(cls, sources, is_shared=named is not None)


def _stored(hint: object, column: Column, path: tuple[str, ...], default: object) -> StoredColumn:
    kind = _kind(hint, column.type)
    nullable = column.nullable
    if nullable is None:
        nullable = kind.is_optional or kind.is_many
    field = pa.field(column.name or path[-1], kind.arrow, nullable=nullable)
    return StoredColumn(field, column, ".".join(path), kind, default)


def _annotated(hint: object) -> tuple[object, tuple[object, ...]]:
    if get_origin(hint) is not Annotated:
        return hint, ()
    hint, *notes = get_args(hint)
    return hint, tuple(notes)


N = TypeVar("N")


def _one(notes: Sequence[object], kind: type[N]) -> N | None:
    return next((note for note in reversed(notes) if isinstance(note, kind)), None)


def _kind(hint: object, type_name: str | None = None) -> _Kind:
    """How values of a type are stored; None is the only null that differs from empty."""
    hint, notes = _annotated(hint)
    column = _one(notes, Column)
    type_name = type_name or (column.type if column else None)
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        (inner,) = (one for one in args if one is not types.NoneType)
        kind = _kind(inner, type_name)
        return _Kind(kind.arrow, _or_none(kind.write), _or_none(kind.read), is_optional=True)
    if type_name is not None:
        return _Kind(pa.type_for_alias(type_name))
    if hint in _SCALARS:
        return _Kind(_SCALARS[hint])
    if origin is tuple and args[1:] == (...,):
        is_pair = get_origin(args[0]) is tuple and ... not in get_args(args[0])
        return _pairs(args[0]) if is_pair else _many(args[0], tuple, list)
    if isinstance(hint, type) and issubclass(hint, frozenset):
        # A set class names its own element type: class Roles(frozenset[Role]).
        (base,) = vars(hint)["__orig_bases__"]
        return _many(get_args(base)[0], hint, sorted)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        kind = pa.map_(*(_kind(one).arrow for one in args))
        return _Kind(kind, lambda value: list(value.items()), lambda value: dict(value or ()))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _Kind(pa.string(), attrgetter("value"), hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _struct(hint)
    raise TypeError(f"{hint} cannot be stored.")


def _or_none(convert: _Convert | None) -> _Convert | None:
    if convert is None:
        return None
    return lambda value: None if value is None else convert(value)


def _pairs(hint: object) -> _Kind:
    """Pairs of a name and a value."""
    arrow = pa.map_(*(_kind(one).arrow for one in get_args(hint)))
    return _Kind(arrow, list, lambda value: tuple(value or ()))


def _many(hint: object, gather: _Convert, listed: _Convert) -> _Kind:
    inner = _kind(hint)
    write, read = inner.write, inner.read
    return _Kind(
        pa.list_(inner.arrow),
        (lambda values: listed(map(write, values))) if write else listed,
        (lambda values: gather(map(read, values or ())))
        if read
        else (lambda values: gather(values or ())),
    )


def _struct(cls: type) -> _Kind:
    hints = get_type_hints(cls, include_extras=True)
    kinds = {name: _kind(hints[name]) for name in _defaults(cls)}
    writes = {name: kind.write or _same for name, kind in kinds.items()}
    reads = [(name, kind.read) for name, kind in kinds.items() if kind.read]

    def read(value: dict[str, Any]) -> object:
        return cls(**value | {name: convert(value[name]) for name, convert in reads})

    return _Kind(
        pa.struct([(name, kind.arrow) for name, kind in kinds.items()]),
        lambda value: {name: write(getattr(value, name)) for name, write in writes.items()},
        read,
    )


def _same(value: object) -> object:
    return value
