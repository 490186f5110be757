"""The integrity of a control table: digests in the names of its files, and a chain of commits.

The name of each file of a table ends with the SHA-256 of its bytes. Each commit records the digest
of the names of all current files (`root`), and the digest of the previous entry of the log
(`previous`); with a private key it is signed. The newest entry therefore determines each byte.
"""

import base64
import binascii
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from kstreams_assets.copy_mark import copied_from
from kstreams_assets.errors import ConfigurationError, StoredDataError
from kstreams_assets.layout import is_linked
from kstreams_assets.model.damage import Damage, DamageKind, Head
from kstreams_assets.model.data_files import CHANGED, By, ExpectedFile
from kstreams_assets.model.files import digest_in, path_in_table
from kstreams_assets.repository.delta_log import (
    CHECKPOINT,
    ENTRY,
    LOG,
    checkpoint_versions,
    delta_table,
    entry_path,
    entry_versions,
    log_names,
)
from kstreams_assets.repository.inspection import inspect
from kstreams_assets.store import StorePath, disk_name, file_digest, store_at

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

METADATA: Final = "kstreams_assets"
"""The name of a commit's link in Delta's log."""
SIGNING_KEY: Final = "KSTREAMS_ASSETS_SIGNING_KEY"
"""The environment variable with the path of a private key (Ed25519, PEM)."""

_OTHER_LOG: Final = re.compile(r"\d{20}\.(checkpoint\..+|\d{20}\.compacted\.json)")
"""Files that readers of Delta accept instead of entries, and that this release never writes."""
_THREADS: Final = 4
_LOOKS: Final = 3
_BROUGHT_BACK: Final = (
    "Another program than kstreams-assets changed or damaged it. Restore the table from a copy of"
    " the warehouse; do not delete the existing files."
)
_OLDER: Final = (
    f"{_BROUGHT_BACK} If you restored an older state on purpose, confirm it once: kstreams-assets"
    " verify --accept REASON."
)
_FOREIGN: Final = (
    "Only kstreams-assets may write this table. Restore it from a copy of the warehouse that is"
    " older than that entry."
)
_UNSIGNED: Final = (
    "Find out who committed it. Every process that writes the warehouse needs the key"
    f" ({SIGNING_KEY}); verify with the public key that belongs to it. If the commit is your own,"
    " from before the key was in use, confirm it once: kstreams-assets verify --accept REASON."
)


@dataclass(frozen=True, slots=True)
class Link:
    """A commit's statement about the table: `previous` and `root` are SHA-256 in hex, `signature`
    is base64. `previous` is empty for the first entry. `unsigned` is the last earlier version
    without a valid signature: a signature vouches only for later versions, however long ago that
    entry expired; None if there is none."""

    previous: str
    root: str
    signature: str | None
    unsigned: int | None = None

    def signed(self, name: str, version: int) -> bytes:
        """The bytes that are signed."""
        parts = [name, str(version), self.previous, self.root]
        if self.unsigned is not None:
            parts.append(str(self.unsigned))
        return "\n".join(parts).encode()

    def is_signed_with(self, key: "Ed25519PublicKey", name: str, version: int) -> bool:
        """Whether it has the signature of a key."""
        from cryptography.exceptions import InvalidSignature

        try:
            signature = base64.b64decode(self.signature or "", validate=True)
            key.verify(signature, self.signed(name, version))
        except (InvalidSignature, binascii.Error):
            return False
        return True


def root_of(paths: Iterable[str]) -> str:
    """SHA-256 of the paths of a table's files, relative to the table, in hex."""
    return hashlib.sha256("\n".join(sorted(paths)).encode()).hexdigest()


def file_name(content: bytes | memoryview, unique: str) -> str:
    """The name of a new file; `unique` distinguishes files with the same bytes."""
    return f"part-{unique}-{hashlib.sha256(content).hexdigest()}.parquet"


def partition_folder(application_id: str) -> str:
    """The folder of an application's files, with Hive's name."""
    return disk_name(f"application_id={quote(application_id, safe='')}")


