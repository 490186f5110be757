"""Puts back what a look at the warehouse has found damaged: from a second copy, or from Kafka.

Nothing is repaired silently, and nothing is lost by it: each damaged file is kept aside, below
`_damaged` in the warehouse, with a note of what was wrong and what was put in its place.
"""

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from kstreams_assets.app.model import AppTopic
from kstreams_assets.backup.fold import damaged_entries
from kstreams_assets.backup.run import back_up, read_increments_again
from kstreams_assets.copy_mark import copy_mark
from kstreams_assets.errors import ConfigurationError, KStreamsAssetsError
from kstreams_assets.ktables.run import make_snapshots
from kstreams_assets.ktables.snapshots_table import SnapshotsTable
from kstreams_assets.layout import content_problem
from kstreams_assets.lease import warehouse_lock
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store import (
    ObjectPath,
    StorePath,
    disk_name,
    duplicate,
    file_digest,
    make_durable,
    put_file,
    put_text,
)
from kstreams_assets.texts import iso_time
from kstreams_assets.upkeep.contents import noted_files
from kstreams_assets.upkeep.copy import SourceFileError, copy_file
from kstreams_assets.upkeep.reading import NotedFile
from kstreams_assets.warehouse.calendar import WindowCalendar
from kstreams_assets.warehouse.chain import digest_in, table_problems
from kstreams_assets.warehouse.ledger import INCREMENT, Ledger, LedgerEntry
from kstreams_assets.warehouse.spans import Window
from kstreams_assets.warehouse.table import MARKER, storage_failures
from kstreams_assets.warehouse.verifications import Damage, DamageKind
from spark_resources.work import Spark

_log = logging.getLogger(__name__)

DAMAGED: Final = "_damaged"
"""The folder of the warehouse in which damaged files are kept."""
_LOCK_WAIT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Repair:
    """What became of one damage.

    `source` is where what is there now came from, None: it could not be repaired, and `problem`
    says why, `remedy` what to do. `digest` is the SHA-256 of the file that was put in its place
    (hex), where one was; `kept` where the damaged one is now.
    """

    damage: Damage
    source: str | None
    file: str | None = None
    digest: str | None = None
    kept: str | None = None
    problem: str = ""
    remedy: str = ""

    @property
    def is_done(self) -> bool:
        """Whether it is repaired."""
        return self.source is not None

    def __str__(self) -> str:
        what = self.damage.subject
        if self.file is not None and self.file != what:
            what += f", {self.file}"
        if not self.is_done:
            return f"{what}: not repaired: {self.problem.rstrip('.')}. {self.remedy}"
        told = f"{what} ({self.damage.problem.rstrip('.')}): repaired from {self.source}"
        told += "" if self.digest is None else f", SHA-256 {self.digest}"
        return told + ("." if self.kept is None else f"; the damaged file is kept as {self.kept}.")

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        told = {name: value for name, value in asdict(self).items() if name != "damage" and value}
        return {"repaired": self.is_done, "damage": self.damage.document(), **told}


def repair(
    settings: ApplicationSettings,
    damages: Iterable[Damage],
    *,
    copy: StorePath | None,
    spark: Spark,
    run_id: str,
    log: Callable[[str], None] = _log.info,
) -> tuple[Repair, ...]:
    """Repair what was found damaged, as far as it can be; what became of each.

    A file is taken from the copy if it has the digest that was noted of the damaged one. Else its
    window is read again from Kafka, a snapshot made again from the backups.

    Args:
        settings: The application.
        damages: What `verify` has found.
        copy: A second copy of the warehouse.
        spark: Where windows are read again, if need be.
        run_id: Is noted with what is written anew.
        log: Takes a line on each.

    Raises:
        ConfigurationError: The warehouse is itself a copy.
        WarehouseError: The copy is not to be used, or the warehouse cannot be written.
    """
    if copy_mark(settings.warehouse.root) is not None:
        raise ConfigurationError(
            f"{settings.warehouse.root} is a copy, which only kstreams-assets copy writes.",
            remedy="Run kstreams-assets copy: it copies again what is missing or has another size."
            " Remove a damaged file of the copy first.",
        )
    if copy is not None:
        copy_mark(copy)  # refuses an unfinished one
    run = _Repairs(settings, copy, spark, run_id, log)
    return run.made(list(damages))


