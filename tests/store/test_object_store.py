"""A warehouse in a real S3 server: what is in it, what stands in the way, who may write."""

import hashlib
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from botocore.session import Session
from deltalake import DeltaTable, write_deltalake

from kstreams_assets.errors import ConfigurationError, WarehouseError
from kstreams_assets.layout import Warehouse
from kstreams_assets.lease import warehouse_lock
from kstreams_assets.model.spans import Window
from kstreams_assets.model.tables import Lock
from kstreams_assets.repository.delta_log import drop_old_log, log_names, make_checkpoint
from kstreams_assets.repository.fences import put_in_order
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.records import open_records
from kstreams_assets.repository.repository import Repository
from kstreams_assets.store import (
    ConditionError,
    NewObject,
    ObjectPath,
    access,
    file_digest,
    local_hours,
    store_at,
    write_parquet,
)
from kstreams_assets.store.access import Credentials
from kstreams_assets.store.locks import LeaseLostError, LockHandle, WarehouseLockedError
from kstreams_assets.store.objects import ObjectStore
from tests.backup.samples import cut, point
from tests.store.seaweed import BUCKET, SeaweedFS, seaweed, store
from tests.store.writer_process import APPLICATION

__all__ = ["seaweed", "store"]
pytestmark = pytest.mark.store

_LEASE_S = 6.0


def test_the_clock_of_the_store(store: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    assert abs(store_at(store).now() - time.time()) < 60
    assert not list(store.below())
    assert local_hours(store, 6) == 6
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3.5 * 3600)
    assert local_hours(store, 6) == 10
    monkeypatch.setattr(time, "time", lambda: real() - 3.5 * 3600)
    assert local_hours(store, 6) == 3
    monkeypatch.setattr(time, "time", lambda: real() - 24 * 3600)
    assert local_hours(store, 6) == 0


