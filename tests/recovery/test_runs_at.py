"""What an application itself guarantees is what its newest records show, and nothing else."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from kstreams_assets.model.point import Guarantee
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.recovery import evidence
from kstreams_assets.recovery.evidence import LatestCommit, runs_at

E, A = Guarantee.EXACT, Guarantee.AT_LEAST_ONCE
P0, P1, IN = (TopicPartitionId(name, n) for name, n in (("log", 0), ("log", 1), ("in", 0)))


def _scene(internal: Mapping[TopicPartitionId, bool | None], restored_end: int = 0) -> Any:
    """Logs of ten records; whether the newest batch of each was written in a transaction.

    None: compaction has taken its newest record.
    """

    def read(ranges: Mapping[TopicPartitionId, object], **_: object) -> dict[Any, Any]:
        return {
            p: []
            if internal[p] is None
            else [SimpleNamespace(header=SimpleNamespace(is_transactional=internal[p]))]
            for p in ranges
        }

    return SimpleNamespace(
        internal=[*internal],
        cluster=SimpleNamespace(log_start_offsets=lambda logs: dict.fromkeys(logs, 0)),
        reader=SimpleNamespace(read=read),
        restored_end=lambda _, __: restored_end,
        is_restored_offset=lambda *_: False,
    )


def _runs_at(scene: Any, *, ids: bool = False) -> Guarantee | None:
    ends = dict.fromkeys([*scene.internal, IN], 10)
    committed = {IN: CommittedOffset(5, "")}
    return runs_at(scene, ends, committed, has_transactional_ids=ids)


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> dict[TopicPartitionId, LatestCommit]:
    """The group's newest commits, as a test says."""
    found: dict[TopicPartitionId, LatestCommit] = {}
    monkeypatch.setattr(evidence, "latest_commits", lambda *_: found)
    return found


def _commit(*, in_transaction: bool) -> LatestCommit:
    return LatestCommit(SimpleNamespace(offset=5), in_transaction)  # pyright: ignore


@pytest.mark.usefixtures("commits")
@pytest.mark.parametrize(
    ("internal", "expected"),
    [
        ({P0: True, P1: True}, E),
        ({P0: False, P1: False}, A),
        # In the middle of an upgrade: one instance of each kind.
        ({P0: True, P1: False}, A),
        ({P0: None, P1: True}, E),
        ({P0: None, P1: None}, None),
        ({}, None),
    ],
)
def test_internal_topics_show_it(
    internal: Mapping[TopicPartitionId, bool | None], expected: Guarantee | None
) -> None:
    assert _runs_at(_scene(internal)) is expected


@pytest.mark.usefixtures("commits")
def test_what_a_restore_wrote_shows_nothing() -> None:
    assert _runs_at(_scene({P0: False}, restored_end=10)) is None


@pytest.mark.parametrize(
    ("in_transaction", "ids", "expected"),
    # Offsets that were set by hand look like those of an at_least_once application.
    [(True, True, E), (False, False, A), (False, True, None)],
)
def test_without_internal_topics_its_commits_show_it(
    commits: dict[TopicPartitionId, LatestCommit],
    *,
    in_transaction: bool,
    ids: bool,
    expected: Guarantee | None,
) -> None:
    commits[IN] = _commit(in_transaction=in_transaction)
    assert _runs_at(_scene({}), ids=ids) is expected
