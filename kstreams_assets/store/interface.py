"""One interface for files on a disk and objects in a store."""

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
"""Device, inode, size, and times of the last change of content and of metadata (nanoseconds)."""

UNFINISHED: Final = "_uncommitted"
"""Marks folders of new files until a commit refers to them."""


class FileEntry(NamedTuple):
    """A file of a listing: its size in bytes, and its last change (epoch nanoseconds)."""

    path: StorePath
    size: int
    changed_ns: int


class Store(ABC):
    """A file or folder and everything below it. Failures are those of a disk: `OSError`.

    `Path` and `ObjectPath` share the names of common operations; this class has the others.
    """

    __slots__ = ()

    is_durable: ClassVar[bool]
    """Whether written data survives a power failure without a sync, and is never torn."""
    is_conditional: ClassVar[bool]
    """Whether the later of two writers is refused; if not, a lock separates them."""

    @property
    @abstractmethod
    def on_disk(self) -> Path | None:
        """The path in a file system, where requests are cheap; None: it is in a store."""

    @abstractmethod
    def prompt(self) -> StorePath:
        """The same place for small files that are requested repeatedly."""

    # --- List -------------------------------------------------------------------------------------

    @abstractmethod
    def entries(self) -> Mapping[str, tuple[int, int]]:
        """Size and time of change (nanoseconds) of each file directly in a folder, by name.

        Raises FileNotFoundError if the folder does not exist on a disk.
        """

    @abstractmethod
    def files(self) -> Iterator[FileEntry]:
        """Every file below, at any depth; none if nothing exists."""

    @abstractmethod
    def sizes_in(self, folders: Iterable[str]) -> dict[str, dict[str, int]]:
        """Size of each file directly in folders below this one, by folder (relative) and name.

        One listing replaces one request per file. A folder that does not exist or cannot be listed
        is omitted.
        """

    @abstractmethod
    def newest_change(self) -> float | None:
        """The last change in a folder (epoch seconds); None if it is empty."""

    # --- Get --------------------------------------------------------------------------------------

    @abstractmethod
    def pieces(self, size: int | None = None) -> Iterator[bytes]:
        """The file in pieces, of `size` bytes if the size can be chosen."""

    @abstractmethod
    def readable(self) -> "Path | pa.NativeFile":
        """An input of pyarrow's readers: a path, or an open file of the store."""

    @abstractmethod
    def fetched(self) -> AbstractContextManager[Path]:
        """A local file to read from start to end: the file itself, or a copy of it."""

    @abstractmethod
    def read_version(self) -> tuple[bytes, str]:
        """The content of a small file, and the mark of this version for `put_version`."""

    @abstractmethod
    def identity(self) -> FileIdentity | None:
        """A value that changes when a process writes to a file or replaces it.

        The last of the times is the kernel's own: no program can set it back. None for a file that
        was changed just now, because the next change may get the same time; for a missing file; and
        for objects.
        """

    # --- Put --------------------------------------------------------------------------------------

    @abstractmethod
    def put_text(self, text: str, *, durable: bool = True) -> None:
        """Write a small file atomically, replacing an existing one.

        Files that may be lost in a power failure, such as a status, need not be `durable`.
        """

    @abstractmethod
    def put_file(self, content: bytes) -> None:
        """Write a new file atomically, and create its folders if needed."""

    @abstractmethod
    def put_version(self, text: str, mark: str) -> None:
        """Like `put_text`, but replace only the version with this mark; an empty mark: no file.

        Raises:
            ConditionError: Another version exists (stores with conditions).
        """

    @abstractmethod
    def put_pieces(
        self, pieces: Iterator[bytes], size: int, *, scratch: StorePath, replaces: bool
    ) -> None:
        """Write a file of `size` bytes; it gets its name only after the data was compared.

        `scratch` is a folder next to it; `replaces`: an existing file is to be replaced.
        """

    @abstractmethod
    def open_new(self) -> Any:  # noqa: ANN401 (a file, or obstore's writer)
        """A file to write from start to end; it replaces an existing one."""

    @abstractmethod
    def failures(self) -> AbstractContextManager[None]:
        """Convert failures of the object from `open_new` to OSError."""

    @abstractmethod
    def copy(self, new: StorePath) -> bool:
        """Create another file with the same bytes without reading them; False if not supported."""

    # --- Delete -----------------------------------------------------------------------------------

    @abstractmethod
    def remove_tree(self) -> None:
        """Delete everything below, as far as it can be deleted."""

    @abstractmethod
    def remove_torn(self, is_torn: Callable[[bytes], bool]) -> bool:
        """Remove a file that was cut off by a power failure; return whether it was.

        A whole file that another writer has put there in the meantime is kept.
        """

    # --- One at a time ----------------------------------------------------------------------------

    @abstractmethod
    def lock(
        self, purpose: str, wait_s: float, *, has_epoch: bool = True
    ) -> AbstractContextManager[LockHandle]:
        """Hold the lock of this file for the time of the block.

        Without `has_epoch` the epoch of the holder has no meaning and may be lost in a power
        failure.

        Raises:
            ConfigurationError: The store ignores conditions.
            WarehouseLockedError: Another process holds it for longer than `wait_s` seconds.
            OSError: The lock cannot be read or written.
        """

    @abstractmethod
    def mark(self, purpose: str) -> AbstractContextManager[None]:
        """Create a mark that is locked for others until the end of the block or of this process.

        A block without an error removes it.
        """

    @abstractmethod
    def left_mark(self, purpose: str) -> AbstractContextManager[bool]:
        """Hold a mark whose process has ended; a block without an error removes it.

        False if there is no such mark, or if another process holds it.
        """

    # --- Folders that no commit refers to yet -----------------------------------------------------

    @abstractmethod
    def unfinished(self) -> AbstractContextManager[None]:
        """Create a folder and mark it as unfinished; in the block it is being written to."""

    @abstractmethod
    def finish(self) -> None:
        """Remove the mark of a folder."""

    @abstractmethod
    def remove_unfinished(self) -> None:
        """Remove a folder and its mark if it is otherwise empty."""

    @abstractmethod
    def unfinished_folders(self) -> list[StorePath]:
        """Marked folders directly in this one; if only age decides, those that are old enough."""

    @abstractmethod
    def is_being_written(self) -> bool:
        """Whether the process that marked a folder is known to still write to it."""

    # --- Durability -------------------------------------------------------------------------------

    @abstractmethod
    def sync_content(self) -> None:
        """Wait until the content of a file (of a folder: its names) is on disk."""

    @abstractmethod
    def sync_names(self) -> None:
        """Wait until the names in a folder, and of the folders above, are on disk.

        Folders above are synced once per process, even existing ones: a killed process may have
        created them without a sync.
        """

    # --- Properties of the place ------------------------------------------------------------------

    @abstractmethod
    def now(self) -> float:
        """The current time (epoch seconds) of the clock that dates files in this folder.

        An object store has its own clock. Deletion by age must not depend on the clock of the
        deleting machine. Raises OSError if the place cannot be written.
        """

    @abstractmethod
    def require_conditions(self) -> None:
        """Refuse a store that ignores conditions: two writers would lose each other's commits.

        Raises:
            ConfigurationError: The store ignores conditions.
            OSError: The store cannot be written.
        """

    @abstractmethod
    def free_bytes(self) -> int | None:
        """Free space on the disk of a folder, which may not exist yet; None: no limit."""

    @abstractmethod
    def remedy(self, error: Exception, reason: str) -> str | None:
        """The remedy for a failure; None for other kinds of failures."""

    @abstractmethod
    def open_to_others(self) -> str | None:
        """The mode of a folder that other users may enter or read, such as `0755`."""

    @property
    @abstractmethod
    def access(self) -> StoreAccess | None:
        """The access settings of the object store; None on a disk."""

    # --- For libraries ----------------------------------------------------------------------------

    @abstractmethod
    def delta_options(self) -> dict[str, str] | None:
        """The options with which deltalake accesses a table; None on a disk."""

    @abstractmethod
    def arrow_place(self) -> "tuple[pafs.FileSystem, str]":
        """A file system of pyarrow, and the path in it."""


_LONGEST_NAME: Final = 220
"""Bytes; disks allow 255, and unfinished files have longer names and endings."""


def disk_name(name: str) -> str:
    """A file name for a topic, a group or an application; their names may be 249 long.

    A longer name is cut, and made unique by a digest of the whole.
    """
    data = name.encode()
    if len(data) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(data).hexdigest()[:16]
    return f"{data[: _LONGEST_NAME - len(digest) - 1].decode(errors='ignore')}-{digest}"


def relative(path: StorePath, folder: StorePath) -> PurePosixPath:
    """The path from a folder to something in it; both in the same store."""
    return PurePosixPath(str(path)).relative_to(PurePosixPath(str(folder)))
