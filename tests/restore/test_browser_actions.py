"""Browser actions restored: a left join of streams, hopping windows, a store of its own.

Counts and windows of a browser add up two topics: the order of events, and so the timestamps of
intermediate results, depend on how the topics interleave. Outputs are therefore compared by the
last record of each key; those whose order follows from the data are compared whole besides.
"""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import pytest

from examples.browser_actions.application import (
    ACTIONS,
    CAPTCHAS,
    CHECKS,
    COUNTS,
    EXAMPLE,
    KNOWN_BROWSERS,
    POPULAR,
    VIEWS,
    WINDOW_COUNTS,
)
from examples.browser_actions.events import EventGenerator
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.restore.request import InputsExtent
from spark_resources.resource import SparkSessionResource
from tests.restore.control import by_key, differences, newest
from tests.restore.example_definition import Definition
from tests.restore.example_expectations import (
    assert_live_and_exact,
    partition_of,
    retention_differences,
)
from tests.restore.example_snapshots import assert_snapshots_equal_queries
from tests.restore.example_trial import (
    LIVE,
    PARTITIONS,
    QUIET,
    ExampleRun,
    ExampleTrial,
    InputFeed,
    assert_restored_as_control,
    holds,
    run_example,
)
from tests.streams.feed import Record

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.e2e, pytest.mark.drill]

RATE: Final = 300
CAPTCHA_RATE: Final = 50
FIRST_S: Final = 5.0
JUMP_MS: Final = 7 * 60_000
NEARBY_MS: Final = 5 * 60_000
"""Of a captcha, before and after an action; the join's grace is one minute."""

LEFT: Final = "captcha-this-join-store"
RIGHT: Final = "captcha-outer-other-join-store"
WAITING: Final = "captcha-left-shared-join-store"
GENERATOR: Final = EventGenerator(seed=7)


class Timeline:
    """Event time by index: it passes as the clock does, but jumps after the first five seconds.

    Whatever comes before the jump has no partner at all, and is past the join's end after it. All
    that comes later is within five minutes: whichever topic is read first, no partner is late.
    """

    def __init__(self) -> None:
        self.began_ms = time.time_ns() // 1_000_000 - 2 * 3_600_000

    def at_ms(self, index: int, rate: float) -> int:
        """When the record of an index happens."""
        jump_ms = 0 if self.is_first(index, rate) else JUMP_MS
        return self.began_ms + jump_ms + int(index * 1000 / rate)

    def is_first(self, index: int, rate: float) -> bool:
        """Whether it happens before the jump."""
        return index < FIRST_S * rate


def views(timeline: Timeline) -> Callable[[int], Record]:
    def view(index: int) -> Record:
        made = GENERATOR.view(index)
        at_ms = timeline.at_ms(index, RATE)
        return Record(partition_of(made.key), -1, at_ms, made.key, made.value)

    return view


def actions(timeline: Timeline) -> Callable[[int], Record]:
    """Actions; those of one browser come from all partitions, a repeated one from the same."""

    def action(index: int) -> Record:
        made, pair = GENERATOR.action(index), GENERATOR.action_pair(index)
        at_ms = timeline.at_ms(pair, RATE)
        return Record(pair % PARTITIONS, -1, at_ms, made.key, made.value)

    return action


def captchas(timeline: Timeline) -> Callable[[int], Record]:
    """Captchas, one at most of each browser; before the jump of browsers that do nothing."""

    def captcha(index: int) -> Record:
        made, at_ms = GENERATOR.captcha(index), timeline.at_ms(index, CAPTCHA_RATE)
        idle = timeline.is_first(index, CAPTCHA_RATE) or index >= GENERATOR.browsers
        key = b"idle-" + made.key if idle else made.key
        return Record(partition_of(key), -1, at_ms, key, made.value)

    return captcha


def known_browsers() -> list[Record]:
    now_ms = time.time_ns() // 1_000_000
    return [
        Record(partition_of(browser), -1, now_ms, browser, label)
        for browser, label in GENERATOR.known_browsers()
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, spark: SparkSessionResource) -> ExampleRun:
    timeline = Timeline()
    trial = ExampleTrial(
        definition=Definition(EXAMPLE, "browser_actions"),
        feeds=[
            InputFeed(VIEWS, views(timeline), RATE),
            InputFeed(ACTIONS, actions(timeline), RATE),
            InputFeed(CAPTCHAS, captchas(timeline), CAPTCHA_RATE),
        ],
        before={KNOWN_BROWSERS: known_browsers()},
        # Else a record that waits is looked for once a second, by the clock.
        config={"__emit.interval.ms.kstreams.outer.join.spurious.results.fix__": "0"},
        # Sequence numbers in their keys begin anew with each instance: compared here.
        not_compared=frozenset({LEFT, RIGHT}),
    )
    return run_example(trial, tmp_path_factory.mktemp("browser-actions"), spark)


def partners(run: ExampleRun) -> Mapping[bytes, str | None]:
    """Of each action its captcha, from actions and captchas alone."""
    written = run.source.written
    solved = {record.key: record for record in written[run.prefix + CAPTCHAS]}
    found: dict[bytes, str | None] = {}
    for record in written[run.prefix + ACTIONS]:
        captcha = solved.get(json.loads(record.value or b"")["browser"].encode())
        assert record.key is not None
        found[record.key] = None
        if captcha and abs(captcha.timestamp_ms - record.timestamp_ms) <= NEARBY_MS:
            found[record.key] = json.loads(captcha.value or b"")["captcha"]
    return found


