"""The mark of a second copy of a warehouse, and the state of it that readers see.

A copy is updated table by table, which takes time. Its readers therefore open each table at the
version that the mark names. The mark is written last and as a whole, so what readers see changes in
one step from one state of the source to a later one. Files of an interrupted copy are harmless.
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
"""How long an answer of a store about a place is cached: a mark is read with each table."""


@dataclass(frozen=True, slots=True)
class CopyState:
    """One state of the source in a copy: the version of each table, by its path."""

    finished_at_ms: int
    versions: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CopyMark:
    """The source and the progress of a copy.

    `source` is the location of the warehouse, `made_at` its creation time. Readers see `newest`; it
    is None until the first copy is complete. `earlier` are the states of the day before it, newest
    first. `applications` are those whose records are copied, None for all. `points` are the
    recovery points whose records are copied; None means all records. `lacking` are files (paths
    below the warehouse) that were missing in the source.
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
        """The stored form."""
        document = {**asdict(self), "kind": "second copy of a warehouse of kstreams-assets"}
        del document["e_tag"]
        return json.dumps(document, indent=1) + "\n"

    @property
    def state(self) -> CopyState:
        """The state that readers see; call it only if there is one."""
        assert self.newest is not None  # noqa: S101 - `copy_mark` has refused it
        return self.newest


def read_mark(root: StorePath) -> CopyMark | None:
    """The current mark of a place, None if it has none.

    Raises:
        OSError: The mark cannot be read.
    """
    path = root / MARK
    try:
        data, e_tag = store_at(path).read_version()
        document = json.loads(data)
        newest = document["newest"]
        names, points = document["applications"], document["points"]
        return CopyMark(
            source=document["source"],
            made_at=document["made_at"],
            begun_at_ms=document["begun_at_ms"],
            newest=None if newest is None else CopyState(**newest),
            earlier=tuple(CopyState(**one) for one in document["earlier"]),
            applications=None if names is None else tuple(names),
            points=None if points is None else tuple(points),
            lacking=tuple(document["lacking"]),
            e_tag=e_tag,
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise WarehouseError(
            path=path,
            reason="it is damaged",
            remedy="Remove it and run the copy again: files that are already there are not copied"
            " again.",
        ) from error


def put_mark(root: StorePath, mark: CopyMark) -> None:
    """Replace the mark that was read; readers of this process see the new one at once.

    Raises:
        ConditionError: Another process has replaced the mark in the meantime (object stores).
    """
    store_at(root / MARK).put_version(mark.text(), mark.e_tag)
    forget(root)


def forget(root: StorePath) -> None:
    """Drop the cached answer about a place."""
    _known.pop(root, None)


_known: dict[StorePath, tuple[float, CopyMark | None]] = {}
"""Marks of places in object stores, and when they were read."""


def copy_mark(root: StorePath) -> CopyMark | None:
    """The mark of a place that is about to be read, None if the place is not a copy.

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
            remedy="Run kstreams-assets copy again until it ends without an error; it continues"
            " where it stopped.",
        )
    return mark


_reading_at: ContextVar[tuple[StorePath, CopyState] | None] = ContextVar("state", default=None)


@contextmanager
def reading_at(root: StorePath, versions: Mapping[str, int]) -> Iterator[None]:
    """Within the block, this thread reads the tables below a place at these versions."""
    token = _reading_at.set((root, CopyState(0, versions)))
    try:
        yield
    finally:
        _reading_at.reset(token)


def state_for(table: StorePath) -> CopyState | None:
    """The state at which a table is to be read; None means its newest version.

    Raises:
        WarehouseError: The table is in an unfinished copy.
    """
    root = root_of(table)
    chosen = _reading_at.get()
    if chosen is not None and chosen[0] == root:
        return chosen[1]
    mark = copy_mark(root)
    return None if mark is None else mark.state


def copied_from(table: StorePath) -> str | None:
    """The source of the copy that contains this table; None if it is not in a copy.

    Raises:
        WarehouseError: It is an unfinished copy.
    """
    mark = copy_mark(root_of(table))
    return None if mark is None else mark.source


def refuse_copy(root: StorePath) -> None:
    """Refuse to write to a place that is a copy.

    Raises:
        WarehouseError: It is a copy.
    """
    mark = _mark_known(root)
    if mark is not None:
        raise WarehouseError(
            path=root,
            reason=f"it is a copy of {mark.source}, which only kstreams-assets copy writes",
            remedy="To restore from it, name a folder for the state of restores: --state-in"
            f" FOLDER. If the first warehouse is lost, kstreams-assets copy --promote --to {root}"
            " makes it a warehouse of its own.",
        )


def _mark_known(root: StorePath) -> CopyMark | None:
    with suppress(WarehouseError):
        return copy_mark(root)
    return read_mark(root)
