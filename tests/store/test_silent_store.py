"""A store that takes requests and does not answer them, as one does that is only half up."""

import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from kstreams_assets.layout import Warehouse
from kstreams_assets.lease import warehouse_lock
from kstreams_assets.store import ObjectPath, access, store_at
from kstreams_assets.store.locks import LeaseLostError, LockHandle
from tests.store.relay import Relay, relaying
from tests.store.seaweed import SeaweedFS, seaweed, store

__all__ = ["seaweed", "store"]
pytestmark = pytest.mark.store

_LEASE_S = 8.0
"""Of a busy server: a request for a lease may take a quarter of it."""
_SOON_S = 12.0
"""Far shorter than the 30 s that a request which carries data may take."""


@pytest.fixture
def relay(seaweed: SeaweedFS, store: ObjectPath) -> Iterator[Relay]:
    """A relay before the server, whose keys this process has."""
    with relaying(seaweed.endpoint) as relay:
        yield relay


@pytest.fixture
def lock_file(seaweed: SeaweedFS, relay: Relay) -> ObjectPath:
    """The file of a lock that was held before, so that the store is known.

    The first write to a server takes longest: the first holder's requests have the usual time.
    """
    name = secrets.token_hex(6)
    relayed = seaweed.place(name, endpoint=relay.endpoint, lease_s=_LEASE_S)
    for place in (seaweed.place(name), relayed):
        file = Warehouse(place).lock_file("shop")
        assert isinstance(file, ObjectPath)
        with warehouse_lock(file, purpose="first", wait_s=0):
            pass
    return file


def _wait_until_held(lock: LockHandle) -> None:
    deadline = time.monotonic() + _SOON_S
    while True:
        try:
            lock.require_held()
        except LeaseLostError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            return


def test_a_lease_is_held_again_soon_after_the_silence(relay: Relay, lock_file: ObjectPath) -> None:
    with warehouse_lock(lock_file, purpose="test", wait_s=0) as lock:
        with relay.silent():
            time.sleep(_LEASE_S)
            with pytest.raises(LeaseLostError, match="does not answer in time"):
                lock.require_held()
        _wait_until_held(lock)


def test_a_status_ends_soon_whether_it_is_written_or_read(
    relay: Relay, lock_file: ObjectPath
) -> None:
    status = lock_file.with_suffix(".json")
    with relay.silent():
        began = time.monotonic()
        for ask in (lambda: store_at(status).put_text("{}"), status.read_text):
            with pytest.raises(OSError, match="does not answer in time"):
                ask()
        assert time.monotonic() - began < 2 * _SOON_S
    store_at(status).put_text("{}")


def test_what_was_asked_in_the_silence_is_asked_again_after_it(
    relay: Relay, lock_file: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "SILENCE_S", 1.0)
    place = ObjectPath.at("/".join(("s3:/", *lock_file.parts[:2])), lock_file.access.settings)
    file = place / "data"
    file.write_bytes(b"data")
    asked = [file.read_bytes, file.stat, lambda: list(place.below()), lambda: list(place.iterdir())]
    with ThreadPoolExecutor(len(asked) + 1) as pool:
        with relay.silent():
            answers = [pool.submit(ask) for ask in asked]
            files, name = store_at(file).arrow_place()
            answers.append(pool.submit(lambda: files.open_input_file(name).read()))
            time.sleep(0.5)
        began = time.monotonic()
        assert answers[0].result(_SOON_S) == b"data"
        assert all(answer.result(_SOON_S) for answer in answers)
        assert time.monotonic() - began < _SOON_S


def test_a_lease_that_could_not_be_let_go_does_not_keep_its_own_process_waiting(
    relay: Relay, lock_file: ObjectPath
) -> None:
    with ExitStack() as silence, warehouse_lock(lock_file, purpose="test", wait_s=0) as before:
        silence.enter_context(relay.silent())
    with warehouse_lock(lock_file, purpose="test again", wait_s=0) as after:
        assert after.epoch > before.epoch


def test_a_lease_whose_taking_was_not_answered_does_not_either(
    relay: Relay, lock_file: ObjectPath
) -> None:
    with (
        relay.losing_answers(b"PUT"),
        pytest.raises(OSError, match="does not answer in time"),
        warehouse_lock(lock_file, purpose="test", wait_s=0),
    ):
        pytest.fail("it was taken")
    assert "test" in lock_file.read_text()
    with warehouse_lock(lock_file, purpose="test again", wait_s=0):
        pass