def active_paths(table: DeltaTable) -> list[str]:
    """The paths of a table's files, relative to the table."""
    return [path_in_table(path) for path in _actions(table)["path"].to_pylist()]


def link_after(path: StorePath, name: str, version: int, files: Iterable[str]) -> Mapping[str, Any]:
    """The metadata of the commit after a version; `files` then belong to the table.

    Raises:
        ConfigurationError: The signing key cannot be used.
        OSError: The entry of the version cannot be read.
    """
    before: _Entry | None = None
    if version >= 0:
        with suppress(FileNotFoundError):  # An earlier release has deleted it.
            before = _entry(version, entry_path(path, version).read_bytes())
    link = Link(before.digest if before else "", root_of(files), None)
    document: dict[str, object] = {"previous": link.previous, "root": link.root}
    key_file = os.environ.get(SIGNING_KEY)
    if key_file:
        key = private_key(Path(key_file))
        link = replace(link, unsigned=_last_unsigned(before, name, version, key.public_key()))
        if link.unsigned is not None:
            document["unsigned"] = link.unsigned
        signature = key.sign(link.signed(name, version + 1))
        document["signature"] = base64.b64encode(signature).decode()
    return {METADATA: json.dumps(document, separators=(",", ":"))}


def _last_unsigned(
    before: "_Entry | None", name: str, version: int, key: "Ed25519PublicKey"
) -> int | None:
    """The last version without the key's signature, up to this one, whose entry is `before`."""
    if version < 0:
        return None
    link = None if before is None else before.link
    if link is None or not link.is_signed_with(key, name, version):
        return version
    return link.unsigned


def private_key(file: Path) -> "Ed25519PrivateKey":
    """The key that signs commits.

    Raises:
        ConfigurationError: It cannot be read, or is of another kind.
    """
    try:
        return _private_key(file, file.stat().st_mtime_ns)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(
            f"The signing key {file} ({SIGNING_KEY}) cannot be used: {_first_line(error)}.",
            remedy="Give the path of an Ed25519 key in PEM without a password: openssl genpkey"
            " -algorithm ed25519 -out KEY.pem.",
        ) from None


@lru_cache(maxsize=4)
def _private_key(file: Path, _changed_ns: int) -> "Ed25519PrivateKey":
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key(file.read_bytes(), None)
    if not isinstance(key, Ed25519PrivateKey):
        raise TypeError("it is not an Ed25519 key")
    return key


