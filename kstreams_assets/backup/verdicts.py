"""The checks of a backup: claims about one topic in one window, evaluated from facts. Pure."""

from collections import Counter
from collections.abc import Mapping, Set
from types import MappingProxyType
from typing import NamedTuple

from kstreams_assets.app.model import StreamsApplication, TopicRole
from kstreams_assets.backup.result import TopicBackup, WindowBackup
from kstreams_assets.checks import Evaluation, Finding, Severity, failed
from kstreams_assets.checks import passed as passes
from kstreams_assets.model.point import topic_id_of
from kstreams_assets.model.spans import GapCause, SpanResult
from kstreams_assets.texts import few

CHECKS: Mapping[str, str] = {
    "every_offset_accounted": (
        "Every offset of the window is a stored record, or its absence is proved from the raw log"
        " (transaction marker, aborted, compacted, purged) or reported as a loss. Red: records are"
        " missing or doubled for an unknown cause; keep the window's topic and report it. An open"
        " transaction blocks the records: they are not backed up, and the window stays due. The"
        " first window did not start at the log start; the message says what to do. Warning:"
        " no recovery point was taken in the window, so nothing was backed up."
    ),
    "no_source_loss": (
        "Kafka still had every committed record of the window when it was read. Red: retention,"
        " DeleteRecords or the recreation of a topic was faster than the backup, or an unclean"
        " leader election truncated the log; the message names topic, partition and offsets. Back"
        " up more often, or lengthen retention."
    ),
    "topic_unchanged": (
        "The topic has the same id, partitions and configs as in the previous window. Red: it was"
        " deleted and recreated. Warning: partitions or configs changed."
    ),
    "partitions_aligned": (
        "All partitions are in the backup, and internal topics have as many partitions as the"
        " input of their sub-topology. Red: Kafka Streams would refuse to start on a restore."
    ),
}
"""Checks of every topic."""

CHANGELOG_CHECKS: Mapping[str, str] = {
    "compaction_cannot_outrun_backup": (
        "The changelog's `min.compaction.lag.ms` is above the window length, and no recovery point"
        " of the window lost its proof to compaction. Warning: records may be removed before they"
        " are read, so points that are not sealed cannot be proved. Set it above the sum of the"
        " window length and the delay of the backup."
    ),
}
"""Further checks of topics that rebuild a store."""


def checks_of(*, is_changelog: bool) -> Mapping[str, str]:
    """Return the checks of a topic, with their claims."""
    return {**CHECKS, **CHANGELOG_CHECKS} if is_changelog else CHECKS


class _Outcome(NamedTuple):
    """The outcome of a check."""

    passed: bool
    text: str
    numbers: Mapping[str, int] = MappingProxyType({})
    severity: Severity = Severity.ERROR

    def of(self, check: str, topic: str, window: str) -> Evaluation:
        passed, text, numbers, severity = self
        if passed:
            return passes(check, topic, text, window=window, numbers=numbers, severity=severity)
        finding = Finding(topic, text, severity=severity)
        return failed(check, topic, [finding], window=window, numbers=numbers)


def evaluate(window: WindowBackup, application: StreamsApplication) -> list[Evaluation]:
    """Evaluate every check of every topic of a window; an unread topic fails the first one."""
    backed_up = {backup.topic for backup in window.topics}
    found = [
        _Outcome(False, f"Not backed up. {one.reason}").of(
            "every_offset_accounted", one.topic, window.window.key
        )
        for one in window.unread
        if one.topic not in backed_up
    ]
    for backup in window.topics:
        checks = {
            "every_offset_accounted": _of_point(_every_offset_accounted(backup), backup, window),
            "no_source_loss": _of_point(_no_source_loss(backup), backup, window),
            "topic_unchanged": _topic_unchanged(backup, window),
            "partitions_aligned": _partitions_aligned(backup, window, application),
        }
        if backup.is_changelog:
            checks["compaction_cannot_outrun_backup"] = _compaction_cannot_outrun_backup(backup)
        found += [one.of(name, backup.topic, backup.window.key) for name, one in checks.items()]
    return found


def _of_point(found: _Outcome, backup: TopicBackup, window: WindowBackup) -> _Outcome:
    """Return a warning for a check that passes only because nothing was read."""
    if window.holds(backup) or not found.passed:
        return found
    text = (
        "Nothing was backed up: no recovery point was taken in this window. Its records are in the"
        " next window with a point. Take points at least once a window."
    )
    return _Outcome(False, text, found.numbers, Severity.WARN)


