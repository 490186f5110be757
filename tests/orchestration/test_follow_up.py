"""KTables and rules are requested for windows that close, once, when they are backed up."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.storage.tags import RUN_KEY_TAG, SENSOR_NAME_TAG
from dagster._core.test_utils import create_run_for_test

from kstreams_assets.app.model import AppTopic, Store, TopicRole, TopicRoles
from kstreams_assets.app.rules import CompletenessRule
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.layout import Warehouse
from kstreams_assets.orchestration.component import build_application_definitions
from kstreams_assets.orchestration.follow_up import MOST_WINDOWS, build_follow_up_sensors
from kstreams_assets.orchestration.keys import follow_up_sensor
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings
from spark_resources.resource import SparkSessionResource
from tests.backup.samples import APPLICATION_ID
from tests.clock import freeze_time
from tests.ktables.samples import snapshot
from tests.orchestration.default_keys import completeness_key, ktable_key
from tests.orchestration.requesting import (
    FIRST,
    JOB_ORIGIN,
    SCHEDULE,
    indices,
    key,
    record,
    settings_of,
    take_first_point,
)

TOPICS = (
    AppTopic("t", TopicRoles({TopicRole.INPUT})),
    AppTopic("u", TopicRoles({TopicRole.CHANGELOG})),
)
KTABLE = ktable_key(APPLICATION_ID, "store")
RULES = completeness_key(APPLICATION_ID)


STORES = (Store("store", "u"),)
RULE = CompletenessRule(name="no_orders", query="SELECT * FROM t", views=("t",))


def follow_up_settings(
    root: Path,
    stores: Sequence[Store] = STORES,
    rules: Sequence[CompletenessRule] = (RULE,),
) -> ApplicationSettings:
    """By default a store, and a rule."""
    settings = settings_of(root, topics=TOPICS)
    application = replace(settings.application, stores=tuple(stores))
    return replace(settings, application=application, completeness=tuple(rules))


@dataclass
class FollowUp:
    """The sensor of an application whose first window has a recovery point."""

    root: Path
    instance: dg.DagsterInstance
    minutes: float = 0.5
    cursor: str | None = None
    stores: Sequence[Store] = STORES
    rules: Sequence[CompletenessRule] = (RULE,)

    def record(self, *windows: int, topics: Iterable[str] = ("t", "u")) -> None:
        with self.clock():
            record(self.root, windows, topics=topics)

    def clock(self) -> AbstractContextManager[None]:
        return freeze_time(FIRST + timedelta(minutes=self.minutes))

    def make_tables(self, *windows: int) -> None:
        """As a run of tables leaves them."""
        warehouse = Warehouse(self.root)
        (warehouse.ktable(APPLICATION_ID, "store") / "_delta_log").mkdir(
            parents=True, exist_ok=True
        )
        made = [
            replace(
                snapshot(store="store"),
                application_id=APPLICATION_ID,
                window=WindowCalendar(SCHEDULE).window(key(index)),
            )
            for index in windows
        ]
        Repository(warehouse, APPLICATION_ID).snapshots.record(made)

    def ticks(self) -> list[dg.RunRequest]:
        """One tick: what it requests."""
        [sensor] = build_follow_up_sensors(follow_up_settings(self.root, self.stores, self.rules))
        context = dg.build_sensor_context(
            instance=self.instance, cursor=self.cursor, sensor_name=sensor.name
        )
        with self.clock():
            found = sensor.evaluate_tick(context)
        self.cursor = found.cursor
        requests = list(found.run_requests or ())
        assert requests or found.skip_message
        return requests

    def tick(self) -> dg.RunRequest | None:
        """One tick: the run that it requests, if any."""
        [request] = self.ticks() or [None]
        return request

    def requested(self, asset: dg.AssetKey = KTABLE) -> range:
        """The windows of which one tick must request an asset, and nothing else."""
        request = self.tick()
        assert request is not None
        assert request.asset_selection == [asset]
        return indices(request)

    def start(
        self,
        request: dg.RunRequest,
        status: dg.DagsterRunStatus = dg.DagsterRunStatus.STARTED,
    ) -> dg.DagsterRun:
        """What the daemon does with a request."""
        return create_run_for_test(
            self.instance,
            status=status,
            asset_selection=frozenset(request.asset_selection or ()),
            remote_job_origin=JOB_ORIGIN,
            tags={
                **request.tags,
                RUN_KEY_TAG: request.run_key or "",
                SENSOR_NAME_TAG: follow_up_sensor(APPLICATION_ID),
            },
        )


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[FollowUp]:
    root = tmp_path / "warehouse"
    with dg.DagsterInstance.ephemeral() as instance:
        take_first_point(root)
        yield FollowUp(root, instance)


class TestWhatIsRequested:
    """Tables and rules of whole windows that closed."""

    def test_a_window_once_all_its_topics_are_backed_up(self, bench: FollowUp) -> None:
        assert bench.tick() is None
        bench.minutes = 1.5
        assert bench.tick() is None
        bench.record(0, topics=["t"])
        assert bench.tick() is None
        bench.record(0, topics=["u"])
        request = bench.tick()
        assert request is not None
        assert indices(request) == range(1)
        assert request.asset_selection == [KTABLE]
        assert bench.tick() is None
        bench.make_tables(0)
        assert bench.requested(RULES) == range(1)
        assert bench.tick() is None

    def test_dagster_can_run_what_is_requested(self, bench: FollowUp) -> None:
        bench.minutes = 1.5
        bench.record(0)
        request = bench.tick()
        assert request is not None
        definitions = dg.Definitions.merge(
            build_application_definitions(follow_up_settings(bench.root)),
            dg.Definitions(resources={"spark": SparkSessionResource()}),
        )
        sensor = definitions.resolve_sensor_def(follow_up_sensor(APPLICATION_ID))
        context = dg.build_sensor_context(
            instance=bench.instance, definitions=definitions, sensor_name=sensor.name
        )
        with bench.clock():
            [resolved] = sensor.evaluate_tick(context).run_requests or [None]
        assert resolved is not None
        job = definitions.resolve_implicit_global_asset_job_def()
        steps = job.get_subset(asset_selection={KTABLE, RULES}).nodes
        assert {node.name for node in steps} == {"ktable_shop", "completeness_shop"}

    def test_windows_that_are_backed_up_late_are_one_range(self, bench: FollowUp) -> None:
        bench.minutes = 1.5
        bench.tick()
        bench.minutes = 6.5
        bench.record(1, 2, 4)
        assert bench.requested() == range(1, 3)
        assert bench.requested() == range(4, 5)
        bench.record(0, 3)
        assert bench.requested() == range(1)
        assert bench.requested() == range(3, 4)
        bench.record(5)
        assert bench.requested() == range(5, 6)
        assert bench.tick() is None

    def test_a_window_that_was_backed_up_before_it_was_seen(self, bench: FollowUp) -> None:
        """It closed and was recorded after a tick looked at the clock, before it saw the ledger."""
        bench.minutes = 2.5
        bench.record(1)
        bench.minutes = 1.5
        assert bench.tick() is None
        bench.minutes = 2.5
        assert bench.requested() == range(1, 2)

    @pytest.mark.parametrize("status", [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.STARTED])
    def test_windows_that_close_during_a_run_wait_for_it(
        self, bench: FollowUp, status: dg.DagsterRunStatus
    ) -> None:
        bench.minutes = 1.5
        bench.record(0)
        request = bench.tick()
        assert request is not None
        run = bench.start(request, status)
        for minutes in (2.5, 3.5):
            bench.minutes = minutes
            bench.record(round(minutes - 1.5))
            assert bench.tick() is None
        bench.instance.report_run_failed(run)
        assert bench.requested() == range(1, 3)

    def test_not_again_when_a_window_is_read_again(self, bench: FollowUp) -> None:
        bench.minutes = 1.5
        bench.record(0)
        assert bench.requested() == range(1)
        bench.record(0)
        assert bench.tick() is None

    def test_rules_of_the_windows_that_have_tables(self, bench: FollowUp) -> None:
        """Also of a run that failed in between; the others as soon as they have tables."""
        bench.minutes = 1.5
        bench.tick()
        bench.minutes = 4.5
        bench.record(0, 1, 2, 3)
        request = bench.tick()
        assert request is not None
        run = bench.start(request)
        bench.make_tables(0, 1)
        assert bench.tick() is None
        bench.instance.report_run_failed(run)
        assert bench.requested(RULES) == range(2)
        bench.make_tables(2, 3)
        assert bench.requested(RULES) == range(2, 4)

    def test_rules_wait_for_no_tables_of_later_windows(self, bench: FollowUp) -> None:
        bench.minutes = 1.5
        bench.record(0)
        assert bench.requested() == range(1)
        bench.make_tables(0)
        bench.minutes = 2.5
        bench.record(1)
        tables, rules = bench.ticks()
        assert (tables.asset_selection, indices(tables)) == ([KTABLE], range(1, 2))
        assert (rules.asset_selection, indices(rules)) == ([RULES], range(1))
        bench.start(rules)
        bench.make_tables(1)
        assert bench.tick() is None, "the rules of window 0 are still evaluated"

    def test_without_stores_the_rules_at_once(self, bench: FollowUp) -> None:
        bench.stores = ()
        bench.minutes = 1.5
        bench.record(0)
        assert bench.requested(RULES) == range(1)
        assert bench.tick() is None

    def test_without_rules_the_tables_alone(self, bench: FollowUp) -> None:
        bench.rules = ()
        bench.minutes = 1.5
        bench.record(0)
        assert bench.requested() == range(1)
        bench.make_tables(0)
        assert bench.tick() is None


class TestNoStorm:
    """Old windows are left alone."""

    @pytest.mark.parametrize("cursor", [None, "", "{", "[]", '{"version": 1}', '{"version": 9}'])
    def test_the_first_look_takes_the_newest_window_alone(
        self, bench: FollowUp, cursor: str | None
    ) -> None:
        bench.minutes = 50.5
        bench.record(*range(50))
        bench.cursor = cursor
        assert bench.requested() == range(49, 50)
        assert bench.tick() is None

    def test_after_a_long_time_the_newest_windows(self, bench: FollowUp) -> None:
        bench.minutes = 1.5
        bench.tick()
        bench.minutes = MOST_WINDOWS + 100.5
        bench.record(*range(MOST_WINDOWS + 100))
        assert bench.requested() == range(100, MOST_WINDOWS + 100)
        assert bench.tick() is None


def test_without_tables_and_rules_there_is_no_sensor(tmp_path: Path) -> None:
    assert build_follow_up_sensors(settings_of(tmp_path)) == []
