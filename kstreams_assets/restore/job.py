"""A restore from its plan to the command after it. Its order of steps is defined only here.

Command line, Dagster and drill translate their options into a request, and show the `Progress` and
the result. In Dagster rules and group offsets are separate assets, which may run in another
process: that run ends with `verify`, and the dependencies of the assets define the remaining order.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.model.restores import StoredRestore
from kstreams_assets.model.rule_results import RuleResult
from kstreams_assets.restore.command_sources import asked_commands
from kstreams_assets.restore.commands import run_after, run_before
from kstreams_assets.restore.context import RunContext
from kstreams_assets.restore.deadline import Deadline, within
from kstreams_assets.restore.group_offsets import Gate, commit_group_offsets
from kstreams_assets.restore.plan import RestorePlan
from kstreams_assets.restore.planner import plan_restore
from kstreams_assets.restore.records import restore_records
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.restore.result import OnPhase, Phase, Progress, RestoredRecords, RestoreResult
from kstreams_assets.settings import ApplicationSettings
from spark_resources.work import Spark


class Evaluate(Protocol):
    """Evaluates the completeness rules on a verified restore, and stores the results."""

    def __call__(
        self,
        settings: ApplicationSettings,
        restore: StoredRestore,
        target: KafkaConnection,
        *,
        spark: Spark,
        log: Callable[[str], None],
    ) -> Sequence[RuleResult]:
        """Evaluate the rules."""
        ...


@dataclass(frozen=True, slots=True)
class RestoreJob:
    """Plans and runs restores.

    `evaluate` and `gate` belong to the completeness rules (`completeness.on_restores`): the gate
    raises reasons against committing the offsets. `of_drill` records that no application
    continues from the restore. `deadline` limits the time between the command before it and the
    commit of the offsets, while the application is stopped.
    """

    evaluate: Evaluate
    gate: Gate
    of_drill: bool = False
    deadline: Deadline | None = None

    def plan(
        self,
        settings: ApplicationSettings,
        request: RestoreRequest,
        target: KafkaConnection,
        *,
        inspect_timeout_s: float = math.inf,
    ) -> RestorePlan:
        """Plan a restore; reads only. Blockers are findings of the plan. See `plan_restore`."""
        return plan_restore(settings, request, target, inspect_timeout_s=inspect_timeout_s)

    def run(
        self,
        ctx: RunContext,
        plan: RestorePlan,
        on_phase: OnPhase,
        *,
        until: Phase = Phase.AFTER,
    ) -> RestoreResult:
        """Run a plan, which is planned again under the lock of the target's group.

        With `until=Phase.VERIFY` the caller does the rules and all later steps.

        Returns:
            The result. Nothing is committed if the plan has blockers after the before command, if
            the target differs from the backup, or if a rule blocks.

        Raises:
            KStreamsAssetsError: A command failed; the command after it runs when all is committed.
                The deadline has passed.
                See `restore_records` and `commit_group_offsets`.
        """
        running = _Running(on_phase, RestoreResult(plan))
        if not plan.blockers and plan.request.before_command is not None:
            running.start(Phase.BEFORE)
            plan = run_before(ctx.settings, plan, ctx.target, report=running.line)
            running.update(plan=plan)
        if plan.blockers:
            return running.result
        began = ctx.clock()
        records = within(
            self.deadline,
            lambda: self._verified_records(ctx, running, rules=until is not Phase.VERIFY),
            restore_id=plan.restore_id,
        )
        if running.result.may_commit and until is not Phase.VERIFY:
            running.start(Phase.OFFSETS)
            committed = commit_group_offsets(
                ctx.settings, records.restore, ctx.target, gate=self.gate
            )
            running.update(committed=committed)
        running.update(took_s=ctx.clock() - began)
        if running.result.committed is not None:
            running.start(Phase.AFTER)
            commands = asked_commands(ctx.settings, plan.request)
            run_after(running.result.committed, commands, report=running.line)
        return running.result

    def _verified_records(
        self, ctx: RunContext, running: "_Running", *, rules: bool
    ) -> RestoredRecords:
        """Run the phases under the deadline: topics, records, verification, rules."""
        settings, plan = ctx.settings, running.result.plan
        records = restore_records(
            ctx,
            plan,
            log=running.line,
            started=running.start,
            of_drill=self.of_drill,
        )
        running.update(records=records)
        has_rules = bool(settings.completeness or settings.recomputed)
        if rules and has_rules and records.passed and not plan.request.skip_completeness:
            running.start(Phase.RULES)
            evaluated = self.evaluate(
                settings, records.restore, ctx.target, spark=ctx.spark, log=running.line
            )
            running.update(rules=evaluated)
        return records


class _Running:
    """A run's result so far; reports its phases and lines."""

    def __init__(self, on_phase: OnPhase, result: RestoreResult) -> None:
        self._on_phase, self._phase = on_phase, Phase.CHECK
        self.result = result

    def start(self, phase: Phase) -> None:
        self._phase = phase
        self._on_phase(Progress(phase, self.result))

    def line(self, text: str) -> None:
        self._on_phase(Progress(self._phase, self.result, text))

    def update(self, **known: Any) -> None:  # noqa: ANN401 (fields of RestoreResult)
        self.result = replace(self.result, **known)
