"""Applications that are restored beside the one that runs, and go on there."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from examples.streams.application import ExampleApplication
from kstreams_assets.completeness.on_restores import evaluate_restore
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.restore.request import ChangelogSource
from spark_resources.work import Spark
from tests.failures.stage import Stage
from tests.restore.trial import Restored, SourceRun, own_names, restore

_START_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Revived:
    """A restored application that runs."""

    label: str
    restored: Restored
    application: ExampleApplication

    @property
    def servers(self) -> str:
        """The brokers that it was restored to."""
        return self.restored.target.bootstrap_servers

    def topic(self, name: str) -> str:
        """The restored name of a topic of the source."""
        return self.restored.names[name]


def restored_under_own_names(
    control: SourceRun,
    label: str,
    target: KafkaConnection,
    spark: Spark,
    *,
    changelogs: ChangelogSource = ChangelogSource.RAW,
    with_rules: bool = True,
) -> Restored:
    """Restore a point beside whatever else is there, offsets included.

    Raises RestoreIncompleteError when a completeness rule does not hold on what was restored.
    """
    request = own_names("restored", control.points[label]).model_copy(
        update={"changelog_source": changelogs, "skip_completeness": not with_rules}
    )
    restored = restore(control, target, spark, request)
    if with_rules:
        evaluate_restore(control.settings, restored.restore, target, spark=spark)
    restored.commit()
    return restored


@contextmanager
def revived(stage: Stage, all_restored: Mapping[str, Restored]) -> Iterator[Sequence[Revived]]:
    """Start these restored applications together; they are gone at the end."""
    found = [
        Revived(label, restored, application_of(stage, restored))
        for label, restored in all_restored.items()
    ]
    try:
        with ThreadPoolExecutor(len(found)) as pool:
            list(pool.map(lambda one: one.application.start(timeout_s=_START_S), found))
        yield found
    finally:
        for one in found:
            one.application.kill()


def application_of(stage: Stage, restored: Restored) -> ExampleApplication:
    """The application on what was restored, with an empty state directory; not started yet."""
    name, some = restored.plan.group, stage.trial.feeds[0].topic
    return stage.trial.application(
        restored.target.bootstrap_servers,
        name,
        restored.names[stage.prefix + some].removesuffix(some),
        stage.folder / f"state-{name}",
    )
