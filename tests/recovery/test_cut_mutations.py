"""Each rule of a cut left out: the oracle must see it, else it would prove nothing."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import pytest

from kstreams_assets.kafka.coordinator_log import CONSUMER_OFFSETS, coordinator_partition
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.point import Guarantee, RecoveryPoint
from kstreams_assets.offsets import CommittedOffset, OffsetRange, TopicPartitionId
from kstreams_assets.recovery import transactions
from kstreams_assets.recovery.cut import Blocker, Cut, Sample, _ranges
from kstreams_assets.recovery.group_commits import GroupBatch, GroupLog
from kstreams_assets.recovery.segments import Segment
from tests.recovery.trial import (
    NO_PURGE,
    QUICK_SESSIONS,
    Trial,
    methods,
    new_trial,
    random_delays,
    reasons,
    running,
    wrong_points,
)

pytestmark = [pytest.mark.kafka, pytest.mark.drill]

_MOST = 100


@pytest.fixture(scope="module")
def trial(kafka_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    """One application under load, with punctuation, for all mutations."""
    trial = new_trial(
        kafka_cluster.bootstrap_servers, tmp_path_factory.mktemp("mutations"), ticks=True
    )
    trial.between = random_delays(0.15)
    trial.create_topics()
    config = {**QUICK_SESSIONS, **NO_PURGE}
    apps = [trial.app(f"i{n}", threads=2, punctuate_ms=20, config=config) for n in range(2)]
    load = trial.load(rate=2_000, burst_s=0.7, pause_s=0.5)
    with running(apps), load:
        time.sleep(3)
        yield trial


def assert_oracle_fails(trial: Trial) -> None:
    """Take points until one that is labelled exact is not, as the oracle sees it."""
    seen = {point.id for point in trial.points()}
    for _ in range(_MOST // 10):
        trial.take(10)
        fresh = [point for point in trial.points() if point.id not in seen]
        history = trial.history()
        if wrong_points(trial, history, fresh):
            return
    fresh = [point for point in trial.points() if point.id not in seen]
    pytest.fail(f"nothing wrong in {_MOST} points: {methods(fresh)}, {reasons(fresh)[:5]}")


def test_unmutated_cuts_are_exact(trial: Trial) -> None:
    seen = {point.id for point in trial.points()}
    trial.take(10)
    fresh: list[RecoveryPoint] = [point for point in trial.points() if point.id not in seen]
    history = trial.history()
    assert wrong_points(trial, history, fresh) == {}
    assert sum(point.guarantee is Guarantee.EXACT for point in fresh) >= 8


def test_lookback_at_the_last_stable_offset(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions whose commits lie before another one's that is still open are overlooked."""
    stable: list[int] = []

    def note_stable(
        self: transactions.TransactionsMethod,
    ) -> Mapping[TopicPartitionId, CommittedOffset]:
        found = committed(self)
        count = self.scene.cluster.topics()[CONSUMER_OFFSETS]
        number = coordinator_partition(self.scene.group, count)
        partition = TopicPartitionId(CONSUMER_OFFSETS, number)
        stable.append(self.scene.cluster.last_stable_offsets([partition])[partition])
        return found

    def from_stable(
        partition: TopicPartitionId,
        _start: int,
        end: int,
        applied: int,
        batches: tuple[GroupBatch, ...],
    ) -> GroupLog:
        late = tuple(b for b in batches if b.header.base_offset >= stable[-1])
        return GroupLog(partition, stable[-1], end, applied, late)

    committed = transactions.TransactionsMethod._committed
    monkeypatch.setattr(transactions.TransactionsMethod, "_committed", note_stable)
    monkeypatch.setattr(transactions, "GroupLog", from_stable)
    # markers without commits tell that the lookback is too short: without that guard, too
    monkeypatch.setattr("kstreams_assets.recovery.cut._Decision._refuse_short_lookback", _pass)
    monkeypatch.setattr("kstreams_assets.recovery.cut._Decision._refuse_torn", _pass)
    # nor may their data markers, where they were written before the end of the offsets topic
    monkeypatch.setattr("kstreams_assets.recovery.cut._is_needed", _is_followed)
    # no later transaction of the same producer may point to them either
    monkeypatch.setattr(trial, "between", _wait_before_offsets)
    # nor that readers are ahead of what was overlooked
    monkeypatch.setattr("kstreams_assets.recovery.cut._ranges", _aborted_too)
    assert_oracle_fails(trial)


def test_no_rules_for_punctuation_only_transactions(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "kstreams_assets.recovery.cut._Decision._with_punctuations",
        lambda _self, with_offsets, _undecided: with_offsets,
    )
    assert_oracle_fails(trial)


def test_offsets_read_two_seconds_before_the_ends(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The committed offsets of two seconds ago beside ends of now."""
    decide = transactions.decide

    def with_old_offsets(sample: Sample) -> Cut | Blocker:
        decision = decide(sample)
        old = with_old_offsets.offsets  # pyright: ignore[reportFunctionMemberAccess]
        return decision if isinstance(decision, Blocker) else replace(decision, committed=old)

    committed = transactions.TransactionsMethod._committed

    def early(
        self: transactions.TransactionsMethod,
    ) -> Mapping[TopicPartitionId, CommittedOffset]:
        with_old_offsets.offsets = committed(self)  # pyright: ignore[reportFunctionMemberAccess]
        time.sleep(2)
        return committed(self)

    monkeypatch.setattr(transactions, "decide", with_old_offsets)
    monkeypatch.setattr(transactions.TransactionsMethod, "_committed", early)
    assert_oracle_fails(trial)


def _is_followed(segment: Segment, _early: object, last: Mapping[TopicPartitionId, int]) -> bool:
    marker = segment.marker
    return marker is not None and marker.offset < last.get(segment.partition, 0)


def _wait_before_offsets(step: str) -> None:
    time.sleep(0.15 if step == "committed offsets" else 0)


def _aborted_too(segments: Iterable[Segment], *, aborted: bool = True) -> list[OffsetRange]:
    return _ranges(segments) if aborted else []


def _pass(*_: object) -> None:
    return None
