"""The reports of a restore: its plan as Markdown, the public forms of plan and result. Pure."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from kstreams_assets.checks import Finding
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.restores import RestoreMode, StoredRestore, StoredTopic
from kstreams_assets.model.rule_results import RULE
from kstreams_assets.public_form import DAGSTER, JSON, TABLE, Form, Markdown, Timestamp, Value, only
from kstreams_assets.restore.after import age_s, outcome
from kstreams_assets.restore.plan import PartitionPlan, RestorePlan, SnapshotSource, TopicPlan
from kstreams_assets.restore.request import ChangelogSource, InputsExtent, RestoreRequest
from kstreams_assets.restore.result import RestoreResult
from kstreams_assets.texts import bytes_text, duration, iso_time, markdown_table, plain
from spark_resources.partition_records import Difference

_RECOMPUTED: Final = "rebuild from input up to the point: the application recomputes everything"
_MODES: Mapping[RestoreMode, str] = {
    RestoreMode.STATE: "full restore with state: the application continues from the point",
    RestoreMode.REBUILD: _RECOMPUTED,
    RestoreMode.INPUTS_UNTIL: _RECOMPUTED,
    RestoreMode.LOGS: "inputs and outputs for other readers: no state, no group offsets",
}


def markdown(plan: RestorePlan, *, now_ms: int | None = None) -> str:
    """Return the plan as Markdown; `now_ms` (epoch milliseconds) is the present time by default."""
    now = _now_ms() if now_ms is None else now_ms
    sections = [_heading(plan), _facts(plan, now)]
    if plan.blockers:
        sections.append(_blockers(plan))
    if plan.topics:
        sections += [_topics(plan.topics), _configs(plan.topics)]
    if plan.placed:
        sections.append(_placed(plan))
    if plan.notes:
        sections.append("## Notes\n\n" + "\n".join(f"- {plain(note)}" for note in plan.notes))
    sections.append(_next_steps(plan))
    return "\n\n".join(section for section in sections if section) + "\n"


def document(plan: RestorePlan) -> dict[str, Any]:
    """Return the plan as plain values; times are epoch milliseconds, ages seconds, sizes bytes."""
    return PLAN.document(plan)


def result_document(result: RestoreResult) -> dict[str, Any]:
    """Return a result as plain values."""
    if result.records is None:
        return {"plan": document(result.plan), "state": "refused"}
    return RESULT.document(result)


def _heading(plan: RestorePlan) -> str:
    verdict = (
        f"**{len(plan.blockers)} blocker(s). The restore cannot run; nothing was written.**"
        if plan.blockers
        else "**No blockers.** Nothing was written yet."
    )
    return f"# Restore of {plain(plan.application_id)}\n\n{verdict}"


def _facts(plan: RestorePlan, now_ms: int) -> str:
    request, point = plan.request, plan.point
    rows = [
        ("Target", f"{plan.target_bootstrap_servers} (cluster {plan.target_cluster_id})"),
        ("Mode", f"`{request.mode}`, {_MODES[request.mode]}"),
        ("Inputs", _inputs(request.inputs)),
        *_changelogs(request.changelog_source),
        ("Group", f"`{plan.group}`"),
    ]
    if point is not None:
        rows += [
            ("Recovery point", f"`{point.id}`, taken {iso_time(point.taken_at_ms)}"),
            (
                "RPO",
                f"{duration(now_ms - point.taken_at_ms)}: later records are not restored",
            ),
            ("Guarantee", _guarantee(plan)),
            ("Records", f"{plan.records:,}, about {bytes_text(plan.bytes)}"),
            ("Restore", f"`{plan.restore_id}`"),
        ]
    if request.skip_completeness:
        rows.append(("Completeness", "not evaluated on the target (`skip_completeness`)"))
    for name, command in (("Before", request.before_command), ("After", request.after_command)):
        if command is not None:
            rows.append((f"{name} it", f"runs `{command}`"))
    return markdown_table(("", ""), rows)


def _inputs(extent: InputsExtent) -> str:
    if extent is InputsExtent.TAIL:
        return "`tail`, from the committed offsets on"
    return "`full`"


def _changelogs(source: ChangelogSource) -> Iterable[tuple[str, str]]:
    if source is ChangelogSource.SNAPSHOT:
        yield "Changelogs", "from KTable `snapshot`s, one record per key"


def _guarantee(plan: RestorePlan) -> str:
    if plan.request.mode is RestoreMode.LOGS:
        return f"no state is restored (state at the point: `{plan.restorability}`)"
    if plan.request.mode is not RestoreMode.STATE:
        return f"recomputed from the inputs (state at the point: `{plan.restorability}`)"
    return f"`{plan.restorability}`"


def _blockers(plan: RestorePlan) -> str:
    lines = [f"- **{plain(r.subject)}**: {plain(r.found)} {plain(r.action)}" for r in plan.blockers]
    return "## Blockers\n\n" + "\n".join(lines)


def _topics(topics: Sequence[TopicPlan]) -> str:
    columns = ("Topic", "On the target", "Roles", "Partitions", "Windows", "Records", "Bytes")
    rows = [
        (
            f"`{topic.source}`",
            f"`{topic.target}` ({'exists' if topic.exists else 'new'})",
            "+".join(sorted(role.value for role in topic.roles)),
            str(len(topic.partitions)),
            str(topic.windows),
            f"{topic.records:,}{_saved(topic)}{_raw_records(topic)}",
            f"{bytes_text(topic.bytes)}{_raw_bytes(topic)}",
        )
        for topic in topics
    ]
    return "## Topics\n\n" + markdown_table(columns, rows)


def _placed(plan: RestorePlan) -> str:
    columns = ("Excluded", "On the target", "Partition", "Group continues at", "Method")
    rows = [
        (
            f"`{topic.source}`",
            f"`{topic.target}`",
            str(offset.partition),
            f"{offset.offset:,}",
            f"{topic.inputs_are_at}{f' by restore `{topic.written_by}`' * bool(topic.written_by)}",
        )
        for topic in plan.placed
        for offset in topic.offsets
    ]
    return "## Topics that are not restored\n\n" + markdown_table(columns, rows)


def _saved(topic: TopicPlan) -> str:
    saved = sum(partition.saved_records for partition in topic.partitions)
    return f" ({saved:,} saved with points)" if saved else ""


def _raw_records(topic: TopicPlan) -> str:
    return f" (raw log: {topic.snapshot.raw_records:,})" if topic.snapshot else ""


def _raw_bytes(topic: TopicPlan) -> str:
    return f" (raw log: {bytes_text(topic.snapshot.raw_bytes)})" if topic.snapshot else ""


def _configs(topics: Sequence[TopicPlan]) -> str:
    """Return the table of configs; topics with equal configs share a row."""
    groups: dict[tuple[str, str, int], list[str]] = {}
    for topic in topics:
        configs = ", ".join(f"`{name}={value}`" for name, value in sorted(topic.configs.items()))
        back = ", ".join(
            f"`{name}={'(default)' if value is None else value}`"
            for name, value in sorted(topic.put_back.items())
        )
        groups.setdefault((configs, back, topic.replication_factor), []).append(topic.target)
    rows = [
        (", ".join(f"`{name}`" for name in names), str(replicas), configs, back)
        for (configs, back, replicas), names in groups.items()
    ]
    columns = ("On the target", "Replicas", "Configs during the restore", "Set by restore finish")
    return "## Configs\n\n" + markdown_table(columns, rows)


def _next_steps(plan: RestorePlan) -> str:
    if plan.blockers:
        return (
            "## Next steps\n\nFix the blockers above, then run `kstreams-assets restore plan`"
            " again."
        )
    if plan.request.mode is RestoreMode.LOGS:
        return _next_steps_of_logs()
    records = sum(topic.records for topic in plan.topics if topic.roles.is_changelog)
    state = (
        f"It must restore its stores from offset 0 of the changelogs ({records:,} records)"
        if plan.request.mode is RestoreMode.STATE
        else "It recomputes everything and writes its outputs again"
    )
    steps = [
        "Run `kstreams-assets restore run`, or the job `<app>_restore` in Dagster. It creates"
        " topics, writes the records and reads them back. Group offsets are committed only if the"
        " target matches the backup and no blocking completeness rule fails.",
        f"Delete `state.dir/{plan.group}` on every instance. An old state directory causes wrong"
        " results without an error.",
        f"Start the application within 7 days (`offsets.retention.minutes`). {state}. A healthy"
        " application commits offsets, and its lag shrinks to transaction markers only.",
        "Run `kstreams-assets restore watch` until the application is healthy.",
        "When it has caught up, run `kstreams-assets restore finish` to restore the original"
        " topic configs.",
    ]
    return _numbered_steps(steps)


def _next_steps_of_logs() -> str:
    return _numbered_steps(
        [
            "Run `kstreams-assets restore run`, or the job `<app>_restore` in Dagster. It creates"
            " the topics, writes the records and compares them with the backup. It commits no group"
            " offsets.",
            "Set the offsets of other groups with `kstreams-assets restore group-offsets`.",
            "Run `kstreams-assets restore finish`. It restores the topics' original configs.",
        ]
    )


def _numbered_steps(steps: Sequence[str]) -> str:
    listed = "\n".join(f"{number}. {step}" for number, step in enumerate(steps, start=1))
    return f"## Next steps\n\n{listed}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


OFFSET: Final = "topic partition offset"
"""The shown fields of a group's offset."""