def checks(run: ExampleRun) -> dict[bytes, list[object]]:
    """What has to be said of each action: nothing yet of those that wait."""
    written, captcha_of = run.source.written, partners(run)
    known = newest(written[run.prefix + KNOWN_BROWSERS])
    began_ms = min(record.timestamp_ms for record in written[run.prefix + ACTIONS])
    found: dict[bytes, list[object]] = {}
    for record in written[run.prefix + ACTIONS]:
        key, action = record.key or b"", json.loads(record.value or b"")
        if captcha_of[key] is None and record.timestamp_ms >= began_ms + JUMP_MS:
            continue
        label = known.get(action["browser"].encode())
        said = {"id": key.decode(), **action, "captcha": captcha_of[key]}
        found[key] = [said | {"label": None if label is None else (label.value or b"").decode()}]
    return found


def waiting(run: ExampleRun, label: str) -> set[tuple[int, str]]:
    """What waits for a captcha at a point: when it happened, in which browser."""
    topic = changelog(run, WAITING)
    point = run.source.points[label]
    held = newest(r for r in run.source.written[topic] if holds(point, topic, r))
    return {(int.from_bytes(key[:8]), key[9:].decode()) for key in held if key is not None}


def given_up(records: Iterable[Record]) -> set[tuple[int, str]]:
    """The same of checks that found no captcha."""
    said = [(record.timestamp_ms, json.loads(record.value or b"")) for record in records]
    return {(at_ms, check["browser"]) for at_ms, check in said if check["captcha"] is None}


def changelog(run: ExampleRun, store: str) -> str:
    return f"{run.settings.application_id}-{store}-changelog"


def without_sequence_numbers(records: Iterable[Record]) -> Counter[tuple[object, ...]]:
    """The records of a join's changelog, however often its instance was started anew."""
    return Counter(
        (record.partition, (record.key or b"")[:-4], record.value, record.timestamp_ms)
        for record in records
    )


def values(records: Iterable[Record]) -> dict[bytes | None, list[bytes | None]]:
    found: dict[bytes | None, list[bytes | None]] = defaultdict(list)
    for record in records:
        found[record.key].append(record.value)
    return found


def test_every_action_is_checked_once(run: ExampleRun) -> None:
    """Joined, or without captcha once its time is over: whatever waited, and wherever."""
    assert_live_and_exact(run)
    expected = checks(run)
    found = values(run.source.written[run.prefix + CHECKS])
    assert {key: [json.loads(v or b"") for v in said] for key, said in found.items()} == expected
    said = [said for (said,) in expected.values() if isinstance(said, dict)]
    assert {said["captcha"] is None for said in said} == {True, False}
    assert {said["label"] for said in said} == {None, "crawler", "customer"}


def test_records_that_wait_at_a_point_are_given_up_after_it(run: ExampleRun) -> None:
    topic = run.prefix + CHECKS
    later = [
        waiting(run, label)
        & given_up(
            r for r in run.source.written[topic] if not holds(run.source.points[label], topic, r)
        )
        for label in LIVE
    ]
    assert any(later)
    assert waiting(run, QUIET)


def test_repeated_actions_are_kept_both(run: ExampleRun) -> None:
    """The changelog of the join's left side is delete-only, and has both of a pair."""
    written = run.source.written
    records = written[changelog(run, LEFT)]
    assert len(records) == len(written[run.prefix + ACTIONS])
    same = Counter((record.partition, (record.key or b"")[:-4]) for record in records)
    assert max(same.values()) == 2
    assert len({(record.partition, record.key) for record in records}) == len(records)


def test_tables_are_what_the_stores_answered(run: ExampleRun, spark: SparkSessionResource) -> None:
    assert_snapshots_equal_queries(run, spark)


def test_declared_retention_is_that_of_the_changelog(run: ExampleRun) -> None:
    assert retention_differences(run) == {}


def test_it_goes_on_from_live_points(
    run: ExampleRun,
    second_cluster: KafkaConnection,
    spark: SparkSessionResource,
    tmp_path: Path,
) -> None:
    all_restored = assert_restored_as_control(
        run,
        LIVE,
        second_cluster,
        spark,
        tmp_path,
        outputs="newest",
        change=lambda request: request.model_copy(update={"inputs": InputsExtent.TAIL}),
    )
    control = run.source.written
    whole, counted = (
        [run.prefix + topic for topic in topics]
        for topics in ((POPULAR, CHECKS), (COUNTS, WINDOW_COUNTS))
    )
    joined = [changelog(run, store) for store in (LEFT, RIGHT)]
    for label, restored in all_restored.items():
        found = restored.written(*whole, *counted, *joined)
        for topic in whole:
            assert differences(by_key(control[topic]), by_key(found[topic])) == [], (label, topic)
        for topic in counted:
            assert values(found[topic]) == values(control[topic]), (label, topic)
        for topic in joined:
            assert without_sequence_numbers(found[topic]) == without_sequence_numbers(
                control[topic]
            ), (label, topic)
