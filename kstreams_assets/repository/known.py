"""The caches of a Repository, which live as long as it does."""

import threading
from collections.abc import Hashable, Mapping
from copy import copy
from typing import Any, Generic, TypeVar

from kstreams_assets.layout import Warehouse
from kstreams_assets.model.point_bounds import PointBounds
from kstreams_assets.offsets import OffsetMap, TopicPartitionId
from kstreams_assets.repository.chain import Verified
from kstreams_assets.store import StorePath

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """The most recently stored entries: a limited number of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """The entry of a key, None if it does not exist (any more)."""
        return self._entries.get(key)

    def put(self, key: K, value: V) -> V:
        """Store an entry; drop the oldest one if there are too many."""
        self._entries.pop(key, None)
        self._entries[key] = value
        if len(self._entries) > self._most:
            self._entries.pop(next(iter(self._entries)), None)
        return value

    def drop(self, key: K) -> None:
        """Forget an entry."""
        self._entries.pop(key, None)


def known_of(warehouse: Warehouse) -> "Known":
    """The shared caches of the repositories that were opened through a `Warehouse` object."""
    return warehouse.opened.setdefault("", Known())


class Known:
    """The state of a `Repository` object, shared by its tables.

    Repositories of other applications that were opened through the same `Warehouse` object share
    it, too: they have the same tables. Entries stay valid while the log of their table is
    unchanged; each entry names its state.
    """

    def __init__(self) -> None:
        self.opened: Recent[Any, Any] = Recent(64)
        """The last opened tables, with their logs just before."""
        self.verified = Verified()
        """Files on a disk whose contents match their names."""
        self.reduced: Recent[Any, dict[str, Any]] = Recent(64)
        """The results of `Table.reduce` for each file in use."""
        self.record_files: Recent[StorePath, tuple[Any, Any, int, bool]] = Recent(8)
        """Files of records tables, with the log just before, the version, and whether the table has
        all columns."""
        self.reading_records = threading.Lock()
        """Held while these are read: two readers at once would need twice the memory."""
        self.restored: Recent[Any, Any] = Recent(32)
        """The records of restores on clusters, with the versions of the tables."""
        self.maps: Recent[tuple[str, str, str], Mapping[TopicPartitionId, OffsetMap]] = Recent(64)
        """Offset maps of committed restores, by application, restore and source topic."""
        self.bounds: Recent[tuple[StorePath, str], PointBounds] = Recent(64)
        """The points of applications, in several orders."""
        self.compared: Recent[StorePath, tuple[Any, Any]] = Recent(8)
        """Comparisons of records tables with the ledger, with the state of all logs then."""
        self.migrated: set[tuple[StorePath, str | None]] = set()
        """Tables whose files of an application were all written by this release."""
        self.pinned: dict[StorePath, Any] | None = None
        """For a view: the tables as it saw them first (`open_delta`)."""
        self.log_states: dict[StorePath, Any] = {}
        """For a view: the logs of ledger and records table at one time."""

    def for_view(self) -> "Known":
        """The same caches, for a reader that sees each table in one state."""
        known = copy(self)
        known.pinned, known.log_states = {}, {}
        return known

    def unpin(self, path: StorePath) -> None:
        """Let a view see the current state of a table."""
        if self.pinned is not None:
            self.pinned.pop(path, None)
