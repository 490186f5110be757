"""An object of an S3 store, or everything below a prefix; uses obstore."""

import errno
import os
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.store.access import StoreAccess, arrow_files, delta_options
from kstreams_assets.store.interface import (
    UNFINISHED,
    FileEntry,
    FileIdentity,
    Store,
    StorePath,
    disk_name,
    relative,
)
from kstreams_assets.store.locks import LockHandle, WarehouseLockedError, leased, lock_root
from kstreams_assets.store.object_path import PIECE, ConditionError, ObjectPath

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs

_STALE_S: Final = 86_400
"""A mark of this age counts as left, because it is unknown whether its writer lives."""
_SINGLY: Final = 16
"""Up to this many folders are listed separately; for more, everything below is listed."""


@dataclass(frozen=True, slots=True)
class ObjectStore(Store):
    """A place in an object store. A folder exists as long as it contains an object."""

    path: ObjectPath

    is_durable = True
    is_conditional = True

    @property
    def on_disk(self) -> Path | None:
        return None

    def prompt(self) -> StorePath:
        return self.path.prompt()

    def entries(self) -> Mapping[str, tuple[int, int]]:
        return {one.name: (stat.st_size, stat.st_mtime_ns) for one, stat in self.path.below()}

    def files(self) -> Iterator[FileEntry]:
        for path, stat in self.path.below():
            yield FileEntry(path, stat.st_size, stat.st_mtime_ns)

    def sizes_in(self, folders: Iterable[str]) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {folder: {} for folder in folders}
        if len(found) <= _SINGLY:
            for folder, sizes in found.items():
                with suppress(FileNotFoundError):
                    for path, stat in (self.path / folder).below():
                        if path.parent == self.path / folder:
                            sizes[path.name] = stat.st_size
            return found
        for path, stat in self.path.below():
            folder, _, name = str(relative(path, self.path)).rpartition("/")
            if folder in found:
                found[folder][name] = stat.st_size
        return found

    def newest_change(self) -> float | None:
        return max((stat.st_mtime for _, stat in self.path.below()), default=None)

    def pieces(self, size: int | None = None) -> Iterator[bytes]:
        return self.path.pieces()

    def readable(self) -> "Path | pa.NativeFile":
        files, name = self.arrow_place()
        return files.open_input_file(name)

    @contextmanager
    def fetched(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="kstreams-assets-") as folder:
            copy = Path(folder) / disk_name(self.path.name)
            with copy.open("wb") as file:
                for piece in self.path.pieces():
                    file.write(piece)
            yield copy

    def read_version(self) -> tuple[bytes, str]:
        return self.path.read()

    def identity(self) -> FileIdentity | None:
        return None

    def put_text(self, text: str, *, durable: bool = True) -> None:
        self.path.write_text(text)

    def put_file(self, content: bytes) -> None:
        if len(content) <= PIECE:
            self.path.write_bytes(content)
            return
        with self.failures():
            file = self.open_new()
            file.write(content)
            file.close()

    def put_version(self, text: str, mark: str) -> None:
        if mark:
            self.path.replace_version(text.encode(), mark)
        else:
            self.path.create(text.encode())

    def put_pieces(
        self, pieces: Iterator[bytes], size: int, *, scratch: StorePath, replaces: bool
    ) -> None:
        """The store compares the received data with the digest in each request's signature."""
        if size <= PIECE:
            data = b"".join(pieces)
            if replaces:
                self.path.write_bytes(data)
            else:
                with suppress(ConditionError):  # it is there already
                    self.path.create(data)
        else:
            with self.failures():
                file = self.open_new()
            for piece in pieces:
                with self.failures():
                    file.write(piece)
            with self.failures():
                file.close()
        there = self.path.stat().st_size
        if there != size:
            raise OSError(5, f"{there:,} of {size:,} bytes have arrived", str(self.path))

    def open_new(self) -> Any:  # noqa: ANN401 (obstore's writer)
        import obstore

        return obstore.open_writer(self.path.writer, self.path.key, buffer_size=PIECE)

    def failures(self) -> AbstractContextManager[None]:
        return self.path.asked()

    def copy(self, new: StorePath) -> bool:
        """Larger objects than the store can copy are copied through this process."""
        if not isinstance(new, ObjectPath) or new.bucket != self.path.bucket:
            return False
        try:
            self.path.copy(new)
        except OSError:
            return False
        return True

    def remove_tree(self) -> None:
        with suppress(OSError):
            for one, _ in list(self.path.below()):
                one.unlink()

    def remove_torn(self, is_torn: Callable[[bytes], bool]) -> bool:
        return False

    @contextmanager
    def lock(self, purpose: str, wait_s: float, *, has_epoch: bool = True) -> Iterator[LockHandle]:
        path = self.path.prompt()
        ObjectStore(lock_root(path)).require_conditions()
        with leased(path, purpose, wait_s) as held:
            yield held

    @contextmanager
    def mark(self, purpose: str) -> Iterator[None]:
        with self.lock(purpose, wait_s=0):
            yield
            self.path.unlink(missing_ok=True)

    @contextmanager
    def left_mark(self, purpose: str) -> Iterator[bool]:
        with ExitStack() as stack:
            try:
                is_left = self.path.is_file()
                if is_left:
                    stack.enter_context(self.lock(purpose, wait_s=0))
            except WarehouseLockedError:
                is_left = False
            yield is_left
            if is_left:
                # Remove it before the release, so that no process finds it in between. The release
                # then finds nothing.
                self.path.unlink(missing_ok=True)

    @contextmanager
    def unfinished(self) -> Iterator[None]:
        self._mark.write_bytes(b"")
        yield

    @property
    def _mark(self) -> ObjectPath:
        """All marks are in the same folder."""
        return self.path.parent / UNFINISHED / self.path.name

    def finish(self) -> None:
        self._mark.unlink(missing_ok=True)

    def remove_unfinished(self) -> None:
        if not self.path.is_dir():
            self._mark.unlink()

    def unfinished_folders(self) -> list[StorePath]:
        marks = list((self.path / UNFINISHED).below())
        # By the clock of the store, which has recorded their creation times.
        newest = max((stat.st_mtime for _, stat in marks), default=0.0)
        return [self.path / mark.name for mark, stat in marks if newest - stat.st_mtime > _STALE_S]

    def is_being_written(self) -> bool:
        return False

    def sync_content(self) -> None:
        """The store has made confirmed data durable."""

    def sync_names(self) -> None:
        """Like `sync_content`."""

    def now(self) -> float:
        probe = self.path / ".clock" / uuid.uuid4().hex
        probe.write_bytes(b"")
        try:
            return probe.stat().st_mtime
        finally:
            with suppress(OSError):
                probe.unlink()

    def require_conditions(self) -> None:
        if self.path.parts in _honest:
            return
        probe = self.path / ".probe" / uuid.uuid4().hex
        e_tag = probe.create(b"1")
        try:
            ignored = []
            for what, mark in (("If-None-Match", None), ("If-Match", f'"{uuid.uuid4().hex}"')):
                with suppress(ConditionError):
                    probe.create(b"2") if mark is None else probe.replace_version(b"2", mark)
                    ignored.append(what)
            if not ignored:
                with suppress(ConditionError):
                    probe.replace_version(b"3", e_tag)
                    _honest.add(self.path.parts)
                    return
                ignored.append("ETag")
            raise ConfigurationError(
                f"The store of {self.path} ignores conditions ({', '.join(ignored)}): two writers"
                " would lose each other's commits.",
                remedy="Use a store with conditional writes (AWS S3, SeaweedFS, MinIO, Ceph, R2),"
                " or a folder.",
            )
        finally:
            with suppress(OSError):
                probe.unlink()

    def free_bytes(self) -> int | None:
        return None

    def remedy(self, error: Exception, reason: str) -> str | None:
        return next(
            (remedy for texts, remedy in _REMEDIES if any(t in reason for t in texts)), None
        )

    def open_to_others(self) -> str | None:
        return None

    @property
    def access(self) -> StoreAccess:
        return self.path.access

    def delta_options(self) -> dict[str, str] | None:
        return delta_options(self.access)

    def arrow_place(self) -> "tuple[pafs.FileSystem, str]":
        files = arrow_files(self.access, self.access.keys())
        return files, f"{self.path.bucket}/{self.path.key}"


_honest: set[tuple[str, ...]] = set()
"""Places whose store is known to support conditions."""

_REMEDIES: Final = (
    (
        ("secret key", "access key", "expired"),
        "Check the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the"
        " role of this machine).",
    ),
    (
        ("no such bucket",),
        "Create the bucket, or correct the name of the warehouse or the endpoint.",
    ),
    (
        ("denies",),
        "Give these credentials the right to list the bucket, and to read, write and delete"
        " objects below the prefix.",
    ),
    (
        ("does not answer", "DNS", "timed out", "Timeout"),
        "Check that the store runs and its endpoint is right (AWS_ENDPOINT_URL, or"
        " `object_store.endpoint` in the YAML), then run the same command again.",
    ),
    (
        (os.strerror(errno.ENOENT), "not found"),
        "An object of the table is missing. Restore it from a copy of the warehouse; until then"
        " its contents cannot be restored.",
    ),
)
