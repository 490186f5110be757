"""`verify`: check the files and tables of an application for damage."""

import json
import logging
import math
import time
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from kstreams_assets.checks import Severity
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.kafka.throttle import throttle as throttle_of
from kstreams_assets.model.damage import (
    DAMAGE,
    Damage,
    DamageKind,
    Head,
    StoredVerification,
    VerificationKind,
    heads_text,
)
from kstreams_assets.model.data_files import ExpectedFile
from kstreams_assets.repository.expected_files import expected_files_of
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.table import newest_commit
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store import store_at
from kstreams_assets.texts import bytes_text
from kstreams_assets.upkeep.contents import (
    paying,
    read_files,
    unsound_maps,
    unsound_points,
    unsound_records,
)
from kstreams_assets.upkeep.quick_checks import quick_damages, with_lost_points, with_remedies
from spark_resources.work import Spark

_log = logging.getLogger(__name__)

SETTLE_S: Final = 10.0
"""Findings are checked again for this time, because a writer may be between two commits."""
_FIRST_PAUSE_S: Final = 0.5
_MOST: Final = 1_000
"""Maximum number of listed damages."""
_READ: Final = frozenset({DamageKind.FILE, DamageKind.SNAPSHOT})


@dataclass(frozen=True, slots=True)
class Verification:
    """Result of a verification; `files` and `bytes` count files whose contents were read.

    `damages` were found now, or were found earlier and confirmed now. `unrecorded` is the reason
    why the result was not stored, empty if it was.
    """

    application_id: str
    kind: VerificationKind
    sample: float
    began_at_ms: int
    took_ms: int
    files: int
    bytes: int
    damages: tuple[Damage, ...]
    covered_since_ms: int | None = None
    unrecorded: str = ""

    @property
    def errors(self) -> tuple[Damage, ...]:
        """Damages that prevent a restore."""
        return tuple(one for one in self.damages if one.severity is Severity.ERROR)

    @property
    def sound(self) -> bool:
        """Whether no damage prevents a restore."""
        return not self.errors


@dataclass(frozen=True, slots=True)
class VerifyJob:
    """Verifies the backups of an application and stores one row with the result.

    Args:
        full: Read file contents as well.
        sample: Share of record and KTable files to read with `full`, in (0, 1]. Files that were
            read least recently come first, so that 1/sample runs read all of them.
        bytes_per_s: Maximum read rate.
        public_key: Compare signatures of the control tables with this key (Ed25519, PEM).
        spark: Read files in tasks of this session; None: in threads of this process.
        record: Store the result.
        run_id: Run id to store with the result.
        settle_s: Check findings again for this time (seconds, default 10), because a running
            backup may be between two commits.
        accept: Reason to accept all findings as permanent; empty: they are not accepted.
        log: Called with lines about the progress.
    """

    settings: ApplicationSettings
    full: bool = False
    sample: float = 1.0
    bytes_per_s: int | None = None
    public_key: Path | None = None
    spark: Spark | None = None
    record: bool = True
    run_id: str = ""
    settle_s: float | None = None
    accept: str = ""
    log: Callable[[str], None] = _log.info

    def run(self) -> Verification:
        """Verify, store the result, and return it.

        Raises:
            WarehouseError: The warehouse does not exist or cannot be read.
            NewerLayoutError: A newer release wrote it.
        """
        inspection = _Inspection(self)
        result = inspection.verify()
        return inspection.recorded(result) if self.record else result


@dataclass(frozen=True, slots=True)
class _Turn:
    """The part of the files that a sampled verification reads."""

    rounds: int = 1
    number: int = 0

    def takes(self, file: ExpectedFile) -> bool:
        """Return whether a file is in this part; a file never changes its part."""
        return zlib.crc32(f"{file.table}/{file.path}".encode()) % self.rounds == self.number


def turn_of(before: Sequence[StoredVerification], sample: float) -> _Turn:
    """Return the part that was read least recently; `before` are earlier results, newest first."""
    rounds = max(1, math.ceil(1 / sample - 1e-9))
    times = _read_at(before, rounds)
    return _Turn(rounds, min(range(rounds), key=lambda number: times.get(number, -1)))


