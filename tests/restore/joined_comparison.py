"""Where a restored WideApp with joins differs from its uninterrupted run, by topic."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tests.restore.control import by_key, differences, newest
from tests.restore.joined_run import JoinedRun
from tests.restore.trial import Restored
from tests.streams.feed import Record

_FEW = 3

Differences = Mapping[str, Sequence[str]]


def differences_of_exact(run: JoinedRun, restored: Restored) -> Differences:
    """Every record of every key in the outputs, and what the stores hold in the end.

    Two topics meet in the join by foreign key: the last record of each key counts there, without
    the headers, which are those of the record that came last.
    """
    topics, control = run.topics, run.source.written
    alerts = f"{topics.prefix}alerts"
    ordered = {topics.raised, *topics.outputs} - {alerts}
    found = restored.written(*ordered, alerts, *topics.changelogs, topics.buffer)
    wrong = {topic: differences(by_key(control[topic]), by_key(found[topic])) for topic in ordered}
    for topic in topics.changelogs:
        wrong[topic] = _other(newest(control[topic]), newest(found[topic]))
    wrong[alerts] = _other(_without_headers(control[alerts]), _without_headers(found[alerts]))
    # What waits in the buffer tells the topic and the offset that it came from behind its time.
    waiting, waits = (
        {key: written.value and written.value[:8] for key, written in newest(records).items()}
        for records in (control[topics.buffer], found[topics.buffer])
    )
    wrong[topics.buffer] = _other(waiting, waits) if waiting else ["nothing waited"]
    return {topic: texts for topic, texts in wrong.items() if texts}


def differences_at_least_once(run: JoinedRun, restored: Restored) -> Differences:
    """What is lost or wrong, and what is repeated more often than the point says.

    A window that was emitted may be emitted again, of a repeated record alone: its store has
    expired, and what Kafka Streams knows of stream time begins anew. So the most of each window
    counts.
    """
    topics, control = run.topics, run.source.written
    most = sum(restored.point.repeats_at_most.values())
    found = restored.written(topics.raised, *topics.outputs)
    wrong: dict[str, list[str]] = {}
    for topic in (f"{topics.prefix}{name}" for name in ("sums", "alarms", "alerts")):
        before, after = _last_counts(control[topic]), _last_counts(found[topic])
        wrong[topic] = _fewer(before, after)
        extra = sum(after.values()) - sum(before.values())
        wrong[topic] += [f"{extra} were counted twice, {most} may be"] if extra > most else []
    for topic in (f"{topics.prefix}{name}" for name in ("finals", "closed")):
        wrong[topic] = _fewer(_last_counts(control[topic]), _most_counts(found[topic]))
    for topic in (topics.raised, f"{topics.prefix}described"):
        before, after = (
            {(r.key, r.value, r.timestamp_ms) for r in w[topic]} for w in (control, found)
        )
        wrong[topic] = [f"lost {one}" for one in sorted(before - after)[:_FEW]]
        wrong[topic] += [f"not in the control run: {one}" for one in sorted(after - before)[:_FEW]]
    traced = f"{topics.prefix}traced"
    counts = (Counter(record.key for record in written[traced]) for written in (control, found))
    wrong[traced] = _fewer(*counts)
    places = (_places(written[f"{topics.prefix}alerts"]) for written in (control, found))
    wrong[f"{topics.prefix}alerts"] += _other(*places)
    return {topic: texts for topic, texts in wrong.items() if texts}


def counted(sums: Iterable[Record]) -> int:
    """How many readings are in the last sums of all sensors."""
    return sum(_last_counts(sums).values())


def _without_headers(records: Iterable[Record]) -> Mapping[bytes | None, tuple[bytes | None, int]]:
    return {key: (w.value, w.timestamp_ms) for key, w in newest(records).items()}


def _last_counts(records: Iterable[Record]) -> Mapping[bytes | None, int]:
    """The first field of the last value of each key."""
    return {key: _count(written.value) for key, written in newest(records).items()}


def _most_counts(records: Iterable[Record]) -> Mapping[bytes | None, int]:
    """The greatest first field of each key."""
    return {key: max(_count(w.value) for w in all_) for key, all_ in by_key(records).items()}


def _count(value: bytes | None) -> int:
    return int((value or b"").partition(b",")[0])


def _places(alerts: Iterable[Record]) -> Mapping[bytes | None, bytes]:
    return {key: (w.value or b"").rpartition(b",")[2] for key, w in newest(alerts).items()}


def _fewer(control: Mapping[bytes | None, int], found: Mapping[bytes | None, int]) -> list[str]:
    lost = [key for key, count in control.items() if found.get(key, 0) < count]
    return [f"{key!r}: {found.get(key)} of {control[key]}" for key in lost[:_FEW]]


def _other(
    control: Mapping[bytes | None, object], found: Mapping[bytes | None, object]
) -> list[str]:
    other = [key for key in {**control, **found} if control.get(key) != found.get(key)]
    return [f"{key!r}: {found.get(key)} for {control.get(key)}" for key in other[:_FEW]]
