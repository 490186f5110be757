"""Folders of predictable names: what another user has made there is never used."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.private import private_folder, why_not_private
from kstreams_assets.store import ObjectPath, locks
from kstreams_assets.store.locks import _tasks_file

LOCK = ObjectPath.at("s3://backups/shop/.locks/orders.lock")
OTHER = 65534


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What is /tmp, and a home beside it."""
    place = tmp_path / "tmp"
    place.mkdir(mode=0o1777)
    place.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    umask = os.umask(0o022)
    yield place
    os.umask(umask)


@pytest.fixture
def usual(temporary: Path) -> Path:
    """Where the locks of tasks are, unless that is somebody else's."""
    return temporary / f"kstreams-assets-{os.getuid()}"


def _of_another_user(folder: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can play another user")
    folder.mkdir(mode=0o777)
    os.chown(folder, OTHER, OTHER)


def _open(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o755)


def _link(folder: Path) -> None:
    real = folder.with_name("elsewhere")
    real.mkdir(mode=0o700)
    folder.symlink_to(real)


def _file(folder: Path) -> None:
    folder.touch()


PREPARED = [
    pytest.param(_of_another_user, r"belongs to another user \(uid 65534\)", id="another user's"),
    pytest.param(_open, r"is open to other users \(mode 0755\)", id="open"),
    pytest.param(_link, "is a symbolic link", id="a link"),
    pytest.param(_file, "is not a folder", id="a file"),
]


class TestLocksOfTasks:
    """The folder by which processes of one machine know of tasks left behind."""

    def test_it_is_made_for_this_user_alone(self, usual: Path) -> None:
        file = _tasks_file(LOCK)
        assert file.parent == usual
        assert (usual.stat().st_uid, usual.stat().st_mode & 0o777) == (os.getuid(), 0o700)
        assert _tasks_file(LOCK) == file  # which other processes find as well

    @pytest.mark.parametrize(("prepare", "why"), PREPARED)
    def test_what_somebody_else_has_made_there_is_not_used(
        self, usual: Path, tmp_path: Path, prepare: Callable[[Path], None], why: str
    ) -> None:
        prepare(usual)
        folder = _tasks_file(LOCK).parent
        assert why_not_private(folder) is None
        assert folder.resolve() == folder
        assert tmp_path / "tmp" not in folder.parents

    @pytest.mark.parametrize(("prepare", "why"), PREPARED)
    def test_without_another_place_it_is_an_error(
        self,
        usual: Path,
        monkeypatch: pytest.MonkeyPatch,
        prepare: Callable[[Path], None],
        why: str,
    ) -> None:
        prepare(usual)
        monkeypatch.setattr(locks, "_task_folders", lambda: iter([usual]))
        with pytest.raises(ConfigurationError, match=why) as raised:
            _tasks_file(LOCK)
        assert "set TMPDIR to a folder that belongs to this user alone" in str(raised.value)


def test_a_place_that_cannot_be_made_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    wanted = tmp_path / "a" / "b"
    assert private_folder([tmp_path / "file/x", wanted], purpose="tests") == wanted
    with pytest.raises(ConfigurationError, match=r"no safe folder for tests: .*file/x cannot"):
        private_folder([tmp_path / "file/x"], purpose="tests")