_POINT: Final = Form(
    RecoveryPoint,
    "id taken_at_ms",
    Value("age_s", of=lambda point: max(_now_ms() - point.taken_at_ms, 0) / 1000),
    "method guarantee cluster_id",
)
_BLOCKER: Final = Form(Finding, "subject problem=found remedy=action")
_COMMITTED: Final = Form(GroupOffset, "offset metadata")
_TARGET: Final = Form(
    RestorePlan, "cluster_id=target_cluster_id bootstrap_servers=target_bootstrap_servers"
)
_REQUEST: Final = Form(
    RestoreRequest,
    "mode inputs changelog_source accept=least as_of_ms verify skip_completeness before_command"
    " after_command",
)
_START: Final = "First source offset, -1 when nothing is restored"
PARTITION: Final = Form(
    PartitionPlan,
    "partition=source.partition",
    *only(JSON, "topic_id", Value("ranges", of=lambda p: [[r.start, r.end] for r in p.ranges])),
    *only(
        DAGSTER,
        Value("start", int, lambda p: p.ranges[0].start if p.ranges else -1, text=_START),
        Value(
            "end",
            int,
            lambda p: p.ranges[-1].end if p.ranges else -1,
            text="Exclusive end in source offsets",
        ),
    ),
    "records",
    Value("bytes", text="Uncompressed keys, values and headers, about"),
    Value("saved_records", text="Of them, saved with recovery points"),
    *only(JSON, Value("files", of=lambda p: len(p.files)), "base_offset"),
    *only(JSON, Value("committed", form=_COMMITTED)),
    Value(
        "committed",
        of=lambda p: "" if p.committed is None else str(p.committed.offset),
        text="Committed source offset of the group",
        where=DAGSTER,
    ),
)
TOPIC: Final = Form(
    TopicPlan,
    *only(JSON, "source target roles exists replication_factor windows"),
    "records bytes",
    *only(JSON, "configs put_back snapshot"),
    *only(
        DAGSTER,
        "target_topic=target",
        Value("changelog_source", of=lambda topic: _of_snapshot(topic.snapshot)),
        "raw_log_records=snapshot.raw_records raw_log_bytes=snapshot.raw_bytes",
    ),
    Value("partitions", form=PARTITION),
)
PLAN: Final = Form(
    RestorePlan,
    "restore_id application_id group",
    Value("target", of=lambda plan: plan, form=_TARGET),
    *_REQUEST.part("request"),
    Value("point", form=_POINT),
    "gives=restorability",
    Value("repeats_at_most", of=lambda plan: plan.point.repeats_at_most if plan.point else {}),
    Value("can_run", of=lambda plan: not plan.blockers),
    "records bytes",
    Value("topics", form=TOPIC),
    Value("refusals", of="blockers", form=_BLOCKER),
    "placed notes",
)
"""A plan, before anything is written."""

