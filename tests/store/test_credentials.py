"""Keys of a role that gives new ones: those of a request are always valid, in tasks too."""

import pickle
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kstreams_assets.store import ObjectPath, ObjectStoreSettings
from kstreams_assets.store.access import _known

_VALID_S = 3600.0
_PLACE = "s3://bucket/warehouse"


class Role:
    """A `credential_process`: each answer has another key, valid for an hour by our clock."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._program, self._count = folder / "role.sh", folder / "count"
        self._real = time.time
        self._monkeypatch = monkeypatch
        self._count.write_text("0", encoding="utf-8")
        self.at(0)
        config = folder / "config"
        config.write_text(f"[default]\ncredential_process = {self._program}\n", encoding="utf-8")
        for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE"):
            monkeypatch.delenv(f"AWS_{name}", raising=False)
        monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    def at(self, seconds: float) -> None:
        """So much time has passed since the beginning."""
        until = datetime.fromtimestamp(self._real() + seconds + _VALID_S, UTC).isoformat()
        self._program.write_text(
            f"#!/bin/sh\nn=$(($(cat {self._count}) + 1))\necho $n > {self._count}\n"
            f'echo \'{{"Version": 1, "AccessKeyId": "KEY-\'$n\'", "SecretAccessKey": "the-secret",'
            f' "SessionToken": "the-token", "Expiration": "{until}"}}\'\n',
            encoding="utf-8",
        )
        self._program.chmod(0o755)
        self._monkeypatch.setattr(time, "time", lambda: self._real() + seconds)

    def gone(self) -> None:
        """The role does not answer any more."""
        self._program.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")


@pytest.fixture
def role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Role]:
    _forget()
    yield Role(tmp_path, monkeypatch)
    _forget()


def _forget() -> None:
    """As in another process."""
    _known.found.clear()
    _known.in_vain.clear()


def _place() -> ObjectPath:
    return ObjectPath.at(_PLACE, ObjectStoreSettings(region="eu-central-1"))


def _in_task(place: ObjectPath) -> ObjectPath:
    sent = pickle.dumps(place)
    _forget()
    return pickle.loads(sent)  # noqa: S301 (our own)


def test_a_task_has_the_keys_of_the_run_until_they_end(role: Role) -> None:
    place = _place()
    assert place.access.keys().key == "KEY-1"
    task = _in_task(place)
    assert task.access.keys().key == "KEY-1"
    role.at(0.8 * _VALID_S)
    assert task.access.keys().key == "KEY-1"
    for hours in (1, 2, 5):
        role.at(hours * _VALID_S)
        keys = task.access.keys()
        assert keys.key != "KEY-1"
        assert keys.until is not None
        assert keys.until > time.time() + 0.9 * _VALID_S


def test_a_task_of_a_task(role: Role) -> None:
    first = _in_task(_place())
    role.at(2 * _VALID_S)
    second = _in_task(first)
    assert second.access.keys().key == "KEY-2"


def test_keys_are_looked_up_again_before_they_end(role: Role) -> None:
    place = _place()
    first = place.access.keys()
    role.at(0.95 * _VALID_S)
    assert place.access.keys().key != first.key


def test_a_task_where_there_are_no_keys_uses_those_it_came_with(
    role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = _in_task(_place())
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    for seconds in (0, _VALID_S - 300, 2 * _VALID_S):
        role.at(seconds)
        assert task.access.keys().key == "KEY-1"


def test_a_role_that_fails_does_not_end_a_task_before_its_keys(role: Role) -> None:
    task = _in_task(_place())
    role.at(_VALID_S - 300)
    role.gone()
    assert task.access.keys().key == "KEY-1"


def test_keys_of_the_environment_are_carried_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-the-run")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    task = _in_task(_place())
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-the-worker")
    assert task.access.keys().key == "of-the-run"


def test_a_client_that_writes_for_long_asks_again(role: Role) -> None:
    provider = _in_task(_place()).access.provider
    first = provider()
    role.at(2 * _VALID_S)
    second = provider()
    assert first["access_key_id"] != second["access_key_id"]
    assert second["expires_at"] is not None
    assert second["expires_at"].timestamp() > time.time()
    assert "the-secret" not in repr(provider)
    assert "the-token" not in repr(provider)
