"""The outcome of a restore, and the next steps of the operator."""

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from kstreams_assets.app.model import TopicRole
from kstreams_assets.model.restores import RestoreMode, StoredRestore, StoredTopic
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore.plan import RestorePlan
from kstreams_assets.restore.result import RestoredRecords
from kstreams_assets.restore.watch import NOT_SEEN_FROM_OUTSIDE
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import bytes_text, duration, iso_time, markdown_table, plain

_SHOWN_OFFSETS: Final = 20
_OFFSETS_KEPT: Final = timedelta(days=7)


def next_steps(
    restore: StoredRestore,
    *,
    point_taken_at_ms: int | None = None,
    now_ms: int = 0,
    stores: Mapping[str, Sequence[str]] = {},
    local: str | None = None,
) -> str:
    """Return the report's section `After the restore`, in Markdown.

    `point_taken_at_ms` and `now_ms` (epoch milliseconds) give the age of the recovery point.
    `stores` are the names of the stores that a changelog fills, by the source's topic name. `local`
    is the name of the local cluster, if the restore wrote to one: such a restore is for inspection.
    """
    if local is not None:
        return _only_to_look_at(restore, local)
    if restore.mode is RestoreMode.LOGS:
        return _after_logs(restore)
    group = restore.group
    steps = [
        f"**Delete local state**: remove `<state.dir>/{group}` on **every** instance, including"
        " standbys. Kafka Streams trusts an old checkpoint there, and results are then wrong.",
        f"**Start** the application with `application.id={group}` and"
        f" `bootstrap.servers={restore.target_bootstrap_servers}`"
        f"{_before(restore)}.",
        f"**Watch** it: `{_command('watch', restore)}`. The command ends when the application is"
        " healthy, and reports failures that the application does not log.",
        "**Replay** what producers sent after the recovery point.",
        f"**Finish** when it has caught up: `{_command('finish', restore)}` restores the original"
        " topic configs. Until then, Kafka deletes and compacts nothing in these topics.",
    ]
    numbered = "\n".join(f"{number}. {step}" for number, step in enumerate(steps, start=1))
    return "\n\n".join(
        (
            "## After the restore",
            *(() if point_taken_at_ms is None else (_age(restore, point_taken_at_ms, now_ms),)),
            *((_rules_skipped(restore),) if restore.skips_completeness else ()),
            numbered,
            "### What healthy looks like",
            _healthy(restore, stores),
            "To undo the commit while the application is stopped:"
            f" `{_command('previous-offsets', restore)}` (restores the offsets that the group had"
            " here before; topics are not changed).\n",
        )
    )


def _after_logs(restore: StoredRestore) -> str:
    groups = f"kstreams-assets restore group-offsets --app YAML --restore {restore.restore_id}"
    return (
        "## After the restore\n\n"
        "1. **Set offsets** of groups that read these topics:"
        f" `{groups} GROUP --commit`.\n"
        f"2. **Finish**: `{_command('finish', restore)}` restores the original topic configs. Until"
        " then nothing in these topics is deleted or compacted.\n\n"
        f"No offset of group `{restore.group}` was committed. An application that starts here with"
        f" `application.id={restore.group}` begins where `auto.offset.reset` says, with empty"
        " stores, and appends its outputs to the restored ones. To restore the application, use"
        " mode `state` or `rebuild`.\n"
    )


def _only_to_look_at(restore: StoredRestore, local: str) -> str:
    serve = f"kstreams-assets restore serve --app YAML {local}"
    return (
        f"## After the restore\n\n`{serve}` starts the local cluster again and prints the"
        f" connection settings. An application with `application.id={restore.group}` and an empty"
        f" `state.dir` continues there. `{serve} --remove` deletes the cluster.\n"
    )


def _command(name: str, restore: StoredRestore) -> str:
    return f"kstreams-assets restore {name} --app YAML --restore {restore.restore_id}"


def _rules_skipped(restore: StoredRestore) -> str:
    command = f"kstreams-assets completeness check --app YAML --restore {restore.restore_id}"
    return (
        "**Completeness rules were not evaluated** on the target (`skip_completeness`). To"
        f" evaluate them, run `{command}` before you start the application."
    )


def _before(restore: StoredRestore) -> str:
    if restore.committed is None:
        return ""
    until = datetime.fromtimestamp(restore.changed_at_ms / 1000, tz=UTC) + _OFFSETS_KEPT
    return (
        f" before {until:%Y-%m-%d %H:%M} UTC: a group that never starts loses its offsets after"
        " `offsets.retention.minutes` (7 days by default)"
    )


def _age(restore: StoredRestore, point_taken_at_ms: int, now_ms: int) -> str:
    taken = datetime.fromtimestamp(point_taken_at_ms / 1000, tz=UTC)
    return (
        f"The recovery point `{restore.point_id}` was taken at {taken:%Y-%m-%d %H:%M:%S} UTC,"
        f" **{duration(now_ms - point_taken_at_ms)} ago** (the recovery point objective, RPO, of"
        " this restore). Later records of the source are missing; producers must send them again."
    )


