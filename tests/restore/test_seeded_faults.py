"""Faults on a restored cluster: each is caught before anyone starts the application.

The order processor under live load, with the rules of its own YAML. What reaches the target other
than the backup has it, verification catches. What is wrong in the backup itself, a rule catches.
Offsets that are one too far are caught against the offset maps, and by rules.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest

from kstreams_assets.completeness.on_restores import (
    evaluate_restore,
    require_complete,
    require_none_blocks,
)
from kstreams_assets.errors import GroupOffsetsDifferError, RestoreIncompleteError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.restores import RestoreState
from kstreams_assets.model.rule_results import Outcome, RuleResult
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore import records as records_module
from kstreams_assets.restore.context import RunContext
from kstreams_assets.restore.group_offsets import commit_group_offsets, commit_verified
from kstreams_assets.restore.planner import plan_restore
from kstreams_assets.restore.records import restore_records
from kstreams_assets.restore.result import RestoredRecords
from spark_resources.resource import SparkSessionResource
from tests.completeness.live_run import ORDER_PROCESSOR, LiveRun, run_live
from tests.restore.seeding import (
    Fault,
    alter_an_amount,
    drop_an_order,
    in_plan,
    in_works,
    told_as_planned,
    write_twice,
)
from tests.restore.trial import Restored, SourceRun, own_names, restore
from tests.streams.cluster import unique_name

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.e2e, pytest.mark.drill]

COUNTED: Final = "every_order_counted_or_rejected"
MONEY: Final = "money_is_kept"
RECOMPUTED: Final = "recompute_order-totals"
ONCE: Final = "no_total_sent_twice"

DROPPED: Final = "one record dropped"
ALTERED: Final = "one record altered"
DUPLICATED: Final = "one record duplicated"
FAULTS: Final[Mapping[str, Fault]] = {
    DROPPED: Fault("orders", drop_an_order),
    ALTERED: Fault("orders", alter_an_amount),
    DUPLICATED: Fault("customer-totals", write_twice),
}


@dataclass(frozen=True, slots=True)
class Case:
    """The run, the point of it that is restored, and where to."""

    live: LiveRun
    point: RecoveryPoint
    target: KafkaConnection

    @property
    def source(self) -> SourceRun:
        """The run as restores take it; what it wrote later plays no part."""
        return SourceRun(self.live.settings, {}, {})

    def evaluate(self, restored: Restored, spark: SparkSessionResource) -> dict[str, RuleResult]:
        """Every rule on the restored cluster, by name."""
        results = evaluate_restore(self.live.settings, restored.restore, self.target, spark=spark)
        return {result.rule: result for result in results}


@pytest.fixture(scope="module")
def case(
    tmp_path_factory: pytest.TempPathFactory,
    spark: SparkSessionResource,
    second_cluster: KafkaConnection,
) -> Case:
    """The point with the most records in flight."""
    folder = tmp_path_factory.mktemp("live")
    live = run_live(ORDER_PROCESSOR, folder, spark, points=4, windows=1, between_s=0.7)
    point = max(live.points, key=lambda found: found.in_flight)
    return Case(live, point, second_cluster)


def violated(results: Mapping[str, RuleResult]) -> set[str]:
    """The rules that are violated; every other one holds."""
    assert {r.outcome for r in results.values()} <= {Outcome.PASSED, Outcome.VIOLATED}
    return {rule for rule, result in results.items() if result.outcome is Outcome.VIOLATED}


def offsets_on(case: Case, group: str) -> dict[TopicPartitionId, CommittedOffset]:
    """What a group has committed on the target."""
    with KafkaCluster(case.target) as cluster:
        return dict(cluster.group_offsets(group))


@pytest.fixture(scope="module")
def result(
    case: Case, spark: SparkSessionResource, tmp_path_factory: pytest.TempPathFactory
) -> RestoredRecords:
    """One restore with a fault in each of three topics."""
    folder = tmp_path_factory.mktemp("spoiled")
    faults = (
        Fault("orders-rejected", drop_an_order),
        FAULTS[ALTERED],
        FAULTS[DUPLICATED],
    )
    produce = records_module.produce

    def lying(session: Any, works: Sequence[Any], *rest: Any, **more: Any) -> Any:
        produce(session, in_works(works, case.live.prefix, faults, folder), *rest, **more)
        return [told_as_planned(work) for work in works]

    request = own_names("faulty", case.point)
    plan = plan_restore(case.live.settings, request, case.target)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records_module, "produce", lying)
        return restore_records(
            RunContext(case.live.settings, case.target, spark, unique_name("restore")),
            plan,
            log=lambda _line: None,
        )


class TestWhatReachesTheTarget:
    """The producer drops, alters and doubles records, and says that all is well."""

    @pytest.mark.sample
    @pytest.mark.parametrize(
        ("topic", "told"),
        [
            pytest.param("orders-rejected", "a record is missing here", id=DROPPED),
            pytest.param("orders", "value is", id=ALTERED),
            pytest.param("customer-totals", "holds a record that is not in the", id=DUPLICATED),
        ],
    )
    def test_verification_catches(
        self, case: Case, result: RestoredRecords, topic: str, told: str
    ) -> None:
        assert result.restore.state is RestoreState.FAILED_VERIFICATION
        (target,) = [
            t.target for t in result.restore.topics if t.source == case.live.prefix + topic
        ]
        texts = [str(p) for p in result.problems if p.target == TopicPartitionId(target, 0)]
        assert any(told in text for text in texts), texts

    def test_nothing_is_evaluated_or_committed(
        self, case: Case, result: RestoredRecords, spark: SparkSessionResource
    ) -> None:
        for step in (
            lambda: evaluate_restore(case.live.settings, result.restore, case.target, spark=spark),
            lambda: commit_group_offsets(
                replace(case.live.settings, completeness=(), recomputed=()),
                result.restore,
                case.target,
                gate=require_complete,
            ),
        ):
            with pytest.raises(Exception, match=r"is failed_verification: .* is refused"):
                step()
        assert offsets_on(case, result.restore.group) == {}


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        pytest.param(DROPPED, {COUNTED, MONEY, RECOMPUTED}, id=DROPPED),
        pytest.param(ALTERED, {MONEY, RECOMPUTED}, id=ALTERED),
        pytest.param(DUPLICATED, {ONCE}, id=DUPLICATED),
    ],
)
def test_rules_catch_what_is_wrong_in_the_backup(
    case: Case,
    spark: SparkSessionResource,
    tmp_path: Path,
    name: str,
    rules: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # It would refuse the changed files, since no table has them: here the rules are to find out.
    monkeypatch.setattr("kstreams_assets.restore.records._Run._require_files", lambda _: None)
    restored = restore(
        case.source,
        case.target,
        spark,
        own_names("wrong", case.point),
        change=lambda plan: in_plan(plan, case.live.prefix, FAULTS[name], tmp_path),
    )

    results = case.evaluate(restored, spark)

    assert violated(results) == rules
    assert all(results[rule].sample.rows for rule in rules)
    with pytest.raises(RestoreIncompleteError) as refused:
        restored.commit()
    assert refused.value.violated.keys() == rules
    assert offsets_on(case, restored.plan.group) == {}


@pytest.fixture(scope="module")
def restored(case: Case, spark: SparkSessionResource) -> Restored:
    """A restore without any fault, not yet committed."""
    return restore(case.source, case.target, spark, own_names("clean", case.point))


class TestOffsetsOneTooFar:
    """A restore without any other fault."""

    def further(self, case: Case, restored: Restored) -> GroupOffset:
        """The offset of an input partition in which a record lies behind it, one too far."""
        orders = restored.names[f"{case.live.prefix}orders"]
        with KafkaCluster(case.target) as cluster:
            ids = [TopicPartitionId(o.topic, o.partition) for o in restored.restore.to_commit]
            ends = cluster.last_stable_offsets(ids)
        found = next(
            o
            for o in restored.restore.to_commit
            if o.topic == orders and o.offset < ends[TopicPartitionId(o.topic, o.partition)]
        )
        return replace(found, offset=found.offset + 1)

    def test_before_the_commit(
        self, case: Case, spark: SparkSessionResource, restored: Restored
    ) -> None:
        wrong = self.further(case, restored)
        others = [
            o
            for o in restored.restore.to_commit
            if (o.topic, o.partition) != (wrong.topic, wrong.partition)
        ]
        altered = replace(restored.restore, run_id="altered", to_commit=(*others, wrong))

        found = evaluate_restore(case.live.settings, altered, case.target, spark=spark)

        assert {r.rule for r in found if r.outcome is Outcome.VIOLATED} >= {COUNTED}
        with pytest.raises(RestoreIncompleteError):
            require_none_blocks(altered, found)
        with (
            KafkaCluster(case.target) as cluster,
            pytest.raises(
                GroupOffsetsDifferError, match="different from the offset maps"
            ) as refused,
        ):
            commit_verified(Repository.open(case.live.settings), altered, cluster)
        (told,) = refused.value.partitions
        assert told.startswith(f"{wrong.topic}-{wrong.partition} {wrong.offset} (")
        assert offsets_on(case, restored.plan.group) == {}

    def test_after_the_commit(
        self, case: Case, spark: SparkSessionResource, restored: Restored
    ) -> None:
        assert violated(case.evaluate(restored, spark)) == set()
        wrong = self.further(case, restored)
        committed = commit_group_offsets(
            case.live.settings, restored.restore, case.target, gate=require_complete
        )
        assert committed.state is RestoreState.COMMITTED
        restored.commit_instead([wrong])

        results = case.evaluate(replace(restored, restore=committed), spark)

        assert COUNTED in violated(results)
