"""Power is lost at any moment: nothing that was reported as done is lost, and the work goes on."""

import random
import shutil
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

import pytest

from kstreams_assets.layout import Warehouse
from kstreams_assets.model.tables import CONTROL_TABLES
from kstreams_assets.repository.chain import table_problems
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.repository import Repository
from kstreams_assets.upkeep.copy import CopyJob
from tests.backup.samples import window
from tests.repository.power_cut import Event, cut, library, run
from tests.repository.power_cut_work import Work, main
from tests.upkeep.stock import TOPIC

_BASE: Final = 17
"""Windows that are there before: soon a checkpoint is due."""
_END: Final = _BASE + 5
_MOMENTS: Final = 20


class _Place:
    """A folder with a warehouse and its copy, which is put back before each trial."""

    def __init__(self, folder: Path) -> None:
        self.preload = library(folder)
        self._folder, self._trials = folder, 0
        self.below, self._base = folder / "disk-0", folder / "base"
        self.report, self._trace = folder / "report", folder / "trace"
        self._base.mkdir()
        main(self._base, folder / "unused", 0, _BASE)

    @cached_property
    def events(self) -> list[Event]:
        """Of work that is not disturbed."""
        return self.work()

    def work(self, *words: str, at: int = 0) -> list[Event]:
        shutil.rmtree(self.below, ignore_errors=True)
        self._trials += 1
        self.below = self._folder / f"disk-{self._trials}"  # this process remembers tables
        shutil.copytree(self._base, self.below)
        self.report.write_text("")
        self.before = set(self.below.rglob("*"))
        module = ["-m", "tests.repository.power_cut_work", str(self.below), str(self.report)]
        command = [*module, str(_BASE), str(_END), *words]
        return run(command, below=self.below, trace=self._trace, preload=self.preload, at=at)

    def lose_power(self, events: Sequence[Event]) -> list[str]:
        return cut(self.below, self.before, events)

    def require_reported(self) -> None:
        """All that was reported is there and whole; then the rest of the work is done."""
        reported = [line.split() for line in self.report.read_text().splitlines()]
        told = {
            kind: {int(words[1]) for words in reported if words[0] == kind}
            for kind in ("point", "window", "copy")
        }
        here = Work(self.below / "warehouse")
        self._require(here, told["point"], told["window"])
        if told["copy"]:
            last = range(max(told["copy"]) + 1)
            self._require(Work(self.below / "copy"), last, last)
        main(self.below, self.report, _BASE, _END)
        self._require(here, range(_END), range(_END))
        CopyJob(Warehouse(self.below / "warehouse"), self.below / "copy").run()
        self._require(Work(self.below / "copy"), range(_END), range(_END))

    def _require(
        self, work: Work, points: Sequence[int] | set[int], windows: Sequence[int] | set[int]
    ) -> None:
        ids = Repository(work.warehouse, work.application_id).points.instants()
        assert {f"point-{index:04d}" for index in points} <= {one.id for one in ids}
        ledger = Ledger(work.warehouse, work.application_id)
        assert {window(index) for index in windows} <= set(ledger.done([TOPIC]))
        assert [str(one) for one in ledger.damaged()] == []
        root = work.warehouse.root
        for name in CONTROL_TABLES:
            assert table_problems(root / name, name, read=True) == []


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> _Place:
    return _Place(tmp_path_factory.mktemp("power"))


def _moments(events: Sequence[Event], count: int, seed: int) -> list[int]:
    """Numbers of events, around syncs and new names of logs and anywhere."""
    near = [
        number
        for number, event in enumerate(events, 1)
        if event.kind in "NRS" and "_delta_log" in f"{event.path} {event.other}"
    ]
    chosen = random.Random(seed)
    picked = {*chosen.sample(near, 2 * count // 3)}
    while len(picked) < count:
        picked.add(chosen.randrange(1, len(events)))
    return sorted(picked)


def test_after_the_newest_entry_got_its_name(place: _Place) -> None:
    """The moment at which delta-rs had nothing on the disk but the name, for each table."""
    place.events  # noqa: B018
    place.lose_power(place.events)
    place.require_reported()
    logs = [
        number
        for number, event in enumerate(place.events, 1)
        if event.kind in "NR"
        and event.other.suffix == ".json"
        and "warehouse" in event.other.parts
        and not any(part.startswith(".") for part in event.other.parts)
    ]
    events = place.work(at=logs[len(logs) // 2])
    lost = place.lose_power(events)
    assert any("_delta_log" in one for one in lost)
    place.require_reported()


def test_without_syncs_it_would_be_lost(place: _Place) -> None:
    """The control: what the test looks for is found."""
    place.lose_power(place.work("--no-sync", at=0))
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever it is
        place.require_reported()


@pytest.mark.drill
@pytest.mark.store
@pytest.mark.parametrize("number", range(_MOMENTS))
def test_at_any_moment(place: _Place, number: int) -> None:
    events = place.work(at=_moments(place.events, _MOMENTS, 7)[number])
    place.lose_power(events)
    place.require_reported()
