"""Which outages a follower outlives, when it gives up, and what its neighbours see of that."""

import errno
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from kstreams_assets.app_file.read import load_settings
from kstreams_assets.backup import follow as module
from kstreams_assets.backup.amounts import Pace, Phase, Progress
from kstreams_assets.backup.follow import Follower, follow, status_of
from kstreams_assets.backup.follower_status import catching_up
from kstreams_assets.errors import ClusterUnavailableError, KStreamsAssetsError, SparkJobError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.layout import Warehouse
from kstreams_assets.lease import warehouse_lock
from kstreams_assets.repository import repository
from kstreams_assets.store.folders import FolderStore
from kstreams_assets.store.locks import LeaseLostError, WarehouseLockedError
from tests.cli.application import document, write
from tests.store.place import warehouse_at
from tests.timing import DEADLINE_S, eventually

CLUSTER_AWAY = ClusterUnavailableError(
    bootstrap_servers="b:9092", operation="list topics", timeout_s=30, reason="timed out"
)
LOCKED = WarehouseLockedError(path=Path("lock"), holder="ktables on vm, pid 4", waited_s=60)
MANY = 6
"""Failures: more than a follower makes in the time after which it gives up."""


class _Scripted(Follower):
    """A follower whose steps do what a test says."""

    __slots__ = ("act",)

    act: Callable[[], object]

    def step(self, cluster: KafkaCluster, ended: threading.Event) -> None:
        """A step that has worked, unless it raises."""
        self.act()
        self._success = time.monotonic()
        self._change(steps=self.status.steps + 1, failures=0, problem="")


class _NoCluster:
    def __init__(self, *_: object) -> None:
        """Of any connection."""

    def __enter__(self) -> "_NoCluster":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without brokers, and without windows to close."""
    monkeypatch.setattr(module, "KafkaCluster", _NoCluster)
    monkeypatch.setattr(module._Closing, "start_if_due", lambda _: None)


def _nothing() -> None:
    """A step with nothing to do."""


def _follower(
    folder: Path, name: str, act: Callable[[], object] = _nothing, give_up_s: float = 600
) -> _Scripted:
    (folder / name).mkdir()
    app_file = write(
        folder / name / "defs.yaml",
        document(name, warehouse=str(warehouse_at(folder / name / "warehouse").root)),
    )
    follower = _Scripted(load_settings(app_file), None, "run", 0.02, give_up_s=give_up_s)  # pyright: ignore
    follower.act = act
    return follower


@contextmanager
def _following(*followers: Follower) -> "Iterator[Callable[[], None]]":
    """Let them follow; what is yielded waits for their common end, and raises what they do."""
    ended = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(follow, followers, ended)
        try:
            yield lambda: running.result(DEADLINE_S)
        finally:
            ended.set()


def _goes_on(follower: Follower) -> None:
    before = follower.status.steps
    assert eventually(lambda: follower.status.steps > before + 2)


class _Away:
    """Something that is away for a while."""

    def __init__(self, error: Exception) -> None:
        self.error, self.is_away = error, threading.Event()

    def __call__(self) -> None:
        if self.is_away.is_set():
            raise self.error


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(OSError(errno.ENOSPC, "No space left on device"), id="disk full"),
        pytest.param(OSError("AWS Error NETWORK_CONNECTION"), id="store away"),
        pytest.param(CLUSTER_AWAY, id="brokers"),
        pytest.param(SparkJobError("Connection refused"), id="engine"),
        pytest.param(
            LeaseLostError(path=Path("l"), reason="it was not renewed for 30 s"), id="lease late"
        ),
    ],
)
def test_it_goes_on_after_an_outage_and_its_neighbour_in_it(
    tmp_path: Path, error: Exception
) -> None:
    store = _Away(error)
    shop, bank = _follower(tmp_path, "shop", store), _follower(tmp_path, "bank")
    with _following(shop, bank):
        _goes_on(shop)
        store.is_away.set()
        assert eventually(lambda: shop.status.failures >= 2)
        assert str(error).split(". ")[0][:20] in shop.status.problem
        _goes_on(bank)
        store.is_away.clear()
        _goes_on(shop)
        assert shop.status.failures == 0


def test_a_status_that_cannot_be_written_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, durable: bool) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    shop = _follower(tmp_path, "shop")
    with _following(shop):
        _goes_on(shop)
        monkeypatch.setattr(FolderStore, "put_text", full)
        _goes_on(shop)
        assert shop.status.failures == 0


def test_a_store_that_is_away_from_the_start_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = _Away(OSError("AWS Error NETWORK_CONNECTION"))
    away.is_away.set()
    make = Warehouse.make
    monkeypatch.setattr(Warehouse, "make", lambda warehouse: (away(), make(warehouse)))
    shop = _follower(tmp_path, "shop")
    with _following(shop):
        assert eventually(lambda: shop.status.failures)
        away.is_away.clear()
        _goes_on(shop)


def test_without_a_success_it_gives_up_and_its_neighbour_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    away = _Away(OSError(errno.ENOSPC, "No space left on device"))
    away.is_away.set()
    shop, bank = _follower(tmp_path, "shop", away, give_up_s=0.3), _follower(tmp_path, "bank")
    with _following(shop, bank) as end:
        assert eventually(lambda: shop.status.ended_at_ms)
        _goes_on(bank)
        assert shop.trouble().startswith("It has ended. ")
        assert "No space left" in shop.trouble()
        assert bank.status.ended_at_ms is None
        assert "shop: following has ended: " in caplog.text
        # The process ends when nobody is left, and says what ended the first.
        bank.act = away
        bank.give_up_s = 0.3
        with pytest.raises(OSError, match="No space left"):
            end()


def test_it_waits_without_giving_up_for_the_lock_of_another_run(tmp_path: Path) -> None:
    """A run of KTables holds the application's lock to its end, which may be hours later."""
    tables, away = _Away(LOCKED), _Away(OSError(errno.ENOSPC, "No space left on device"))
    shop = _follower(tmp_path, "shop", tables, give_up_s=0.3)
    with _following(shop) as end:
        _goes_on(shop)
        tables.is_away.set()
        assert eventually(lambda: shop.status.failures >= MANY)
        assert "is held by ktables on vm, pid 4" in shop.status.problem
        assert not shop.stuck()
        assert shop.status.ended_at_ms is None
        tables.is_away.clear()
        _goes_on(shop)
        shop.act = away
        away.is_away.set()
        with pytest.raises(OSError, match="No space left"):
            end()


