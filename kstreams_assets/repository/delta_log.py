"""The log of a Delta table on a disk, and its state after a power failure.

Entries of a log are written atomically, but are only on disk after a sync. Each commit is therefore
synced (`committing`) before it is reported and before a later one builds on it. A power failure
then affects only the last entry, which is empty or cut off: it counts as not committed. Checkpoints
get their names when they are on disk. An object store does all of this by itself.
"""

import json
import logging
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from deltalake import DeltaTable, PostCommitHookProperties
from deltalake.exceptions import TableNotFoundError

from kstreams_assets.store import (
    StorePath,
    duplicate,
    make_durable,
    store_at,
    subfolders,
    sync_names,
)

LOG: Final = "_delta_log"
ENTRY: Final = re.compile(r"(\d{20})\.json")
CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.parquet")
CHECKPOINT_INTERVAL: Final = 20
"""Commits from one checkpoint to the next."""
_HINT: Final = "_last_checkpoint"
_CHECKPOINTING: Final = ".checkpoint-"
"""Name prefix of folders in which checkpoints are made."""
_CUT_OFF: Final = re.compile(r"t|tr|tru|f|fa|fal|fals|n|nu|nul|-|\.|[eE][+-]?")
"""Endings of JSON that is cut off in the middle of a literal or number."""
_log = logging.getLogger(__name__)


def entry_path(table: StorePath, version: int) -> StorePath:
    """The entry of a version."""
    return table / LOG / f"{version:020d}.json"


def log_names(table: StorePath) -> frozenset[str]:
    """The names of the files of a table's log; none for a table that was never written.

    Raises:
        OSError: The log cannot be read.
    """
    try:
        return frozenset(store_at(table / LOG).entries())
    except FileNotFoundError:
        return frozenset()


def entry_versions(table: StorePath, names: Iterable[str]) -> list[int]:
    """The versions with an entry in a log (the names of its files), the newest last.

    Excludes an entry that was not committed because of a power failure.

    Raises:
        OSError: The newest entry cannot be read.
    """
    names = list(names)
    versions = _versions(names, ENTRY)
    torn = _torn_version(table, versions, checkpoint_versions(names))
    return versions if torn is None else versions[:-1]


def checkpoint_versions(names: Iterable[str]) -> list[int]:
    """The versions with a checkpoint in a log (the names of its files), the newest last."""
    return _versions(names, CHECKPOINT)


def _versions(names: Iterable[str], kind: re.Pattern[str]) -> list[int]:
    return sorted(int(found[1]) for name in names if (found := kind.fullmatch(name)))


def _torn_version(table: StorePath, versions: list[int], checkpoints: list[int]) -> int | None:
    """The newest entry, if it was cut off by a power failure.

    If a checkpoint contains it, it was complete before: then it is damaged.
    """
    if not versions or store_at(table).is_durable:
        return None
    newest = versions[-1]
    if checkpoints and checkpoints[-1] >= newest:
        return None
    try:
        content = entry_path(table, newest).read_bytes()
    except FileNotFoundError:
        return None  # Another process has removed it in the meantime.
    return newest if is_torn(content) else None


def is_torn(content: bytes) -> bool:
    """Whether an entry of a log is empty or ends too early, as after a power failure."""
    if not content.rstrip(b"\0 \t\r\n") or content.endswith(b"\0"):
        return True
    line = content.rstrip(b" \t\r\n").rpartition(b"\n")[2]
    try:
        json.loads(line.decode())
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    except json.JSONDecodeError as error:
        rest = error.doc[error.pos :]
        if not rest or error.msg.startswith("Unterminated string"):
            return True
        if "escape" in error.msg:
            return len(rest) < len("\\u0000")
        return _CUT_OFF.fullmatch(rest) is not None
    return False


def delta_table(path: StorePath, version: int | None = None) -> DeltaTable:
    """The newest version of the table at a path, or this one; raises deltalake's errors."""
    if version is None and not store_at(path).is_durable:
        names = log_names(path)
        versions = entry_versions(path, names)
        if len(versions) < len(_versions(names, ENTRY)):
            if not versions:
                raise TableNotFoundError(f"{path} has no commit")
            version = versions[-1]
    return DeltaTable(str(path), version=version, storage_options=store_at(path).delta_options())


def remove_torn(table: StorePath) -> None:
    """Remove an entry that was not committed because of a power failure, to free its name.

    The caller holds the lock under which the table is written.

    Raises:
        OSError: The log cannot be read or written.
    """
    names = log_names(table)
    torn = {*_versions(names, ENTRY)} - {*entry_versions(table, names)}
    for version in torn:
        path = entry_path(table, version)
        if store_at(path).remove_torn(is_torn):
            _log.warning(
                "%s is not complete: a power failure interrupted this commit. It was removed; no"
                " completed work is lost.",
                path,
            )


