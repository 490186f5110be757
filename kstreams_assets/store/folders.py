"""A file or folder on a disk: the standard library, plus sync for power failures."""

import errno
import fcntl
import hashlib
import os
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from kstreams_assets.store.interface import (
    UNFINISHED,
    FileEntry,
    FileIdentity,
    Store,
    StorePath,
    disk_name,
)
from kstreams_assets.store.locks import LockHandle, file_lock, try_to_lock

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs

_PIECE: Final = 1024**2
_SETTLED_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class FolderStore(Store):
    """A path of a local or mounted file system."""

    path: Path

    is_durable = False
    is_conditional = False

    @property
    def on_disk(self) -> Path | None:
        return self.path

    def prompt(self) -> StorePath:
        return self.path

    def entries(self) -> Mapping[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for file in os.scandir(self.path):
            with suppress(FileNotFoundError):  # Unfinished commits may have disappeared just now.
                stat = file.stat()
                found[file.name] = (stat.st_size, stat.st_mtime_ns)
        return found

    def files(self) -> Iterator[FileEntry]:
        for where, _, names in os.walk(self.path):
            for name in names:
                path = Path(where) / name
                with suppress(FileNotFoundError):
                    there = path.stat()
                    yield FileEntry(path, there.st_size, there.st_mtime_ns)

    def sizes_in(self, folders: Iterable[str]) -> dict[str, dict[str, int]]:
        return {folder: found for folder in folders if (found := _sizes_of(self.path / folder))}

    def newest_change(self) -> float | None:
        try:
            return self.path.stat().st_mtime
        except FileNotFoundError:
            return None

    def pieces(self, size: int | None = None) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            while piece := file.read(size or _PIECE):
                yield piece

    def readable(self) -> "Path | pa.NativeFile":
        return self.path

    def fetched(self) -> AbstractContextManager[Path]:
        return nullcontext(self.path)

    def read_version(self) -> tuple[bytes, str]:
        return self.path.read_bytes(), ""

    def identity(self) -> FileIdentity | None:
        try:
            stat = self.path.stat()
        except OSError:
            return None
        if time.time() - stat.st_ctime < _SETTLED_S:
            return None
        return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)

    def put_text(self, text: str, *, durable: bool = True) -> None:
        name = f".{disk_name(self.path.name)}.{uuid.uuid4().hex[:8]}"
        self._put_by_way_of(name, text.encode(), durable=durable)

    def put_file(self, content: bytes) -> None:
        self._put_by_way_of(f"{disk_name(self.path.name)}.tmp", content, durable=True)

    def put_version(self, text: str, mark: str) -> None:
        self.put_text(text)

    def _put_by_way_of(self, name: str, content: bytes, *, durable: bool) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        written = self.path.with_name(name)
        written.write_bytes(content)
        if durable:
            FolderStore(written).sync_content()
        written.replace(self.path)
        if durable:
            FolderStore(self.path.parent).sync_names()

    def put_pieces(
        self, pieces: Iterator[bytes], size: int, *, scratch: StorePath, replaces: bool
    ) -> None:
        assert isinstance(scratch, Path)  # noqa: S101 - beside the target
        scratch.mkdir(parents=True, exist_ok=True)
        part = scratch / uuid.uuid4().hex
        try:
            read = hashlib.sha256()
            with part.open("wb") as file:
                for piece in pieces:
                    read.update(piece)
                    file.write(piece)
            FolderStore(part).sync_content()
            with part.open("rb") as file:
                arrived = hashlib.file_digest(file, "sha256")
            if arrived.digest() != read.digest():
                raise OSError(5, "the written data differs from its source", str(self.path))
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part.replace(self.path)
        finally:
            part.unlink(missing_ok=True)

    def open_new(self) -> Any:  # noqa: ANN401 (a file)
        return self.path.open("wb")

    def failures(self) -> AbstractContextManager[None]:
        return nullcontext()

    def copy(self, new: StorePath) -> bool:
        if not isinstance(new, Path):
            return False
        try:
            os.link(self.path, new)
        except OSError:
            shutil.copyfile(self.path, new)
        return True

    def remove_tree(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def remove_torn(self, is_torn: Callable[[bytes], bool]) -> bool:
        aside = self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex[:8]}")
        self.path.rename(aside)
        was_torn = is_torn(aside.read_bytes())
        if not was_torn:
            with suppress(FileExistsError):
                os.link(aside, self.path)
        aside.unlink()
        return was_torn

    @contextmanager
    def lock(self, purpose: str, wait_s: float, *, has_epoch: bool = True) -> Iterator[LockHandle]:
        with file_lock(self.path, purpose, wait_s, is_durable=has_epoch) as held:
            if has_epoch and held.is_first:
                FolderStore(self.path.parent).sync_names()
            yield held

    @contextmanager
    def mark(self, purpose: str) -> Iterator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as mark:
            fcntl.flock(mark.fileno(), fcntl.LOCK_EX)
            yield
            self.path.unlink(missing_ok=True)

    @contextmanager
    def left_mark(self, purpose: str) -> Iterator[bool]:
        with ExitStack() as stack:
            is_ours = False
            with suppress(FileNotFoundError):
                mark = stack.enter_context(self.path.open("r+", encoding="utf-8"))
                is_ours = try_to_lock(mark) and self._is_at(mark)
            yield is_ours
            if is_ours:
                self.path.unlink(missing_ok=True)

    def _is_at(self, file: IO[str]) -> bool:
        """Whether the open file still has its name: its holder may have removed it just now."""
        try:
            return os.path.samestat(os.fstat(file.fileno()), self.path.stat())
        except FileNotFoundError:
            return False

    @contextmanager
    def unfinished(self) -> Iterator[None]:
        self.path.mkdir()
        with self._mark.open("wb") as mark:
            fcntl.flock(mark, fcntl.LOCK_EX)
            yield

    @property
    def _mark(self) -> Path:
        """Locked by the writer of a folder, so that only leftovers of killed writers are
        removed."""
        return self.path / UNFINISHED

    def finish(self) -> None:
        self._mark.unlink(missing_ok=True)

    def remove_unfinished(self) -> None:
        if {file.name for file in self.path.iterdir()} == {UNFINISHED}:
            self.remove_tree()

    def unfinished_folders(self) -> list[StorePath]:
        return [mark.parent for mark in self.path.glob(f"*/{UNFINISHED}")]

    def is_being_written(self) -> bool:
        with suppress(FileNotFoundError), self._mark.open("rb") as file:
            return not try_to_lock(file)
        return False

    def sync_content(self) -> None:
        handle = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            # Some mounted file systems do not sync folders: they cannot lose names.
            if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not self.path.is_dir():
                raise OSError(error.errno, error.strerror, str(self.path)) from None
        finally:
            os.close(handle)

    def sync_names(self) -> None:
        self.sync_content()
        for one in (self.path, *self.path.parents):
            known = one, one.stat().st_ino
            if known in _named or one == one.parent:
                break
            try:
                FolderStore(one.parent).sync_content()
            except (
                PermissionError
            ):  # A user who may not list a folder has not created this one in it.
                break
            if len(_named) >= _MOST_NAMED:
                _named.clear()
            _named.add(known)

    def now(self) -> float:
        return time.time()

    def require_conditions(self) -> None:
        """Locks separate writers."""

    def free_bytes(self) -> int | None:
        folder = self.path
        while not folder.exists():
            folder = folder.parent
        return shutil.disk_usage(folder).free

    def remedy(self, error: Exception, reason: str) -> str | None:
        return disk_remedy(error)

    def open_to_others(self) -> str | None:
        try:
            mode = stat.S_IMODE(self.path.stat().st_mode)
        except FileNotFoundError:
            return None
        return f"{mode:04o}" if mode & 0o077 else None

    @property
    def access(self) -> None:
        return None

    def delta_options(self) -> dict[str, str] | None:
        return None

    def arrow_place(self) -> "tuple[pafs.FileSystem, str]":
        import pyarrow.fs as pafs

        return pafs.LocalFileSystem(), str(self.path)


