"""What a Repository has read, so that it reads it once: the caches live and end with it."""

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
    """The entries that were stored last: a bounded number of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """The entry of a key, None where it is not (or no longer) there."""
        return self._entries.get(key)

    def put(self, key: K, value: V) -> V:
        """Store an entry; the one that was stored longest ago goes when there are too many."""
        self._entries.pop(key, None)
        self._entries[key] = value
        if len(self._entries) > self._most:
            self._entries.pop(next(iter(self._entries)), None)
        return value

    def drop(self, key: K) -> None:
        """Forget an entry."""
        self._entries.pop(key, None)


def known_of(warehouse: Warehouse) -> "Known":
    """What the repositories share that were opened through a `Warehouse` object."""
    return warehouse.opened.setdefault("", Known())


class Known:
    """The state of a `Repository` object, shared by its tables.

    Also by repositories of other applications that were opened through the same `Warehouse` object:
    they have the same tables. What was read stays right while the log of its table is the same;
    each entry says of which state it is.
    """

    def __init__(self) -> None:
        self.opened: Recent[Any, Any] = Recent(64)
        """Tables as they were opened last, with the log as it was just before."""
        self.verified = Verified()
        """Files of a disk that are what their names say."""
        self.reduced: Recent[Any, dict[str, Any]] = Recent(64)
        """What `Table.fold` made of each file in use."""
        self.record_files: Recent[StorePath, tuple[Any, Any, int]] = Recent(8)
        """Of records tables their files, with the log just before and the version."""
        self.reading_records = threading.Lock()
        """Held while these are read: two readers at once would need twice the memory."""
        self.restored: Recent[Any, Any] = Recent(32)
        """What restores wrote on clusters, with the versions of the tables that say so."""
        self.maps: Recent[tuple[str, str, str], Mapping[TopicPartitionId, OffsetMap]] = Recent(64)
        """Offset maps of committed restores, by application, restore and source topic."""
        self.bounds: Recent[tuple[StorePath, str], PointBounds] = Recent(64)
        """The points of applications in the orders in which they are asked for."""
        self.compared: Recent[StorePath, tuple[Any, Any]] = Recent(8)
        """How records tables compared with the ledger, with the state of all logs then."""
        self.migrated: set[tuple[StorePath, str | None]] = set()
        """Tables in which all files of an application are as this release writes them."""
        self.pinned: dict[StorePath, Any] | None = None
        """Of a view: the tables as it saw them first (`open_delta`)."""
        self.log_states: dict[StorePath, Any] = {}
        """Of a view: the logs of ledger and records table as it saw them, at one moment."""

    def for_view(self) -> "Known":
        """The same caches, for one who sees each table in one state."""
        known = copy(self)
        known.pinned, known.log_states = {}, {}
        return known

    def unpin(self, path: StorePath) -> None:
        """Let a view see a table as it is now."""
        if self.pinned is not None:
            self.pinned.pop(path, None)
