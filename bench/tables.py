"""KTable snapshots of 3 M changes, and one key of them."""

import random
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from confluent_kafka import Producer

from bench.harness import Act, Case, Measured, Options
from bench.place import Place, flushed, place, send
from kstreams_assets.kafka.admin import TopicSpec

_TOPIC: Final = "bench-totals-changelog"
_PARTITIONS: Final = 4
_RECORDS: Final = 3_000_000
_KEYS: Final = 300_000
_CHANGES: Final = 100_000


@contextmanager
def tables(options: Options) -> Iterator[Case]:
    """A snapshot from the begin of the log, one with a few changes on top, the state of a key."""
    with place() as here:
        records, changes = options.scaled(_RECORDS, 1_000), options.scaled(_CHANGES, 100)
        keys = options.scaled(_KEYS, 100)
        here.cluster.create_topics([TopicSpec(_TOPIC, _PARTITIONS, 1)])
        file = here.file(
            {
                "topics": {_TOPIC: {"roles": ["changelog"]}},
                "stores": {"totals": {"changelog": _TOPIC, "key": "string", "value": "string"}},
            }
        )
        _write(here, range(records), keys)
        points = [here.point(file, 0)]
        _write(here, range(records, records + changes), keys)
        points.append(here.point(file, 1))
        here.engine_runs()
        backed_up = here.warehouse(points)
        first, second = here.window(0), here.window(1)
        app = ["--app", str(file), "--warehouse"]
        windows = ["--window", first, "--window", second]
        here.command("backup", *app, str(backed_up), *windows)
        with_first = here.copy(backed_up)
        here.command("ktables", "make", *app, str(with_first), "--window", first)

        def make(warehouse: str, window: str) -> Measured:
            root = here.copy(here.folder / warehouse)
            measured = here.command("ktables", "make", *app, str(root), "--window", window)
            shutil.rmtree(root)
            return measured

        def state() -> Measured:
            words = ["--store", "totals", "--key", "customer-000007"]
            return here.command("state", *app, str(with_first), *words)

        yield Case(
            f"KTable of 3 M changes of {_KEYS:,} keys, values of 200 bytes",
            [
                Act("ktables make, from the begin", lambda: make(backed_up.name, first)),
                Act("ktables make, changes on top", lambda: make(with_first.name, second)),
                Act("state of one key", state),
            ],
            [
                f"{_PARTITIONS} partitions; {changes:,} changes on top of the first snapshot. Whole"
                " processes on a warm engine; `state` needs none.",
            ],
        )


def _write(here: Place, records: Iterable[int], keys: int) -> None:
    producer = Producer(
        {
            "bootstrap.servers": here.bootstrap_servers,
            "linger.ms": 20,
            "queue.buffering.max.messages": 500_000,
            "compression.type": "lz4",
        }
    )
    noise = random.Random(7).randbytes(500_000).hex().encode()
    for count, record in enumerate(records):
        key = record * 7919 % keys
        at = record * 613 % (len(noise) - 188)
        value = b"%012d" % record + noise[at : at + 188]
        send(producer, _TOPIC, value, b"customer-%06d" % key, partition=key % _PARTITIONS)
        if count % 20_000 == 0:
            producer.poll(0)
    flushed(producer)
