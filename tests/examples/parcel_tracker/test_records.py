"""examples/parcel_tracker/records.py and load.py, without a broker."""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest
from click.testing import CliRunner

from examples.parcel_tracker.application import EXAMPLE, INPUTS
from examples.parcel_tracker.load import main
from examples.parcel_tracker.records import (
    CLOSING,
    CLOSING_AFTER_MS,
    CUSTOMERS,
    RATES,
    TICKS,
    ParcelRecords,
)
from examples.streams.load import Event
from tests.restore.example_expectations import partition_of

BEGAN_MS = 1_767_225_600_000


def _records(topic: str, count: int = 2_000) -> Sequence[Event]:
    return [*map(ParcelRecords(began_ms=BEGAN_MS, pace=25).of(topic), range(count))]


def test_every_input_has_a_rate_and_is_made() -> None:
    assert set(RATES) == set(INPUTS)
    assert set(INPUTS) < set(EXAMPLE.topics)
    assert {topic: _records(topic, 1)[0].topic for topic in INPUTS} == {t: t for t in INPUTS}


@pytest.mark.parametrize("topic", INPUTS)
def test_seed_and_index_give_the_same_bytes_in_any_order(topic: str) -> None:
    forward = [ParcelRecords(began_ms=1, seed=3).of(topic)(index) for index in range(50)]
    backward = [ParcelRecords(began_ms=1, seed=3).of(topic)(index) for index in reversed(range(50))]
    assert forward == backward[::-1]
    assert forward != [ParcelRecords(began_ms=1, seed=4).of(topic)(index) for index in range(50)]


def test_the_first_records_are_fixed() -> None:
    """Recorded results and backups compare across versions only if this never changes."""
    records = ParcelRecords(began_ms=BEGAN_MS)
    assert records.of("scans")(0) == Event(
        "scans", b"depot-10", b'{"parcel":"parcel-000062","postcode":"59615"}', BEGAN_MS
    )
    assert records.of("ledger")(3) == Event("ledger", b"zone-02", b"500", 1_767_225_586_248)


def test_a_second_of_ticks_is_each_topic_at_its_rate() -> None:
    records = ParcelRecords(began_ms=BEGAN_MS)
    sent = [event for index in range(TICKS, 2 * TICKS) for event in records.tick(index)]
    assert Counter(event.topic for event in sent) == RATES
    assert [e for e in sent if e.topic == "scans"] == [
        *map(records.of("scans"), range(RATES["scans"], 2 * RATES["scans"]))
    ]


@pytest.mark.parametrize("topic", [topic for topic in INPUTS if topic != "ledger"])
def test_event_time_never_goes_back(topic: str) -> None:
    times = [event.timestamp_ms or 0 for event in _records(topic)]
    assert times == sorted(times)
    assert times[-1] - times[0] == pytest.approx(2_000 / RATES[topic] * 25_000, rel=0.02)


def test_only_tariffs_are_told_for_the_past() -> None:
    entries, now_ms = _records("ledger"), 0
    back: Counter[str] = Counter()
    for event in entries:
        at_ms = event.timestamp_ms or 0
        if at_ms < now_ms:
            assert event.value is None or event.value.isdigit()
            back["withdrawn" if event.value is None else "changed"] += 1
        now_ms = max(now_ms, at_ms)
    assert back["changed"] > 300
    assert back["withdrawn"] > 50
    assert sum(e.value is not None and e.value.startswith(b"weighed ") for e in entries) == 1_000


def test_tables_get_rows_and_deletions() -> None:
    for topic in ("parcels", "slots"):
        deleted = sum(event.value is None for event in _records(topic))
        assert 40 < deleted < 160, topic


def test_every_customer_comes_first_and_stays() -> None:
    events = _records("customers")
    assert len({event.key for event in events[:CUSTOMERS]}) == CUSTOMERS
    assert all(event.value is not None for event in events)


def test_a_parcel_s_customers_live_in_one_partition() -> None:
    found = defaultdict(set)
    for event in _records("parcels"):
        if event.value is not None:
            found[event.key].add(json.loads(event.value)["customer"])
    assert max(map(len, found.values())) > 2
    for customers in found.values():
        assert len({partition_of(customer.encode()) for customer in customers}) == 1


def test_handovers_meet_within_the_join_window_or_never() -> None:
    picked_up: dict[bytes | None, list[int]] = defaultdict(list)
    delivered: dict[bytes | None, list[int]] = defaultdict(list)
    for event in _records("handovers"):
        assert event.value is not None
        side = picked_up if event.value.startswith(b"picked up") else delivered
        side[event.key].append(event.timestamp_ms or 0)
    assert {len(times) for times in picked_up.values()} == {1, 2}
    assert all(len(set(times)) == 1 for times in picked_up.values())  # told twice at one time
    met = picked_up.keys() & delivered.keys()
    assert all(0 < delivered[key][0] - picked_up[key][0] <= 20_000 for key in met)
    assert min(len(met), len(picked_up.keys() - met), len(delivered.keys() - met)) > 100


def test_closing_records_reach_every_partition_after_all_others() -> None:
    records = ParcelRecords(began_ms=BEGAN_MS)
    for topic in CLOSING:
        closing = records.closing(topic)
        assert [partition_of(event.key or b"") for event in closing] == [0, 1, 2, 3]
        assert {event.timestamp_ms for event in closing} == {BEGAN_MS + CLOSING_AFTER_MS}


def test_the_command_wants_an_end() -> None:
    result = CliRunner().invoke(main, ["--bootstrap", "127.0.0.1:1"])
    assert result.exit_code == 2
    assert "--seconds or --count" in result.output
