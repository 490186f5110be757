"""A lease whose requests are done although their answers do not come."""

import json
from pathlib import Path

import pytest

from kstreams_assets.store import ConditionError
from kstreams_assets.store.locks import LeaseLostError, _Lease


class _Object:
    """An object in a store; `loses` answers of so many requests."""

    name = "shop.lock"

    def __init__(self) -> None:
        self.data, self.versions, self.loses = b"", 0, 0

    def create(self, data: bytes) -> str:
        """Put it there."""
        return self._put(data)

    def replace_version(self, data: bytes, e_tag: str) -> str:
        """Put it in place of one version."""
        if e_tag != str(self.versions):
            raise ConditionError
        return self._put(data)

    def read(self) -> tuple[bytes, str]:
        """What is there, and the mark of this version of it."""
        return self.data, str(self.versions)

    def _put(self, data: bytes) -> str:
        self.data, self.versions = data, self.versions + 1
        if self.loses:
            self.loses -= 1
            raise OSError(5, "its endpoint does not answer in time")
        return str(self.versions)

    @property
    def renewals(self) -> int:
        """How often its holder had renewed it when it wrote what is there."""
        return json.loads(self.data)["renewals"]


@pytest.fixture
def store() -> _Object:
    """Without a lease."""
    return _Object()


@pytest.fixture
def lease(store: _Object, tmp_path: Path) -> _Lease:
    """A lease that is held there."""
    lease = _Lease(store, "test", 30, 1, tmp_path / "tasks")  # pyright: ignore[reportArgumentType]
    assert lease.take(None)
    return lease


def test_an_earlier_renewal_that_was_done_late_does_not_count_for_this_one(
    store: _Object, lease: _Lease
) -> None:
    """Who waits for the lease sees that it has changed, but not how long ago."""
    store.loses = 1
    with pytest.raises(OSError, match="in time"):
        lease._write()
    assert (store.versions, store.renewals) == (2, 1)
    lease._write()
    assert (store.versions, store.renewals) == (3, 2)
    lease.require_held()


def test_a_lease_that_another_has_taken_meanwhile_is_lost(store: _Object, lease: _Lease) -> None:
    store.create(json.dumps({"token": "another", "pid": 7, "host": "h"}).encode())
    with pytest.raises(LeaseLostError, match="has taken it over"):
        lease._write()
    assert lease.is_lost


def test_a_renewal_whose_answer_the_client_of_the_store_lost_by_itself_is_there(
    store: _Object, lease: _Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks again after some errors, and learns that the condition does not hold any more."""

    def asked_twice(data: bytes, e_tag: str) -> str:
        _Object.replace_version(store, data, e_tag)
        return _Object.replace_version(store, data, e_tag)

    monkeypatch.setattr(store, "replace_version", asked_twice)
    lease._write()
    assert (store.versions, store.renewals) == (2, 1)
    lease.require_held()