def _healthy(restore: StoredRestore, stores: Mapping[str, Sequence[str]]) -> str:
    lines = []
    changelogs = [t for t in restore.topics if TopicRole.CHANGELOG.value in t.roles]
    if changelogs:
        lines += [
            "- It first restores its stores, each changelog from the beginning:",
            "",
            "| changelog | store | records to restore |",
            "|---|---|---:|",
            *(
                f"| `{t.target}` | {', '.join(stores.get(t.source, ())) or '-'} |"
                f" {_at_most(t)}{t.records:,} |"
                for t in changelogs
            ),
            "",
            f"  {plain(NOT_SEEN_FROM_OUTSIDE)}",
        ]
    if restore.committed:
        lines += [
            "- Then its committed offsets move, from:",
            "",
            "| partition | committed by the restore |",
            "|---|---:|",
            *(
                f"| `{o.topic}-{o.partition}` | {o.offset:,} |"
                for o in restore.committed[:_SHOWN_OFFSETS]
            ),
        ]
        more = len(restore.committed) - _SHOWN_OFFSETS
        lines += [f"| and {more:,} more | |", ""] if more > 0 else [""]
    lines += [
        "- Its lag shrinks to transaction markers only: no record is left, even if offsets differ"
        " by a few.",
        "- Its log reports no `Unsupported offset metadata` and no offset reset.",
    ]
    return "\n".join(lines)


def _at_most(topic: StoredTopic) -> str:
    """Return a prefix for an input that serves as changelog: its committed offset is the limit."""
    return "at most " if TopicRole.INPUT.value in topic.roles else ""


_SHOWN = 10


def outcome(plan: RestorePlan, result: RestoredRecords) -> str:
    """Return the records restored and the result of their comparison, as Markdown."""
    restored = sum(p.records for p in result.produced)
    resumed = sum(p.resumed for p in result.produced)
    took = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in result.took_s.items())
    rows = [
        ("Restore", f"`{plan.restore_id}`, {result.restore.state.value.replace('_', ' ')}"),
        ("Target", f"{plan.target_bootstrap_servers}, group `{plan.group}`"),
        ("Records", f"{restored:,}, of them {resumed:,} written by an earlier attempt"),
        ("Compared", f"{result.compared:,} records (`verify: {plan.request.verify.value}`)"),
        *_from_snapshots(plan),
        ("Took", took),
    ]
    if plan.point is not None:
        at = iso_time(plan.point.taken_at_ms)
        age = f"{age_s(plan) or 0:,.0f} s before the end of the restore"
        rows.insert(
            1,
            (
                "Recovery point",
                (f"`{plan.point.id}`, {at}, {age}; restorability `{plan.restorability}`"),
            ),
        )
    verdict = (
        "The target matches the backup."
        if result.passed
        else "**The target differs from the backup; no group offsets are committed.** Find out what"
        " else writes to the topics of this restore, delete them on the target, then restore"
        " again."
    )
    sections = [verdict, markdown_table(("", ""), rows), listed(result.problems)]
    return "\n\n".join(section for section in sections if section)


def _from_snapshots(plan: RestorePlan) -> Iterable[tuple[str, str]]:
    """Yield how many records were written from each snapshot, against its raw log."""
    for topic, snapshot in plan.from_snapshots:
        yield (
            f"From snapshot of `{snapshot.store}`",
            f"`{topic.target}`: {topic.records:,} records, {bytes_text(topic.bytes)}; raw log"
            f" {snapshot.raw_records:,}, about {bytes_text(snapshot.raw_bytes)}",
        )


def age_s(plan: RestorePlan) -> float | None:
    """Return the age of the recovery point in seconds: what is lost without a replay."""
    if plan.point is None:
        return None
    return round(time.time() - plan.point.taken_at_ms / 1000, 1)


def listed(found: Sequence[object]) -> str:
    """Return the first few as a Markdown list, and the number of the others."""
    lines = [f"- {one}" for one in found[:_SHOWN]]
    if len(found) > _SHOWN:
        lines.append(f"- and {len(found) - _SHOWN:,} more")
    return "\n".join(lines)


def steps_after(
    settings: ApplicationSettings, restore: StoredRestore, *, local: str | None = None
) -> str:
    """Return the steps after the commit as Markdown; `local` as for `next_steps`."""
    points = Repository.open(settings).points.load([restore.point_id])
    return next_steps(
        restore,
        point_taken_at_ms=points[0].taken_at_ms if points else None,
        now_ms=time.time_ns() // 1_000_000,
        stores={topic.name: topic.stores for topic in settings.application.topics},
        local=local,
    )
