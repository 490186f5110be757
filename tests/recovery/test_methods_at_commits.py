"""Which method cuts a running at-least-once application, and what a point says of the others."""

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kstreams_assets.kafka.journal import journal_topic
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.point import Guarantee, Method
from kstreams_assets.recovery import recorder
from kstreams_assets.recovery.recorder import Recorder
from kstreams_assets.recovery.scene import NotTaken, Positions
from kstreams_assets.settings import RecoveryPointSettings
from tests.backup.samples import application

JOURNAL, PASSIVE = Method.JOURNAL, Method.PASSIVE_COMMITS
Answer = str | None
"""Why there is no cut; None: there is one; a reason that starts with "again" may pass."""


class Scripted(Recorder):
    """A recorder whose methods give the answers of a script, one after the other."""

    __slots__ = ()
    script: Sequence[tuple[Method, Answer]] = ()
    tried: Sequence[Method] = ()

    def _scene(self, reader: object) -> Any:
        return SimpleNamespace(absent_topics=(), group="app")

    def _at_commits(
        self, method: Method, scene: Any, wait_s: float, history: Any, sleep: Any
    ) -> Positions | NotTaken:
        expected, answer = Scripted.script[len(Scripted.tried)]
        Scripted.tried = (*Scripted.tried, method)
        assert method is expected
        assert wait_s > 0
        if answer is None:
            return Positions(method, Guarantee.EXACT, {}, {}, {})
        return NotTaken(answer, again=answer.startswith("again"))


@pytest.mark.parametrize(
    ("topics", "configured", "script", "method", "reasons"),
    [
        pytest.param(True, None, [(JOURNAL, None)], JOURNAL, {}, id="companion"),
        pytest.param(False, None, [(PASSIVE, None)], PASSIVE, {}, id="no companion"),
        pytest.param(
            True,
            None,
            [(JOURNAL, "no boundary"), (PASSIVE, None)],
            PASSIVE,
            {JOURNAL: "no boundary"},
            id="one member without the companion",
        ),
        pytest.param(
            True,
            None,
            [(JOURNAL, "again: rebalanced"), (JOURNAL, None)],
            JOURNAL,
            {},
            id="a rebalance passes",
        ),
        pytest.param(
            True,
            None,
            [(JOURNAL, "no boundary"), (PASSIVE, "a cycle")],
            None,
            {JOURNAL: "no boundary", PASSIVE: "a cycle"},
            id="neither",
        ),
        pytest.param(
            False,
            "elsewhere",
            [(JOURNAL, "no topic"), (PASSIVE, None)],
            PASSIVE,
            {JOURNAL: "no topic"},
            id="a configured journal that is absent",
        ),
    ],
)
def test_the_journal_comes_first_and_the_next_method_names_its_reason(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    topics: bool,
    configured: str | None,
    script: Sequence[tuple[Method, Answer]],
    method: Method | None,
    reasons: Mapping[Method, str],
) -> None:
    app = application()
    present = {journal_topic(app.application_id): None} if topics else {}
    cluster: Any = SimpleNamespace(
        metadata=lambda: SimpleNamespace(topics=present),
        watch_leaders=lambda: None,
        stale_leader_check=lambda _group, wait_s: "",
        raw_log=nullcontext,
    )
    monkeypatch.setattr(recorder, "_runs_at_least_once", lambda _scene: True)
    monkeypatch.setattr(recorder, "_AGAIN_S", 0.0)
    monkeypatch.setattr(Scripted, "script", script)
    monkeypatch.setattr(Scripted, "tried", ())
    settings = RecoveryPointSettings(journal_topic=configured)
    scripted = Scripted(app, cluster, Warehouse(tmp_path / "warehouse"), settings)
    found = scripted.wait_for_commits(None, wait_s=60)  # pyright: ignore
    assert Scripted.tried == tuple(one for one, _ in script)
    if method is None:
        assert found == reasons
    else:
        assert isinstance(found, recorder.AwaitedCut)
        assert (found.positions.method, found.better) == (method, reasons)


def test_a_journal_that_fails_again_and_again_leaves_half_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    app = application()
    present = {journal_topic(app.application_id): None}
    cluster: Any = SimpleNamespace(
        metadata=lambda: SimpleNamespace(topics=present),
        watch_leaders=lambda: None,
        stale_leader_check=lambda _group, wait_s: "",
    )
    monkeypatch.setattr(recorder, "_runs_at_least_once", lambda _scene: True)
    monkeypatch.setattr(Scripted, "tried", ())
    again = "again: rebalanced"
    script = [*((JOURNAL, again),) * 30, *((PASSIVE, again),) * 31]
    monkeypatch.setattr(Scripted, "script", script)
    scripted = Scripted(app, cluster, Warehouse(tmp_path / "warehouse"))
    found = scripted.wait_for_commits(None, wait_s=60, sleep=time.sleep)  # pyright: ignore
    assert Scripted.tried == (JOURNAL,) * 30 + (PASSIVE,) * 31
    assert found == {JOURNAL: again, PASSIVE: again}
