"""What marks a place as the second copy of a warehouse, and which state of it readers see.

A copy is brought up to date table by table, which takes its time. So its readers open each table
at the version that the mark names, and the mark is put last, as a whole: what they see changes in
one step, from one state of the source to a later one. What a copy that was killed has put before
is in nobody's way.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import Final

from kstreams_assets.errors import WarehouseError
from kstreams_assets.model.files import root_of
from kstreams_assets.store import StorePath, store_at

MARK: Final = "kstreams-assets-copy.json"
_KNOWN_S: Final = 60.0
"""How long what a store said of a place is believed: a mark is read with each table."""


@dataclass(frozen=True, slots=True)
class CopyState:
    """One state of the source that a copy holds: the version of each table, by its path."""

    finished_at_ms: int
    versions: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CopyMark:
    """What a copy is of, and how far it is.

    `source` is the place of the warehouse, `made_at` when that was made. `newest` is what readers
    see, None while the first copy is incomplete; `earlier` are the states of the day before it,
    newest first. `applications` are those whose records are copied, None for all;
    `points` are the recovery points whose records are copied, None: all records; `lacking` are
    files (path below the warehouse) that the source could not give.
    """

    source: str
    made_at: str | None
    begun_at_ms: int
    newest: CopyState | None = None
    earlier: tuple[CopyState, ...] = ()
    applications: tuple[str, ...] | None = None
    points: tuple[str, ...] | None = None
    lacking: tuple[str, ...] = ()
    e_tag: str = field(default="", compare=False)
    """The version of the file itself, in an object store."""

    def text(self) -> str:
        """As it is stored."""
        document = {**asdict(self), "kind": "second copy of a warehouse of kstreams-assets"}
        del document["e_tag"]
        return json.dumps(document, indent=1) + "\n"

    @property
    def state(self) -> CopyState:
        """What readers see. Only where there is something to see."""
        assert self.newest is not None  # noqa: S101 - `copy_mark` has refused it
        return self.newest


def read_mark(root: StorePath) -> CopyMark | None:
    """The mark of a place as it is now, None where there is none.

    Raises:
        OSError: It cannot be read.
    """
    path = root / MARK
    try:
        data, e_tag = store_at(path).read_version()
        told = json.loads(data)
        newest = told["newest"]
        names, points = told["applications"], told["points"]
        return CopyMark(
            source=told["source"],
            made_at=told["made_at"],
            begun_at_ms=told["begun_at_ms"],
            newest=None if newest is None else CopyState(**newest),
            earlier=tuple(CopyState(**one) for one in told["earlier"]),
            applications=None if names is None else tuple(names),
            points=None if points is None else tuple(points),
            lacking=tuple(told["lacking"]),
            e_tag=e_tag,
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise WarehouseError(
            path=path,
            reason="it is damaged",
            remedy="Remove it and run the copy again: what is there is not copied twice.",
        ) from error


def put_mark(root: StorePath, mark: CopyMark) -> None:
    """Put the mark in place of the one that was read; readers of this process see it at once.

    Raises:
        ConditionError: Somebody else has put another one meanwhile (object stores).
    """
    store_at(root / MARK).put_version(mark.text(), mark.e_tag)
    forget(root)


def forget(root: StorePath) -> None:
    """Look at the place anew the next time."""
    _known.pop(root, None)


_known: dict[StorePath, tuple[float, CopyMark | None]] = {}
"""What places in object stores are, and when that was looked at."""


def copy_mark(root: StorePath) -> CopyMark | None:
    """The mark of a place that is read, None where it is no copy.

    Raises:
        WarehouseError: It is an unfinished copy, or the mark cannot be read.
    """
    if store_at(root).on_disk:
        mark = read_mark(root)
    else:
        at, mark = _known.get(root, (0.0, None))
        if at == 0.0 or time.monotonic() - at > _KNOWN_S:
            mark = read_mark(root)
            _known[root] = (time.monotonic(), mark)
    if mark is not None and mark.newest is None:
        raise WarehouseError(
            path=root,
            reason=f"it is an unfinished copy of {mark.source}",
            remedy="Run kstreams-assets copy again until it ends without an error; it goes on"
            " where it stopped.",
        )
    return mark


_reading_at: ContextVar[tuple[StorePath, CopyState] | None] = ContextVar("state", default=None)


@contextmanager
def reading_at(root: StorePath, versions: Mapping[str, int]) -> Iterator[None]:
    """In the block, this thread reads the tables below a place at these versions."""
    token = _reading_at.set((root, CopyState(0, versions)))
    try:
        yield
    finally:
        _reading_at.reset(token)


def state_for(table: StorePath) -> CopyState | None:
    """The state at which a table is to be read, None: as it is.

    Raises:
        WarehouseError: It lies in an unfinished copy.
    """
    root = root_of(table)
    chosen = _reading_at.get()
    if chosen is not None and chosen[0] == root:
        return chosen[1]
    mark = copy_mark(root)
    return None if mark is None else mark.state


def copied_from(table: StorePath) -> str | None:
    """Of which warehouse the one that a table lies in is a copy; None: it is none.

    Raises:
        WarehouseError: It is an unfinished copy.
    """
    mark = copy_mark(root_of(table))
    return None if mark is None else mark.source


def refuse_copy(root: StorePath) -> None:
    """Refuse to write to a place that is a copy.

    Raises:
        WarehouseError: It is one.
    """
    mark = _mark_known(root)
    if mark is not None:
        raise WarehouseError(
            path=root,
            reason=f"it is a copy of {mark.source}, which only kstreams-assets copy writes",
            remedy="To restore from it, say where restores are noted: --state-in FOLDER. If"
            " the first warehouse is lost, kstreams-assets copy --promote --to"
            f" {root} makes it a warehouse of its own.",
        )


def _mark_known(root: StorePath) -> CopyMark | None:
    with suppress(WarehouseError):
        return copy_mark(root)
    return read_mark(root)