def _every_offset_accounted(backup: TopicBackup) -> _Outcome:
    """No offset of the spans is missing or doubled without a cause."""
    wrong = [span for span in backup.spans if span.unaccounted != 0]
    numbers = {
        "offsets": sum(s.plan.end - s.plan.start for s in backup.spans),
        "records": backup.records,
        "missing_offsets": backup.missing_offsets,
        "unaccounted": sum(abs(span.unaccounted) for span in wrong),
    }
    if backup.below_first:
        numbers["below_first_window"] = sum(map(len, backup.below_first.values()))
        text = _text_below_first(backup)
        return _Outcome(False, text, numbers)
    if not wrong:
        kept = sum(span.kept for span in backup.spans)
        text = f"{numbers['records']} records, {numbers['missing_offsets']} offsets without one"
        if kept:
            text += "; Kafka no longer has all of them, so the earlier backup was kept"
        return _Outcome(True, text + ".", numbers)
    if unread := [span for span in backup.spans if span.is_unread]:
        text = few(map(_text_not_examined, unread), _MOST, "; ")
        return _Outcome(
            False,
            f"Records could not be read: {text}. Check the log of the partition's leader and its"
            " remote storage, then back up again: the next run reads them. Other partitions"
            " are backed up.",
            numbers,
        )
    not_examined = [span for span in backup.spans if not span.is_examined]
    if not_examined:
        text = few(map(_text_not_examined, not_examined), _MOST, "; ")
        return _Outcome(
            False,
            f"The records are stored, but the log could not be inspected: {text}. Back up again"
            " once the brokers answer: the run inspects the log and reads no record twice. If the"
            " problem persists, raise backup.scan_stall_seconds.",
            numbers,
        )
    texts = (f"{span.partition}: {span.unaccounted} offsets unaccounted" for span in wrong)
    text = few(texts, _MOST, "; ")
    return _Outcome(
        False,
        f"{text}. Keep the topic as it is and run the window again. If this persists, report it.",
        numbers,
    )


def _text_not_examined(span: SpanResult) -> str:
    why = span.not_examined_because.rstrip(".")
    text = f"{span.partition}: {span.unaccounted} offsets not examined"
    return f"{text} ({why})" if why else text


def _text_below_first(backup: TopicBackup) -> str:
    ranges = sorted(backup.below_first.items())
    text = few((f"{p}: offsets {r.start} to {r.end - 1}" for p, r in ranges), _MOST, "; ")
    return (
        f"No backup contains {text}: the first window starts at a recovery point that is older than"
        " windows.start. Set windows.start one window earlier while Kafka still has them, and"
        " back up: the new first window includes them."
    )


def _no_source_loss(backup: TopicBackup) -> _Outcome:
    """No committed record of the window was deleted from Kafka before it was read."""
    losses = [(span, gap) for span in backup.spans for gap in span.losses]
    known = sum(gap.offsets or 0 for _, gap in losses)
    numbers = {"lost_offsets": known, "losses": len(losses)}
    if not losses:
        return _Outcome(True, "Nothing was lost.", numbers)
    texts = (f"{span.partition}: {gap.describe()}" for span, gap in losses)
    text = few(texts, _MOST, "; ")
    causes = {gap.cause for _, gap in losses}
    what = "Lost before the backup read them"
    if causes == {GapCause.NOT_RESTORED}:
        what = "Not restored"
    return _Outcome(
        False,
        f"{what}: {text}. {_remedy(causes)}",
        numbers,
    )


def _remedy(causes: Set[GapCause]) -> str:
    texts: list[str] = []
    if GapCause.LOG_TRUNCATED in causes:
        texts.append(
            "An unclean leader election truncated the log: set unclean.leader.election.enable=false"
            " and min.insync.replicas=2. A restore of an earlier recovery point has what was lost."
        )
    if GapCause.NOT_RESTORED in causes:
        texts.append(
            "The application continues from a restore of an earlier recovery point. The offsets are"
            " those of the topic before the restore; the backups contain them up to their end."
            " Let the producers send the records after the restored point again."
        )
    if causes - {GapCause.LOG_TRUNCATED, GapCause.NOT_RESTORED}:
        texts.append(
            "Back up more often than Kafka deletes, or raise retention.ms. The count includes"
            " offsets of transaction markers and aborted records: they cannot be distinguished."
        )
    return " ".join(texts)


