"""One interface for files of a disk and for objects of a store."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from kstreams_assets.store.access import StoreAccess
from kstreams_assets.store.locks import LockHandle
from kstreams_assets.store.object_path import ObjectPath

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs

StorePath = Path | ObjectPath
"""A folder or file of a disk, or a place in an object store."""

FileIdentity = tuple[int, int, int, int, int]
"""Device, inode, size, and times of the last change of content and of anything (nanoseconds)."""

UNFINISHED: Final = "_uncommitted"
"""Marks folders of new files until a commit refers to these."""


class FileEntry(NamedTuple):
    """A file of a listing: its size in bytes, and when it changed last (epoch nanoseconds)."""

    path: StorePath
    size: int
    changed_ns: int


class Store(ABC):
    """A file or folder, and what lies below it. Failures are those of a disk: `OSError`.

    A `Path` and an `ObjectPath` share names for what both do alike; here is the rest.
    """

    __slots__ = ()

    is_durable: ClassVar[bool]
    """Whether what was written survives a loss of power without a sync, and is never torn."""
    is_conditional: ClassVar[bool]
    """Whether the later of two writers is refused; where not, a lock keeps them apart."""

    @property
    @abstractmethod
    def on_disk(self) -> Path | None:
        """The path in a file system, where questions cost little; None: it is in a store."""

    @abstractmethod
    def prompt(self) -> StorePath:
        """The same place for small files that are asked for again and again."""

    # --- List -------------------------------------------------------------------------------------

    @abstractmethod
    def entries(self) -> Mapping[str, tuple[int, int]]:
        """Size and time of change (nanoseconds) of each file directly in a folder, by name.

        Raises FileNotFoundError where a disk has no such folder.
        """

    @abstractmethod
    def files(self) -> Iterator[FileEntry]:
        """Every file below, at any depth; none where nothing is there."""

    @abstractmethod
    def sizes_in(self, folders: Iterable[str]) -> dict[str, dict[str, int]]:
        """Size of each file directly in folders below this one, by folder (relative) and name.

        One listing takes the place of a question for each file. A folder that is not there, or
        cannot be listed, is left out.
        """

    @abstractmethod
    def newest_change(self) -> float | None:
        """When something in a folder changed last (epoch seconds); None where there is nothing."""

    # --- Get --------------------------------------------------------------------------------------

    @abstractmethod
    def pieces(self, size: int | None = None) -> Iterator[bytes]:
        """The file piece by piece, of `size` bytes where that can be chosen."""

    @abstractmethod
    def readable(self) -> "Path | pa.NativeFile":
        """What pyarrow's readers take: a path, or an open file of the store."""

    @abstractmethod
    def fetched(self) -> AbstractContextManager[Path]:
        """A file of a disk while it is read from begin to end: the file itself, or a copy of it."""

    @abstractmethod
    def read_version(self) -> tuple[bytes, str]:
        """The content of a small file, and the mark of this version of it for `put_version`."""

    @abstractmethod
    def identity(self) -> FileIdentity | None:
        """What is another once somebody writes to a file, or puts another in its place.

        The last of the times is the kernel's own: no program sets it back. None of a file that was
        changed a moment ago, since the next change may get the same time, of one that is not there,
        and of objects.
        """

    # --- Put --------------------------------------------------------------------------------------

    @abstractmethod
    def put_text(self, text: str, *, durable: bool = True) -> None:
        """Put a small file in place of what is there: nobody reads half of it.

        What may be lost with the power, such as a status, need not be `durable`.
        """

    @abstractmethod
    def put_file(self, content: bytes) -> None:
        """Put a new file there, below folders that are made if need be: nobody reads half of it."""

    @abstractmethod
    def put_version(self, text: str, mark: str) -> None:
        """As `put_text`, in place of the version with this mark; an empty one: of nothing.

        Raises:
            ConditionError: Another version is there (stores that are conditional).
        """

    @abstractmethod
    def put_pieces(
        self, pieces: Iterator[bytes], size: int, *, scratch: StorePath, replaces: bool
    ) -> None:
        """Put a file of `size` bytes; nothing has its name before what arrived was compared.

        `scratch` is a folder beside it, `replaces`: something is there that is to be replaced.
        """

    @abstractmethod
    def open_new(self) -> Any:  # noqa: ANN401 (a file, or obstore's writer)
        """A file to write from begin to end; it replaces what is there."""

    @abstractmethod
    def failures(self) -> AbstractContextManager[None]:
        """Failures of what `open_new` gave, as OSError."""

    @abstractmethod
    def copy(self, new: StorePath) -> bool:
        """Make another file of the same bytes without reading them; False where that cannot be."""

    # --- Delete -----------------------------------------------------------------------------------

    @abstractmethod
    def remove_tree(self) -> None:
        """Delete all that lies below, as far as it can be deleted."""

    @abstractmethod
    def remove_torn(self, is_torn: Callable[[bytes], bool]) -> bool:
        """Remove a file that a loss of power has cut off; whether it was.

        A whole one that another writer has just put in its place stays.
        """

    # --- One at a time ----------------------------------------------------------------------------

    @abstractmethod
    def lock(
        self, purpose: str, wait_s: float, *, has_epoch: bool = True
    ) -> AbstractContextManager[LockHandle]:
        """Hold the lock that this file is for the time of the block.

        Without `has_epoch` the epoch of the holder means nothing, and need not survive a loss of
        power.

        Raises:
            ConfigurationError: The store ignores conditions.
            WarehouseLockedError: Another process holds it for longer than `wait_s` seconds.
            OSError: It cannot be read or written.
        """

    @abstractmethod
    def mark(self, purpose: str) -> AbstractContextManager[None]:
        """Put a mark there which others find held until the block has ended, or this process.

        It is gone after a block without an error.
        """

    @abstractmethod
    def left_mark(self, purpose: str) -> AbstractContextManager[bool]:
        """Hold a mark whose process has ended; it is gone after a block without an error.

        False when there is no such mark, or another process holds it.
        """

    # --- Folders of which nobody knows yet --------------------------------------------------------

    @abstractmethod
    def unfinished(self) -> AbstractContextManager[None]:
        """Make a folder and mark it as unfinished; in the block it is being written to."""

    @abstractmethod
    def finish(self) -> None:
        """Take the mark of a folder away."""

    @abstractmethod
    def remove_unfinished(self) -> None:
        """Remove a folder and its mark if nothing else is left there."""

    @abstractmethod
    def unfinished_folders(self) -> list[StorePath]:
        """Folders directly in this one that are marked, and old enough where age alone tells."""

    @abstractmethod
    def is_being_written(self) -> bool:
        """Whether the process that has marked a folder is known to write to it still."""

    # --- Durability -------------------------------------------------------------------------------

    @abstractmethod
    def sync_content(self) -> None:
        """Wait until the content of a file (of a folder: its names) is on the disk."""

    @abstractmethod
    def sync_names(self) -> None:
        """Wait until the names in a folder, and those of the folders above, are on the disk.

        Folders above are synced once in a process: also a folder that is there may have been made
        by a process that was killed before it came to that.
        """

    # --- What the place is like -------------------------------------------------------------------

    @abstractmethod
    def now(self) -> float:
        """Now (epoch seconds) by the clock that dates what is written to this folder.

        An object store has a clock of its own. What is deleted by its age must not depend on the
        clock of the machine that deletes. Raises OSError where nothing can be written.
        """

    @abstractmethod
    def require_conditions(self) -> None:
        """Refuse a store that ignores conditions: two writers would lose each other's commits.

        Raises:
            ConfigurationError: It does.
            OSError: It cannot be written.
        """

    @abstractmethod
    def free_bytes(self) -> int | None:
        """What the disk of a folder has left, also where it is not made yet; None: no limit."""

    @abstractmethod
    def remedy(self, error: Exception, reason: str) -> str | None:
        """What to do about a failure; None for one of another kind."""

    @abstractmethod
    def open_to_others(self) -> str | None:
        """The mode of a folder that others than its owner may enter or read, such as `0755`."""

    @property
    @abstractmethod
    def access(self) -> StoreAccess | None:
        """How the object store is reached; None on a disk."""

    # --- For libraries ----------------------------------------------------------------------------

    @abstractmethod
    def delta_options(self) -> dict[str, str] | None:
        """What deltalake needs to reach a table; None on a disk."""

    @abstractmethod
    def arrow_place(self) -> "tuple[pafs.FileSystem, str]":
        """A file system of pyarrow, and the path in it."""


_LONGEST_NAME: Final = 220
"""Bytes; disks take 255, and endings and names of unfinished files come on top."""


def disk_name(name: str) -> str:
    """A name for a file after a topic, a group or an application; these may be 249 long.

    One that is too long is cut, and told apart by a digest of the whole.
    """
    data = name.encode()
    if len(data) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(data).hexdigest()[:16]
    return f"{data[: _LONGEST_NAME - len(digest) - 1].decode(errors='ignore')}-{digest}"


def relative(path: StorePath, folder: StorePath) -> PurePosixPath:
    """The path from a folder to something in it; both are of the same store."""
    return PurePosixPath(str(path)).relative_to(PurePosixPath(str(folder)))