RESTORE: Final = Form(
    StoredRestore,
    Value("restore_id", heading="restore"),
    "application_id state",
    Value("created_at", Timestamp, "created_at_ms"),
    Value("changed_at", Timestamp, "changed_at_ms", heading="changed at"),
    "run_id",
    Value("point_id", heading="point"),
    "mode group target=target_bootstrap_servers target_cluster_id",
    Value("topics", form=Form(StoredTopic, "source target records")),
    Value("committed", of=lambda r: r.committed or (), form=Form(GroupOffset, OFFSET)),
    "verified_records completeness_skipped=skips_completeness problem",
    Value("records", of=lambda restore: sum(t.records for t in restore.topics), where=TABLE),
)
"""A restore in its stored form."""

_FROM_SNAPSHOT: Final = Form(
    TopicPlan,
    "topic=target store=snapshot.store window=snapshot.window records bytes",
    "raw_log_records=snapshot.raw_records raw_log_bytes=snapshot.raw_bytes",
)
_DIFFERENCE: Final = Form(Difference, "topic=target.topic partition=target.partition offset what")
RESULT: Final = Form(
    RestoreResult,
    *only(JSON, Value("plan", form=PLAN), *RESTORE.part("restore")),
    *only(
        DAGSTER,
        "restore=plan.restore_id target=plan.target_bootstrap_servers",
        Value("report", Markdown, lambda done: outcome(done.plan, done.records)),
        Value("recovery_point", of=lambda done: _taken(done.plan.point)),
        Value("gives", of=lambda done: done.plan.point and done.plan.restorability),
    ),
    Value("recovery_point_age_s", of=lambda done: age_s(done.plan)),
    *only(
        JSON,
        Value("took_s", of=lambda done: {**done.records.took_s, "all": done.took_s}),
        Value(
            "from_snapshots",
            of=lambda done: [topic for topic, _ in done.plan.from_snapshots],
            form=_FROM_SNAPSHOT,
        ),
        Value("completeness", of="rules", form=RULE),
        "compared_records=records.compared",
        Value("differences", of="records.problems", form=_DIFFERENCE),
    ),
)
"""A restore whose records were written."""


def _taken(point: RecoveryPoint | None) -> str | None:
    return None if point is None else f"{point.id}, {iso_time(point.taken_at_ms)}"


def _of_snapshot(snapshot: SnapshotSource | None) -> str | None:
    if snapshot is None:
        return None
    return f"KTable snapshot of store {snapshot.store}, window {snapshot.window}"