def test_the_log_is_kept_by_the_clock_of_the_store(
    store: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries go once a checkpoint behind them is an hour old; later versions stay readable."""
    table = store / "table"
    for number in range(5):
        rows = pa.table({"x": [number]})
        write_deltalake(
            str(table), rows, mode="append", storage_options=store_at(table).delta_options()
        )
        if number == 2:
            make_checkpoint(table)
    names = set(log_names(table))
    drop_old_log(table)
    assert set(log_names(table)) == names
    now = ObjectStore.now
    monkeypatch.setattr(ObjectStore, "now", lambda place: now(place) + 3_000)
    drop_old_log(table)
    assert set(log_names(table)) == names
    monkeypatch.setattr(ObjectStore, "now", lambda place: now(place) + 3_700)
    drop_old_log(table)
    assert names - set(log_names(table)) == {f"{version:020d}.json" for version in (0, 1)}
    for version in (2, 3, 4):
        assert (
            DeltaTable(str(table), version=version, storage_options=store_at(table).delta_options())
            .to_pyarrow_table()
            .num_rows
            == version + 1
        )


class TestObjects:
    def test_what_was_put_is_there(self, store: ObjectPath) -> None:
        place = store / "a" / "b.json"
        assert not place.exists()
        assert not store.is_dir()
        with pytest.raises(FileNotFoundError):
            place.read_bytes()

        place.write_text("first")
        place.write_text("second")

        assert place.read_text() == "second"
        assert place.stat().st_size == 6
        assert place.exists()
        assert place.is_file()
        assert (store / "a").exists()
        assert not (store / "a").is_file()
        assert [one.name for one in store.iterdir()] == ["a"]
        assert list(store.glob("*/*.json")) == [place] == list(store.rglob("*.json"))
        assert list(store.glob("*.json")) == []
        store_at(store).remove_tree()
        assert not store.is_dir()

    def test_a_condition_that_does_not_hold(self, store: ObjectPath) -> None:
        place = store / "lease"
        first = place.create(b"1")
        with pytest.raises(ConditionError):
            place.create(b"2")
        second = place.replace_version(b"2", first)
        with pytest.raises(ConditionError):
            place.replace_version(b"3", first)
        assert place.read() == (b"2", second)

    def test_a_file_of_many_parts(self, store: ObjectPath) -> None:
        place, data = store / "large", os.urandom(1024**2)
        file = NewObject(place)
        for _ in range(30):
            file.write(data)
        assert not place.exists()
        digest = file.finish()
        assert place.stat().st_size == file.size == 30 * 1024**2
        assert file_digest(place) == digest
        with store_at(place).fetched() as local:
            assert local.read_bytes() == data * 30
        assert not local.exists()

    def test_a_file_that_takes_longer_than_its_keys(
        self, store: ObjectPath, seaweed: SeaweedFS, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[float] = []

        def ending(_: str | None) -> Credentials:
            asked.append(time.time())
            return Credentials(seaweed.key, seaweed.secret, None, asked[-1] + 1.0)

        monkeypatch.setattr(access, "_credentials", ending)
        place, data = store / "slow", os.urandom(9 * 1024**2)
        file = NewObject(place)
        begun = len(asked)
        for _ in range(3):
            file.write(data)
            time.sleep(0.2)
        digest = file.finish()
        assert len(asked) > begun
        assert file_digest(place) == digest

    def test_parquet(self, store: ObjectPath) -> None:
        rows = pa.table({"number": list(range(1000))})
        write_parquet(rows, store / "rows.parquet")
        assert pq.ParquetFile(store_at(store / "rows.parquet").readable()).read() == rows

    def test_encryption_at_rest(self, store: ObjectPath, seaweed: SeaweedFS) -> None:
        place = seaweed.place(encryption="AES256")
        (place / "x").write_text("there")
        Repository(Warehouse(place), "shop").points.append(point(1000, cut(0, 10), point_id="p"))
        client = Session().create_client("s3", endpoint_url=seaweed.endpoint)
        for path in [place / "x", *place.rglob("*.parquet")]:
            told = client.head_object(Bucket=path.bucket, Key=path.key)
            assert told["ServerSideEncryption"] == "AES256", path
        assert (place / "x").read_text() == "there"
        assert _points(Warehouse(place)) == ["p"]

    def test_tasks_get_the_keys_but_texts_do_not(
        self, store: ObjectPath, seaweed: SeaweedFS, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (store / "x").write_text("there")
        carried = pickle.dumps(store / "x")
        assert seaweed.secret not in f"{store!r} {store} {store.access} {store.access.carried()!r}"
        for name in seaweed.environment:
            monkeypatch.delenv(name)
        assert pickle.loads(carried).read_text() == "there"  # noqa: S301


def _points(warehouse: Warehouse) -> list[str]:
    return [one.id for one in Repository(warehouse, "shop").points.newest(100)]


class TestTables:
    def test_rows_come_back(self, store: ObjectPath) -> None:
        warehouse = Warehouse(store)
        assert not Warehouse(store).exists
        for number in range(3):
            made = point(1000 + number, cut(0, 10), point_id=f"p{number}")
            Repository(warehouse, made.application_id).points.append(made)
        assert Warehouse(store).exists
        assert sorted(_points(warehouse)) == ["p0", "p1", "p2"]

    def test_a_folder_that_was_copied_there_goes_on(self, store: ObjectPath, tmp_path: Any) -> None:
        local = Warehouse(tmp_path)
        Repository(local, "shop").points.append(point(1000, cut(0, 10), point_id="before"))
        with warehouse_lock(local.lock_file("shop"), purpose="test", wait_s=0) as lock:
            epoch = lock.epoch
        for file in tmp_path.rglob("*"):
            if file.is_file():
                (store / str(file.relative_to(tmp_path))).write_bytes(file.read_bytes())

        moved = Warehouse(store)
        assert _points(moved) == ["before"]
        Repository(moved, "shop").points.append(point(2000, cut(0, 20), point_id="after"))
        assert sorted(_points(moved)) == ["after", "before"]
        with warehouse_lock(moved.lock_file("shop"), purpose="test", wait_s=10) as lock:
            assert lock.epoch > epoch

    def test_nobody_loses_a_commit_to_a_shared_table(self, store: ObjectPath) -> None:
        """Appends of several processes at once: all of them are there, once."""
        program = (
            "import sys\n"
            "from kstreams_assets.layout import Warehouse\n"
            "from kstreams_assets.repository.repository import Repository\n"
            "from tests.backup.samples import cut, point\n"
            "for n in range(12):\n"
            "    made = point(1000 + n, cut(0, 10), point_id=f'{sys.argv[2]}-{n}')\n"
            "    Repository(Warehouse.at(sys.argv[1]), 'shop').points.append(made)\n"
        )
        Warehouse(store).make()
        writers = [
            subprocess.Popen([sys.executable, "-c", program, str(store), name]) for name in "abc"
        ]
        assert [writer.wait(240) for writer in writers] == [0, 0, 0]
        wanted = sorted(f"{name}-{number}" for name in "abc" for number in range(12))
        assert sorted(_points(Warehouse(store))) == wanted


class TestWhatStandsInTheWay:
    """One line within a bounded time, which never shows the secret."""

    def _refused(self, place: ObjectPath, seaweed: SeaweedFS) -> str:
        began = time.monotonic()
        with pytest.raises((WarehouseError, ConfigurationError)) as caught:
            Warehouse(place).make()
        with pytest.raises((WarehouseError, ConfigurationError)):
            Repository(Warehouse(place), "shop").points.newest(1)
        assert time.monotonic() - began < 60
        said = str(caught.value)
        assert "\n" not in said
        assert seaweed.secret not in said
        assert len(said) < 500
        return said

    def test_a_wrong_secret(
        self, store: ObjectPath, seaweed: SeaweedFS, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-" + seaweed.secret[:10])
        said = self._refused(seaweed.place(), seaweed)
        assert "the store does not accept the secret key" in said
        assert "AWS_SECRET_ACCESS_KEY" in said

    def test_an_unknown_key(
        self, store: ObjectPath, seaweed: SeaweedFS, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
        assert "the store does not know the access key" in self._refused(seaweed.place(), seaweed)

    def test_no_bucket(self, store: ObjectPath, seaweed: SeaweedFS) -> None:
        said = self._refused(ObjectPath.at("s3://not-there/x", store.access.settings), seaweed)
        assert "there is no such bucket" in said
        assert "s3://not-there/x" in said

    def test_no_right_to_write(
        self, store: ObjectPath, seaweed: SeaweedFS, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        Repository(Warehouse(store), "shop").points.append(
            point(1000, cut(0, 10), point_id="there")
        )
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", seaweed.reader[0])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", seaweed.reader[1])
        place = seaweed.place(store.key)
        assert _points(Warehouse(place)) == ["there"]
        with pytest.raises(WarehouseError) as caught:
            Repository(Warehouse(place), "shop").points.append(point(2000, cut(0, 10)))
        assert "denies this operation" in str(caught.value)
        assert "Give these credentials the right" in str(caught.value)

    def test_an_endpoint_that_is_down(self, store: ObjectPath, seaweed: SeaweedFS) -> None:
        down = seaweed.place(endpoint="http://127.0.0.1:9")
        assert "its endpoint does not answer" in self._refused(down, seaweed)

    def test_no_credentials(
        self, store: ObjectPath, seaweed: SeaweedFS, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
        monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
        with pytest.raises(ConfigurationError, match="There are no credentials"):
            Warehouse(seaweed.place()).make()

    def test_nothing_there_yet(self, store: ObjectPath) -> None:
        with pytest.raises(WarehouseError, match="there is no warehouse") as caught:
            Repository(Warehouse(store), "shop").require_backup()
        assert "Check bucket and prefix" in str(caught.value)


class _Double(BaseHTTPRequestHandler):
    """A store of a few lines that knows no conditions, as some do."""

    objects: ClassVar[dict[str, bytes]] = {}

    def _answer(self, status: int, body: bytes = b"", e_tag: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Wed, 25 Nov 2026 10:00:00 GMT")
        self.send_header("ETag", f'"{hashlib.sha256(e_tag or body).hexdigest()[:32]}"')
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.objects[self.path] = body
        self._answer(200, e_tag=body)

    def do_GET(self) -> None:
        if "?" in self.path:
            empty = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
            return self._answer(200, empty)
        found = self.objects.get(self.path)
        return self._answer(404) if found is None else self._answer(200, found)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Deletes objects, the only thing for which it is asked."""
        asked = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        bucket = self.path.split("?")[0]
        for key in re.findall("<Key>(.*?)</Key>", asked):
            self.objects.pop(f"{bucket}/{key}", None)
        self._answer(200, b"<DeleteResult></DeleteResult>")

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def _without_conditions() -> Iterator[str]:
    _Double.objects.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Double)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class TestStoresWithoutConditions:
    def test_are_refused_before_anything_is_written(
        self, store: ObjectPath, seaweed: SeaweedFS
    ) -> None:
        with _without_conditions() as endpoint:
            place = seaweed.place(endpoint=endpoint)
            with pytest.raises(ConfigurationError, match="ignores conditions") as caught:
                Warehouse(place).make()
            assert "\n" not in str(caught.value)
            with (
                pytest.raises(ConfigurationError, match="ignores conditions"),
                warehouse_lock(Warehouse(place).lock_file("shop"), purpose="test", wait_s=0),
            ):
                pytest.fail("it was locked")
            assert _Double.objects == {}

    def test_the_real_one_is_not(self, store: ObjectPath) -> None:
        store_at(store).require_conditions()
        assert not store.is_dir()


