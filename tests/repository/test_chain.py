"""Control tables that were damaged or changed by hand, and those that were not."""

import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from deltalake import DeltaTable, write_deltalake

from kstreams_assets.errors import ConfigurationError, StoredDataError, WarehouseError
from kstreams_assets.layout import CONTROL_LAYOUT_VERSION, LAYOUT_PROPERTY
from kstreams_assets.model.damage import Damage, Head
from kstreams_assets.model.files import digest_in
from kstreams_assets.repository import chain
from kstreams_assets.repository import table as tables
from kstreams_assets.repository.chain import SIGNING_KEY, head, shortened, table_problems
from kstreams_assets.repository.known import Known
from kstreams_assets.repository.table import Table
from kstreams_assets.store import StorePath, file_digest
from tests.repository.disk import on_disk
from tests.repository.test_table import SCHEMA, Thing, columns, rows
from tests.store.place import edited, warehouse_at

pytestmark = pytest.mark.on_store

_NUMBERS: Final = [1, 2, 3, 4, 5, 6, 8]
_LOG: Final = "_delta_log"


@dataclass(frozen=True)
class Stage:
    """A table with a history: a replaced file, and a checkpoint behind which the log goes on."""

    table: Table[Thing]

    @property
    def path(self) -> StorePath:
        return self.table.path

    def problems(self, **options: Any) -> list[Damage]:
        return table_problems(self.path, "things", **options)

    def read(self, application_id: str | None = "a") -> list[int]:
        """As a process that has not read the table before."""
        found = replace(self.table, application_id=application_id, known=Known()).read()
        return sorted(found["number"].to_pylist())


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    path = warehouse_at(tmp_path / "warehouse").root / "things"
    table = Table(path, Thing, "number", "a", statistics=("number", "name"))
    table.append(rows("a", 1, 2, 3))
    table.append([*rows("a", 4, 5), *rows("b", 7)])
    table.replace(rows("a", 2, name="new"), where=pc.field("number") == 2)
    table.append(rows("a", 6))
    table.append(rows("a", 8))
    return Stage(table)


def _active(folder: Path, number: int = 0) -> Path:
    """A file of application a, the largest first."""
    paths = [folder / path for path in chain.active_paths(DeltaTable(folder)) if "=a/" in path]
    return sorted(paths, key=lambda path: (-path.stat().st_size, path.name))[number]


def _entry(folder: Path, version: int) -> Path:
    return folder / _LOG / f"{version:020d}.json"


