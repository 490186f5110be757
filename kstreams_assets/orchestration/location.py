"""A code location: every application whose YAML lies below a folder, with what its runs need."""

from collections.abc import Callable
from pathlib import Path

import dagster as dg

from kstreams_assets.orchestration.object_store import one_store_for_each_key
from kstreams_assets.orchestration.topics import share_topics
from spark_resources.resource import SparkSessionResource


def load_applications(definitions_file: str) -> Callable[[], dg.Definitions]:
    """All applications of `defs/` beside the given file; loads without a broker and without a JVM.

    Call it as `defs = load_applications(__file__)` in the `definitions.py` of a project of
    Dagster's `dg`. Spark has the settings of the environment, `KSTREAMS_ASSETS_SPARK_*`.
    """

    @dg.definitions
    def loaded() -> dg.Definitions:
        folder = Path(definitions_file).parent
        with one_store_for_each_key():
            applications = dg.load_from_defs_folder(path_within_project=folder)
        return dg.Definitions.merge(
            share_topics(applications),
            dg.Definitions(
                resources={"spark": SparkSessionResource()},
                # One JVM per run: a process for each step would start one for each step.
                executor=dg.in_process_executor,
            ),
        )

    return loaded