def _topic_unchanged(backup: TopicBackup, window: WindowBackup) -> _Outcome:
    """The topic has the id, partitions and configs of the previous window."""
    facts, previous = backup.facts, backup.previous_facts
    if facts is None:
        return _Outcome(False, "The topic is gone. Exclude it, or find out who deleted it.")
    cuts = [
        [cut for cut in point.partitions if cut.topic == backup.topic]
        for point in (window.opening, window.closing)
        if point is not None
    ]
    ids = [topic_id_of(of_point[0].topic_id) for of_point in cuts if of_point] + [facts.topic_id]
    if previous is not None and (window.opening is None or not cuts[0]):
        ids.insert(0, previous.topic_id)
    if len(set(ids)) > 1 and (restore := window.continues_from(facts.topic_id)) is not None:
        text = (
            f"The application continues from restore {restore.restore_id} (recovery point"
            f" {restore.point_id}) on cluster {restore.target_cluster_id}: it is a different"
            " topic, and its offsets start again at 0."
        )
        return _Outcome(True, text)
    if len(set(ids)) > 1:
        return _Outcome(
            False,
            f"The topic was deleted and recreated (ids {' -> '.join(dict.fromkeys(ids))}): its log"
            " is new. Records of the old topic since the last backup are lost.",
        )
    changes: list[str] = []
    counts = [len(of_point) for of_point in cuts]
    if len(counts) > 1 and all(counts) and counts[0] != counts[1]:
        changes.append(f"partitions {counts[0]} -> {counts[1]}")
    if previous is not None:
        before, now = dict(previous.configs), dict(facts.configs)
        if previous.effective_configs and facts.effective_configs:
            before, now = previous.known_configs, facts.known_configs
        changes += [
            f"{key} {before.get(key, 'unset')} -> {now.get(key, 'unset')}"
            for key in sorted(before.keys() | now.keys())
            if before.get(key) != now.get(key)
        ]
    if changes:
        return _Outcome(False, f"Changed: {'; '.join(changes)}.", severity=Severity.WARN)
    return _Outcome(True, "Same id, partitions and configs.")


def _partitions_aligned(
    backup: TopicBackup, window: WindowBackup, application: StreamsApplication
) -> _Outcome:
    """All partitions exist, as many as the topic's sub-topologies need."""
    counts = Counter(cut.topic for cut in (window.closing.partitions if window.closing else ()))
    count = counts[backup.topic]
    numbers = {"partitions": count}
    present = {span.partition.partition for span in backup.spans}
    missing = sorted(set(range(count)) - present)
    if missing:
        text = f"Partitions {missing} are not in the backup. Run the window again."
        return _Outcome(False, text, numbers)
    topic = application.topic(backup.topic)
    if not topic.is_internal or not topic.roles.is_changelog:
        return _Outcome(True, f"{count} partitions.", numbers)
    sources = {
        source.name: counts[source.name]
        for source in application.topics
        if source.roles & {TopicRole.INPUT, TopicRole.REPARTITION}
        and set(source.subtopologies) & set(topic.subtopologies)
        and source.name in counts
    }
    needed = max(sources.values(), default=count)
    if count == needed or count == 0:
        return _Outcome(True, f"{count} partitions, as its input.", numbers)
    widest = sorted(source for source, n in sources.items() if n == needed)
    return _Outcome(
        False,
        f"{count} partitions, but {', '.join(widest)} has {needed}: Kafka Streams refuses to start"
        " with them. Make the partition counts equal before you rely on a restore.",
        numbers,
    )


def _compaction_cannot_outrun_backup(backup: TopicBackup) -> _Outcome:
    """Compaction keeps records for longer than a window, and no point was lost to it."""
    configs = backup.facts.known_configs if backup.facts else {}
    policy = configs.get("cleanup.policy", "delete")
    lag_ms = int(configs.get("min.compaction.lag.ms", 0))
    window_ms = backup.window.end_ms - backup.window.start_ms
    unproven = backup.unproven_points
    numbers = {
        "min_compaction_lag_ms": lag_ms,
        "window_ms": window_ms,
        "spans_with_holes": sum(span.first_hole is not None for span in backup.spans),
        "unproven_points": len(unproven),
    }
    texts: list[str] = []
    if unproven:
        texts.append(
            f"Recovery points with unproven contents, because the log had holes below their ends"
            f" when it was read: {few(unproven, _MOST, '; ')}."
        )
    if "compact" not in policy:
        texts.append(f"The topic is not compacted (cleanup.policy={policy}).")
    elif lag_ms <= window_ms:
        texts.append(
            f"min.compaction.lag.ms is {lag_ms}, the window {window_ms} ms: compaction may remove"
            " records before they are read. Recovery points that are not sealed can then not be"
            " proved. Set it above the sum of the window length and the delay of the backup:"
            " kafka-configs.sh --bootstrap-server $BOOTSTRAP --alter --entity-type topics"
            f" --entity-name {backup.topic} --add-config min.compaction.lag.ms={2 * window_ms}"
        )
    else:
        texts.append(
            f"Compaction keeps records for {lag_ms} ms: enough if the backup runs within"
            f" {lag_ms - window_ms} ms of the window's end."
        )
    passed = not unproven and ("compact" not in policy or lag_ms > window_ms)
    return _Outcome(passed, " ".join(texts), numbers, Severity.WARN)


_MOST = 10
