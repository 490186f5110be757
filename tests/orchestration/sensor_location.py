"""A code location with one application, for a daemon that a test starts."""

import os
from dataclasses import replace
from pathlib import Path

import dagster as dg

from kstreams_assets.orchestration.component import build_application_definitions
from kstreams_assets.settings import WindowSchedule
from spark_resources.resource import SparkSessionResource
from tests.orchestration.requesting import settings_of

settings = replace(
    settings_of(Path(os.environ["SENSOR_TEST_WAREHOUSE"])),
    windows=WindowSchedule.every("day", start=os.environ["SENSOR_TEST_START"]),
)
defs = dg.Definitions.merge(
    build_application_definitions(settings),
    dg.Definitions(resources={"spark": SparkSessionResource()}, executor=dg.in_process_executor),
)
