"""The page of the releases of Kafka on which the drills have passed, as those wrote them down."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bench.machine import RESULTS
from scripts.reference.markdown import table

RAN: Final = RESULTS / "releases.json"


@dataclass(frozen=True, slots=True)
class Ran:
    """Releases of brokers and of Kafka Streams, and the settings, of a drill that has passed."""

    broker: str
    clients: str
    settings: tuple[str, ...] = ()


def stored() -> Sequence[Ran]:
    """Every drill that has passed; empty before the first one."""
    if not RAN.is_file():
        return ()
    rows = json.loads(RAN.read_text(encoding="utf-8"))
    return [Ran(row["broker"], row["clients"], tuple(row["settings"])) for row in rows]


def release_lines() -> Iterator[str]:
    """What was drilled, and on which releases."""
    yield "A drill (`tests/restore/test_releases.py`, part of `make drills`) has passed with each"
    yield "of these: two instances under load, every recovery point that said exact was exact, and"
    yield "an application restored from one of them went on as the uninterrupted one did. The drill"
    yield "writes down what has passed. All other tests run on the newest of these releases; older"
    yield "ones than the oldest are not tried."
    yield ""
    yield from table(
        ("brokers", "Kafka Streams", "with"),
        (
            (one.broker, one.clients, ", ".join(f"`{s}`" for s in one.settings) or "defaults")
            for one in stored()
        ),
    )
