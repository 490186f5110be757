"""The code location: every application under `defs/`, with the resources bound."""

from pathlib import Path

import dagster as dg

from kstreams_assets.orchestration.topics import share_topics
from spark_resources.session import SparkSessionResource


@dg.definitions
def defs() -> dg.Definitions:
    """All applications; loads without a broker and without a JVM."""
    loaded = dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
    return dg.Definitions.merge(
        share_topics(loaded),
        dg.Definitions(
            resources={"spark": SparkSessionResource()},
            # One JVM per run: a process for each step would start one for each step.
            executor=dg.in_process_executor,
        ),
    )