def test_what_nobody_has_foreseen_ends_one_alone(tmp_path: Path) -> None:
    broken = _Away(ZeroDivisionError("a fault of this program"))
    shop, bank = _follower(tmp_path, "shop", broken), _follower(tmp_path, "bank")
    with _following(shop, bank) as end:
        _goes_on(shop)
        broken.is_away.set()
        assert eventually(lambda: shop.status.ended_at_ms)
        _goes_on(bank)
        bank.act = broken
        with pytest.raises(ZeroDivisionError):
            end()


def test_whoever_has_lost_its_lease_ends_before_its_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = threading.Event()

    @contextmanager
    def locked(*arguments: object, **options: object) -> "Iterator[object]":
        with warehouse_lock(*arguments, **options) as held:  # pyright: ignore

            class Lost:
                is_lost = property(lambda _: lost.is_set())

                def require_held(self) -> None:
                    if lost.is_set():
                        raise LeaseLostError(path=Path("l"), reason="process 7 has taken it over")
                    held.require_held()

            yield Lost()

    monkeypatch.setattr(repository, "warehouse_lock", locked)
    shop = _follower(tmp_path, "shop")
    with _following(shop) as end:
        _goes_on(shop)
        lost.set()
        with pytest.raises(LeaseLostError, match="process 7 has taken it over"):
            end()
    told = status_of(shop.settings.warehouse, "shop")
    assert told is not None
    assert told.ended_at_ms is not None
    assert "taken it over" in told.problem


def test_the_second_follower_is_refused_and_does_not_try_again(tmp_path: Path) -> None:
    shop = _follower(tmp_path, "shop")
    second = _Scripted(shop.settings, None, "second", 0.02)  # pyright: ignore
    second.act = _nothing
    with _following(shop):
        _goes_on(shop)
        with pytest.raises(KStreamsAssetsError, match="is held by"), _following(second) as end:
            end()
        _goes_on(shop)


def test_a_signal_that_another_thread_received_ends_it(tmp_path: Path) -> None:
    """Its handler runs in the main thread, which waits for the followers meanwhile."""
    ended = threading.Event()
    received = threading.Event()

    def receive() -> None:
        time.sleep(0.2)  # the main thread waits by then
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        received.set()

    def act() -> None:
        if received.wait(0.01) and not ended.wait(DEADLINE_S):
            ended.set()
            raise RuntimeError("the signal had no effect")

    before = signal.signal(signal.SIGUSR1, lambda *_: ended.set())
    try:
        threading.Thread(target=receive).start()
        follow([_follower(tmp_path, "shop", act)], ended)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_it_is_stuck_when_it_does_nothing_and_not_while_it_tells_of_progress(
    tmp_path: Path,
) -> None:
    shop = _follower(tmp_path, "shop")
    assert shop.stuck() == ""
    shop._success -= module._STUCK_S + 1
    assert shop.stuck().startswith("Its last success was 30 min ")
    shop.settings.warehouse.make()
    shop._has_read(Progress(Phase.RECORDS, 0, 1e9))
    assert shop.stuck() == ""


def test_how_far_a_first_backup_is_stands_in_the_status_of_a_follower_that_runs(
    tmp_path: Path,
) -> None:
    shop = _follower(tmp_path, "shop")
    warehouse = shop.settings.warehouse
    warehouse.make()
    shop._has_read(Progress(Phase.RECORDS, 0, 100e9, Pace(10e6, "")))
    assert catching_up(warehouse, "shop") == "First backup: 0 % read, about 2 h 46 min left."
    assert shop.trouble() == f"No point is covered yet. {catching_up(warehouse, 'shop')}"
    shop._has_read(Progress(Phase.RECORDS, 34e9, 66e9))
    assert catching_up(warehouse, "shop").startswith("First backup: 34 % read, about ")
    shop._report(ended_at_ms=1)
    assert catching_up(warehouse, "shop") == ""


def test_a_status_of_another_release_is_read(tmp_path: Path) -> None:
    shop = _follower(tmp_path, "shop")
    shop.settings.warehouse.make()
    shop._report()
    path = module.status_file(shop.settings.warehouse, "shop")
    told = json.loads(path.read_text())
    del told["catching_up"]
    path.write_text(json.dumps({**told, "of_a_later_release": 1}))
    assert status_of(shop.settings.warehouse, "shop") == shop.status