class _Repairs:
    """What is known while it is repaired."""

    def __init__(
        self,
        settings: ApplicationSettings,
        copy: StorePath | None,
        spark: Spark,
        run_id: str,
        log: Callable[[str], None],
    ) -> None:
        self._settings, self._copy, self._spark = settings, copy, spark
        self._run_id, self._log = run_id, log
        self._root = settings.warehouse.root
        self._done: list[Repair] = []

    def made(self, damages: Sequence[Damage]) -> tuple[Repair, ...]:
        # Tables first: without them it is not known what files there ought to be.
        for damage in damages:
            if damage.kind in (DamageKind.WAREHOUSE, DamageKind.TABLE):
                self._note(self._of_table(damage))
        noted = noted_files(self._settings)
        windows: dict[tuple[str, str], list[Damage]] = {}
        snapshots: dict[tuple[str, str], list[Damage]] = {}
        known: set[tuple[object, ...]] = set()
        for damage in damages:
            if damage.kind in (DamageKind.FILE, DamageKind.SNAPSHOT):
                if _span(damage) in known:
                    continue  # a missing file is found by its name, and by whoever reads it
                known.add(_span(damage))
                if self._from_copy(damage, noted):
                    continue
                if damage.kind is DamageKind.FILE:
                    key = (damage.window or "", damage.topic or "")
                    windows.setdefault(key, []).append(damage)
                else:
                    key = (damage.window or "", damage.store or "")
                    snapshots.setdefault(key, []).append(damage)
            elif damage.kind not in (DamageKind.WAREHOUSE, DamageKind.TABLE):
                self._note(
                    Repair(
                        damage,
                        None,
                        problem="rows of a table are not repaired one by one",
                        remedy=damage.remedy,
                    )
                )
        for (window, topic), of_window in windows.items():
            self._from_kafka(window, topic, of_window)
        for (window, store), of_snapshot in snapshots.items():
            self._made_again(window, store, of_snapshot)
        return tuple(self._done)

    def _note(self, *repairs: Repair) -> None:
        for one in repairs:
            self._log(str(one))
            self._done.append(one)

    # --- Files of records and snapshots -----------------------------------------------------------

    def _from_copy(self, damage: Damage, noted: Sequence[NotedFile]) -> bool:
        """Whether every file that is not as it was written was put back from the copy."""
        if self._copy is None:
            return False
        bad = [
            (file, problem)
            for file in noted
            if _is_of(file.damage, damage) and (problem := content_problem(file.path, file.digest))
        ]
        if not bad:
            return False  # what is wrong is no file, but what a log says of it
        good = [self._source_of(file.path, file.digest) for file, _ in bad]
        if any(one is None for one in good):
            return False
        with self._locked():
            for (file, problem), source in zip(bad, good, strict=True):
                assert source is not None  # noqa: S101 - see above
                kept = self._replaced(file.path, source, file.size, file.digest, problem)
                self._note(
                    Repair(damage, f"the copy ({source})", self._name(file.path), file.digest, kept)
                )
        return True

    def _source_of(self, path: StorePath, digest: str) -> StorePath | None:
        """The file of the copy, if it is the one that was written."""
        if self._copy is None:
            return None
        source = self._copy / self._name(path)
        with suppress(OSError):
            if file_digest(source) == digest:
                return source
        return None

    def _name(self, path: StorePath) -> str:
        """A path below the warehouse."""
        return str(PurePosixPath(str(path)).relative_to(PurePosixPath(str(self._root))))

    def _replaced(
        self, path: StorePath, source: StorePath, size: int, digest: str | None, problem: str
    ) -> str | None:
        """Put a file in place of a damaged one; where that is kept, None if there was none."""
        with storage_failures(self._root):
            kept = self._kept(path, problem, str(source), digest)
            try:
                copy_file(
                    source,
                    path,
                    size=size,
                    digest=digest,
                    scratch=self._settings.warehouse.staging("repair"),
                    replaces=True,
                )
            except SourceFileError as error:
                raise OSError(5, str(error), str(source)) from None
        return kept

    def _kept(self, path: StorePath, problem: str, source: str, digest: str | None) -> str | None:
        """Keep a damaged file aside, with a note; it stays where it is, too."""
        if not path.is_file():
            return None
        folder, _, file = self._name(path).rpartition("/")
        name = f"{DAMAGED}/{folder}/{disk_name(file)}.{time.time_ns() // 1_000_000}"
        aside = self._root / name
        aside.parent.mkdir(parents=True, exist_ok=True)
        duplicate(path, aside)
        make_durable([aside])
        facts = {
            "file": self._name(path),
            "problem": problem,
            "replaced_from": source,
            "digest": digest,
            "at": iso_time(time.time_ns() // 1_000_000),
            "run_id": self._run_id,
        }
        put_text(self._root / f"{name}.json", json.dumps(facts, indent=1) + "\n")
        return name

    def _locked(self) -> Any:  # noqa: ANN401 (a context)
        settings = self._settings
        return warehouse_lock(
            settings.warehouse.lock_file(settings.application_id),
            purpose=f"repair {self._run_id}",
            wait_s=settings.backup.lock_wait_s,
        )

    def _from_kafka(self, window: str, topic: str, damages: Sequence[Damage]) -> None:
        """Read a topic's part of a window again, if Kafka still has all that was backed up."""
        found, topics = self._window(window, topic), self._topics(topic)
        nowhere = "the copy has no good file of it" if self._copy else "no copy was given"
        if found is None or not topics:
            told = "its window is not closed yet" if topics else "its topic is not backed up now"
            if "~" in window:
                told = "it was put together from windows whose records Kafka no longer has"
            self._not_repaired(damages, f"{nowhere}, and {told}")
            return
        files = [f for f in noted_files(self._settings) if _is_any_of(f.damage, damages)]
        kept: dict[str, str | None] = {}
        with storage_failures(self._root):
            for file in files:
                problem = content_problem(file.path, file.digest)
                told = f"Kafka (window {window} of {topic} is read again)"
                aside = self._kept(file.path, problem, told, None) if problem else None
                kept[file.damage.place] = aside
        try:
            self._read_again(found, topics)
        except KStreamsAssetsError as error:
            self._not_repaired(damages, f"{nowhere}, and {error.problem}")
            return
        # A topic's part that Kafka cannot give any more is kept as it was, without an error.
        left = self._left(window, topic)
        for damage in damages:
            problem = left.get(damage.partition)
            if problem is not None:
                self._not_repaired(
                    [damage], f"{nowhere}, and Kafka does not have all of it any more: {problem}"
                )
                continue
            aside = [kept[f.damage.place] for f in files if _is_of(f.damage, damage)]
            told = f"Kafka (window {window} was read again)"
            self._note(Repair(damage, told, kept=next((k for k in aside if k), None)))

    def _read_again(self, window: Window, topics: tuple[AppTopic, ...]) -> None:
        settings, run_id = self._settings, self._run_id
        if INCREMENT in window.key:
            rows = self._increments(window.key.partition(INCREMENT)[0], topics[0].name)
            path = settings.warehouse.records(settings.application_id)
            damaged = damaged_entries(path, rows)
            read_increments_again(
                settings, damaged, topics=topics, spark=self._spark, run_id=run_id
            )
            return
        back_up(
            settings,
            [window],
            topics=topics,
            newest_closed=WindowCalendar(settings.windows).newest_closed(),
            spark=self._spark,
            run_id=run_id,
        )

    def _left(self, window: str, topic: str) -> dict[int | None, str]:
        """What is wrong with a topic's part of a window now, by partition."""
        settings = self._settings
        ledger = Ledger(settings.warehouse, settings.application_id)
        rows = [] if ledger.of_windows([window]) else self._increments(window, topic)
        keys = {window, *(row.result.plan.window.key for row in rows)}
        left: dict[int | None, str] = {
            span.partition: span.problem for span in ledger.damaged([topic], windows=keys)
        }
        for file in noted_files(settings):
            about = file.damage
            if (about.kind, about.window, about.topic) == (DamageKind.FILE, window, topic):
                problem = content_problem(file.path, file.digest)
                if problem:
                    left.setdefault(about.partition, problem)
        return left

    def _not_repaired(self, damages: Sequence[Damage], problem: str) -> None:
        self._note(*(Repair(d, None, problem=problem, remedy=d.remedy) for d in damages))

    def _window(self, key: str, topic: str) -> Window | None:
        ledger = Ledger(self._settings.warehouse, self._settings.application_id)
        entries = ledger.entries(windows=[key], topics=[topic])
        entries = entries or self._increments(key, topic)
        return None if not entries or "~" in key else entries[0].result.plan.window

    def _increments(self, window: str, topic: str) -> list[LedgerEntry]:
        """Those of a window that is not closed yet."""
        ledger = Ledger(self._settings.warehouse, self._settings.application_id)
        rows = ledger.entries(topics=[topic], increments=True)
        return [row for row in rows if row.result.plan.window.key.partition(INCREMENT)[0] == window]

    def _topics(self, name: str) -> tuple[AppTopic, ...]:
        return tuple(topic for topic in self._settings.topics if topic.name == name)

    def _made_again(self, window: str, store: str, damages: Sequence[Damage]) -> None:
        """Make a snapshot again, from the backups."""
        table = SnapshotsTable(self._settings.warehouse)
        of_store = table.of(self._settings.application_id, stores=[store], windows=[window])
        if not of_store:
            self._not_repaired(damages, "there is no such snapshot any more")
            return
        try:
            made = make_snapshots(
                self._settings,
                [of_store[0].window],
                stores=[store],
                spark=self._spark,
                run_id=self._run_id,
                log=self._log,
            )
        except KStreamsAssetsError as error:
            self._not_repaired(damages, error.problem)
            return
        if not made:
            self._not_repaired(damages, "nothing was made")
            return
        self._note(*(Repair(d, "the backups (the snapshot was made again)") for d in damages))

    # --- Control tables ---------------------------------------------------------------------------

    def _of_table(self, damage: Damage) -> Repair:
        """Put a file of a control table, or of its log, back from the copy."""
        if self._copy is None:
            return Repair(damage, None, problem="no copy was given", remedy=damage.remedy)
        place = damage.place
        table, _, file = place.partition("/")
        is_marker = place == MARKER
        if not file and not is_marker:
            return Repair(
                damage, None, problem="it is not one file that is damaged", remedy=damage.remedy
            )
        source, path, digest = self._copy / place, self._root / place, digest_in(place)
        try:
            size, found = source.stat().st_size, file_digest(source)
        except OSError:
            problem = "the copy does not have this file"
            return Repair(damage, None, problem=problem, remedy=damage.remedy)
        if digest not in (None, found):
            problem = "the copy's file is damaged, too"
            return Repair(damage, None, problem=problem, remedy=damage.remedy)
        with self._table_locked(table, is_marker=is_marker):
            before = None if not path.is_file() else path.read_bytes()
            kept = self._replaced(path, source, size, found, damage.problem)
            if not is_marker and any(p.file == file for p in self._problems(table)):
                self._put_back(path, before)
                problem = "with the copy's file the table is no better: it is left as it was"
                return Repair(damage, None, kept=kept, problem=problem, remedy=damage.remedy)
        return Repair(damage, f"the copy ({source})", place, found, kept)

    def _problems(self, table: str) -> list[Any]:
        with storage_failures(self._root):
            return table_problems(self._root / table, table, read=True)

    def _put_back(self, path: StorePath, before: bytes | None) -> None:
        with storage_failures(self._root):
            if before is None:
                path.unlink()
            else:
                put_file(path, before)

    @contextmanager
    def _table_locked(self, table: str, *, is_marker: bool) -> Iterator[None]:
        lock = self._root / ".locks" / "tables" / f"{table}.lock"
        is_locked = not is_marker and not isinstance(self._root, ObjectPath)
        held = (
            warehouse_lock(lock, purpose=f"repair {self._run_id}", wait_s=_LOCK_WAIT_S)
            if is_locked
            else nullcontext()
        )
        with held:
            yield


def _is_of(file: Damage, damage: Damage) -> bool:
    """Whether what is noted of a file is of what was found damaged."""
    if file.kind is not damage.kind or file.window != damage.window:
        return False
    if damage.kind is DamageKind.SNAPSHOT:
        return file.store == damage.store
    return (file.topic, file.partition, file.start) == (
        damage.topic,
        damage.partition,
        damage.start,
    )


def _span(damage: Damage) -> tuple[object, ...]:
    """What is repaired as a whole."""
    place = damage.partition, damage.start
    return (damage.kind, damage.window, damage.topic, damage.store, *place)


def _is_any_of(file: Damage, damages: Sequence[Damage]) -> bool:
    return any(_is_of(file, damage) for damage in damages)
