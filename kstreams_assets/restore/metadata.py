"""What Dagster shows of a restore: numbers and tables of each topic."""

from typing import Final

import dagster as dg

from kstreams_assets.recovery.point import iso_time
from kstreams_assets.restore.after import age_s, outcome, steps_after
from kstreams_assets.restore.plan import RestorePlan, TopicPlan
from kstreams_assets.restore.restores_table import StoredRestore
from kstreams_assets.restore.run import RestoreResult
from kstreams_assets.restore.targets import local_name_of
from kstreams_assets.settings import ApplicationSettings

_Values = dict[str, dg.MetadataValue]

_PLANNED: Final = dg.TableSchema(
    [
        dg.TableColumn("partition", "int"),
        dg.TableColumn("start", "int", "First source offset, -1 when nothing is restored"),
        dg.TableColumn("end", "int", "Exclusive end in source offsets"),
        dg.TableColumn("records", "int"),
        dg.TableColumn("bytes", "int", "Uncompressed keys, values and headers, about"),
        dg.TableColumn("saved_records", "int", "Of them, saved with recovery points"),
        dg.TableColumn("committed", "string", "Source offset the group had committed"),
    ]
)

_RESTORED: Final = dg.TableSchema(
    [
        *_PLANNED.columns,
        dg.TableColumn("resumed", "int", "Records that an earlier attempt had written"),
        dg.TableColumn("target_start", "int", "Target offset of the first restored record"),
        dg.TableColumn("target_end", "int", "Exclusive end on the target"),
        dg.TableColumn("map_runs", "int", "Runs of the offset map"),
        dg.TableColumn("compared", "int", "Records read back and compared"),
    ]
)

_OFFSETS: Final = dg.TableSchema(
    [
        dg.TableColumn("topic", "string", "Topic on the target"),
        dg.TableColumn("partition", "int"),
        dg.TableColumn("offset", "int", "Committed offset on the target"),
        dg.TableColumn("former", "string", "What was committed there before the restore"),
    ]
)


def planned(plan: RestorePlan, topic: str) -> _Values:
    """Of a source topic, what would be restored; empty when it is left out."""
    for found in plan.topics:
        if found.source == topic:
            rows = [dg.TableRecord(row) for row in _planned_rows(found)]
            return {
                **_numbers(found),
                "partitions": dg.MetadataValue.table(rows, schema=_PLANNED),
            }
    return {}


def restored(plan: RestorePlan, topic: TopicPlan, result: RestoreResult) -> _Values:
    """Of a topic, what was restored and where it is."""
    produced = {p.target: p for p in result.produced}
    compared = {p.target: p.compared for p in result.verified}
    rows: list[dg.TableRecord] = []
    for row, partition in zip(_planned_rows(topic), topic.partitions, strict=True):
        done = produced.get(partition.target)
        there = {"compared": compared.get(partition.target, 0)}
        if done is not None:
            there |= {
                "resumed": done.resumed,
                "target_start": done.end - done.records,
                "target_end": done.end,
                "map_runs": len(done.runs),
            }
        rows.append(dg.TableRecord({**row, **there}))
    return {
        **_numbers(topic),
        **_of_restore(plan, result),
        "partitions": dg.MetadataValue.table(rows, schema=_RESTORED),
    }


def left_out(plan: RestorePlan, result: RestoreResult) -> _Values:
    """Of a topic that the restore leaves alone."""
    why = f"Not part of this restore (mode {plan.request.mode.value}); nothing was written."
    return {
        "records": dg.MetadataValue.int(0),
        "note": dg.MetadataValue.text(why),
        **_of_restore(plan, result),
    }


def committed(settings: ApplicationSettings, restore: StoredRestore) -> _Values:
    """Of the group offsets, what was committed and what to do now."""
    former = {(o.topic, o.partition): o.offset for o in restore.former_offsets or ()}
    offsets = restore.committed or ()
    rows = [
        dg.TableRecord(
            {
                "topic": o.topic,
                "partition": o.partition,
                "offset": o.offset,
                "former": str(former.get((o.topic, o.partition), "")),
            }
        )
        for o in offsets
    ]
    return {
        "next": dg.MetadataValue.md(
            steps_after(settings, restore, local=local_name_of(settings, restore))
        ),
        "restore": dg.MetadataValue.text(restore.restore_id),
        "group": dg.MetadataValue.text(restore.group),
        "target": dg.MetadataValue.text(restore.target_bootstrap_servers),
        "committed_partitions": dg.MetadataValue.int(len(offsets)),
        "offsets": dg.MetadataValue.table(rows, schema=_OFFSETS),
    }


def _of_restore(plan: RestorePlan, result: RestoreResult) -> _Values:
    values: _Values = {
        "restore": dg.MetadataValue.text(plan.restore_id),
        "target": dg.MetadataValue.text(plan.target_bootstrap_servers),
        "report": dg.MetadataValue.md(outcome(plan, result)),
    }
    age = age_s(plan)
    if plan.point is not None and age is not None:
        values["recovery_point"] = dg.MetadataValue.text(
            f"{plan.point.id}, {iso_time(plan.point.taken_at_ms)}"
        )
        values["recovery_point_age_s"] = dg.MetadataValue.float(age)
        values["gives"] = dg.MetadataValue.text(plan.gives.value)
    for phase, seconds in result.took_s.items():
        values[f"{phase}_s"] = dg.MetadataValue.float(round(seconds, 3))
    return values


def _numbers(topic: TopicPlan) -> _Values:
    values: _Values = {
        "records": dg.MetadataValue.int(topic.records),
        "bytes": dg.MetadataValue.int(topic.bytes),
        "target_topic": dg.MetadataValue.text(topic.target),
    }
    if topic.snapshot is not None:
        values["changelog_source"] = dg.MetadataValue.text(
            f"KTable snapshot of store {topic.snapshot.store}, window {topic.snapshot.window}"
        )
        values["raw_log_records"] = dg.MetadataValue.int(topic.snapshot.raw_records)
        values["raw_log_bytes"] = dg.MetadataValue.int(topic.snapshot.raw_bytes)
    return values


def _planned_rows(topic: TopicPlan) -> list[dict[str, int | str]]:
    return [
        {
            "partition": p.source.partition,
            "start": p.ranges[0].start if p.ranges else -1,
            "end": p.ranges[-1].end if p.ranges else -1,
            "records": p.records,
            "bytes": p.bytes,
            "saved_records": p.saved_records,
            "committed": "" if p.committed is None else str(p.committed.offset),
        }
        for p in topic.partitions
    ]
