"""Plans over ten thousand windows of fifty partitions: what they cost, and that they are right."""

import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bench.scale import measured
from bench.simulated import APPLICATION, STEP, Shape, Simulation
from kstreams_assets import calendar
from kstreams_assets.model.point import WantedPartition
from kstreams_assets.model.restorability import Restorability
from kstreams_assets.offsets import OffsetRange
from kstreams_assets.repository.coverage import newest_restorable
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.repository import Repository

_FEW = Shape(windows=40, partitions=2, every_s=600)
_MANY = Shape()


class TestSimulation:
    """What is measured is a warehouse as any other."""

    @pytest.fixture
    def simulation(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Simulation:
        now_ms = time.time_ns() // 1_000_000
        now = datetime.fromtimestamp(now_ms / 1000, tz=UTC)
        monkeypatch.setattr(calendar, "now", lambda: now)
        simulation = Simulation(tmp_path, _FEW, now_ms=now_ms)
        simulation.make()
        return simulation

    def test_its_newest_points_can_be_restored(self, simulation: Simulation) -> None:
        found = newest_restorable(simulation.settings).exact
        assert found is not None
        assert found.restorability is Restorability.EXACT

    def test_everything_is_there_and_counted(self, simulation: Simulation) -> None:
        assert not Ledger(simulation.warehouse, APPLICATION).damaged()
        contents, wanted = self._wanted(simulation, "simulated-totals-changelog")
        held = [
            contents.contents(contents_point, [one])[one.cut.id] for contents_point, one in wanted
        ]
        assert [one.records for one in held] == [_FEW.windows * STEP * 9 // 10] * 2
        assert {len(one.files) for one in held} == {_FEW.windows}
        assert all(file.path.exists() for one in held for file in one.files)
        assert {file.written is not None for one in held for file in one.files} == {True}

    def test_a_file_that_is_gone_is_named(self, simulation: Simulation) -> None:
        contents, [(point, wanted), _] = self._wanted(simulation, "orders")
        contents.files(wanted)[3].file.path.unlink()
        contents = Repository.open(simulation.settings).reading(
            simulation.settings, inspect_timeout_s=0
        )
        [damage] = contents.contents(point, [wanted])[wanted.cut.id].damaged
        assert (damage.window, damage.topic) == (simulation.window(3).key, "orders")
        assert "is missing" in damage.problem
        assert contents.files_damaged

    def test_without_time_to_look_that_is_said(self, simulation: Simulation) -> None:
        _, [(point, wanted), _] = self._wanted(simulation, "orders")
        contents = Repository.open(simulation.settings).reading(
            simulation.settings, inspect_timeout_s=0, requested_inspect_timeout_s=0
        )
        assert contents.contents(point, [wanted])[wanted.cut.id].records == _FEW.windows * STEP
        assert contents.files_unseen == _FEW.windows

    def _wanted(self, simulation: Simulation, topic: str):
        table = Repository(simulation.warehouse, APPLICATION).points
        [point] = table.load([simulation.closing_id(_FEW.windows - 1)])
        cuts = [cut for cut in point.partitions if cut.topic == topic]
        wanted = [
            (point, WantedPartition(cut, [OffsetRange(0, _FEW.windows * STEP)])) for cut in cuts
        ]
        return Repository.open(simulation.settings).reading(
            simulation.settings, inspect_timeout_s=0
        ), wanted


@pytest.mark.e2e
@pytest.mark.drill
class TestTenThousandWindows:
    """Goals: 2 s, 5 s with a look at every file, 1 GB; here with head-room for a busy machine."""

    @pytest.fixture(scope="class")
    def root(self, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
        root, now_ms = tmp_path_factory.mktemp("scale"), time.time_ns() // 1_000_000
        Simulation(root, _MANY, now_ms=now_ms).make()
        return root, now_ms

    def test_the_log_says_little_of_each_file(self, root: tuple[Path, int]) -> None:
        logs = root[0] / "records" / APPLICATION / "_delta_log"
        newest = max(logs.glob("*.checkpoint.parquet"))
        assert newest.stat().st_size / (_MANY.windows * _MANY.partitions * 5) < 120

    def test_the_ledger_has_few_row_groups(self, root: tuple[Path, int]) -> None:
        files = [*(root[0] / "windows" / f"application_id={APPLICATION}").glob("*.parquet")]
        groups = sum(pq.read_metadata(file).num_row_groups for file in files)
        assert groups < 150

    @pytest.mark.timeout(600)
    def test_planning(self, root: tuple[Path, int]) -> None:
        def take(act: str):
            return measured(root[0], _MANY, root[1], act)

        log = take("Delta's log alone")
        assert log.cpu_s is not None
        goals = {  # processor time by that of reading the log, and in seconds
            "plan a backup": (2, 3),
            "ledger against log": (4, 7),
            "ledger against log, every file looked at": (10, 14),
            "newest restorable points": (6, 10),
            "plan a restore of everything": (7, 12),
        }
        for act, (ratio, seconds) in goals.items():
            found = take(act)
            assert found.cpu_s is not None
            assert found.peak_mb is not None
            assert found.cpu_s < max(ratio * log.cpu_s, seconds / 2), (act, found, log)
            assert found.cpu_s < seconds, (act, found, log)
            assert found.peak_mb < 1_150, (act, found)
