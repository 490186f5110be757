"""What the method `transactions` works on, makes of `__transaction_state`, and of errors."""

from collections.abc import Iterable
from typing import Any, cast

import pytest

from kstreams_assets.app.model import AppTopic, StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.errors import (
    CoordinatorRecordError,
    CorruptBatchError,
    KStreamsAssetsError,
    OffsetOutOfRangeError,
)
from kstreams_assets.kafka.coordinator_log import TransactionStateRecord, TransactionStatus
from kstreams_assets.kafka.metadata import TopicIdentity
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.cut import Written
from kstreams_assets.recovery.identity import EndedTransaction, ProducerEpoch
from kstreams_assets.recovery.methods import offsets_first
from kstreams_assets.recovery.scene import NotTaken, Positions, Scene
from kstreams_assets.recovery.transactions import TransactionsMethod, ended_transactions
from tests.recovery.logs import CHANGELOG, OFFSETS

INPUT, GLOBAL, OUTPUT = TopicRole.INPUT, TopicRole.GLOBAL, TopicRole.OUTPUT
ROLES = {
    "in": {INPUT},
    "rates": {GLOBAL},
    "names": {INPUT, TopicRole.CHANGELOG},
    "customers": {INPUT, TopicRole.CHANGELOG, OUTPUT},
    "between": {INPUT, OUTPUT},
    "out": {OUTPUT},
    "app-x-changelog": {TopicRole.CHANGELOG},
    "app-y-repartition": {TopicRole.REPARTITION},
}
BOTH = frozenset({CHANGELOG, OFFSETS})


def _scene(*absent: str, cluster: object = None) -> Scene:
    topics = tuple(AppTopic(name, TopicRoles(roles)) for name, roles in sorted(ROLES.items()))
    there = [*(name for name in ROLES if name not in absent), "__consumer_offsets", "other"]
    present = {name: TopicIdentity(name, f"{name}-id", 1) for name in there}
    return Scene(
        StreamsApplication("app", topics), cast("Any", cluster), cast("Any", cluster), present
    )


def _of(*names: str) -> set[TopicPartitionId]:
    return {TopicPartitionId(name, 0) for name in names}


def test_what_a_cut_does_with_each_topic_of_an_application() -> None:
    scene = _scene()
    assert dict(scene.written) == {
        **dict.fromkeys(_of("app-x-changelog", "app-y-repartition"), Written.BY_APPLICATION),
        **dict.fromkeys(_of("customers", "between", "out"), Written.BY_ANYBODY),
    }
    assert set(scene.inputs) == _of("in", "rates", "names")
    assert set(scene.changelogs) == _of("app-x-changelog")
    assert set(scene.partitions) == {*scene.written, *scene.inputs}
    # an absent output is not needed for a restore
    without = _scene("out", "customers", "rates")
    assert list(without.absent_topics) == ["customers", "out", "rates"]
    assert list(without.needed_but_absent) == ["customers", "rates"]


class _Emitting:
    """A cluster on which logs grow while they are asked: an output, then the buffer's deletion."""

    def __init__(self) -> None:
        self._emitted = 0

    def group_offsets(self, *_: object, **__: object) -> dict[TopicPartitionId, object]:
        return {}

    def high_watermarks(
        self, partitions: Iterable[TopicPartitionId]
    ) -> dict[TopicPartitionId, int]:
        found: dict[TopicPartitionId, int] = {}
        for partition in partitions:
            self._emitted += 1
            found[partition] = self._emitted
        return found

    last_stable_offsets = high_watermarks


def test_a_result_that_a_buffer_has_emitted_is_in_an_at_least_once_point() -> None:
    """Every log holds one record of each result: a changelog must not be ahead of the outputs."""
    scene = _scene(cluster=_Emitting())
    found = offsets_first(scene)
    assert isinstance(found, Positions)
    assert max(found.ends[p] for p in scene.changelogs) < min(found.ends[p] for p in scene.outputs)
    assert found.ends.keys() == scene.written.keys()


class _Failing:
    """A cluster of which every question fails."""

    def __init__(self, error: KStreamsAssetsError) -> None:
        self._error = error

    def __getattr__(self, name: str) -> object:
        raise self._error


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (CoordinatorRecordError(topic="t", offset=7, reason="version 9"), False),
        (CorruptBatchError(partition="t-0", offset=7, reason="magic 1"), False),
        (OffsetOutOfRangeError(partition="t-0", offset=1, log_start=2, log_end=3), True),
    ],
)
def test_what_cannot_be_read_leaves_the_point_to_other_methods(
    error: KStreamsAssetsError, again: bool
) -> None:
    found = TransactionsMethod(_scene(cluster=_Failing(error))).take()
    assert found == NotTaken(error.problem.rstrip("."), again=again)


STATUS = {
    "empty": TransactionStatus.EMPTY,
    "open": TransactionStatus.ONGOING,
    "prepare": TransactionStatus.PREPARE_COMMIT,
    "complete": TransactionStatus.COMPLETE_COMMIT,
    "prepare abort": TransactionStatus.PREPARE_ABORT,
    "complete abort": TransactionStatus.COMPLETE_ABORT,
}


def _state(at_ms: int, told: str) -> TransactionStateRecord:
    """As `prepare 2`: of producer 2, or 1 where it is left out."""
    status, _, number = told.rpartition(" ") if told[-1].isdigit() else (told, "", "1")
    has_partitions = status == "open" or status.startswith("prepare")
    partitions = BOTH if has_partitions else frozenset()
    return TransactionStateRecord(
        f"app-{number}", int(number), 0, STATUS[status], partitions, at_ms
    )


HISTORIES = {
    "each prepare with its complete": (
        "empty, open, open, prepare, complete, open, prepare abort, complete abort",
        [(1, True, 3, 4), (1, False, 6, 7)],
    ),
    "markers are being written": ("prepare", [(1, True, 0, None)]),
    "older than the history": ("complete, prepare, complete", [(1, True, 1, 2)]),
    "open-ended": ("prepare, prepare, complete", [(1, True, 0, None), (1, True, 1, 2)]),
    "producers do not mix": (
        "prepare 1, prepare 2, complete 2, complete 1",
        [(1, True, 0, 3), (2, True, 1, 2)],
    ),
}


@pytest.mark.parametrize("case", HISTORIES)
def test_prepare_and_complete_are_put_together(case: str) -> None:
    log, expected = HISTORIES[case]
    states = [_state(at_ms, told) for at_ms, told in enumerate(log.split(", "))]
    assert ended_transactions(states) == [
        EndedTransaction(ProducerEpoch(producer, 0), committed, BOTH, prepared_ms, completed_ms)
        for producer, committed, prepared_ms, completed_ms in expected
    ]
