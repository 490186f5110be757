"""Second copy of a warehouse, in another folder or in a store of another account.

Data files never change under their names, so existing files are not copied again. The planner
selects a consistent state of the source. The job copies files and compares them with their recorded
digests, then copies the logs that refer to them. At last it writes the mark that shows the new
state to readers (`copy_mark`). Copied files are never overwritten or deleted.
"""

import hashlib
import json
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any, Final

from kstreams_assets.copy_mark import MARK, CopyMark, CopyState, copy_mark, put_mark, read_mark
from kstreams_assets.errors import ConfigurationError, WarehouseError
from kstreams_assets.kafka.throttle import Throttle, throttle
from kstreams_assets.layout import MARKER, Warehouse
from kstreams_assets.lease import warehouse_lock
from kstreams_assets.model.damage import Damage, DamageKind
from kstreams_assets.model.data_files import CHANGED, MISSING
from kstreams_assets.private import keep_private
from kstreams_assets.repository.table import refuse_newer_tables
from kstreams_assets.store import ConditionError, StorePath, store_at
from kstreams_assets.store.failures import storage_failures
from kstreams_assets.texts import bytes_text
from kstreams_assets.upkeep.copy_plan import (
    CHECKPOINT,
    COPYING,
    HINT,
    LOG,
    STORE_THREADS,
    CopyPlan,
    CopyPlanner,
    MissingFile,
    TablePlan,
    loaded_points,
    log_files,
    version_of,
)
from kstreams_assets.upkeep.second_copy import Pruned, prune

_log = logging.getLogger(__name__)

_PIECE: Final = 8 * 1024**2
_THREADS: Final = 4
_ROUNDS: Final = 4
_LOCK_WAIT_S: Final = 30.0
_DAY_MS: Final = 86_400_000
_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class CopyResult:
    """Result of a copy.

    This run copied `files` and `bytes`; `there` files already existed. `lacking` are files that are
    missing or damaged in the source. `finished_at_ms` is None if a control table is among them:
    readers of the copy then see its previous state. `pruned` counts deleted files.
    """

    source: str
    to: str
    tables: int
    files: int
    bytes: int
    there: int
    lacking: tuple[Damage, ...]
    finished_at_ms: int | None
    took_s: float = 0.0
    pruned: Pruned | None = None

    @property
    def lacking_texts(self) -> list[str]:
        """A text for each file that could not be copied, with its window and partition."""
        texts: list[str] = []
        for one in self.lacking:
            whose = replace(one, start=None, end=None, store=None).subject
            text = f"file {one.place} {one.problem}"
            texts.append(text if whose == one.place else f"{whose}: {text}")
        return texts


class Phase(StrEnum):
    """The phases of a copy, in order; the first two can repeat."""

    PLAN = "plan"
    FILES = "files"
    PUBLISH = "publish"
    PRUNE = "prune"


@dataclass(frozen=True, slots=True)
class Progress:
    """The start of a phase; phase `FILES` has a plan."""

    phase: Phase
    plan: CopyPlan | None = None

    def __str__(self) -> str:
        if self.plan is None:
            return f"Copy: {self.phase}."
        return f"Copying {len(self.plan.missing):,} files, {bytes_text(self.plan.bytes)}."


def _logged(progress: Progress) -> None:
    _log.info("%s", progress)


@dataclass(frozen=True, slots=True)
class CopyJob:
    """Creates or updates the copy of a warehouse.

    An interrupted copy continues with the next run. The result lists files that could not be
    copied; all other files are copied.

    Args:
        source: The warehouse. The job only reads it and does not lock it.
        to: The copy, or an empty place.
        applications: Applications whose records and snapshots are copied; None: all. Applications
            of earlier runs are copied as well.
        points: Ids of recovery points. Only records and snapshots that are necessary to restore
            one of them are copied. Points of earlier runs are copied as well. None: everything.
        bytes_per_s: Maximum copy rate.
        prunes: Delete files that the source deleted, see `second_copy.prune`.
        on_phase: Called when a phase starts.
    """

    source: Warehouse
    to: StorePath
    applications: Collection[str] | None = None
    points: Collection[str] | None = None
    bytes_per_s: int | None = None
    prunes: bool = False
    on_phase: Callable[[Progress], None] = _logged

    def plan(self) -> CopyPlan:
        """Plan the copy without writing anything. Raises the errors of `run`."""
        _refuse_place(self.source, self.to)
        with tempfile.TemporaryDirectory(prefix="kstreams-assets-copy-") as folder:
            return CopyPlanner(self.source, self.to, _mark(self, _stored_mark(self.to))).plan(
                Path(folder) / "0"
            )

    def run(self) -> CopyResult:
        """Plan and copy, repeat if the source deletes files meanwhile, then publish the state.

        Raises:
            ConfigurationError: `to` cannot be a copy of this warehouse.
            NewerLayoutError: A newer release wrote the source.
            WarehouseError: The source or the copy cannot be read or written.
            WarehouseLockedError: Another run writes the copy.
        """
        started = time.monotonic()
        _refuse_place(self.source, self.to)
        keep_private()
        with storage_failures(self.to):
            store_at(self.to).require_conditions()
            self.to.mkdir(parents=True, exist_ok=True)
        with _alone(self.to):
            result = _Run(self, _created_mark(self)).copy()
        result = replace(result, took_s=time.monotonic() - started)
        if self.prunes and result.finished_at_ms is not None:
            self.on_phase(Progress(Phase.PRUNE))
            result = replace(result, pruned=prune(self.to))
        return result


