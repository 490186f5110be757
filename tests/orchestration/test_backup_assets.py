"""Backups as Dagster assets, with the run itself replaced: what Dagster is told of each window."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kstreams_assets.app.model import AppTopic, TopicRole, TopicRoles
from kstreams_assets.backup.result import TopicBackup, UnreadTopic
from kstreams_assets.backup.run import BackupJob, BackupResult
from kstreams_assets.backup.verdicts import CHANGELOG_CHECKS, CHECKS
from kstreams_assets.errors import ClusterUnavailableError, TopicNotFoundError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.spans import Gap, GapCause, Window
from kstreams_assets.orchestration import backup as assets
from kstreams_assets.orchestration.translator import (
    OUTAGE_RETRIES,
    AssetKind,
    DagsterSettings,
    KafkaStreamsTranslator,
)
from kstreams_assets.settings import ApplicationSettings, WindowSchedule
from tests.backup.samples import application, backup, result, span, window_backup
from tests.orchestration.project import run_windows

TOPICS = (
    AppTopic("t", TopicRoles({TopicRole.INPUT})),
    AppTopic("u", TopicRoles({TopicRole.CHANGELOG})),
)
KEYS = [f"2026-10-20-0{hour}:00" for hour in range(3)]
LOST = Gap(GapCause.RETENTION, 0, 4, 4)


@dataclass
class _Run:
    """Stands in for `BackupJob.run`: of window 01:00 topic `t` has lost records."""

    topics: Sequence[AppTopic] = ()
    error: Exception | None = None
    succeeds_at: int | None = None
    """The number of the try without the error; None: all tries have it."""
    tries: int = 0
    unread: Sequence[tuple[str, str]] = ()
    """(window, topic) that an open transaction keeps from being read."""

    def __call__(self, job: BackupJob, windows: Sequence[Window]) -> BackupResult:
        self.topics = job.topics or ()
        self.tries += 1
        if self.error is not None and self.tries != self.succeeds_at:
            raise self.error
        backups = [
            window_backup(
                *(
                    self._topic(window, topic.name)
                    for topic in self.topics
                    if (window.key, topic.name) not in self.unread
                ),
                of=window,
                unread=[
                    UnreadTopic(window, topic, "A transaction is open.")
                    for key, topic in self.unread
                    if key == window.key
                ],
            )
            for window in windows
        ]
        return BackupResult(tuple(backups))

    def _topic(self, window: Window, topic: str) -> TopicBackup:
        gaps = [LOST] if (window.key, topic) == (KEYS[1], "t") else []
        made = backup(result(span(0, 9, topic=topic), *gaps), topic=topic)
        (role,) = next(one.roles for one in TOPICS if one.name == topic)
        return replace(made, window=window, role=role.value)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> _Run:
    """The run that the asset makes."""
    made = _Run()
    monkeypatch.setattr(BackupJob, "run", lambda job, windows: made(job, windows))
    return made


class _Soon(KafkaStreamsTranslator):
    """Two repetitions without a pause."""

    def get_retry_policy(self, kind: AssetKind) -> dg.RetryPolicy | None:
        return dg.RetryPolicy(max_retries=2)


@pytest.fixture
def definition(tmp_path: Path, run: _Run) -> dg.AssetsDefinition:
    """The multi-asset of an application of two topics."""
    settings = ApplicationSettings(
        application=application(*TOPICS),
        topics=TOPICS,
        connection=KafkaConnection(bootstrap_servers="localhost:1"),
        warehouse=Warehouse(tmp_path),
        windows=WindowSchedule.every("hour", start="2026-10-20"),
    )
    return assets.build_backup_assets(DagsterSettings.of(settings, _Soon()))


def _materialise(
    definition: dg.AssetsDefinition,
    instance: dg.DagsterInstance,
    first: str,
    last: str,
    *topics: str,
) -> dg.ExecuteInProcessResult:
    keys = [dg.AssetKey(["shop", "backup", topic]) for topic in topics or ("t", "u")]
    return run_windows(definition, keys, first, last, instance=instance)


def _materialised(done: dg.ExecuteInProcessResult) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (event.asset_key.path[-1], event.partition or ""): {
            name: value.value for name, value in event.materialization.metadata.items()
        }
        for event in done.all_events
        if event.is_step_materialization and event.asset_key is not None
    }


def _evaluated(done: dg.ExecuteInProcessResult, check: str) -> dict[tuple[str, str], bool]:
    """(topic, window) -> passed; the summary of a range stands under the window ''."""
    return {
        (evaluation.asset_key.path[-1], evaluation.partition or ""): evaluation.passed
        for evaluation in done.get_asset_check_evaluations()
        if evaluation.check_name == check
    }


def test_each_window_of_a_range_has_its_numbers(definition: dg.AssetsDefinition) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        done = _materialise(definition, instance, KEYS[0], KEYS[2])
        assert done.success
        found = _materialised(done)
    assert found.keys() == {(topic, key) for topic in ("t", "u") for key in KEYS}
    assert found["t", KEYS[0]]["records"] == 9
    assert found["t", KEYS[1]]["records"] == 5
    assert found["t", KEYS[1]]["dagster/partition_row_count"] == 5
    assert found["u", KEYS[1]]["records"] == 9
    assert found["t", KEYS[0]]["delta_version"] == 3
    (row,) = found["t", KEYS[1]]["offsets"].records
    assert row.data["gaps"] == "offsets 0 to 3 (retention)"


def test_each_window_of_a_range_has_its_evaluations(definition: dg.AssetsDefinition) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        done = _materialise(definition, instance, KEYS[0], KEYS[2])
    everything = {(topic, key): True for topic in ("t", "u") for key in KEYS}
    for check in CHECKS:
        lost = {("t", KEYS[1]): False} if check == "no_source_loss" else {}
        found = _evaluated(done, check)
        assert {pair: passed for pair, passed in found.items() if pair[1]} == everything | lost
    for check in CHANGELOG_CHECKS:
        found = _evaluated(done, check)
        assert {pair: passed for pair, passed in found.items() if pair[1]} == {
            ("u", key): True for key in KEYS
        }


def test_a_single_window_is_evaluated_once(definition: dg.AssetsDefinition) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        done = _materialise(definition, instance, KEYS[1], KEYS[1])
    evaluations = done.get_asset_check_evaluations()
    assert len(evaluations) == 2 * len(CHECKS) + len(CHANGELOG_CHECKS)
    (red,) = [evaluation for evaluation in evaluations if not evaluation.passed]
    assert (red.check_name, red.asset_key.path[-1]) == ("no_source_loss", "t")
    assert red.severity is dg.AssetCheckSeverity.ERROR
    assert "t-0: offsets 0 to 3 (retention)" in (red.description or "")


def test_a_topic_that_cannot_be_read_fails_alone(
    definition: dg.AssetsDefinition, run: _Run
) -> None:
    """What could be read is told of; the run fails, so that the rest is tried again."""
    run.unread = [(KEYS[1], "t"), (KEYS[2], "t")]
    with dg.DagsterInstance.ephemeral() as instance:
        done = _materialise(definition, instance, KEYS[0], KEYS[2])
        (record,) = instance.get_run_records()
    assert not done.success
    assert "kstreams/partly-done" in record.dagster_run.tags
    (failure,) = done.get_step_failure_events()
    assert failure.step_failure_data.user_failure_data is not None
    description = failure.step_failure_data.user_failure_data.description or ""
    assert f"Not backed up: t in windows {KEYS[1]} to {KEYS[2]}" in description
    assert "A transaction is open." in description
    found = _materialised(done)
    assert found.keys() == {("t", KEYS[0]), *(("u", key) for key in KEYS)}
    assert found["t", KEYS[0]]["records"] == 9
    accounted = _evaluated(done, "every_offset_accounted")
    assert {pair: passed for pair, passed in accounted.items() if pair[1]} == {
        **{("t", key): key == KEYS[0] for key in KEYS},
        **{("u", key): True for key in KEYS},
    }
    lost = _evaluated(done, "no_source_loss")
    assert {pair for pair in lost if pair[1]} == {("t", KEYS[0]), *(("u", key) for key in KEYS)}


def test_a_single_window_with_nothing_but_a_topic_that_cannot_be_read(
    definition: dg.AssetsDefinition, run: _Run
) -> None:
    run.unread = [(KEYS[0], "t")]
    with dg.DagsterInstance.ephemeral() as instance:
        done = _materialise(definition, instance, KEYS[0], KEYS[0], "t")
    assert not done.success
    assert _materialised(done) == {}
    (red,) = done.get_asset_check_evaluations()
    assert (red.check_name, red.passed) == ("every_offset_accounted", False)


def test_a_subset_of_topics(definition: dg.AssetsDefinition, run: _Run) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        done = _materialise(definition, instance, KEYS[0], KEYS[0], "u")
    assert [topic.name for topic in run.topics] == ["u"]
    assert _materialised(done).keys() == {("u", KEYS[0])}


def test_an_error_of_ours_is_a_failure_in_its_own_words(
    definition: dg.AssetsDefinition, run: _Run
) -> None:
    run.error = TopicNotFoundError(topics=["t"], cluster="localhost:1")
    with dg.DagsterInstance.ephemeral() as instance:
        done = _materialise(definition, instance, KEYS[0], KEYS[0])
    (failure,) = done.get_step_failure_events()
    data = failure.step_failure_data
    assert data.user_failure_data is not None
    assert data.user_failure_data.description == str(run.error)
    assert run.tries == 1


OUTAGE = ClusterUnavailableError(
    bootstrap_servers="localhost:1", operation="metadata", timeout_s=1, reason="refused"
)


def test_an_outage_is_repeated_and_then_reported_in_one_line(
    definition: dg.AssetsDefinition, run: _Run
) -> None:
    run.error = OUTAGE
    with dg.DagsterInstance.ephemeral() as instance:
        done = _materialise(definition, instance, KEYS[0], KEYS[0])
    assert run.tries == 3
    assert len([event for event in done.all_events if event.is_step_up_for_retry]) == 2
    (failure,) = done.get_step_failure_events()
    data = failure.step_failure_data.user_failure_data
    assert data is not None
    assert data.description == f"{run.error} Tried 3 times."


def test_a_backup_continues_after_an_outage(definition: dg.AssetsDefinition, run: _Run) -> None:
    run.error, run.succeeds_at = OUTAGE, 2
    with dg.DagsterInstance.ephemeral() as instance:
        done = _materialise(definition, instance, KEYS[0], KEYS[2])
    assert done.success
    assert run.tries == 2
    assert _materialised(done).keys() == {(topic, key) for topic in ("t", "u") for key in KEYS}


def test_a_fault_of_the_code_is_not_repeated(definition: dg.AssetsDefinition, run: _Run) -> None:
    run.error = ZeroDivisionError("division by zero")
    with dg.DagsterInstance.ephemeral() as instance:
        done = _materialise(definition, instance, KEYS[0], KEYS[0])
    assert not done.success
    assert run.tries == 1


def test_the_default_pauses() -> None:
    assert KafkaStreamsTranslator().get_retry_policy(AssetKind.BACKUP) is OUTAGE_RETRIES
    assert [OUTAGE_RETRIES.calculate_delay(tried) for tried in (1, 2)] == [20, 40]
    assert OUTAGE_RETRIES.max_retries == 2