_named: set[tuple[Path, int]] = set()
"""Folders (with their inodes) whose names this process has made durable."""
_MOST_NAMED: Final = 50_000


def _sizes_of(folder: Path) -> dict[str, int] | None:
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        # Names below an open folder are found faster than whole paths.
        return {name: os.stat(name, dir_fd=handle).st_size for name in os.listdir(handle)}
    except OSError:
        return None
    finally:
        os.close(handle)


_REMEDIES: Final = (
    (
        (errno.ENOSPC, errno.EDQUOT),
        ("os error 28", "No space left", "os error 122", "quota exceeded"),
        "The disk is full: free some space, then run the same command again. Data committed before"
        " is kept.",
    ),
    (
        (errno.EROFS,),
        ("os error 30", "Read-only file system"),
        "The disk is mounted read-only: mount it for writing, or choose another folder"
        " (--warehouse).",
    ),
    (
        (errno.EACCES, errno.EPERM),
        ("os error 13", "os error 1)", "Permission denied", "Operation not permitted"),
        "Give this user read and write rights there, or run as the user who owns it.",
    ),
    (
        (errno.ENOTDIR, errno.EEXIST, errno.EISDIR),
        ("os error 20", "Not a directory"),
        "A file exists where a folder is needed: choose a folder as warehouse, or move the file"
        " away.",
    ),
    (
        (errno.ENOENT,),
        ("os error 2)", "No such file"),
        "A file of the table is missing. Restore it from a copy of the warehouse, or check whether"
        " the disk is still mounted; until then its contents cannot be restored.",
    ),
    (
        (errno.EIO, errno.ESTALE, errno.ENODEV),
        ("os error 5)", "Input/output error", "Stale file handle"),
        "The disk or the mount does not work: check the system's log, then try again.",
    ),
)


def disk_remedy(error: Exception) -> str | None:
    """The remedy for a failure of the disk; None for other failures."""
    text = str(error)
    for numbers, texts, remedy in _REMEDIES:
        if isinstance(error, OSError) and error.errno in numbers:
            return remedy
        if any(each in text for each in texts):
            return remedy
    return None