def _refuse_place(source: Warehouse, to: StorePath) -> None:
    if not source.exists:
        raise WarehouseError(
            path=source.root,
            reason="there is no warehouse, so there is nothing to copy",
            remedy="Check the path (warehouse in the YAML, --warehouse) and whether it is mounted.",
        )
    copy_mark(source.root)  # raises for an incomplete copy
    if str(to) == str(source.root) or _is_inside(to, source.root) or _is_inside(source.root, to):
        raise ConfigurationError(
            f"{to} cannot be a copy of {source.root}: one contains the other.",
            remedy="Choose another folder, if possible on another disk, or another bucket.",
        )


def _is_inside(path: StorePath, other: StorePath) -> bool:
    one, two = PurePosixPath(str(path)), PurePosixPath(str(other))
    return one.is_relative_to(two)


def _alone(to: StorePath) -> Any:  # noqa: ANN401 (a context)
    """Exclude concurrent runs: by a lock on a disk, by the version of the mark in a store."""
    if store_at(to).is_conditional:
        return nullcontext()
    lock = to / ".locks" / "copy.lock"
    return warehouse_lock(lock, purpose="copy", wait_s=_LOCK_WAIT_S, of_copy=True)


def _created_mark(job: CopyJob) -> CopyMark:
    """Return the mark of the copy; create it before any other file if it is missing."""
    mark = _mark(job, there := _stored_mark(job.to))
    if there is not None:
        return mark
    with storage_failures(job.to):
        put_mark(job.to, mark)
    mark = _stored_mark(job.to)
    if mark is None:
        raise WarehouseError(
            path=job.to / MARK,
            reason="the file was deleted right after it was written",
            remedy="Find out which other program writes to this place.",
        )
    return mark


def _stored_mark(to: StorePath) -> CopyMark | None:
    with storage_failures(to):
        return read_mark(to)


def _mark(job: CopyJob, mark: CopyMark | None) -> CopyMark:
    """Return the existing or first mark of the copy, extended by the selection of this run."""
    source, to = job.source, job.to
    points = None if job.points is None else tuple(sorted(job.points))
    applications = job.applications
    if job.points is not None:
        applications = {point.application_id for point in loaded_points(source, job.points)}
    made_at = _made_at(source.root)
    if mark is None:
        if Warehouse(to).exists:
            raise ConfigurationError(
                f"{to} is an independent warehouse, not a copy.",
                remedy="Choose an empty place. A promoted copy remains a warehouse.",
            )
        chosen = None if applications is None else tuple(sorted(applications))
        now_ms = time.time_ns() // 1_000_000
        return CopyMark(str(source.root), made_at, now_ms, applications=chosen, points=points)
    if None not in (made_at, mark.made_at) and made_at != mark.made_at:
        raise ConfigurationError(
            f"{to} is a copy of another warehouse than {source.root}: this one was created at"
            f" {made_at}, the copied one at {mark.made_at}. Nothing was copied.",
            remedy="Check that the right disk is mounted. If the first warehouse is lost, restore"
            " from the copy or promote it. Copy the new warehouse to another place.",
        )
    if None in (made_at, mark.made_at) and mark.source != str(source.root):
        raise ConfigurationError(
            f"{to} is a copy of {mark.source}, not of {source.root}.",
            remedy="Choose another place.",
        )
    chosen = mark.applications
    if chosen is not None:
        chosen = None if applications is None else tuple(sorted({*chosen, *applications}))
    all_points = mark.points
    if all_points is not None:
        all_points = None if points is None else tuple(sorted({*all_points, *points}))
    return replace(mark, source=str(source.root), applications=chosen, points=all_points)


