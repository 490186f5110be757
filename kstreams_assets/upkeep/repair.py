"""Repairs damage that `verify` found, from a second copy or from Kafka.

Each repair is reported. Each damaged file is kept in the folder `_damaged` of the warehouse, with a
JSON file that describes the damage and the source of the replacement.
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
"""Folder of the warehouse for damaged files."""
_LOCK_WAIT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Repair:
    """Outcome of one repair.

    `source` is the origin of the replacement. It is None if the repair was not possible; then
    `problem` is the reason and `remedy` the next step. `digest` is the SHA-256 (hex) of a replaced
    file, `kept` the path of the damaged one.
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
        """Whether the damage is repaired."""
        return self.source is not None

    def __str__(self) -> str:
        what = self.damage.subject
        if self.file is not None and self.file != what:
            what += f", {self.file}"
        if not self.is_done:
            return f"{what}: not repaired: {self.problem.rstrip('.')}. {self.remedy}"
        text = f"{what} ({self.damage.problem.rstrip('.')}): repaired from {self.source}"
        text += "" if self.digest is None else f", SHA-256 {self.digest}"
        return text + ("." if self.kept is None else f"; the damaged file is kept as {self.kept}.")


@dataclass(frozen=True, slots=True)
class Repaired:
    """All repairs, and the verification after them."""

    repairs: tuple[Repair, ...]
    verification: Verification


@dataclass(frozen=True, slots=True)
class RepairJob:
    """Repairs the damage that a verification finds, as far as possible.

    A file is copied from the second copy if it has the recorded digest there. Otherwise its window
    is read from Kafka again; a snapshot is created again from the backups.

    Args:
        verify: Verification to run before and after the repairs. Its run id is stored with
            repaired files. Only damage that remains after the repairs is accepted.
        copy: A second copy of the warehouse.
        spark: Session that reads windows again if necessary.
    """

    verify: VerifyJob
    copy: StorePath | None
    spark: Spark

    def run(self) -> Repaired:
        """Verify, repair, and verify again.

        Raises:
            ConfigurationError: The warehouse is itself a copy.
            WarehouseError: The copy is incomplete, or the warehouse cannot be written.
        """
        found = replace(self.verify, accept="").run()
        if not found.damages:
            return Repaired((), found)
        root = self.verify.settings.warehouse.root
        if copy_mark(root) is not None:
            raise ConfigurationError(
                f"{root} is a copy. Only kstreams-assets copy writes to it.",
                remedy="Delete damaged files from the copy and run kstreams-assets copy. It copies"
                " files again that are missing or have another size.",
            )
        if self.copy is not None:
            copy_mark(self.copy)  # raises for an incomplete copy
        repairs = _Repairs(self).run(found.damages)
        return Repaired(repairs, self.verify.run())


