"""Puts back what a look at the warehouse has found damaged: from a second copy, or from Kafka.

Nothing is repaired silently, and nothing is lost by it: each damaged file is kept aside, below
`_damaged` in the warehouse, with a note of what was wrong and what was put in its place.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Final

from kstreams_assets.app.model import AppTopic
from kstreams_assets.backup.merge import damaged_entries
from kstreams_assets.backup.run import BackupJob
from kstreams_assets.copy_mark import copy_mark
from kstreams_assets.errors import ConfigurationError, KStreamsAssetsError
from kstreams_assets.ktables.run import make_snapshots
from kstreams_assets.layout import MARKER
from kstreams_assets.lease import warehouse_lock
from kstreams_assets.model.damage import DAMAGE, Damage, DamageKind
from kstreams_assets.model.data_files import By, ExpectedFile
from kstreams_assets.model.files import digest_in
from kstreams_assets.model.recordings import LedgerEntry
from kstreams_assets.model.spans import Window
from kstreams_assets.model.tables import Lock
from kstreams_assets.public_form import Form, Value
from kstreams_assets.repository.expected_files import expected_files_of
from kstreams_assets.repository.inspection import inspect
from kstreams_assets.repository.repository import Repository
from kstreams_assets.store import (
    StorePath,
    disk_name,
    duplicate,
    file_digest,
    make_durable,
    store_at,
)
from kstreams_assets.store.failures import storage_failures
from kstreams_assets.texts import iso_time
from kstreams_assets.upkeep.copy import SourceFileError, copy_file
from kstreams_assets.upkeep.public import VERIFICATION
from kstreams_assets.upkeep.verify import Verification, VerifyJob
from spark_resources.work import Spark

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


@dataclass(frozen=True, slots=True)
class Repaired:
    """What became of each damage that was found, and what is found after that."""

    repairs: tuple[Repair, ...]
    verification: Verification


@dataclass(frozen=True, slots=True)
class RepairJob:
    """Repairs what a look finds damaged, as far as it can be.

    A file is taken from the copy if it has the digest that was noted of the damaged one. Else its
    window is read again from Kafka, a snapshot made again from the backups.

    Args:
        look: What is looked at, before and after; the id of its run is noted with what is written
            anew, and only what is found after repairs is accepted as lost.
        copy: A second copy of the warehouse.
        spark: Where windows are read again, if need be.
    """

    look: VerifyJob
    copy: StorePath | None
    spark: Spark

    def run(self) -> Repaired:
        """Look, repair what is damaged, and look again.

        Raises:
            ConfigurationError: The warehouse is itself a copy.
            WarehouseError: The copy is not to be used, or the warehouse cannot be written.
        """
        found = replace(self.look, accept="").run()
        if not found.damages:
            return Repaired((), found)
        root = self.look.settings.warehouse.root
        if copy_mark(root) is not None:
            raise ConfigurationError(
                f"{root} is a copy, which only kstreams-assets copy writes.",
                remedy="Run kstreams-assets copy: it copies again what is missing or has another"
                " size. Remove a damaged file of the copy first.",
            )
        if self.copy is not None:
            copy_mark(self.copy)  # refuses an unfinished one
        repairs = _Repairs(self).made(found.damages)
        return Repaired(repairs, self.look.run())


class _Repairs:
    """What is known while it is repaired."""

    def __init__(self, job: RepairJob) -> None:
        self._settings, self._copy, self._spark = job.look.settings, job.copy, job.spark
        self._run_id, self._log = job.look.run_id, job.look.log
        self._root = self._settings.warehouse.root
        self._repo = Repository.open(self._settings)
        self._done: list[Repair] = []

    def made(self, damages: Sequence[Damage]) -> tuple[Repair, ...]:
        # Tables first: without them it is not known what files there ought to be.
        for damage in damages:
            if damage.kind in (DamageKind.WAREHOUSE, DamageKind.TABLE):
                self._note(self._of_table(damage))
        files = self._expected()
        windows: dict[tuple[str, str], list[Damage]] = {}
        snapshots: dict[tuple[str, str], list[Damage]] = {}
        known: set[tuple[object, ...]] = set()
        for damage in damages:
            if damage.kind in (DamageKind.FILE, DamageKind.SNAPSHOT):
                if _span(damage) in known:
                    continue  # a missing file is found by its name, and by whoever reads it
                known.add(_span(damage))
                if self._from_copy(damage, files):
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

    def _expected(self) -> list[ExpectedFile]:
        return expected_files_of(self._settings.warehouse, self._settings.application_id)

    def _from_copy(self, damage: Damage, files: Sequence[ExpectedFile]) -> bool:
        """Whether every file that is not as it was written was put back from the copy."""
        if self._copy is None:
            return False
        of_it = {file.place: file for file in files if _is_of(file, damage)}
        bad = inspect([*of_it.values()], By.DIGEST)
        if not bad:
            return False  # what is wrong is no file, but what a log says of it
        sources = [replace(of_it[one.place], table=self._copy / one.table) for one in bad]
        if inspect(sources, By.DIGEST):
            return False
        with self._locked():
            for one, source in zip(bad, sources, strict=True):
                path = of_it[one.place].location
                kept = self._replaced(
                    path, source.location, source.size, source.digest, one.problem
                )
                self._note(
                    Repair(damage, f"the copy ({source.location})", one.place, source.digest, kept)
                )
        return True

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
        store_at(self._root / f"{name}.json").put_text(json.dumps(facts, indent=1) + "\n")
        return name

    def _locked(self) -> Any:  # noqa: ANN401 (a context)
        settings = self._settings
        return self._repo.lock(
            Lock.APPLICATION,
            purpose=f"repair {self._run_id}",
            wait_s=settings.backup.lock_wait_seconds,
        )

    def _from_kafka(self, window: str, topic: str, damages: Sequence[Damage]) -> None:
        """Read a topic's part of a window again, if Kafka still has all that was backed up."""
        found, topics = self._window(window, topic), self._topics(topic)
        nowhere = "the copy has no good file of it" if self._copy else "no copy was given"
        if found is None or found.is_merged or not topics:
            told = "its window is not closed yet" if topics else "its topic is not backed up now"
            if found is not None and found.is_merged:
                told = "it was merged from windows whose records Kafka no longer has"
            self._not_repaired(damages, f"{nowhere}, and {told}")
            return
        files = [
            file for file in self._expected() if any(_is_of(file, damage) for damage in damages)
        ]
        kept: dict[str, str | None] = {}
        told = f"Kafka (window {window} of {topic} is read again)"
        with storage_failures(self._root):
            for bad in inspect(files, By.DIGEST):
                kept[bad.place] = self._kept(self._root / bad.place, bad.problem, told, None)
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
            aside = [kept.get(file.place) for file in files if _is_of(file, damage)]
            told = f"Kafka (window {window} was read again)"
            self._note(Repair(damage, told, kept=next((k for k in aside if k), None)))

    def _read_again(self, window: Window, topics: tuple[AppTopic, ...]) -> None:
        settings = self._settings
        job = BackupJob(settings, self._spark, self._run_id, topics)
        if window.is_increment:
            rows = self._increments(window.first_window, topics[0].name)
            path = settings.warehouse.records(settings.application_id)
            damaged = damaged_entries(path, rows)
            job.read_again(damaged)
        else:
            job.run([window])

    def _left(self, window: str, topic: str) -> dict[int | None, str]:
        """What is wrong with a topic's part of a window now, by partition."""
        ledger = self._repo.ledger
        rows = [] if ledger.of_windows([window]) else self._increments(window, topic)
        keys = {window, *(row.result.plan.window.key for row in rows)}
        left: dict[int | None, str] = {
            span.partition: span.problem for span in ledger.damaged([topic], windows=keys)
        }
        files = [
            file
            for file in self._expected()
            if (file.kind, file.window, file.topic) == (DamageKind.FILE, window, topic)
        ]
        for bad in inspect(files, By.DIGEST):
            left.setdefault(bad.partition, bad.problem)
        return left

    def _not_repaired(self, damages: Sequence[Damage], problem: str) -> None:
        self._note(*(Repair(d, None, problem=problem, remedy=d.remedy) for d in damages))

    def _window(self, key: str, topic: str) -> Window | None:
        ledger = self._repo.ledger
        entries = ledger.entries(windows=[key], topics=[topic])
        entries = entries or self._increments(key, topic)
        return entries[0].result.plan.window if entries else None

    def _increments(self, window: str, topic: str) -> list[LedgerEntry]:
        """Those of a window that is not closed yet."""
        ledger = self._repo.ledger
        rows = ledger.entries(topics=[topic], increments=True)
        return [row for row in rows if row.result.plan.window.first_window == window]

    def _topics(self, name: str) -> tuple[AppTopic, ...]:
        return tuple(topic for topic in self._settings.topics if topic.name == name)

    def _made_again(self, window: str, store: str, damages: Sequence[Damage]) -> None:
        """Make a snapshot again, from the backups."""
        table = self._repo.snapshots
        of_store = table.of(stores=[store], windows=[window])
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
        place, table, file = damage.place, damage.table, damage.file
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
            if not is_marker and any(p.place == place for p in self._problems(table)):
                self._put_back(path, before)
                problem = "the file of the copy did not repair the table; nothing was changed"
                return Repair(damage, None, kept=kept, problem=problem, remedy=damage.remedy)
        return Repair(damage, f"the copy ({source})", place, found, kept)

    def _problems(self, table: str) -> list[Damage]:
        return self._repo.control_tables.problems(table)

    def _put_back(self, path: StorePath, before: bytes | None) -> None:
        with storage_failures(self._root):
            if before is None:
                path.unlink()
            else:
                store_at(path).put_file(before)

    @contextmanager
    def _table_locked(self, table: str, *, is_marker: bool) -> Iterator[None]:
        lock = self._root / ".locks" / "tables" / f"{table}.lock"
        is_locked = not is_marker and not store_at(self._root).is_conditional
        held = (
            warehouse_lock(lock, purpose=f"repair {self._run_id}", wait_s=_LOCK_WAIT_S)
            if is_locked
            else nullcontext()
        )
        with held:
            yield


def _is_of(file: ExpectedFile, damage: Damage) -> bool:
    """Whether what is noted of a file is of what was found damaged."""
    if file.kind is not damage.kind or file.window != damage.window:
        return False
    if damage.kind is DamageKind.SNAPSHOT:
        return file.store == damage.store
    return file.span == damage.span


def _span(damage: Damage) -> tuple[object, ...]:
    """What is repaired as a whole."""
    return (damage.kind, damage.store, *damage.span)


REPAIR: Final = Form(
    Repair,
    Value("repaired", of="is_done"),
    Value("damage", form=DAMAGE),
    "source file digest kept problem remedy",
    omits_empty=True,
)
REPAIRED: Final = Form(Repaired, *VERIFICATION.part("verification"), Value("repairs", form=REPAIR))
