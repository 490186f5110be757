"""Feeds the parcel tracker: `python -m examples.parcel_tracker.load --bootstrap host:port`.

An index is a hundredth of a second of all inputs. Event time begins when the command does.
"""

import time

from examples.parcel_tracker.records import ParcelRecords
from examples.streams.load import Events, load_command


def events_of(seed: int) -> Events:
    """The records of a seed, by index, from now on."""
    return ParcelRecords(began_ms=time.time_ns() // 1_000_000, seed=seed).tick


main = load_command(events_of, what="parcels, customers and what happens to them")

if __name__ == "__main__":
    main()
