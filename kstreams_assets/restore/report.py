"""A restore plan for people (Markdown) and for machines (a JSON document). Pure."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from kstreams_assets.restore.plan import PartitionPlan, RestorePlan, TopicPlan
from kstreams_assets.restore.request import ChangelogSource, InputsExtent
from kstreams_assets.texts import bytes_text, iso_time, plain
from kstreams_assets.warehouse.restores import RestoreMode

_MODES: Mapping[RestoreMode, str] = {
    RestoreMode.STATE: "full restore with state: the application continues where it stood",
    RestoreMode.REBUILD: "rebuild from input: everything is recomputed",
    RestoreMode.INPUTS_UNTIL: "rebuild from input up to the point: everything is recomputed",
}


def markdown(plan: RestorePlan, *, now_ms: int | None = None) -> str:
    """The plan as Markdown; `now_ms` (epoch milliseconds) is the present time when left out."""
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    sections = [_heading(plan), _facts(plan, now)]
    if plan.refusals:
        sections.append(_refusals(plan))
    if plan.topics:
        sections += [_topics(plan.topics), _configs(plan.topics)]
    if plan.placed:
        sections.append(_placed(plan))
    if plan.notes:
        sections.append("## Notes\n\n" + "\n".join(f"- {plain(note)}" for note in plan.notes))
    sections.append(_next_steps(plan))
    return "\n\n".join(section for section in sections if section) + "\n"


def document(plan: RestorePlan, *, now_ms: int | None = None) -> dict[str, Any]:
    """The plan as plain values; times are epoch milliseconds, ages seconds, sizes bytes."""
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    request, point = plan.request, plan.point
    return {
        "restore_id": plan.restore_id,
        "application_id": plan.application_id,
        "group": plan.group,
        "target": {
            "cluster_id": plan.target_cluster_id,
            "bootstrap_servers": plan.target_bootstrap_servers,
        },
        "mode": request.mode.value,
        "inputs": request.inputs.value,
        "changelog_source": request.changelog_source.value,
        "accept": request.least.value,
        "as_of_ms": request.as_of_ms,
        "verify": request.verify.value,
        "skip_completeness": request.skip_completeness,
        "before_command": request.before_command,
        "after_command": request.after_command,
        "point": None
        if point is None
        else {
            "id": point.id,
            "taken_at_ms": point.taken_at_ms,
            "age_s": _age_s(plan, now),
            "method": point.method.value,
            "guarantee": point.guarantee.value,
            "cluster_id": point.cluster_id,
        },
        "gives": plan.gives.value,
        "repeats_at_most": {} if point is None else dict(sorted(point.repeats_at_most.items())),
        "can_run": not plan.refusals,
        "records": plan.records,
        "bytes": plan.bytes,
        "topics": [_topic_document(topic) for topic in plan.topics],
        "refusals": [
            {"subject": r.subject, "problem": r.found, "remedy": r.action} for r in plan.refusals
        ],
        "placed": [asdict(topic) for topic in plan.placed],
        "notes": list(plan.notes),
    }


def _heading(plan: RestorePlan) -> str:
    verdict = (
        f"**Refused: {len(plan.refusals)} thing(s) stand against it. Nothing was written.**"
        if plan.refusals
        else "**Nothing stands against it.** Nothing was written yet."
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
            ("RPO", f"{_age_text(_age_s(plan, now_ms))}: what was written since is not restored"),
            ("Guarantee", _guarantee(plan)),
            ("Records", f"{plan.records:,}, about {bytes_text(plan.bytes)}"),
            ("Restore", f"`{plan.restore_id}`"),
        ]
    if request.skip_completeness:
        rows.append(("Completeness", "rules are not evaluated on the target, as asked"))
    for name, command in (("Before", request.before_command), ("After", request.after_command)):
        if command is not None:
            rows.append((f"{name} it", f"runs `{command}`"))
    return _table(("", ""), rows)


def _inputs(extent: InputsExtent) -> str:
    if extent is InputsExtent.TAIL:
        return "`tail`, from the committed offsets on"
    return "`full`"


def _changelogs(source: ChangelogSource) -> Iterable[tuple[str, str]]:
    if source is ChangelogSource.SNAPSHOT:
        yield "Changelogs", "from KTable `snapshot`s, one record of each key"


def _guarantee(plan: RestorePlan) -> str:
    if plan.request.mode is not RestoreMode.STATE:
        return f"recomputed from the inputs (the point's state gives `{plan.gives}`)"
    return f"`{plan.gives}`"


def _refusals(plan: RestorePlan) -> str:
    lines = [f"- **{plain(r.subject)}**: {plain(r.found)} {plain(r.action)}" for r in plan.refusals]
    return "## What stands against it\n\n" + "\n".join(lines)


def _topics(topics: Sequence[TopicPlan]) -> str:
    columns = ("Topic", "On the target", "Roles", "Partitions", "Windows", "Records", "Bytes")
    rows = [
        (
            f"`{topic.source}`",
            f"`{topic.target}` ({'is there' if topic.exists else 'new'})",
            "+".join(sorted(role.value for role in topic.roles)),
            str(len(topic.partitions)),
            str(topic.windows),
            f"{topic.records:,}{_saved(topic)}{_raw_records(topic)}",
            f"{bytes_text(topic.bytes)}{_raw_bytes(topic)}",
        )
        for topic in topics
    ]
    return "## Topics\n\n" + _table(columns, rows)


def _placed(plan: RestorePlan) -> str:
    columns = ("Left as it is", "On the target", "Partition", "The group goes on at", "How")
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
    return "## Topics that are not restored\n\n" + _table(columns, rows)


def _saved(topic: TopicPlan) -> str:
    saved = sum(partition.saved_records for partition in topic.partitions)
    return f" ({saved:,} saved with points)" if saved else ""


def _raw_records(topic: TopicPlan) -> str:
    return f" (raw log: {topic.snapshot.raw_records:,})" if topic.snapshot else ""


def _raw_bytes(topic: TopicPlan) -> str:
    return f" (raw log: {bytes_text(topic.snapshot.raw_bytes)})" if topic.snapshot else ""


def _configs(topics: Sequence[TopicPlan]) -> str:
    """Topics that share their configs share a row."""
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
    columns = ("On the target", "Replicas", "Configs while it is restored", "Put back by finish")
    return "## Configs\n\n" + _table(columns, rows)


def _next_steps(plan: RestorePlan) -> str:
    if plan.refusals:
        return (
            "## What comes next\n\nMend what stands against it and plan again"
            " (`kstreams-assets restore plan`)."
        )
    state = (
        "It must restore its stores from offset 0 of the changelogs"
        f" ({_changelog_records(plan):,} records in all)"
        if plan.request.mode is RestoreMode.STATE
        else "It computes everything anew, so its outputs are written again"
    )
    steps = [
        "Run it (`kstreams-assets restore run`, or the restore assets with dry run off): topics are"
        " made, records are written and read back. Only if the target is as the backup, and no"
        " blocking completeness rule is violated there, the group offsets are committed.",
        f"Delete `state.dir/{plan.group}` on every instance: an old one makes wrong results without"
        " any error.",
        f"Start the application within 7 days (`offsets.retention.minutes`). {state}; healthy is:"
        " committed offsets that move, lag that shrinks to transaction markers only.",
        "Follow it with `kstreams-assets restore watch`.",
        "Once it has caught up, `kstreams-assets restore finish` puts the topics' own configs"
        " back.",
    ]
    listed = "\n".join(f"{number}. {step}" for number, step in enumerate(steps, start=1))
    return f"## What comes next\n\n{listed}"


def _changelog_records(plan: RestorePlan) -> int:
    return sum(
        topic.records
        for topic in plan.topics
        if any(role.value == "changelog" for role in topic.roles)
    )


def _age_s(plan: RestorePlan, now_ms: int) -> float | None:
    return None if plan.point is None else max(now_ms - plan.point.taken_at_ms, 0) / 1000


def _age_text(age_s: float | None) -> str:
    if age_s is None:
        return "unknown"
    if age_s < 120:
        return f"{age_s:.1f} s"
    minutes = round(age_s / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours = round(age_s / 3600)
    return f"{hours} h" if hours < 48 else f"{round(age_s / 86_400)} days"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _topic_document(topic: TopicPlan) -> dict[str, Any]:
    return {
        "source": topic.source,
        "target": topic.target,
        "roles": sorted(role.value for role in topic.roles),
        "exists": topic.exists,
        "replication_factor": topic.replication_factor,
        "windows": topic.windows,
        "records": topic.records,
        "bytes": topic.bytes,
        "configs": dict(topic.configs),
        "put_back": dict(topic.put_back),
        "snapshot": None if topic.snapshot is None else asdict(topic.snapshot),
        "partitions": [_partition_document(partition) for partition in topic.partitions],
    }


def _partition_document(partition: PartitionPlan) -> dict[str, Any]:
    committed = partition.committed
    return {
        "partition": partition.source.partition,
        "topic_id": partition.topic_id,
        "ranges": [[wanted.start, wanted.end] for wanted in partition.ranges],
        "records": partition.records,
        "bytes": partition.bytes,
        "saved_records": partition.saved_records,
        "files": len(partition.files),
        "base_offset": partition.base_offset,
        "committed": None
        if committed is None
        else {"offset": committed.offset, "metadata": committed.metadata},
    }
