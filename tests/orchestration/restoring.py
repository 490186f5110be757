"""Restores of a simulated application as Dagster's assets."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import dagster as dg
import pytest

from kstreams_assets.app.rules import CompletenessRule
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.orchestration import restore as assets
from kstreams_assets.orchestration.keys import BACKFILL_TAG
from kstreams_assets.settings import ApplicationSettings, RestoreSettings, TargetSettings
from spark_resources.resource import SparkSessionResource
from tests.orchestration.default_keys import restore_key
from tests.restore.restored_app import RestoredApp
from tests.upkeep.simulated_app import APPLICATION_ID, ROLES

NAMES: Final = (*ROLES,)
GROUP_OFFSETS_STEP: Final = "shop__restore__group_offsets"


class NoSpark(SparkSessionResource):
    """A session that is never used."""

    @property
    def spark_session(self) -> Any:
        """None."""
        return None


@dataclass(frozen=True, slots=True)
class Run:
    """A run of the assets that has ended."""

    done: dg.ExecuteInProcessResult

    @property
    def success(self) -> bool:
        """Whether every step passed."""
        return self.done.success

    def steps(self, kind: dg.DagsterEventType) -> list[str | None]:
        """The steps that have an event of the kind."""
        return [event.step_key for event in self.done.all_events if event.event_type is kind]

    @property
    def materialised(self) -> dict[str, dict[str, Any]]:
        """The metadata of each asset."""
        return {
            event.asset_key.path[-1]: _values(event.materialization)
            for event in self.done.all_events
            if event.is_step_materialization and event.asset_key is not None
        }

    @property
    def observed(self) -> dict[str, dict[str, Any]]:
        """What was shown of the plan, by asset."""
        return {
            event.asset_key.path[-1]: _values(event.asset_observation_data.asset_observation)
            for event in self.done.all_events
            if event.event_type is dg.DagsterEventType.ASSET_OBSERVATION
            and event.asset_key is not None
        }

    def partitions(self, kind: dg.DagsterEventType) -> set[str | None]:
        """The partitions that have an event of the kind."""
        return {event.partition for event in self.done.all_events if event.event_type is kind}

    @property
    def evaluations(self) -> dict[tuple[str, str], dg.AssetCheckEvaluation]:
        """By asset and check."""
        found = self.done.get_asset_check_evaluations()
        return {(e.asset_key.path[-1], e.check_name): e for e in found}

    @property
    def failure(self) -> str:
        """Why the only step that failed did."""
        (failure,) = self.done.get_step_failure_events()
        data = failure.step_failure_data
        assert data.user_failure_data is not None, data.error
        return data.user_failure_data.description or ""


def _values(event: dg.AssetMaterialization | dg.AssetObservation) -> dict[str, Any]:
    return {name: value.value for name, value in event.metadata.items()}


@dataclass(slots=True)
class DagsterShop:
    """The application, and the assets of its restores."""

    of: RestoredApp
    settings: ApplicationSettings
    instance: dg.DagsterInstance

    def configure(
        self,
        *,
        completeness: Sequence[CompletenessRule] = (),
        targets: Mapping[str, TargetSettings] | None = None,
        **restore: Any,
    ) -> None:
        """Set what the YAML says of restores and their targets, and its rules."""
        said = self.settings.restore.model_copy(update=restore)
        assert restore.keys() <= RestoreSettings.model_fields.keys()
        self.settings = replace(
            self.settings,
            restore=said,
            completeness=tuple(completeness),
            targets=dict(targets or {}),
        )

    def job(self, *names: str) -> dg.JobDefinition:
        """The assets of these names, in one process."""
        return dg.Definitions(
            assets=assets.build_restore_assets(self.settings),
            jobs=[dg.define_asset_job("job", [restore_key(APPLICATION_ID, n) for n in names])],
            resources={"spark": NoSpark()},
            executor=dg.in_process_executor,
        ).resolve_job_def("job")

    @property
    def window(self) -> str:
        """The window of the newest point."""
        calendar = WindowCalendar(self.settings.windows)
        return calendar.key_at(self.of.point.effective_at_ms)

    def __call__(
        self,
        *names: str,
        window: str | None = None,
        tags: Mapping[str, str] | None = None,
        **config: Any,
    ) -> Run:
        """Materialise assets, all of them where none is named, of the newest window by default."""
        job = self.job(*(names or (*NAMES, "group_offsets")))
        done = job.execute_in_process(
            instance=self.instance,
            run_config={"ops": {"restore_shop": {"config": config}}} if config else None,
            partition_key=window or self.window,
            tags=tags,
            raise_on_error=False,
        )
        return Run(done)

    def launched(self, windows: Sequence[str], tags: Mapping[str, str], **config: Any) -> Run:
        """A run of all assets for the first of several windows, or for their range, by its tags."""
        done = self.job(*NAMES, "group_offsets").execute_in_process(
            instance=self.instance,
            run_config={"ops": {"restore_shop": {"config": config}}},
            partition_key=windows[0] if BACKFILL_TAG in tags else None,
            tags=dict(tags),
            raise_on_error=False,
        )
        return Run(done)

    def definitions(self) -> dg.Definitions:
        """The assets and their job."""
        found = assets.build_restore_assets(self.settings)
        return dg.Definitions.merge(
            dg.Definitions(
                assets=found, resources={"spark": NoSpark()}, executor=dg.in_process_executor
            ),
            assets.build_restore_job(self.settings, found),
        )

    def restore(self, *names: str, window: str | None = None, **config: Any) -> Run:
        """Launch the job that restores, with its own configuration and this one.

        `names` selects some of its assets.
        """
        job = self.definitions().resolve_job_def("shop_restore")
        assert job.partitioned_config is not None
        key = window or self.window
        shown = job.partitioned_config.get_run_config_for_partition_key(key)
        own = shown["ops"]["restore_shop"]["config"]
        done = job.execute_in_process(
            instance=self.instance,
            run_config={"ops": {"restore_shop": {"config": {**own, **config}}}},
            partition_key=key,
            asset_selection=[restore_key(APPLICATION_ID, name) for name in names] or None,
            raise_on_error=False,
        )
        return Run(done)


@pytest.fixture
def shop(restored_app: RestoredApp) -> Iterator[DagsterShop]:
    """The application, restored to `target:1` where no other target is given."""
    settings = replace(
        restored_app.app.settings,
        warehouse=restored_app.warehouse,
        restore=RestoreSettings(target=KafkaConnection(bootstrap_servers="target:1")),
    )
    with dg.DagsterInstance.ephemeral() as instance:
        yield DagsterShop(restored_app, settings, instance)
