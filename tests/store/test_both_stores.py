"""What a folder and an object store do alike, by the one interface that both have."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kstreams_assets.store import (
    ConditionError,
    ObjectPath,
    StorePath,
    duplicate,
    file_digest,
    make_durable,
    relative,
    store_at,
)
from kstreams_assets.store.locks import WarehouseLockedError
from tests.store.seaweed import seaweed, store

__all__ = ["seaweed", "store"]

_LARGE = 9 * 1024**2
"""More than one part of an upload."""


@pytest.fixture(params=["folder", pytest.param("objects", marks=pytest.mark.store)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StorePath]:
    if request.param == "folder":
        yield tmp_path / "place"
    else:
        yield request.getfixturevalue("store")


def test_what_was_put_is_listed(place: StorePath) -> None:
    contents = {"a": b"1", "b/c": b"22", "b/d": b"333", "b/e/f": b"4444"}
    for name, content in contents.items():
        store_at(place / name).put_file(content)
    listed = {str(relative(one.path, place)): one.size for one in store_at(place).files()}
    assert listed == {name: len(content) for name, content in contents.items()}
    files = store_at(place / "b" / "e").entries()
    assert {name: size for name, (size, _) in files.items()} == {"f": 4}
    assert store_at(place).sizes_in(["b/e"]) == {"b/e": {"f": 4}}
    assert store_at(place).newest_change() == pytest.approx(store_at(place).now(), abs=60)
    store_at(place / "b").remove_tree()
    assert [one.path for one in store_at(place).files()] == [place / "a"]
    assert list(store_at(place / "nothing").files()) == []


def test_a_file_is_replaced_as_a_whole(place: StorePath) -> None:
    file = place / "status"
    store_at(file).put_text("first")
    store_at(file).put_text("second", durable=False)
    assert file.read_text(encoding="utf-8") == "second"
    assert [one.path for one in store_at(place).files()] == [file]


def test_a_large_file(place: StorePath) -> None:
    content = os.urandom(_LARGE)
    first, second, third = (store_at(place / name) for name in ("first", "second", "third"))
    first.put_file(content)
    second.put_pieces(
        iter([content[:1000], content[1000:]]), _LARGE, scratch=place / "parts", replaces=False
    )
    duplicate(place / "second", place / "third")
    make_durable([place / "third"])
    assert b"".join(first.pieces()) == content
    assert len({file_digest(place / name) for name in ("first", "second", "third")}) == 1
    with third.fetched() as local:
        assert local.read_bytes() == content


@pytest.mark.store
def test_what_arrives_cut_off_is_refused(store: ObjectPath) -> None:
    with pytest.raises(OSError, match="4 of 8 bytes have arrived"):
        store_at(store / "file").put_pieces(
            iter([b"half"]), 8, scratch=store / "parts", replaces=False
        )


def test_a_version(place: StorePath) -> None:
    file = store_at(place / "mark")
    file.put_version("1", "")
    _, first = file.read_version()
    file.put_version("2", first)
    assert file.read_version()[0] == b"2"
    if file.is_conditional:
        for stale in ("", first):
            with pytest.raises(ConditionError):
                file.put_version("3", stale)


def test_one_holder_at_a_time(place: StorePath) -> None:
    file = store_at(place / ".locks" / "shop.lock")
    with file.lock("first", 0) as first:
        with pytest.raises(WarehouseLockedError, match="first"), file.lock("second", 0):
            pass
        first.require_held()
    with file.lock("third", 0) as third:
        assert third.epoch > first.epoch
        assert not third.is_taken_over


def test_a_mark_is_found_once_its_holder_has_ended(place: StorePath) -> None:
    mark = store_at(place / ".locks" / "reports" / "run")
    with mark.left_mark("look") as is_left:
        assert not is_left
    with ExitStack() as process:
        process.enter_context(mark.mark("report"))
        with mark.left_mark("look") as is_left:
            assert not is_left
        process.pop_all().__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    for expected in (True, False):
        with mark.left_mark("look") as is_left:
            assert is_left == expected


def test_a_folder_is_unfinished_until_it_is_finished(place: StorePath) -> None:
    store_at(place / "other").put_file(b"1")
    folder = place / "new"
    with store_at(folder).unfinished():
        store_at(folder / "data.parquet").put_file(b"1")
    store_at(folder).remove_unfinished()
    assert (folder / "data.parquet").exists()
    (folder / "data.parquet").unlink()
    store_at(folder).remove_unfinished()
    assert [one.path for one in store_at(place).files()] == [place / "other"]
    assert store_at(place).unfinished_folders() == []