@contextmanager
def _writer(
    store: ObjectPath, name: str, rounds: int, *more: str, lease_s: float = _LEASE_S
) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "tests.store.writer_process", str(store), name, str(rounds)]
    with subprocess.Popen(
        [*command, str(lease_s), *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def _recorder(store: ObjectPath, read_s: float = 0.0) -> Iterator["subprocess.Popen[str]"]:
    module = "tests.store.recorder_process"
    command = [sys.executable, "-m", module, str(store), str(_LEASE_S), str(read_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _go_on(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def _committed(store: ObjectPath) -> list[str]:
    table = open_records(Warehouse(store).records(APPLICATION))
    assert table is not None
    windows = pa.table(table.get_add_actions(flatten=True))["partition.window"]
    return sorted(windows.to_pylist())


class TestOneWriter:
    def test_a_writer_that_was_stopped_past_its_lease(self, store: ObjectPath) -> None:
        """It had looked at the table and was about to commit when it was stopped."""
        with _writer(store, "first", 1, "pause") as first:
            assert _line(first) == "ready"
            first.send_signal(signal.SIGSTOP)
            with _writer(store, "second", 1) as second:
                assert _line(second) == "committed second 0"
                assert second.wait(30) == 0
            first.send_signal(signal.SIGCONT)
            _go_on(first)
            assert _line(first) == "refused first 0"
        assert _committed(store) == ["second-0000"]

    def test_it_is_refused_also_before_its_successor_has_committed(self, store: ObjectPath) -> None:
        with _writer(store, "first", 1, "pause") as first:
            assert _line(first) == "ready"
            first.send_signal(signal.SIGSTOP)
            with _writer(store, "second", 1, "pause") as second:
                assert _line(second) == "ready"  # it holds the lease, and has committed nothing
                first.send_signal(signal.SIGCONT)
                _go_on(first)
                assert _line(first) == "refused first 0"
                _go_on(second)
                assert _line(second) == "committed second 0"
        assert _committed(store) == ["second-0000"]

    def test_the_log_refuses_a_writer_that_does_not_know_that_it_is_late(
        self, store: ObjectPath, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As if it had been stopped after its last look at the lease: only the epoch stands."""
        from kstreams_assets.repository.committer import commit, fence, uncommitted
        from kstreams_assets.repository.records import ensure_records
        from tests.store.writer_process import new_file

        path = Warehouse(store).records(APPLICATION)
        lock_file = Warehouse(store).lock_file(APPLICATION)
        with warehouse_lock(lock_file, purpose="late", wait_s=0) as late:
            stale = fence(path, ensure_records(path), late)
            assert stale is not None
            monkeypatch.setattr(type(late), "require_held", lambda _: None)
            held = json.loads(lock_file.read_text())  # pyright: ignore
            lock_file.write_text(json.dumps({"epoch": held["epoch"], "free": True}))
            with warehouse_lock(lock_file, purpose="next", wait_s=0) as following:
                following.is_taken_over = True
                fence(path, ensure_records(path), following)
            with uncommitted(path) as folder:
                assert isinstance(folder, ObjectPath)
                file = new_file(folder, "late", 0)
            for table in (stale, ensure_records(path)):
                with pytest.raises((LeaseLostError, WarehouseError)):
                    commit(path, table, [file], writer=late, replaces=[], provenance={})
        assert open_records(path) is not None
        assert _committed(store) == []

    def test_a_writer_that_was_killed_keeps_nobody_waiting(self, store: ObjectPath) -> None:
        """On the same machine its successor sees that it is gone; elsewhere it waits."""
        with _writer(store, "first", 1, "pause", lease_s=300) as first:
            assert _line(first) == "ready"
            first.kill()
            first.wait()
            began = time.monotonic()
            with _writer(store, "second", 1) as second:
                assert _line(second) == "committed second 0"
            assert time.monotonic() - began < 60

    def test_one_of_another_machine_is_waited_for(self, store: ObjectPath) -> None:
        lock_file = Warehouse(store).lock_file(APPLICATION)
        assert isinstance(lock_file, ObjectPath)
        gone = {"pid": 1, "host": "elsewhere", "purpose": "p", "since": "s", "epoch": 7}
        lock_file.write_text(json.dumps({**gone, "token": "t", "duration_s": 2.0}))
        began = time.monotonic()
        with warehouse_lock(lock_file, purpose="test", wait_s=0) as lock:
            assert time.monotonic() - began >= 2.0
            assert lock.epoch == 8
            assert lock.is_taken_over

    def test_one_that_lives_is_not(self, store: ObjectPath) -> None:
        lock_file = Warehouse(store).lock_file(APPLICATION)
        with (
            warehouse_lock(lock_file, purpose="first", wait_s=0),
            pytest.raises(WarehouseLockedError, match="first"),
            warehouse_lock(lock_file, purpose="second", wait_s=0.5),
        ):
            pytest.fail("two held it")
        with warehouse_lock(lock_file, purpose="third", wait_s=0) as lock:
            assert not lock.is_taken_over

    def test_a_store_that_is_gone_ends_the_writer_before_its_lease(
        self, store: ObjectPath, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place = ObjectPath(
            store.bucket,
            store.key,
            type(store.access)(store.access.settings.model_copy(update={"lease_s": 2.0})),
        )
        with warehouse_lock(Warehouse(place).lock_file("shop"), purpose="test", wait_s=0) as lock:
            lock.require_held()

            def gone(*_: object) -> str:
                raise OSError(5, "its endpoint does not answer", str(place))

            monkeypatch.setattr(ObjectPath, "_put", gone)
            deadline = time.monotonic() + 2.0
            with pytest.raises(LeaseLostError, match="renewed"):
                _use(lock, until=deadline)

    def test_a_recorder_that_was_stopped_past_its_lease(self, store: ObjectPath) -> None:
        """Else two points had the same number."""
        with _recorder(store, read_s=1.0) as first:
            assert _line(first) == "read"
            first.send_signal(signal.SIGSTOP)
            with _recorder(store) as second:
                assert [_line(second), _line(second)] == ["read", "stored 1"]
            first.send_signal(signal.SIGCONT)
            assert _line(first) == "refused"
        with _recorder(store) as third:
            assert [_line(third), _line(third)] == ["read", "stored 2"]
        instants = Repository(Warehouse(store), "shop").points.instants()
        assert sorted(instant.sequence or 0 for instant in instants) == [1, 2]

    @pytest.mark.drill
    def test_two_hundred_rounds_of_contention(self, store: ObjectPath) -> None:
        """Two processes that share nothing but the store: no commit lost, none twice."""
        Warehouse(store).make()
        rounds = 100
        with _writer(store, "a", rounds) as a, _writer(store, "b", rounds) as b:
            told = [process.communicate(timeout=560)[0] for process in (a, b)]
        assert all(text.count("committed") == rounds for text in told), told
        wanted = sorted(f"{name}-{number:04d}" for name in "ab" for number in range(rounds))
        assert _committed(store) == wanted


def _use(lock: LockHandle, until: float) -> None:
    while True:
        lock.require_held()
        if time.monotonic() >= until:
            return
        time.sleep(0.05)


def test_the_bucket_is_named(store: ObjectPath) -> None:
    assert str(store).startswith(f"s3://{BUCKET}/")


class TestSeveralApplications:
    """Each has a lock and epochs of its own, also in tables that they share."""

    def test_one_does_not_stand_in_the_way_of_another(self, tmp_path: Path) -> None:
        warehouse = Warehouse(tmp_path)
        window = Window(0, 60_000, "w")
        for name in ("a", "a", "a", "b"):
            with warehouse_lock(warehouse.lock_file(name), purpose="test", wait_s=0) as lock:
                ledger = Ledger(warehouse, name)
                put_in_order(Repository(warehouse, name), Lock.APPLICATION, lock, ())
                ledger.keep_increments(window, [], lock)

    def test_a_copy_without_locks_goes_on(self, tmp_path: Path) -> None:
        warehouse = Warehouse(tmp_path)
        window = Window(0, 60_000, "w")
        for _ in range(3):
            with warehouse_lock(warehouse.lock_file("a"), purpose="test", wait_s=0) as lock:
                Ledger(warehouse, "a").keep_increments(window, [], lock)
        shutil.rmtree(tmp_path / ".locks")
        with warehouse_lock(warehouse.lock_file("a"), purpose="test", wait_s=0) as lock:
            with pytest.raises(LeaseLostError, match="a later writer has committed"):
                Ledger(warehouse, "a").keep_increments(window, [], lock)
            put_in_order(Repository(warehouse, "a"), Lock.APPLICATION, lock, ())
            Ledger(warehouse, "a").keep_increments(window, [], lock)

    def test_the_ledger_refuses_who_was_followed(self, store: ObjectPath) -> None:
        warehouse = Warehouse(store)
        window, ledger = Window(0, 60_000, "w"), Ledger(warehouse, "a")
        lock_file = warehouse.lock_file("a")
        with warehouse_lock(lock_file, purpose="late", wait_s=0) as late:
            ledger.keep_increments(window, [], late)
            held = json.loads(lock_file.read_text(encoding="utf-8"))
            store_at(lock_file).put_text(json.dumps({"epoch": held["epoch"], "free": True}))
            with warehouse_lock(lock_file, purpose="next", wait_s=0) as following:
                following.is_taken_over = True
                put_in_order(Repository(warehouse, "a"), Lock.APPLICATION, following, ())
            with pytest.raises(LeaseLostError):
                ledger.keep_increments(window, [], late)


def test_keys_that_change_are_used(store: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    (store / "x").write_text("1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    with pytest.raises(OSError, match=r"access key|right"):
        (store / "x").read_text()
    with pytest.raises(OSError, match=r"access key|right"):
        store.is_dir()
