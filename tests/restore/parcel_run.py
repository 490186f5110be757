"""One run of the parcel tracker, and what becomes of it when it is restored from each point."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

from examples.parcel_tracker.application import EXAMPLE
from examples.parcel_tracker.records import (
    CLOSING,
    CLOSING_AFTER_MS,
    CUSTOMERS,
    RATES,
    ParcelRecords,
)
from examples.streams.application import ExampleApplication
from examples.streams.load import Event
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.restore.request import RestoreRequest
from spark_resources.work import Spark
from tests.restore.example_definition import Definition
from tests.restore.example_expectations import partition_of
from tests.restore.example_queries import Rows
from tests.restore.example_trial import LIVE, ExampleRun, ExampleTrial, InputFeed
from tests.restore.parcel_postage import BUFFER, LEDGER, changelog, waiting
from tests.restore.trial import Restored, own_names, restore
from tests.streams.feed import Record, produce

LOOKED_AT: Final = "live 3"
"""The point whose restored stores are asked before anything new is fed."""

BUFFER_LEFT_OUT: Final = "live 5"
"""The point restored without the join's buffer: what waited in it is sent again."""

# Names of topics and offsets are in the values, sequence numbers of this start in the keys.
NOT_COMPARED: Final = frozenset(
    {
        "closed-windows-store",
        BUFFER,
        "handover-outer-this-join-store",
        "handover-outer-other-join-store",
    }
)
_START_S: Final = 180.0


def trial() -> ExampleTrial:
    """Event time began two hours ago and passes 25 times as quickly as the clock."""
    began_ms = time.time_ns() // 1_000_000 - 2 * CLOSING_AFTER_MS
    records = ParcelRecords(began_ms=began_ms, pace=25)
    # No parcel goes to a customer who is not there yet.
    before = {"customers": [*map(_record, map(records.of("customers"), range(CUSTOMERS)))]}

    def fed(topic: str) -> Callable[[int], Record]:
        event, first = records.of(topic), len(before.get(topic, ()))
        return lambda index: _record(event(first + index))

    return ExampleTrial(
        Definition(EXAMPLE, "parcel_tracker"),
        feeds=[InputFeed(topic, fed(topic), rate) for topic, rate in RATES.items()],
        before=before,
        awaited=["depot-load"],
        closing={topic: [*map(_record, records.closing(topic))] for topic in CLOSING},
        config={
            # What is there is processed, whatever other topics may still bring.
            "max.task.idle.ms": "-1",
            # Else both look for what is over once a second by the clock.
            "__emit.interval.ms.kstreams.outer.join.spurious.results.fix__": "0",
            "__emit.interval.ms.kstreams.windowed.aggregation__": "0",
        },
        not_compared=NOT_COMPARED,
    )


def _record(event: Event) -> Record:
    assert event.key is not None
    assert event.timestamp_ms is not None
    return Record(partition_of(event.key), -1, event.timestamp_ms, event.key, event.value)


@dataclass(frozen=True, slots=True)
class GoneOn:
    """An application that was restored, started, fed with the rest, and came to its end.

    `asked` is what its stores answered before it was fed, None where nobody asked.
    """

    restored: Restored
    asked: Mapping[str, Rows] | None

    @property
    def point(self) -> RecoveryPoint:
        """What was restored."""
        return self.restored.point

    def written(self, topic: str) -> Sequence[Record]:
        """What a topic (by its name in the source) held in the end."""
        return self.restored.written(topic)[topic]


def go_on(
    run: ExampleRun, target: KafkaConnection, spark: Spark, folder: Path
) -> Mapping[str, GoneOn]:
    """Restore every live point, start all five applications at once, feed them with the rest."""
    all_restored = {
        label: restore(run.source, target, spark, _request(run, label)) for label in LIVE
    }
    applications = {
        label: run.trial.application(
            target.bootstrap_servers,
            restored.plan.group,
            restored.names[run.prefix + "scans"].removesuffix("scans"),
            folder / label.replace(" ", "-"),
            queries=True,
        )
        for label, restored in all_restored.items()
    }
    with ExitStack() as stack:
        for label, application in applications.items():
            all_restored[label].commit()
            stack.callback(application.kill)
        with ThreadPoolExecutor(len(applications)) as pool:
            start = partial(ExampleApplication.start, timeout_s=_START_S)
            list(pool.map(start, applications.values()))
        all_restored[LOOKED_AT].drain()
        asked = {LOOKED_AT: _ask(run, applications[LOOKED_AT])}
        for label, restored in all_restored.items():
            if label == BUFFER_LEFT_OUT:
                _send_again(run, restored)
            assert _replay(run, restored) > 0
        for restored in all_restored.values():
            restored.drain()
        for application in applications.values():
            application.stop()
    return {label: GoneOn(r, asked.get(label)) for label, r in all_restored.items()}


def in_any_order_at_one_time(records: Iterable[Record]) -> list[Record]:
    """Handover reports as they compare.

    Two pick-ups of one time are joined in the order of sequence numbers; these begin anew with
    each start of an application.
    """
    return sorted(records, key=lambda record: (record.timestamp_ms, record.value or b""))


@dataclass(frozen=True, slots=True)
class Version:
    """A version by hand: the text key, the value, and its validity (`to` exclusive)."""

    key: str
    value: int
    begin: int
    end: int | None


def versions(records: Iterable[Record], history_ms: int) -> set[Version]:
    """The versions that changelog records leave behind, as far as history is sure to go back."""
    by_time: dict[bytes, dict[int, bytes | None]] = defaultdict(dict)
    stream_time: dict[int, int] = {}
    where: dict[bytes, int] = {}
    for record in records:
        key = record.key or b""
        by_time[key][record.timestamp_ms] = record.value
        where[key] = record.partition
        seen = stream_time.get(record.partition, 0)
        stream_time[record.partition] = max(seen, record.timestamp_ms)
    found = set[Version]()
    for key, values in by_time.items():
        times = sorted(values)
        for begin, end in [*pairwise(times), (times[-1], None)]:
            value = values[begin]
            known = end is None or end > stream_time[where[key]] - history_ms
            if value is not None and known:
                found.add(Version(key.decode(), int.from_bytes(value), begin, end))
    return found


def _request(run: ExampleRun, label: str) -> RestoreRequest:
    request = own_names("restored", run.source.points[label])
    request = request.model_copy(update={"skip_completeness": label != LIVE[0]})
    if label != BUFFER_LEFT_OUT:
        return request
    return request.model_copy(update={"exclude": (changelog(run, BUFFER),)})


def _send_again(run: ExampleRun, restored: Restored) -> None:
    """What waited at the point, before anything new."""
    topic = restored.names[run.prefix + LEDGER]
    waited = waiting(run, restored.point)
    assert produce(restored.target.bootstrap_servers, topic, waited) > 0


def _ask(run: ExampleRun, application: ExampleApplication) -> Mapping[str, Rows]:
    zones = sorted({entry["key"] for entry in run.answers["tariffs"]})
    keys = {"tariffs": zones}
    stores = [*run.answers, "regions"]
    return {store: application.query(store, keys=keys.get(store, ())) for store in stores}


def _replay(run: ExampleRun, restored: Restored) -> int:
    return sum(
        produce(restored.target.bootstrap_servers, restored.names[topic], records)
        for topic, records in run.after(restored.point).items()
    )