def _rewritten(file: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """The same file with other rows, and checksums that are right."""
    found = pq.ParquetFile(file).read()
    changed = pa.Table.from_pylist(change(found.to_pylist()), schema=found.schema)
    pq.write_table(changed, file, compression="zstd", compression_level=1)


def _one_value(folder: Path) -> Path:
    file = _active(folder)
    _rewritten(file, lambda found: [found[0] | {"name": "raw"}, *found[1:]])
    return file


def _one_bit(folder: Path) -> Path:
    file = _active(folder)
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 4
    file.write_bytes(content)
    return file


def _truncated(folder: Path) -> Path:
    file = _active(folder)
    file.write_bytes(file.read_bytes()[:-7])
    return file


def _deleted(folder: Path) -> Path:
    file = _active(folder)
    file.unlink()
    return file


def _swapped(folder: Path) -> Path:
    one, other = _active(folder, 1), _active(folder, 2)
    content = one.read_bytes()
    assert content != other.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    return one


def _row_dropped(folder: Path) -> Path:
    file = _active(folder)
    _rewritten(file, lambda found: found[1:])
    return file


def _row_duplicated(folder: Path) -> Path:
    file = _active(folder)
    _rewritten(file, lambda found: [*found, found[-1]])
    return file


def _footer(folder: Path) -> Path:
    file = _active(folder)
    content = bytearray(file.read_bytes())
    content[-12] ^= 255
    file.write_bytes(content)
    return file


def _old_version(folder: Path) -> Path:
    active = set(chain.active_paths(DeltaTable(folder)))
    (old,) = (
        file
        for file in (folder / "application_id=a").iterdir()
        if file.relative_to(folder).as_posix() not in active
    )
    file = _active(folder)
    shutil.copyfile(old, file)
    return file


DATA_FAULTS: Final = [
    _one_value,
    _one_bit,
    _truncated,
    _deleted,
    _swapped,
    _row_dropped,
    _row_duplicated,
    _footer,
    _old_version,
]


@pytest.mark.parametrize("fault", DATA_FAULTS, ids=lambda fault: fault.__name__.strip("_"))
def test_a_file_that_is_not_what_was_written(stage: Stage, fault: Callable[[Path], Path]) -> None:
    assert stage.problems(read=True) == []
    with edited(stage.path) as folder:
        file = str(fault(folder).relative_to(folder))
    found = stage.problems(read=True)
    assert file in {problem.file for problem in found}
    assert {problem.table for problem in found} == {"things"}
    used: list[int] = []
    for use in (
        lambda table: table.read(),
        lambda table: used.extend(table.reduce(["number"], pa.Table.__len__)),
        lambda table: table.replace([], where=pc.field("number") > 0),
        lambda table: table.rewrite(0, 9, lambda found: found),
    ):
        with pytest.raises((StoredDataError, WarehouseError), match=f"things|{Path(file).name}"):
            use(replace(stage.table, known=Known()))
    assert used == []
    assert stage.read("b") == [7]  # what is whole stays in use


def test_a_change_under_the_eyes_of_a_process_is_seen(stage: Stage) -> None:
    assert sorted(stage.table.read()["number"].to_pylist()) == _NUMBERS
    with edited(stage.path) as folder:
        _one_value(folder)
    with pytest.raises(StoredDataError, match=r"The table things cannot be used: .*SHA-256"):
        stage.table.read()


def _middle_removed(folder: Path) -> str:
    _entry(folder, 3).unlink()
    return f"{_LOG}/{3:020d}.json"


def _edited(folder: Path, version: int, change: Callable[[dict[str, Any]], bool]) -> str:
    file = _entry(folder, version)
    actions = [json.loads(line) for line in file.read_text().splitlines()]
    kept = [action for action in actions if change(action)]
    file.write_text("\n".join(json.dumps(action) for action in kept) + "\n")
    return f"{_LOG}/{version:020d}.json"


def _add_removed(folder: Path) -> str:
    return _edited(folder, 2, lambda action: "add" not in action)


def _newest_add_removed(folder: Path) -> str:
    _edited(folder, 5, lambda action: "add" not in action)
    return _LOG


def _remove_removed(folder: Path) -> str:
    return _edited(folder, 3, lambda action: "remove" not in action)


def _given_to_another(folder: Path) -> str:
    def change(action: dict[str, Any]) -> bool:
        if "add" in action:
            action["add"]["partitionValues"] = {"application_id": "b"}
        return True

    _edited(folder, 5, change)
    return _active_of(folder, 8)


def _active_of(folder: Path, number: int) -> str:
    actions = pa.table(DeltaTable(folder).get_add_actions(flatten=True)).to_pylist()
    return next(action["path"] for action in actions if action["min.number"] == number)


def _foreign_append(folder: Path) -> str:
    write_deltalake(folder, columns(rows("a", 99)), mode="append")
    return f"{_LOG}/{6:020d}.json"


def _foreign_delete(folder: Path) -> str:
    DeltaTable(folder).delete("number = 6")
    return f"{_LOG}/{6:020d}.json"


def _log_bits(folder: Path) -> str:
    file = _entry(folder, 4)
    content = bytearray(file.read_bytes())
    content[content.index(b".parquet") - 3] ^= 1
    file.write_bytes(content)
    return f"{_LOG}/{4:020d}.json"


def _log_gone(folder: Path) -> str:
    shutil.rmtree(folder / _LOG)
    return _LOG


LOG_FAULTS: Final = [
    _middle_removed,
    _add_removed,
    _newest_add_removed,
    _remove_removed,
    _given_to_another,
    _foreign_append,
    _foreign_delete,
    _log_bits,
    _log_gone,
]


@pytest.mark.parametrize("fault", LOG_FAULTS, ids=lambda fault: fault.__name__.strip("_"))
def test_a_log_that_is_not_what_was_committed(stage: Stage, fault: Callable[[Path], str]) -> None:
    with edited(stage.path) as folder:
        file = fault(folder)
    assert file in {problem.file for problem in stage.problems()}
    for use in (
        stage.read,
        lambda: stage.read("b"),
        lambda: stage.table.append(rows("a", 10)),
        stage.table.tidy,
    ):
        with pytest.raises((StoredDataError, WarehouseError), match="things"):
            use()


class TestCheckpoints:
    """Where the log begins, once entries before it are gone."""

    @pytest.fixture
    def tidied(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
        monkeypatch.setattr(tables, "_RETENTION_NS", -(10**12))  # all entries have expired
        stage.table.tidy()
        stage.table.append(rows("a", 9))
        assert stage.read() == [*_NUMBERS, 9]
        assert stage.problems(read=True) == []
        return stage

    @staticmethod
    def _checkpoint(folder: Path) -> Path:
        (file,) = (folder / _LOG).glob("*.checkpoint.parquet")
        return file

    def test_the_newest_entry_stays(self, tidied: Stage) -> None:
        with edited(tidied.path) as folder:
            assert sorted(file.name for file in (folder / _LOG).glob("*.json")) == [
                f"{version:020d}.json" for version in (5, 6)
            ]
        tidied.table.tidy()
        tidied.table.tidy()
        with edited(tidied.path) as folder:
            assert [file.name for file in (folder / _LOG).glob("*.json")] == [f"{6:020d}.json"]
        assert tidied.read() == [*_NUMBERS, 9]
        assert tidied.problems(read=True) == []

    def test_damaged(self, tidied: Stage) -> None:
        with edited(tidied.path) as folder:
            file = self._checkpoint(folder)
            content = bytearray(file.read_bytes())
            content[len(content) // 4 : len(content) // 2] = bytes(len(content) // 4)
            file.write_bytes(content)
            name = f"{_LOG}/{file.name}"
        assert name in {problem.file for problem in tidied.problems()}
        with pytest.raises((StoredDataError, WarehouseError), match="things"):
            tidied.read()

    def test_one_bit_anywhere(self, tidied: Stage) -> None:
        """It is told of, or nothing comes of it."""
        chosen = random.Random(7)
        told = 0
        for _ in range(25):
            with edited(tidied.path) as folder:
                file = self._checkpoint(folder)
                whole = file.read_bytes()
                content = bytearray(whole)
                content[chosen.randrange(len(content))] ^= 1 << chosen.randrange(8)
                file.write_bytes(content)
            try:
                assert tidied.read() == [*_NUMBERS, 9]
            except (StoredDataError, WarehouseError):
                told += 1
                assert tidied.problems(read=True)
            with edited(tidied.path) as folder:
                self._checkpoint(folder).write_bytes(whole)
        assert told

    def test_rewritten_without_a_file(self, tidied: Stage) -> None:
        with edited(tidied.path) as folder:
            file = self._checkpoint(folder)
            found = pq.read_table(file)
            adds = [action["add"] is not None for action in found.to_pylist()]
            kept = [number for number in range(len(adds)) if number != adds.index(True)]
            pq.write_table(found.take(kept), file)
            name = f"{_LOG}/{file.name}"
        assert name in {problem.file for problem in tidied.problems()}
        with pytest.raises(StoredDataError, match="its log does not have the files"):
            tidied.read()

    def test_missing(self, tidied: Stage) -> None:
        with edited(tidied.path) as folder:
            self._checkpoint(folder).unlink()
        assert tidied.problems()
        with pytest.raises((StoredDataError, WarehouseError), match="things"):
            tidied.read()

    def test_its_entry_and_those_after_it_are_gone(self, tidied: Stage) -> None:
        with edited(tidied.path) as folder:
            for file in (folder / _LOG).glob("*.json"):
                file.unlink()
        assert _LOG in {problem.file for problem in tidied.problems()}
        with pytest.raises(StoredDataError, match=r"newest entry of its log .* is missing"):
            tidied.read()


class TestHead:
    """What was seen of a table earlier."""

    def test_it_grows(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        seen = head(stage.path)
        assert seen is not None
        with edited(stage.path) as folder:
            assert seen == Head(5, file_digest(_entry(folder, 5)))
        assert shortened(stage.path, "things", seen) is None
        stage.table.append(rows("a", 9))
        assert shortened(stage.path, "things", seen) is None
        monkeypatch.setattr(tables, "_RETENTION_NS", -(10**12))
        stage.table.tidy()
        stage.table.append(rows("a", 10))
        assert shortened(stage.path, "things", seen) is None

    def test_the_last_commits_are_cut_off(self, stage: Stage) -> None:
        seen = head(stage.path)
        assert seen is not None
        with edited(stage.path) as folder:
            _entry(folder, 5).unlink()
        assert stage.problems(read=True) == []  # a table that was never longer is the same
        assert stage.read() == _NUMBERS[:-1]
        problem = shortened(stage.path, "things", seen)
        assert problem is not None
        assert (problem.file, "ends at version 4" in problem.problem) == (
            f"{_LOG}/{5:020d}.json",
            True,
        )
        stage.table.append(rows("a", 88))  # another history
        problem = shortened(stage.path, "things", seen)
        assert problem is not None
        assert "not the earlier entry" in problem.problem
        stage.table.append(rows("a", 89))
        with edited(stage.path) as folder:
            _entry(folder, 5).unlink()  # as if it had expired
        problem = shortened(stage.path, "things", seen)
        assert problem is not None

    def test_a_checkpoint_tells_of_what_was_cut_off(self, stage: Stage) -> None:
        stage.table.tidy()
        with edited(stage.path) as folder:
            _entry(folder, 5).unlink()
        assert stage.problems()
        with pytest.raises((StoredDataError, WarehouseError)):
            stage.read()

    def test_all_is_gone(self, stage: Stage) -> None:
        seen = head(stage.path)
        assert seen is not None
        with edited(stage.path) as folder:
            shutil.rmtree(folder)
            folder.mkdir()
        assert head(stage.path) is None
        assert stage.problems() == []
        problem = shortened(stage.path, "things", seen)
        assert problem is not None
        assert "is gone" in problem.problem


class TestSignatures:
    """Commits of who has the key."""

    @pytest.fixture
    def keys(self, tmp_path: Path) -> tuple[Path, Path]:
        return _keys(tmp_path / "one")

    def test_signed_and_not(
        self, stage: Stage, keys: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        private, public = keys
        signed = replace(stage.table, path=stage.path.parent / "signed")
        monkeypatch.setenv(SIGNING_KEY, str(private))
        signed.append(rows("a", 1))
        signed.append(rows("a", 2))
        signed.tidy()
        assert table_problems(signed.path, "signed", read=True, public_key=public) == []
        assert table_problems(signed.path, "another", public_key=public)  # the name is signed
        monkeypatch.delenv(SIGNING_KEY)
        signed.append(rows("a", 3))
        (missing,) = table_problems(signed.path, "signed", public_key=public)
        assert (missing.file, missing.problem) == (f"{_LOG}/{3:020d}.json", "is not signed")
        monkeypatch.setenv(SIGNING_KEY, str(_keys(private.parent / "two")[0]))
        signed.append(rows("a", 4))
        found = table_problems(signed.path, "signed", public_key=public)
        assert [problem.problem for problem in found] == [
            "is not signed",
            "has a signature of another key",
        ]
        assert table_problems(signed.path, "signed", read=True) == []

    def test_a_consistent_other_history_is_not_signed(
        self, stage: Stage, keys: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Somebody who may write everything, and has no key."""
        private, public = keys
        signed = replace(stage.table, path=stage.path.parent / "signed")
        monkeypatch.setenv(SIGNING_KEY, str(private))
        signed.append(rows("a", 1))
        monkeypatch.delenv(SIGNING_KEY)
        signed.rewrite(1, 1, lambda found: found.slice(0, 0))
        assert table_problems(signed.path, "signed", read=True) == []
        assert table_problems(signed.path, "signed", public_key=public)

    def test_keys_that_cannot_be_used(
        self, stage: Stage, keys: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        private, public = keys
        for file in (public, private.with_name("missing.pem")):
            monkeypatch.setenv(SIGNING_KEY, str(file))
            with pytest.raises(ConfigurationError, match=rf"signing key .*{file.name}"):
                stage.table.append(rows("a", 9))
        assert stage.read() == _NUMBERS
        with pytest.raises(ConfigurationError, match="public key"):
            stage.problems(public_key=private)


def _keys(folder: Path) -> tuple[Path, Path]:
    folder.mkdir(parents=True)
    key = Ed25519PrivateKey.generate()
    private, public = folder / "private.pem", folder / "public.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


def test_what_the_log_says_of_a_file_is_compared_with_it(stage: Stage) -> None:
    """Readers pass over files by it."""

    def change(action: dict[str, Any]) -> bool:
        if "add" in action:
            stats = json.loads(action["add"]["stats"])
            stats["minValues"]["number"], stats["maxValues"]["number"] = 50, 60
            action["add"]["stats"] = json.dumps(stats)
        return True

    with edited(stage.path) as folder:
        _edited(folder, 5, change)
        file = _active_of(folder, 50)
    assert stage.problems() == []
    (problem,) = stage.problems(read=True)
    assert problem.file == file
    assert "values of number" in problem.problem


def test_files_say_what_they_hold(stage: Stage) -> None:
    with edited(stage.path) as folder:
        for path in chain.active_paths(DeltaTable(folder)):
            assert re.fullmatch(r"application_id=\w/part-[0-9a-f]{8}-[0-9a-f]{64}\.parquet", path)
            assert digest_in(path) == file_digest(folder / path)


def test_throttled(stage: Stage) -> None:
    told: list[int] = []
    assert stage.problems(read=True, throttle=told.append) == []
    with edited(stage.path) as folder:
        actions = pa.table(DeltaTable(folder).get_add_actions(flatten=True))
    assert sorted(told) == sorted(actions["size_bytes"].to_pylist())


def test_a_column_that_an_earlier_release_did_not_note(stage: Stage) -> None:
    """deltalake's own filter finds no row in its files."""
    earlier = Table(stage.path.parent / "earlier", Thing, "number", "a")
    earlier.append(rows("a", 1, name="x"))
    later = replace(earlier, statistics=("number", "name"))
    later.append(rows("a", 2, name="y"))
    found = later.read(where=pc.field("name").isin(["x", "y"]))
    assert sorted(found["number"].to_pylist()) == [1, 2]


@pytest.mark.e2e
class TestEarlierReleases:
    """Tables without digests and without a chain."""

    @pytest.fixture
    def earlier(self, tmp_path: Path) -> Table[Thing]:
        path = tmp_path / "warehouse" / "things"
        path.mkdir(parents=True)
        DeltaTable.create(
            on_disk(path),
            SCHEMA,
            partition_by=["application_id"],
            configuration={"kstreams_assets.layout": "1"},
            raise_if_key_not_exists=False,
        )
        write_deltalake(on_disk(path), columns(rows("a", 1, 2)), mode="append")
        return Table(path, Thing, "number", "a", statistics=("number",))

    def test_they_are_read_and_become_ours_with_the_first_write(
        self, earlier: Table[Thing]
    ) -> None:
        assert earlier.read().num_rows == 2
        assert table_problems(earlier.path, "things", read=True) == []
        write_deltalake(on_disk(earlier.path), columns(rows("a", 3)), mode="append")
        assert earlier.read().num_rows == 3
        assert table_problems(earlier.path, "things", read=True) == []
        earlier.append(rows("a", 4))
        configuration = DeltaTable(on_disk(earlier.path)).metadata().configuration
        assert configuration[LAYOUT_PROPERTY] == str(CONTROL_LAYOUT_VERSION)
        assert table_problems(earlier.path, "things", read=True) == []
        write_deltalake(on_disk(earlier.path), columns(rows("a", 5)), mode="append")
        assert table_problems(earlier.path, "things")
        with pytest.raises(StoredDataError, match="another program than kstreams-assets"):
            earlier.read()

    def test_their_files_are_pinned_by_name(self, earlier: Table[Thing]) -> None:
        earlier.append(rows("a", 4))
        (file,) = (
            file for file in on_disk(earlier.path).rglob("*.parquet") if not digest_in(file.name)
        )
        file.unlink()
        (problem,) = table_problems(earlier.path, "things")
        assert (problem.file, problem.problem) == (
            str(file.relative_to(on_disk(earlier.path))),
            "is missing",
        )


_WRITER = """
import random, sys, threading
from dataclasses import replace
import pyarrow.compute as pc
from kstreams_assets.store import place_at
from kstreams_assets.repository import table as tables
from tests.repository.test_table import Thing, rows
tables._RETENTION_NS = (20 if "s3:" in sys.argv[1] else 5) * 10**9
everyones = tables.Table(
    place_at(sys.argv[1]), Thing, "number", statistics=("number",), small_files=5
)
chosen = random.Random(sys.argv[2])

def rounds(application, count):
    table = replace(everyones, application_id=application)
    for number in range(count):
        step = chosen.randrange(6)
        if step < 3:
            table.append(rows(application, number, number))
        elif step == 3:
            where = pc.field("number") == chosen.randrange(number + 1)
            table.replace(rows(application, number), where=where)
        elif step == 4:
            table.rewrite(0, number, lambda found: found.sort_by("number"))
        else:
            table.tidy()
        table.rows()

threads = [
    threading.Thread(target=rounds, args=(f"{sys.argv[2]}-{n}", int(sys.argv[3])))
    for n in range(2)
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


_ENDING: Final = """
import sys
from kstreams_assets.store import place_at
from kstreams_assets.repository.known import Known
from kstreams_assets.repository.table import Table
from tests.repository.test_table import Thing, rows
table = Table(place_at(sys.argv[1]), Thing, "number", "a")
for number in range(3):
    table.append(rows("a", number))
    assert len(table.rows()) == number + 1
"""


@pytest.mark.e2e
def test_a_process_that_has_read_ends_in_peace(tmp_path: Path) -> None:
    """In a store one in four aborted, when Arrow's threads let go of objects of Python."""
    root = warehouse_at(tmp_path / "warehouse").root
    for number in range(10):
        done = subprocess.run(
            [sys.executable, "-c", _ENDING, str(root / f"things{number}")],
            timeout=60,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.e2e
def test_no_false_alarm(tmp_path: Path) -> None:
    """200 rounds of all kinds, by threads of several processes, and looks meanwhile."""
    path = warehouse_at(tmp_path / "warehouse").root / "things"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path), name, "50"],
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("a", "b")
    ]
    seen: Head | None = None
    looks = 0
    try:
        while any(writer.poll() is None for writer in writers):
            assert table_problems(path, "things", read=True) == []
            if seen is not None:
                assert shortened(path, "things", seen) is None
            seen = head(path)
            looks += 1
    finally:
        errors = [writer.communicate(timeout=300)[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], errors
    assert not any("Traceback" in error for error in errors), errors
    assert looks > 3
    assert table_problems(path, "things", read=True) == []
    assert seen is not None
    assert seen.version > 150


def test_rows_without_a_value_are_found_among_others(stage: Stage) -> None:
    table = replace(stage.table, path=stage.path.parent / "nulls")
    table.append([Thing("a", "x", 5), Thing("a", "y", None)])
    found = table.read(where=pc.field("number").is_null())
    assert found["name"].to_pylist() == ["y"]