def _read_at(before: Sequence[StoredVerification], rounds: int) -> dict[int, int]:
    """Return the time (epoch milliseconds) at which each part was last read."""
    times: dict[int, int] = {}
    for row in before:
        if row.kind is VerificationKind.FULL and row.rounds in (1, rounds):
            for number in range(rounds) if row.rounds == 1 else (row.round,):
                times.setdefault(number, row.verified_at_ms)
    return times


def covered_since(before: Sequence[StoredVerification], turn: _Turn, now_ms: int) -> int | None:
    """Return the time since which every part was read, if `turn` is read now; None: not all."""
    times = _read_at(before, turn.rounds) | {turn.number: now_ms}
    return min(times.values()) if len(times) == turn.rounds else None


class _Inspection:
    """A running verification."""

    def __init__(self, job: VerifyJob) -> None:
        self._job, self._settings, self._log = job, job.settings, job.log
        self._settle_s = SETTLE_S if job.settle_s is None else job.settle_s
        self._throttle = throttle_of("verify", job.bytes_per_s, None, tasks=None)
        self._repo = Repository.open(job.settings)
        self._require_there()
        self._began = time.monotonic()
        self._began_at_ms = time.time_ns() // 1_000_000
        self._before = self._earlier()
        self._turn = turn_of(self._before, job.sample) if job.full else _Turn()
        newest = self._before[0] if self._before else None
        self._seen = None if newest is None else newest.seen_heads
        self._open = () if newest is None else newest.damages
        # Read these first: commits during the verification are newer.
        self._heads = self._repo.control_tables.heads()
        self._files = self._bytes = 0

    def _require_there(self) -> None:
        if not self._repo.warehouse.exists:
            self._repo.require_backup()

    def _earlier(self) -> list[StoredVerification]:
        try:
            return self._repo.verifications.all()
        except KStreamsAssetsError as error:
            self._log(f"Earlier verifications cannot be read: {error}")
            return []

    def _heads_after(self, damages: Sequence[Damage]) -> dict[str, Head]:
        """Return the heads for the next verification; a damaged table keeps its earlier head."""
        damaged = {
            one.table for one in damages if one.kind is DamageKind.TABLE and not one.accepted
        }
        seen = self._seen or {}
        return {**self._heads, **{name: seen[name] for name in damaged & seen.keys()}}

    def verify(self) -> Verification:
        """Run all checks and return the result."""
        found = self._settled(self._quick(), lambda _: self._quick())
        if found:
            self._log(f"Found so far: {len(found):,}, the first of them: {found[0].finding}")
        missed = {_span(one) for one in found}
        read = [
            one
            for one in self._first_read()
            if _span(one) not in missed or not one.problem.endswith("is missing")
        ]
        found += self._settled(read, lambda seen: self._read(seen, everything=False))
        settings = self._settings
        first = {one.identity: one for one in reversed(found)}
        listed = [one for one in found if first[one.identity] is one][:_MOST]
        listed = self._accepted(with_remedies(settings, with_lost_points(settings, listed)))
        more = len(first) - len(listed)
        if more > 0:
            self._log(f"{more:,} more damages are not listed.")
        now_ms = self._began_at_ms
        covered = self._before[0].covered_since_ms if self._before else None
        return Verification(
            application_id=settings.application_id,
            kind=VerificationKind.FULL if self._job.full else VerificationKind.QUICK,
            sample=self._job.sample if self._job.full else 0.0,
            began_at_ms=now_ms,
            took_ms=round(1000 * (time.monotonic() - self._began)),
            files=self._files,
            bytes=self._bytes,
            damages=tuple(sorted(listed, key=_order)),
            covered_since_ms=covered_since(self._before, self._turn, now_ms)
            if self._job.full
            else covered,
        )

    def _accepted(self, found: Sequence[Damage]) -> list[Damage]:
        """Mark damages that were accepted earlier, or are accepted now."""
        known = {(one.identity, one.problem): one.accepted for one in self._open}
        return [
            one.given_up(reason)
            if (reason := known.get((one.identity, one.problem)) or self._job.accept)
            and one.severity is Severity.ERROR
            else one
            for one in found
        ]

    def _quick(self) -> list[Damage]:
        return quick_damages(self._settings, self._seen, public_key=self._job.public_key)

    def _first_read(self) -> list[Damage]:
        """Read contents: all with --full, else only to confirm damages found by reading before."""
        return self._read([one for one in self._open if one.by_reading], everything=self._job.full)

    def _read(self, doubtful: Sequence[Damage], *, everything: bool) -> list[Damage]:
        settings, kinds = self._settings, {one.kind for one in doubtful}
        found: list[Damage] = []
        if everything or DamageKind.TABLE in kinds:
            found += self._repo.control_tables.damaged(
                read=True,
                public_key=self._job.public_key,
                throttle=paying(self._throttle),
            )
        places = {one.place for one in doubtful if one.kind in _READ}
        found += self._of_files(places, everything=everything)
        for kind, look in (
            (DamageKind.POINT, unsound_points),
            (DamageKind.SAVED_RECORDS, unsound_records),
            (DamageKind.OFFSET_MAP, unsound_maps),
        ):
            if everything or kind in kinds:
                found += look(settings)
        return found

    def _of_files(self, doubtful: Collection[str], *, everything: bool) -> list[Damage]:
        if not everything and not doubtful:
            return []
        files = expected_files_of(self._settings.warehouse, self._settings.application_id)
        wanted = [
            file
            for file in files
            if (everything and self._turn.takes(file)) or (doubtful and file.place in doubtful)
        ]
        size = sum(file.size for file in wanted)
        if everything:
            self._log(f"{len(wanted):,} of {len(files):,} files are read, {bytes_text(size)}.")
        began = time.monotonic()
        found = read_files(wanted, throttle=self._throttle, spark=self._job.spark, log=self._log)
        took_s = time.monotonic() - began
        if everything:
            self._files, self._bytes = len(wanted), size
            if took_s > 0:
                self._log(f"Read in {took_s:.1f} s, {bytes_text(round(size / took_s))}/s.")
        return found

    def _settled(
        self, found: list[Damage], look: Callable[[list[Damage]], list[Damage]]
    ) -> list[Damage]:
        """Return the damages that every repeated check finds; others were commits in progress."""
        deadline, pause = time.monotonic() + self._settle_s, min(_FIRST_PAUSE_S, self._settle_s)
        while found and time.monotonic() < deadline and not self._is_quiet():
            time.sleep(pause)
            pause *= 2
            again = {one.identity for one in look(found)}
            found = [one for one in found if one.identity in again]
        return found

    def recorded(self, result: Verification) -> Verification:
        """Store the result; if that fails, add the reason to it."""
        row = StoredVerification(
            application_id=result.application_id,
            verified_at_ms=result.began_at_ms,
            kind=result.kind,
            sample=result.sample,
            rounds=self._turn.rounds,
            round=self._turn.number,
            files=result.files,
            bytes=result.bytes,
            took_ms=result.took_ms,
            covered_since_ms=result.covered_since_ms,
            errors=len(result.errors),
            findings=json.dumps(DAMAGE.documents(result.damages)),
            heads=heads_text(self._heads_after(result.damages)),
            run_id=self._job.run_id,
        )
        try:
            self._repo.verifications.record(row)
        except (KStreamsAssetsError, OSError) as error:
            return replace(result, unrecorded=str(error))
        return result

    def _is_quiet(self) -> bool:
        """Whether the last commit is so old that no writer can be between two commits."""
        settings = self._settings
        paths = [
            settings.warehouse.records(settings.application_id),
            *map(settings.warehouse.control, ("windows", "increments", "recovery_points")),
        ]
        newest = max((at for path in paths if (at := newest_commit(path))), default=0.0)
        try:
            now = store_at(paths[0]).now()
        except OSError:  # The warehouse may be read-only.
            now = time.time()
        return now - newest > 6 * self._settle_s


def _order(damage: Damage) -> tuple[bool, str, str, int, int]:
    return (
        damage.severity is not Severity.ERROR,
        damage.place,
        damage.topic or "",
        damage.partition or 0,
        damage.start or 0,
    )


def _span(damage: Damage) -> tuple[object, ...]:
    """Return an identity that is equal for a file missing in a listing and when read."""
    if damage.kind in _READ:
        return (damage.kind, damage.window, damage.topic, damage.partition, damage.store)
    return damage.identity
