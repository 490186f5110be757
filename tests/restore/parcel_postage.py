"""Weighings of the parcel tracker: they wait in a buffer until tariffs of their time are known."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence, Set
from typing import Final, NamedTuple

from kstreams_assets.model.point import RecoveryPoint
from tests.restore.control import newest
from tests.restore.example_trial import ExampleRun, holds
from tests.streams.feed import Record

BUFFER: Final = "priced-Buffer"
TOPIC: Final = "postage"
LEDGER: Final = "ledger"

_CLOSING: Final = b"closing-"
_FEW: Final = 3
# A key of the buffer: one byte, the time, the key, a sequence number of this start.
_BYTE: Final = 1
_TIME: Final = 8
_SEQUENCE: Final = 4


class Weighing(NamedTuple):
    """A weighing by zone and time; no two are the same."""

    key: bytes
    timestamp_ms: int


def changelog(run: ExampleRun, store: str) -> str:
    """The changelog of a store, as the run had it."""
    return f"{run.settings.application_id}-{store}-changelog"


def held(run: ExampleRun, topic: str, point: RecoveryPoint) -> list[Record]:
    """The records of a topic that belong to a point."""
    return [record for record in run.source.written[topic] if holds(point, topic, record)]


def waiting(run: ExampleRun, point: RecoveryPoint) -> list[Record]:
    """The weighings, as they were fed, that wait in the buffer at a point."""
    rows = in_buffer(held(run, changelog(run, BUFFER), point))
    ledger = run.source.written[run.prefix + LEDGER]
    return [record for record in ledger if is_weighing(record) and of_record(record) in rows]


def in_buffer(log: Sequence[Record]) -> Counter[Weighing]:
    """The weighings that the buffer's changelog leaves behind, but for the closing ones."""
    keys = [key or b"" for key in newest(log)]
    return _but_closing(
        Weighing(key[_BYTE + _TIME : -_SEQUENCE], int.from_bytes(key[_BYTE : _BYTE + _TIME]))
        for key in keys
    )


def fed(run: ExampleRun) -> Counter[Weighing]:
    """Every weighing that was fed, but for the closing ones."""
    return weighings(r for r in run.source.written[run.prefix + LEDGER] if is_weighing(r))


def weighings(records: Iterable[Record]) -> Counter[Weighing]:
    """The weighings of these records (ledger or postage), but for the closing ones."""
    return _but_closing(map(of_record, records))


def is_weighing(record: Record) -> bool:
    """Whether a record of the ledger is a weighing; else it is about a tariff."""
    return record.value is not None and record.value.startswith(b"weighed ")


def is_closing(record: Record) -> bool:
    """Whether a record is one of those that end the run: nothing ends their own wait."""
    return (record.key or b"").startswith(_CLOSING)


def of_record(record: Record) -> Weighing:
    """Of a record of the ledger, or of the postage."""
    return Weighing(record.key or b"", record.timestamp_ms)


def begins_with(log: Sequence[Record], beginning: Sequence[Record]) -> bool:
    """Whether a log has these records first, partition by partition."""
    wanted, found = _by_partition(beginning), _by_partition(log)
    return all(found[n][: len(records)] == records for n, records in wanted.items())


def too_late(run: ExampleRun, point: RecoveryPoint) -> set[Weighing]:
    """Those that wait at a point, and whose tariffs are history behind what was in flight."""
    history_ms = run.settings.store_formats["tariffs"].retention_ms
    assert history_ms is not None
    newest_ms: dict[int, int] = {}
    for record in held(run, run.prefix + LEDGER, point):
        seen = newest_ms.get(record.partition, record.timestamp_ms)
        newest_ms[record.partition] = max(seen, record.timestamp_ms)
    return {
        of_record(record)
        for record in waiting(run, point)
        if record.timestamp_ms < newest_ms[record.partition] - history_ms
    }


def unexplained(
    run: ExampleRun, postage: Sequence[Record], late: Set[Weighing] = frozenset()
) -> list[str]:
    """Postage that differs from the uninterrupted run though no tariff came after the weighing.

    Those that were weighed so `late` that there was no history any more may have no tariff.
    """
    ledger = run.source.written[run.prefix + LEDGER]
    offsets = {of_record(r): r.offset for r in ledger if is_weighing(r)}
    control = {of_record(r): r.value for r in run.source.written[run.prefix + TOPIC]}
    wrong = [
        f"{one}: {record.value} for {control.get(one)}"
        for record in postage
        if not is_closing(record)
        and record.value != control.get(one := of_record(record))
        and not (one in late and (record.value or b"").endswith(b"no tariff"))
        and not any(
            entry.key == one.key
            and entry.offset > offsets[one]
            and entry.timestamp_ms <= one.timestamp_ms
            for entry in ledger
            if not is_weighing(entry)
        )
    ]
    return wrong[:_FEW]


def _but_closing(weighings: Iterable[Weighing]) -> Counter[Weighing]:
    return Counter(one for one in weighings if not one.key.startswith(_CLOSING))


def _by_partition(log: Sequence[Record]) -> dict[int, list[Record]]:
    """The records of each partition in order, without their offsets."""
    found = defaultdict[int, list[Record]](list)
    for record in log:
        found[record.partition].append(record._replace(offset=0))
    return found
