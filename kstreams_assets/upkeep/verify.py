"""Whether all that a warehouse holds of an application is as it was written: `verify`."""

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
from kstreams_assets.upkeep.look import points_taken_away, quick_damages, with_remedies
from spark_resources.work import Spark

_log = logging.getLogger(__name__)

SETTLE_S: Final = 10.0
"""A writer may be between two commits that belong together: looked at again for so long."""
_FIRST_PAUSE_S: Final = 0.5
_MOST: Final = 1_000
"""So many damages are told by themselves."""
_READ: Final = frozenset({DamageKind.FILE, DamageKind.SNAPSHOT})


@dataclass(frozen=True, slots=True)
class Verification:
    """How it came out. `files` and `bytes` are those whose content was read.

    `damages` are those found now, and those of earlier verifications that were looked at again and
    are still there. `unrecorded` says why it was not stored; empty when it was.
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
        """What keeps something from being restored."""
        return tuple(one for one in self.damages if one.severity is Severity.ERROR)

    @property
    def sound(self) -> bool:
        """Whether nothing was found that keeps something from being restored."""
        return not self.errors


@dataclass(frozen=True, slots=True)
class VerifyJob:
    """Looks at everything that a warehouse holds of an application; writes one row of a table.

    Args:
        full: Read contents as well.
        sample: Which share of the files of records and KTables a full one reads, in (0, 1]; those
            that were not read for longest, so that 1/sample runs read all.
        bytes_per_s: Read no faster than that.
        public_key: Compare signatures of the control tables with this key (Ed25519, PEM).
        spark: Read files as tasks of this session; None: in threads of this process.
        record: Store what was found. A warehouse that cannot be written is not written either.
        run_id: Is stored with it.
        settle_s: What is found is looked at again for so long (seconds, 10 when left out): a backup
            at work is between two commits for a moment.
        accept: Why what is found counts as lost for good, from now on; empty: it does not.
        log: Takes lines on the progress.
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
        """Look, and tell.

        Raises:
            WarehouseError: There is no warehouse or it cannot be read.
            NewerLayoutError: A newer release wrote it.
        """
        look = _Look(self)
        made = look.made()
        return look.recorded(made) if self.record else made


@dataclass(frozen=True, slots=True)
class _Turn:
    """Which part of the files a sampled verification reads."""

    rounds: int = 1
    number: int = 0

    def takes(self, file: ExpectedFile) -> bool:
        """Whether a file is in this part; it always is in the same."""
        return zlib.crc32(f"{file.table}/{file.path}".encode()) % self.rounds == self.number


def turn_of(before: Sequence[StoredVerification], sample: float) -> _Turn:
    """The part that was not read for longest; `before` are earlier ones, newest first."""
    rounds = max(1, math.ceil(1 / sample - 1e-9))
    times = _read_at(before, rounds)
    return _Turn(rounds, min(range(rounds), key=lambda number: times.get(number, -1)))


def _read_at(before: Sequence[StoredVerification], rounds: int) -> dict[int, int]:
    """By part, when it was read last (epoch milliseconds)."""
    times: dict[int, int] = {}
    for row in before:
        if row.kind is VerificationKind.FULL and row.rounds in (1, rounds):
            for number in range(rounds) if row.rounds == 1 else (row.round,):
                times.setdefault(number, row.verified_at_ms)
    return times


def covered_since(before: Sequence[StoredVerification], turn: _Turn, now_ms: int) -> int | None:
    """When the oldest of the last readings was, with one of `turn` now; None: not all were read."""
    times = _read_at(before, turn.rounds) | {turn.number: now_ms}
    return min(times.values()) if len(times) == turn.rounds else None


class _Look:
    """One verification while it is made."""

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
        # Before anything is looked at: what is committed meanwhile is newer than this.
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
        """What the next look compares the tables with: of a damaged one what was seen before."""
        damaged = {
            one.table for one in damages if one.kind is DamageKind.TABLE and not one.accepted
        }
        seen = self._seen or {}
        return {**self._heads, **{name: seen[name] for name in damaged & seen.keys()}}

    def made(self) -> Verification:
        """Look, and tell."""
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
        told = [one for one in found if first[one.identity] is one][:_MOST]
        told = self._accepted(with_remedies(settings, points_taken_away(settings, told)))
        more = len(first) - len(told)
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
            damages=tuple(sorted(told, key=_order)),
            covered_since_ms=covered_since(self._before, self._turn, now_ms)
            if self._job.full
            else covered,
        )

    def _accepted(self, found: Sequence[Damage]) -> list[Damage]:
        """The damages, those that were given up before, or are now, as such."""
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
        """What only whoever reads contents sees; in a quick look, of what was found so before."""
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
        """What is found at every look: a writer is between two commits for a moment only."""
        deadline, pause = time.monotonic() + self._settle_s, min(_FIRST_PAUSE_S, self._settle_s)
        while found and time.monotonic() < deadline and not self._is_quiet():
            time.sleep(pause)
            pause *= 2
            again = {one.identity for one in look(found)}
            found = [one for one in found if one.identity in again]
        return found

    def recorded(self, made: Verification) -> Verification:
        """Store what was found."""
        row = StoredVerification(
            application_id=made.application_id,
            verified_at_ms=made.began_at_ms,
            kind=made.kind,
            sample=made.sample,
            rounds=self._turn.rounds,
            round=self._turn.number,
            files=made.files,
            bytes=made.bytes,
            took_ms=made.took_ms,
            covered_since_ms=made.covered_since_ms,
            errors=len(made.errors),
            findings=json.dumps(DAMAGE.documents(made.damages)),
            heads=heads_text(self._heads_after(made.damages)),
            run_id=self._job.run_id,
        )
        try:
            self._repo.verifications.record(row)
        except (KStreamsAssetsError, OSError) as error:
            return replace(made, unrecorded=str(error))
        return made

    def _is_quiet(self) -> bool:
        """Whether nobody has committed for so long that nobody is between two commits."""
        settings = self._settings
        paths = [
            settings.warehouse.records(settings.application_id),
            *map(settings.warehouse.control, ("windows", "increments", "recovery_points")),
        ]
        newest = max((at for path in paths if (at := newest_commit(path))), default=0.0)
        try:
            now = store_at(paths[0]).now()
        except OSError:  # It may be read only.
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
    """The same for a file that a listing and a reading do not find."""
    if damage.kind in _READ:
        return (damage.kind, damage.window, damage.topic, damage.partition, damage.store)
    return damage.identity