def commit_hooks(table: StorePath, *, keeps_log: bool = False) -> PostCommitHookProperties:
    """What deltalake does after a commit to a table: nothing on a disk, where `committing` does it.

    With `keeps_log` old entries of the log stay.
    """
    is_durable = store_at(table).is_durable
    # deltalake compares times of a store with this machine's clock; `drop_old_log` does not.
    return PostCommitHookProperties(create_checkpoint=is_durable, cleanup_expired_logs=False)


@contextmanager
def committing(table: StorePath, *, keeps_log: bool = False) -> Iterator[None]:
    """Commits of the block are on disk when it ends, and a checkpoint if one was due.

    Their data files must be on disk before. With `keeps_log` old entries of the log stay after a
    checkpoint. The caller holds the lock under which the table is written.

    Raises:
        OSError: The disk cannot be written.
    """
    folder = store_at(table).on_disk
    if folder is None:
        yield
        _commits[table.parts] = _commits.get(table.parts, 0) + 1
        if not keeps_log and _commits[table.parts] % CHECKPOINT_INTERVAL == 0:
            with suppress(OSError):  # The commit exists; the next ones try again.
                drop_old_log(table)
        return
    before = _versions(log_names(table), ENTRY)[-1:]
    _settle(folder, before)  # Its writer may have been killed before that.
    yield
    new = [v for v in _versions(log_names(table), ENTRY) if v > max(before, default=-1)]
    _settle(folder, new)
    if any((version + 1) % CHECKPOINT_INTERVAL == 0 for version in new):
        make_checkpoint(table)
        if not keeps_log:
            drop_old_log(table)


_commits: dict[tuple[str, ...], int] = {}
"""The number of this process's commits to a table in a store."""
_LOG_S: Final = 3600.0
"""Equal to `delta.logRetentionDuration` of the tables."""


def drop_old_log(table: StorePath) -> None:
    """Delete entries of a log that are not needed for the versions of the last hour.

    Raises:
        OSError: The log cannot be read or written. Also raises deltalake's errors.
    """
    if store_at(table).on_disk:
        delta_table(table).cleanup_metadata()
        return
    log = table / LOG
    entries = store_at(log).entries()
    old_ns = round(10**9 * (store_at(table).now() - _LOG_S))
    old = [v for v in checkpoint_versions(n for n, (_, at_ns) in entries.items() if at_ns < old_ns)]
    before = max(old, default=0)
    for name in sorted(entries):
        found = ENTRY.fullmatch(name) or CHECKPOINT.fullmatch(name)
        if found is not None and int(found[1]) < before:
            (log / name).unlink(missing_ok=True)


_settled: dict[Path, tuple[int, int]] = {}
"""By table, version and inode of the newest entry that is known to be on disk."""


def _settle(table: Path, versions: list[int]) -> None:
    paths = [table / LOG / f"{version:020d}.json" for version in versions]
    if not paths:
        return
    newest = versions[-1], paths[-1].stat().st_ino
    if _settled.get(table) == newest:
        return
    make_durable(paths)
    _settled[table] = newest


def make_checkpoint(table: StorePath) -> None:
    """Write a checkpoint of the newest version, for which the caller holds the lock.

    On a disk it is made in a folder of its own, and gets its name when it is complete: readers
    start with it, and could not open the table without it.

    Raises:
        OSError: The disk cannot be written. Also raises deltalake's errors.
    """
    disk = store_at(table).on_disk
    if disk is None:
        delta_table(table).create_checkpoint()
        return
    for left in subfolders(disk):
        if left.name.startswith(_CHECKPOINTING):  # A leftover of a killed run.
            store_at(left).remove_tree()
    log = disk / LOG
    names = log_names(table)
    newest = max(entry_versions(table, names))
    _settle(disk, [newest])
    begin = max((v for v in checkpoint_versions(names) if v <= newest), default=0)
    if begin == newest and newest:
        if _hinted(log) != newest:  # A run was killed in between; without a hint readers search.
            (log / _HINT).unlink(missing_ok=True)
        return
    with tempfile.TemporaryDirectory(prefix=_CHECKPOINTING, dir=disk) as folder:
        made_in = Path(folder) / LOG
        made_in.mkdir()
        for name in names:
            found = ENTRY.fullmatch(name) or CHECKPOINT.fullmatch(name)
            if found is not None and begin <= int(found[1]) <= newest:
                duplicate(log / name, made_in / name)
        DeltaTable(folder).create_checkpoint()
        made = [name for name in log_names(Path(folder)) if _is_of(name, newest)]
        for name in made:
            store_at(made_in / name).sync_content()
            (made_in / name).replace(log / name)
        sync_names(log / name for name in made)
        store_at(log / _HINT).put_file((made_in / _HINT).read_bytes())


def _is_of(name: str, version: int) -> bool:
    found = CHECKPOINT.fullmatch(name)
    return found is not None and int(found[1]) == version


def _hinted(log: Path) -> int | None:
    """The version of the checkpoint with which readers start; None without a hint."""
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
        return json.loads((log / _HINT).read_bytes())["version"]
    return None