class _Repairs:
    """The state of a running repair."""

    def __init__(self, job: RepairJob) -> None:
        self._settings, self._copy, self._spark = job.verify.settings, job.copy, job.spark
        self._run_id, self._log = job.verify.run_id, job.verify.log
        self._root = self._settings.warehouse.root
        self._repo = Repository.open(self._settings)
        self._done: list[Repair] = []

    def run(self, damages: Sequence[Damage]) -> tuple[Repair, ...]:
        # Tables first: they list the expected files.
        for damage in damages:
            if damage.kind in (DamageKind.WAREHOUSE, DamageKind.TABLE):
                self._report(self._of_table(damage))
        files = self._expected()
        windows: dict[tuple[str, str], list[Damage]] = {}
        snapshots: dict[tuple[str, str], list[Damage]] = {}
        handled: set[tuple[object, ...]] = set()
        for damage in damages:
            if damage.kind in (DamageKind.FILE, DamageKind.SNAPSHOT):
                if _span(damage) in handled:
                    continue  # listing and reading both find a missing file
                handled.add(_span(damage))
                if self._from_copy(damage, files):
                    continue
                if damage.kind is DamageKind.FILE:
                    key = (damage.window or "", damage.topic or "")
                    windows.setdefault(key, []).append(damage)
                else:
                    key = (damage.window or "", damage.store or "")
                    snapshots.setdefault(key, []).append(damage)
            elif damage.kind not in (DamageKind.WAREHOUSE, DamageKind.TABLE):
                self._report(
                    Repair(
                        damage,
                        None,
                        problem="single rows of a table cannot be repaired",
                        remedy=damage.remedy,
                    )
                )
        for (window, topic), of_window in windows.items():
            self._from_kafka(window, topic, of_window)
        for (window, store), of_snapshot in snapshots.items():
            self._from_backups(window, store, of_snapshot)
        return tuple(self._done)

    def _report(self, *repairs: Repair) -> None:
        for one in repairs:
            self._log(str(one))
            self._done.append(one)

    # --- Files of records and snapshots -----------------------------------------------------------

    def _expected(self) -> list[ExpectedFile]:
        return expected_files_of(self._settings.warehouse, self._settings.application_id)

    def _from_copy(self, damage: Damage, files: Sequence[ExpectedFile]) -> bool:
        """Replace the damaged files from the copy; return whether all of them were replaced."""
        if self._copy is None:
            return False
        of_it = {file.place: file for file in files if _is_of(file, damage)}
        bad = inspect([*of_it.values()], By.DIGEST)
        if not bad:
            return False  # the files are intact; the damage is in a log
        sources = [replace(of_it[one.place], table=self._copy / one.table) for one in bad]
        if inspect(sources, By.DIGEST):
            return False
        with self._locked():
            for one, source in zip(bad, sources, strict=True):
                path = of_it[one.place].location
                kept = self._replaced(
                    path, source.location, source.size, source.digest, one.problem
                )
                self._report(
                    Repair(damage, f"the copy ({source.location})", one.place, source.digest, kept)
                )
        return True

    def _name(self, path: StorePath) -> str:
        """Return a path relative to the warehouse."""
        return str(PurePosixPath(str(path)).relative_to(PurePosixPath(str(self._root))))

    def _replaced(
        self, path: StorePath, source: StorePath, size: int, digest: str | None, problem: str
    ) -> str | None:
        """Replace a damaged file; return where it is kept, None if it was missing."""
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
        """Copy a damaged file to the folder `_damaged`, with a description of the damage."""
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
        """Read a window of a topic again, if Kafka still has all backed-up records."""
        found, topics = self._window(window, topic), self._topics(topic)
        copy = "the copy has no intact file" if self._copy else "no second copy was given"
        if found is None or found.is_merged or not topics:
            kafka = "its window is not closed yet" if topics else "its topic is not backed up now"
            if found is not None and found.is_merged:
                kafka = "it was merged from windows whose records Kafka does not have any more"
            self._not_repaired(damages, f"{copy}, and {kafka}")
            return
        files = [
            file for file in self._expected() if any(_is_of(file, damage) for damage in damages)
        ]
        kept: dict[str, str | None] = {}
        source = f"Kafka (window {window} of {topic} is read again)"
        with storage_failures(self._root):
            for bad in inspect(files, By.DIGEST):
                kept[bad.place] = self._kept(self._root / bad.place, bad.problem, source, None)
        try:
            self._read_again(found, topics)
        except KStreamsAssetsError as error:
            self._not_repaired(damages, f"{copy}, and {error.problem}")
            return
        # The backup keeps its old files, without an error, if Kafka does not have the records.
        left = self._left(window, topic)
        for damage in damages:
            problem = left.get(damage.partition)
            if problem is not None:
                self._not_repaired(
                    [damage], f"{copy}, and Kafka does not have all records any more: {problem}"
                )
                continue
            aside = [kept.get(file.place) for file in files if _is_of(file, damage)]
            source = f"Kafka (window {window} was read again)"
            self._report(Repair(damage, source, kept=next((k for k in aside if k), None)))

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
        """Return the remaining damage of a window of a topic, by partition."""
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
        self._report(*(Repair(d, None, problem=problem, remedy=d.remedy) for d in damages))

    def _window(self, key: str, topic: str) -> Window | None:
        ledger = self._repo.ledger
        entries = ledger.entries(windows=[key], topics=[topic])
        entries = entries or self._increments(key, topic)
        return entries[0].result.plan.window if entries else None

    def _increments(self, window: str, topic: str) -> list[LedgerEntry]:
        """Return the increments of an open window."""
        ledger = self._repo.ledger
        rows = ledger.entries(topics=[topic], increments=True)
        return [row for row in rows if row.result.plan.window.first_window == window]

    def _topics(self, name: str) -> tuple[AppTopic, ...]:
        return tuple(topic for topic in self._settings.topics if topic.name == name)

    def _from_backups(self, window: str, store: str, damages: Sequence[Damage]) -> None:
        """Create a snapshot again from the backups."""
        table = self._repo.snapshots
        of_store = table.of(stores=[store], windows=[window])
        if not of_store:
            self._not_repaired(damages, "the snapshot does not exist any more")
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
            self._not_repaired(damages, "no snapshot was created")
            return
        self._report(*(Repair(d, "the backups (the snapshot was created again)") for d in damages))

    # --- Control tables ---------------------------------------------------------------------------

    def _of_table(self, damage: Damage) -> Repair:
        """Restore a file of a control table, or of its log, from the copy."""
        if self._copy is None:
            return Repair(damage, None, problem="no second copy was given", remedy=damage.remedy)
        place, table, file = damage.place, damage.table, damage.file
        is_marker = place == MARKER
        if not file and not is_marker:
            return Repair(
                damage, None, problem="the damage is not in a single file", remedy=damage.remedy
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
    """Whether a file belongs to a damage."""
    if file.kind is not damage.kind or file.window != damage.window:
        return False
    if damage.kind is DamageKind.SNAPSHOT:
        return file.store == damage.store
    return file.span == damage.span


def _span(damage: Damage) -> tuple[object, ...]:
    """Return the identity of the part that is repaired as a whole."""
    return (damage.kind, damage.store, *damage.span)


REPAIR: Final = Form(
    Repair,
    Value("repaired", of="is_done"),
    Value("damage", form=DAMAGE),
    "source file digest kept problem remedy",
    omits_empty=True,
)
REPAIRED: Final = Form(Repaired, *VERIFICATION.part("verification"), Value("repairs", form=REPAIR))