def public_key_at(file: Path) -> "Ed25519PublicKey":
    """The key that verifies signatures.

    Raises:
        ConfigurationError: It cannot be read, or is of another kind.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(file.read_bytes())
        if not isinstance(key, Ed25519PublicKey):
            raise TypeError("it is not an Ed25519 key")
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(
            f"The public key {file} cannot be used: {_first_line(error)}.",
            remedy="Give the path of an Ed25519 public key in PEM: openssl pkey -in KEY.pem -pubout"
            " -out PUBLIC.pem.",
        ) from None
    return key


def require_linked(path: StorePath, name: str, table: DeltaTable) -> None:
    """Refuse a table whose files differ from those that its newest commit recorded.

    Raises:
        StoredDataError: They differ, or another program has committed to it.
        FileNotFoundError: An entry of the log does not exist (any more).
    """
    version = table.version()
    while True:
        entry = _entry(version, entry_path(path, version).read_bytes())
        if entry.problem:
            raise stored_data_error(name, f"{_entry_name(version)} {entry.problem}")
        if entry.link is not None:
            break
        if entry.changes_files:
            problem = f"{_entry_name(version)} was written by another program than kstreams-assets"
            raise stored_data_error(name, problem, _FOREIGN)
        version -= 1
    actions = _actions(table)
    paths = [path_in_table(path) for path in actions["path"].to_pylist()]
    if root_of(paths) != entry.link.root:
        raise stored_data_error(
            name, f"its log does not have the files of the commit {_entry_name(version)}"
        )
    strange = _in_wrong_folder(paths, actions)
    if strange is not None:
        raise stored_data_error(name, f"its log has {strange} for another application")


def stored_data_error(name: str, problem: str, remedy: str = _BROUGHT_BACK) -> StoredDataError:
    """The error of a control table."""
    return StoredDataError(subject=f"The table {name}", problem=problem, remedy=remedy)


def _in_wrong_folder(paths: Sequence[str], actions: pa.Table) -> str | None:
    """A file that the log assigns to another application than its path."""
    applications = actions["partition.application_id"].to_pylist()
    for path, application_id in zip(paths, applications, strict=True):
        folder = path.partition("/")[0]
        named = unquote(folder.removeprefix("application_id="))
        if application_id != named and folder != partition_folder(application_id):
            return path
    return None


_NOT_SIGNED: Final = "is not signed"
_STRANGE: Final = "is not the original file: its SHA-256 differs from the one in its name"


class Verified:
    """Files on a disk whose content this process has found to match their names."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[int, ...]] = {}

    def require(self, table: Path, name: str, files: Sequence[str]) -> None:
        """Read changed and new files; `files` are relative to the table.

        Raises:
            StoredDataError: A file is not the original one.
            OSError: A file cannot be read.
        """
        todo: list[tuple[str, Path, tuple[int, ...]]] = []
        for file in files:
            if digest_in(file) is None:
                continue
            path = table / file
            stat = path.stat()
            state = (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
            if self._known.get(path) != state:
                todo.append((file, path, state))
        if not todo:
            return
        if len(todo) == 1:
            digests = [file_digest(todo[0][1])]
        else:
            with ThreadPoolExecutor(min(_THREADS, len(todo))) as pool:
                digests = list(pool.map(file_digest, [path for _, path, _ in todo]))
        for (file, path, state), digest in zip(todo, digests, strict=True):
            if digest != digest_in(file):
                raise stored_data_error(name, f"{file} {_STRANGE}")
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[path] = state


_MOST_KNOWN: Final = 50_000


def require_content(name: str, file: str, content: bytes) -> None:
    """Refuse file contents that do not match the digest in the file's name.

    Raises:
        StoredDataError: They do not match.
    """
    digest = digest_in(file)
    if digest is not None and hashlib.sha256(content).hexdigest() != digest:
        raise stored_data_error(name, f"{file} {_STRANGE}")


def expired_entries(names: Iterable[str], before: int) -> list[str]:
    """Entries and checkpoints of a log before a version, oldest first.

    They are deleted in this order, so that the remaining ones have no gap.
    """
    found = [(_version_of(name), name.endswith(".parquet"), name) for name in names]
    known = [(v, is_checkpoint, name) for v, is_checkpoint, name in found if v is not None]
    return [name for version, _, name in sorted(known) if version < before]


def _version_of(name: str) -> int | None:
    found = ENTRY.fullmatch(name) or CHECKPOINT.fullmatch(name)
    return None if found is None else int(found[1])


def head(path: StorePath) -> Head | None:
    """The newest entry of a table's log; None for a table that was never written.

    Raises:
        OSError: The log cannot be read.
    """
    versions = entry_versions(path, log_names(path))
    if not versions:
        return None
    content = entry_path(path, versions[-1]).read_bytes()
    return Head(versions[-1], hashlib.sha256(content).hexdigest())


def shortened(path: StorePath, name: str, seen: Head) -> Damage | None:
    """Evidence that earlier commits of a table are missing.

    `seen` is an earlier result of `head`.

    Raises:
        OSError: The log cannot be read.
    """
    versions = entry_versions(path, log_names(path))
    file = _entry_name(seen.version)
    if not versions or versions[-1] < seen.version:
        last = f"ends at version {versions[-1]}" if versions else "is gone"
        problem = f"its log {last}, but had version {seen.version} before"
        return _damage(name, file, problem, _OLDER)
    digest = None
    if seen.version in versions:
        digest = hashlib.sha256(entry_path(path, seen.version).read_bytes()).hexdigest()
    elif seen.version + 1 in versions:
        content = entry_path(path, seen.version + 1).read_bytes()
        link = _entry(seen.version + 1, content).link
        digest = None if link is None else link.previous
    if digest in (None, seen.digest):
        return None
    return _damage(name, file, "is not the earlier entry", _OLDER)


def _damage(table: str, file: str, problem: str, remedy: str = _BROUGHT_BACK) -> Damage:
    """The damage of a file of a control table; `file` is relative to the table."""
    return Damage(DamageKind.TABLE, f"{table}/{file}", problem, remedy)


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry of the log; `problem` is the reason if it cannot be read."""

    version: int
    digest: str
    link: Link | None = None
    changes_files: bool = False
    problem: str = ""


def _entry(version: int, content: bytes) -> _Entry:
    digest = hashlib.sha256(content).hexdigest()
    try:
        actions = [json.loads(line) for line in content.decode().split("\n") if line.strip()]
        texts = [action["commitInfo"].get(METADATA) for action in actions if "commitInfo" in action]
        link = next((_link(text) for text in texts if text is not None), None)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"cannot be read ({_first_line(error)})"
        return _Entry(version, digest, problem=problem)
    if not actions:
        return _Entry(version, digest, problem="is empty")
    changes_files = any("add" in action or "remove" in action for action in actions)
    return _Entry(version, digest, link, changes_files)


def _link(text: str) -> Link:
    document = json.loads(text)
    unsigned = document.get("unsigned")
    return Link(
        str(document["previous"]),
        str(document["root"]),
        document.get("signature"),
        None if unsigned is None else int(unsigned),
    )


def table_problems(
    path: StorePath,
    name: str,
    *,
    read: bool = False,
    public_key: Path | None = None,
    throttle: Callable[[int], None] | None = None,
) -> list[Damage]:
    """The damage of a control table, by file; empty for a table that was never written.

    Checks log, checkpoints, existence and sizes of files; with `read` also every byte of them.
    `throttle` is called with the number of bytes before they are read. Entries must be signed if a
    public key is given. Other processes may write the table in the meantime.

    Raises:
        ConfigurationError: The public key cannot be used.
        OSError: The folder or the store cannot be read at all.
    """
    key = None if public_key is None else public_key_at(public_key)
    # While others commit and tidy up, one inspection may see several states; real damage stays
    # visible.
    found, state = _Look(path, name, key).problems(), log_names(path)
    for _ in range(_LOOKS - 1):
        if not found:
            break
        before, state = state, log_names(path)
        again = set(_Look(path, name, key).problems())
        found = [problem for problem in found if problem in again]
        if before == state == log_names(path):
            break
    if read:
        if entry_versions(path, state) and not any(one.file == LOG for one in found):
            known = {one.place for one in found}
            found += [one for one in _read(path, name, throttle) if one.place not in known]
        found = [replace(one, by_reading=True) for one in found]
    return found


class _Look:
    """One inspection of a table."""

    def __init__(self, path: StorePath, name: str, key: "Ed25519PublicKey | None") -> None:
        self._path, self._name, self._key = path, name, key
        self._found: list[Damage] = []

    def problems(self) -> list[Damage]:
        names = log_names(self._path)
        versions = entry_versions(self._path, names)
        checkpoints = checkpoint_versions(names)
        if not versions:
            if checkpoints or any(self._path.rglob("*.parquet")):
                self._add(LOG, "has no entry, although the table has files")
            return self._found
        if copied_from(self._path) is not None:
            # Entries that expired between two runs of a copy were never copied; earlier ones stay.
            versions = _without_gap(versions)
        entries = self._entries(versions)
        for strange in sorted(name for name in names if _is_other_log(name)):
            self._add(f"{LOG}/{strange}", "was written by another program", _FOREIGN)
        self._gaps(versions, checkpoints)
        self._links(entries)
        if self._key is not None:
            self._signatures(entries, self._key)
        self._checkpoints(checkpoints, entries, names)
        self._files(versions[-1], entries)
        return self._found

    def _add(self, file: str, problem: str, remedy: str = _BROUGHT_BACK) -> None:
        self._found.append(_damage(self._name, file, problem, remedy))

    def _entries(self, versions: Sequence[int]) -> dict[int, _Entry]:
        def entry(version: int) -> _Entry:
            try:
                return _entry(version, entry_path(self._path, version).read_bytes())
            except OSError as error:
                return _Entry(version, "", problem=f"cannot be read ({error.strerror})")

        with ThreadPoolExecutor(_THREADS) as pool:
            entries = {entry.version: entry for entry in pool.map(entry, versions)}
        for found in entries.values():
            if found.problem:
                self._add(_entry_name(found.version), found.problem)
        return entries

    def _gaps(self, versions: Sequence[int], checkpoints: Sequence[int]) -> None:
        for version in sorted(set(range(versions[0], versions[-1])) - set(versions)):
            self._add(_entry_name(version), "is missing")
        if versions[0] > 0 and not any(c >= versions[0] - 1 for c in checkpoints):
            self._add(_entry_name(versions[0] - 1), "is missing, and there is no checkpoint for it")
        if checkpoints and checkpoints[-1] > versions[-1]:
            self._add(_entry_name(checkpoints[-1]), "is missing, but its checkpoint exists")

    def _links(self, entries: Mapping[int, _Entry]) -> None:
        linked = False
        for version, entry in sorted(entries.items()):
            if entry.link is None:
                if linked and entry.changes_files:
                    problem = "was written by another program than kstreams-assets"
                    self._add(_entry_name(version), problem, _FOREIGN)
                continue
            linked = True
            before = entries.get(version - 1)
            if before is not None and before.digest and before.digest != entry.link.previous:
                problem = "differs from the committed entry: the next one has another SHA-256"
                self._add(_entry_name(version - 1), problem)

    def _signatures(self, entries: Mapping[int, _Entry], key: "Ed25519PublicKey") -> None:
        """Every entry must be signed, including entries without a link, which other programs
        write."""
        unsigned: int | None = None
        for version, entry in sorted(entries.items()):
            if entry.problem:
                continue
            if entry.link is None or entry.link.signature is None:
                self._add(_entry_name(version), _NOT_SIGNED, _UNSIGNED)
            elif not entry.link.is_signed_with(key, self._name, version):
                self._add(_entry_name(version), "has a signature of another key", _UNSIGNED)
            else:
                unsigned = entry.link.unsigned
        if unsigned is not None and unsigned not in entries:
            self._add(_entry_name(unsigned), _NOT_SIGNED, _UNSIGNED)

    def _checkpoints(
        self, checkpoints: Sequence[int], entries: Mapping[int, _Entry], names: Iterable[str]
    ) -> None:
        for version in checkpoints:
            file = f"{LOG}/{version:020d}.checkpoint.parquet"
            try:
                paths = _checkpoint_paths(self._path / file)
            except FileNotFoundError:
                continue  # It expired just now.
            except (OSError, pa.ArrowException) as error:
                self._add(file, f"cannot be read ({_first_line(error)})")
                continue
            entry = _linked(entries, version)
            if entry is not None and root_of(paths) != entry.root:
                self._add(file, f"does not have the files of version {version}")
        if "_last_checkpoint" in names:
            file = f"{LOG}/_last_checkpoint"
            try:
                version = json.loads((self._path / file).read_bytes())["version"]
            except (OSError, ValueError, KeyError, TypeError) as error:
                self._add(file, f"cannot be read ({_first_line(error)})")
                return
            if version not in checkpoints:
                self._add(file, f"refers to a checkpoint of version {version}, which is missing")

    def _files(self, newest: int, entries: Mapping[int, _Entry]) -> None:
        try:
            table = delta_table(self._path)
            actions = _actions(table)
        except (DeltaError, OSError, pa.ArrowException) as error:
            if not self._found:
                self._add(LOG, f"cannot be read ({_first_line(error)})")
            return
        paths = [path_in_table(path) for path in actions["path"].to_pylist()]
        version = table.version()
        if version < newest:
            self._add(_entry_name(newest), f"is not reached: the log is read up to {version}")
        link = _linked(entries, version)
        is_ours = is_linked(table.metadata().configuration)
        if self._key is not None and not is_ours:
            self._add(LOG, "was written by an earlier release, which signed nothing", _UNSIGNED)
        if link is None and is_ours and not self._found:
            problem = "was written by another program than kstreams-assets"
            self._add(_entry_name(version), problem, _FOREIGN)
        if link is not None and root_of(paths) != link.root:
            problem = f"does not have the files that version {version} was committed with"
            self._add(LOG, problem)
        strange = _in_wrong_folder(paths, actions)
        if strange is not None:
            self._add(strange, "is in the log for another application")
        for damage in inspect(_expected(self._path, actions), By.LISTING):
            self._add(damage.file, damage.problem)


def _is_other_log(name: str) -> bool:
    return bool(_OTHER_LOG.fullmatch(name)) and not CHECKPOINT.fullmatch(name)


def _without_gap(versions: Sequence[int]) -> list[int]:
    """The last of these versions without a gap."""
    missing = set(range(versions[0], versions[-1])) - set(versions)
    return [version for version in versions if version > max(missing, default=-1)]


def _linked(entries: Mapping[int, _Entry], version: int) -> Link | None:
    """The link that describes the files at a version, if known."""
    while (entry := entries.get(version)) is not None and not entry.problem:
        if entry.link is not None:
            return entry.link
        if entry.changes_files:
            return None
        version -= 1
    return None


def _expected(path: StorePath, actions: pa.Table) -> list[ExpectedFile]:
    """The files in a log; their digests are in their names."""
    files = zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True)
    return [
        ExpectedFile(path, file, size, digest_in(file), kind=DamageKind.TABLE)
        for logged, size in files
        for file in (path_in_table(logged),)
    ]


def _read(path: StorePath, name: str, throttle: Callable[[int], None] | None) -> list[Damage]:
    try:
        actions = _actions(delta_table(path))
    except (DeltaError, OSError, pa.ArrowException) as error:
        return [_damage(name, LOG, f"cannot be read ({_first_line(error)})")]
    expected = _expected(path, actions)
    named = [file for file in expected if file.digest is not None]
    problems = {
        one.file: _STRANGE if one.problem == CHANGED else one.problem
        for one in inspect(named, By.DIGEST, pay=throttle)
    }
    sound = {
        file.path: action
        for file, action in zip(expected, actions.to_pylist(), strict=True)
        if file.path not in problems
    }

    def of_statistics(file: str) -> str | None:
        try:
            return _statistics_problem(path / file, sound[file])
        except (OSError, pa.ArrowException) as error:
            return f"cannot be read ({_first_line(error)})"

    with ThreadPoolExecutor(_THREADS) as pool:
        found = zip(sound, pool.map(of_statistics, sound), strict=True)
        problems |= {file: problem for file, problem in found if problem}
    if not problems:
        return []
    # Files that others have merged in the meantime may be missing from the table and the folder.
    still = set(active_paths(delta_table(path)))
    return [_damage(name, file, problem) for file, problem in problems.items() if file in still]


def _statistics_problem(file: StorePath, action: Mapping[str, Any]) -> str | None:
    """Check the statistics in the log, by which readers skip files."""
    metadata = pq.ParquetFile(store_at(file).readable()).metadata
    rows = action["num_records"]
    if rows is not None and rows != metadata.num_rows:
        return f"has {metadata.num_rows:,} rows, the log says {rows:,}"
    for group in range(metadata.num_row_groups):
        columns = metadata.row_group(group)
        for number in range(columns.num_columns):
            column = columns.column(number)
            low = action.get(f"min.{column.path_in_schema}")
            high = action.get(f"max.{column.path_in_schema}")
            statistics = column.statistics
            if low is None or high is None or statistics is None or not statistics.has_min_max:
                continue
            if statistics.min < low or statistics.max > high:
                return f"has values of {column.path_in_schema} outside the range in its log entry"
    return None


def _actions(table: DeltaTable) -> pa.Table:
    return pa.table(table.get_add_actions(flatten=True))


def _checkpoint_paths(file: StorePath) -> list[str]:
    table = pq.ParquetFile(store_at(file).readable()).read(columns=["add.path"])
    return [path_in_table(add["path"]) for add in table["add"].to_pylist() if add and add["path"]]


def _entry_name(version: int) -> str:
    return f"{LOG}/{version:020d}.json"


def _first_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".: ")
