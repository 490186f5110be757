"""What a restore came to, and what an operator does then."""

import time
from collections.abc import Iterable, Sequence

from kstreams_assets.recovery.point import iso_time
from kstreams_assets.recovery.table import RecoveryPointTable
from kstreams_assets.restore.next_steps import next_steps
from kstreams_assets.restore.plan import RestorePlan
from kstreams_assets.restore.report import bytes_text
from kstreams_assets.restore.restores_table import StoredRestore
from kstreams_assets.restore.run import RestoreResult
from kstreams_assets.settings import ApplicationSettings

_SHOWN = 10


def outcome(plan: RestorePlan, result: RestoreResult) -> str:
    """What was restored and how it compares, as Markdown."""
    restored = sum(p.records for p in result.produced)
    resumed = sum(p.resumed for p in result.produced)
    compared = sum(p.compared for p in result.verified)
    took = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in result.took_s.items())
    rows = [
        ("Restore", f"`{plan.restore_id}`, {result.restore.state.value.replace('_', ' ')}"),
        ("Target", f"{plan.target_bootstrap_servers}, group `{plan.group}`"),
        ("Records", f"{restored:,}, of them {resumed:,} written by an earlier attempt"),
        ("Compared", f"{compared:,} records (`verify: {plan.request.verify.value}`)"),
        *_from_snapshots(plan),
        ("Took", took),
    ]
    if plan.point is not None:
        at = iso_time(plan.point.taken_at_ms)
        age = f"{age_s(plan) or 0:,.0f} s before the end of the restore"
        rows.insert(1, ("Recovery point", f"`{plan.point.id}`, {at}, {age}; gives `{plan.gives}`"))
    verdict = (
        "The target is as the backup."
        if result.passed
        else "**The target is not as the backup; no group offsets are committed.** Delete the"
        " topics of this restore on the target, see who else writes there, restore again."
    )
    sections = [verdict, _table(rows), listed(result.problems)]
    return "\n\n".join(section for section in sections if section)


def _from_snapshots(plan: RestorePlan) -> Iterable[tuple[str, str]]:
    """What was written of each snapshot, against its raw log."""
    for topic, snapshot in plan.from_snapshots:
        yield (
            f"From snapshot of `{snapshot.store}`",
            f"`{topic.target}`: {topic.records:,} records, {bytes_text(topic.bytes)}; raw log"
            f" {snapshot.raw_records:,}, about {bytes_text(snapshot.raw_bytes)}",
        )


def age_s(plan: RestorePlan) -> float | None:
    """How long ago the recovery point was taken, in seconds: what is lost without a replay."""
    if plan.point is None:
        return None
    return round(time.time() - plan.point.taken_at_ms / 1000, 1)


def listed(found: Sequence[object]) -> str:
    """The first few as a Markdown list, and how many there are besides."""
    lines = [f"- {one}" for one in found[:_SHOWN]]
    if len(found) > _SHOWN:
        lines.append(f"- and {len(found) - _SHOWN:,} more")
    return "\n".join(lines)


def steps_after(
    settings: ApplicationSettings, restore: StoredRestore, *, local: str | None = None
) -> str:
    """The steps after the commit as Markdown; `local` as for `next_steps`."""
    points = RecoveryPointTable(settings.warehouse).load(
        settings.application_id, [restore.point_id]
    )
    return next_steps(
        restore,
        point_taken_at_ms=points[0].taken_at_ms if points else None,
        now_ms=time.time_ns() // 1_000_000,
        stores={topic.name: topic.stores for topic in settings.application.topics},
        local=local,
    )


def _table(rows: Iterable[tuple[str, str]]) -> str:
    return "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {text} |" for name, text in rows)])