def _made_at(root: StorePath) -> str | None:
    with storage_failures(root):
        try:
            facts = json.loads((root / MARKER).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError:
            return None
    return facts.get("created_at") if isinstance(facts, dict) else None


class SourceFileError(Exception):
    """A file of the source is missing, unreadable or damaged."""


class _Run:
    """The state of a running copy."""

    def __init__(self, job: CopyJob, mark: CopyMark) -> None:
        self._source, self._to, self._mark = Warehouse(job.source.root), job.to, mark
        self._on_phase = job.on_phase
        self._planner = CopyPlanner(job.source, job.to, mark)
        self._limit = throttle("copy", job.bytes_per_s, None, tasks=1)
        self._files = self._bytes = 0
        self._counting = threading.Lock()

    def copy(self) -> CopyResult:
        refuse_newer_tables(self._source)
        store_at(self._to / COPYING).remove_tree()
        with tempfile.TemporaryDirectory(prefix="kstreams-assets-copy-") as folder:
            number, before = 0, set[str]()
            while True:
                number += 1
                self._on_phase(Progress(Phase.PLAN))
                plan = self._planner.plan(Path(folder) / str(number))
                lacking, gone = self._copy_files(plan)
                # A new plan does not contain files that were deleted meanwhile.
                if gone <= before or number == _ROUNDS:
                    break
                before = set(lacking)
            for file in plan.damaged:
                lacking.setdefault(file.place, file)
            self._on_phase(Progress(Phase.PUBLISH))
            finished = self._publish(plan, tuple(lacking.values()))
        return CopyResult(
            source=str(self._source.root),
            to=str(self._to),
            tables=len(plan.tables),
            files=self._files,
            bytes=self._bytes,
            there=plan.there,
            lacking=tuple(lacking[key] for key in sorted(lacking)),
            finished_at_ms=finished,
        )

    # --- Files ------------------------------------------------------------------------------------

    def _copy_files(self, plan: CopyPlan) -> tuple[dict[str, Damage], set[str]]:
        """Copy missing files; return the files that could not be copied, and those deleted."""
        lacking: dict[str, Damage] = {}
        gone: set[str] = set()
        if plan.missing:
            self._on_phase(Progress(Phase.FILES, plan))
            Warehouse(self._to).require_space(plan.bytes)
        with ThreadPoolExecutor(self._threads) as pool:
            running = [pool.submit(self._copy_one, one) for one in plan.missing]
            try:
                for done in as_completed(running):
                    with storage_failures(self._to):
                        damage = done.result()
                    if damage is not None:
                        lacking[damage.place] = damage
                        if damage.problem == MISSING:
                            gone.add(damage.place)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return lacking, gone

    @property
    def _threads(self) -> int:
        on_disk = store_at(self._to).on_disk and store_at(self._source.root).on_disk
        return _THREADS if on_disk else STORE_THREADS

    def _copy_one(self, missing: MissingFile) -> Damage | None:
        file = missing.expected
        try:
            copy_file(
                file.location,
                self._to / file.place,
                size=file.size,
                digest=file.digest,
                scratch=self._to / COPYING,
                limit=self._limit,
                replaces=missing.is_there,
            )
        except SourceFileError as error:
            return file.damage(str(error))
        with self._counting:
            self._files += 1
            self._bytes += file.size
        return None

    # --- What readers see -------------------------------------------------------------------------

    def _publish(self, plan: CopyPlan, lacking: Sequence[Damage]) -> int | None:
        """Copy the logs, then write the mark; return its time, None if nothing was published."""
        if any(file.kind is DamageKind.TABLE for file in lacking):
            return None
        with storage_failures(self._to):
            self._require_same_mark()
            for table in plan.tables:
                for name in table.log:
                    self._put(plan.staged / table.name / name, table.name, name)
            self._put_marker()
            now_ms = time.time_ns() // 1_000_000
            mark = self._mark
            seen = None if mark.newest is None else mark.newest.versions
            if not store_at(self._to).is_durable and (self._files or seen != plan.versions):
                # Make the names of all files durable, also those that a killed run has copied.
                os.sync()
            state = CopyState(now_ms, plan.versions)
            places = tuple(file.place for file in lacking)
            earlier = mark.earlier if mark.newest is None else _kept(mark.newest, mark.earlier)
            mark = replace(mark, newest=state, earlier=earlier, lacking=places)
            try:
                put_mark(self._to, mark)
            except ConditionError:
                raise WarehouseError(
                    path=self._to,
                    reason="another run of kstreams-assets copy finished at the same time",
                    remedy="No data is lost. Run one copy at a time.",
                ) from None
            for table in plan.tables:
                self._put_hint(table)
        return now_ms

    def _require_same_mark(self) -> None:
        """Raise if the copy was promoted while files were copied."""
        found = read_mark(self._to)
        if found is None:
            raise WarehouseError(
                path=self._to,
                reason="the copy was promoted meanwhile and is now an independent warehouse",
                remedy="It was not changed. Copy to another place.",
            )

    def _put(self, staged: Path, table: str, name: str) -> None:
        """Copy a file of a log. Checkpoints have no recorded digest to compare."""
        copy_file(
            staged,
            self._to / table / LOG / name,
            size=staged.stat().st_size,
            digest=None,
            scratch=self._to / COPYING,
            limit=self._limit,
            replaces=False,
        )
        with self._counting:
            self._bytes += staged.stat().st_size

    def _put_marker(self) -> None:
        marker = self._to / MARKER
        if marker.exists():
            return
        try:
            text = (self._source.root / MARKER).read_text(encoding="utf-8")
        except FileNotFoundError:
            return  # earlier releases did not write this file
        store_at(marker).put_text(text)

    def _put_hint(self, table: TablePlan) -> None:
        """Write the hint from which readers start, after the mark is published."""
        if table.hint is None:
            return
        hint = self._to / table.name / LOG / HINT
        version = json.loads(table.hint).get("version", 0)
        names = log_files(self._to / table.name)
        is_there = any(CHECKPOINT.fullmatch(n) and version_of(n) == version for n in names)
        if version > table.version or not is_there:
            return
        with suppress(FileNotFoundError):
            if hint.read_bytes() == table.hint:
                return
        store_at(hint).put_file(table.hint)


def _kept(newest: CopyState, earlier: Sequence[CopyState]) -> tuple[CopyState, ...]:
    """Return the states whose files are kept: one per hour, the last one over a day old."""
    kept: list[CopyState] = []
    for state in (newest, *earlier):
        if kept and kept[-1].finished_at_ms - state.finished_at_ms < _HOUR_MS:
            continue
        kept.append(state)
        if state.finished_at_ms < newest.finished_at_ms - _DAY_MS:
            break
    return tuple(kept)


# --- One file -------------------------------------------------------------------------------------


def copy_file(
    source: StorePath,
    target: StorePath,
    *,
    size: int,
    digest: str | None,
    scratch: StorePath,
    limit: Throttle | None = None,
    replaces: bool,
) -> None:
    """Copy a file; compare the source with its digest and the target with the source.

    The target appears under its name only after the comparison.

    Args:
        source: File to copy.
        target: Path of the new file.
        size: Expected size (bytes).
        digest: Recorded SHA-256 (hex); None if none was recorded.
        scratch: A folder on the disk of the target.
        limit: Limits the copy rate.
        replaces: Whether a file exists at the target and is replaced.

    Raises:
        SourceFileError: The source is missing, unreadable or damaged.
        OSError: The target cannot be written.
    """
    pieces = _read(source, size, digest, limit)
    store_at(target).put_pieces(pieces, size, scratch=scratch, replaces=replaces)


def _read(
    source: StorePath, size: int, digest: str | None, limit: Throttle | None
) -> Iterator[bytes]:
    """Yield the file in pieces; raise at its end if size or digest differ."""
    read, size_read = hashlib.sha256(), 0
    for piece in _pieces(source, _PIECE if limit is None else min(_PIECE, limit.most_at_once)):
        if limit is not None:
            limit.wait(len(piece), 0)
        read.update(piece)
        size_read += len(piece)
        yield piece
    if size_read != size:
        raise SourceFileError(f"has {size_read:,} bytes instead of {size:,}")
    if digest is not None and read.hexdigest() != digest:
        raise SourceFileError(CHANGED)


def _pieces(source: StorePath, size: int) -> Iterator[bytes]:
    try:
        yield from store_at(source).pieces(size)
    except FileNotFoundError:
        raise SourceFileError(MISSING) from None
    except OSError as error:
        raise SourceFileError(f"cannot be read ({error.strerror or error})") from None
