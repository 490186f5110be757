"""A code location with the application of a test's workbench, told by RESTORE_TEST_APPLICATION."""

import json
import os

import dagster as dg

from kstreams_assets.app.model import AppTopic, StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.app.rules import CompletenessRule
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.orchestration.component import build_application_definitions
from kstreams_assets.settings import (
    ApplicationSettings,
    RestoreSettings,
    TargetSettings,
    WindowSchedule,
)
from spark_resources.resource import SparkSessionResource


def told() -> str:
    """What the test tells, as JSON."""
    return os.environ["RESTORE_TEST_APPLICATION"]


def settings() -> ApplicationSettings:
    """The application; both targets are the cluster it is on."""
    said = json.loads(told())
    topics = tuple(
        AppTopic(name, TopicRoles(TopicRole(role) for role in roles))
        for name, roles in sorted(said["topics"].items())
    )
    connection = KafkaConnection(bootstrap_servers=said["bootstrap_servers"])
    return ApplicationSettings(
        application=StreamsApplication(said["application_id"], topics),
        topics=topics,
        connection=connection,
        warehouse=Warehouse.at(said["warehouse"]),
        windows=WindowSchedule.every("minute", start="2026-01-01"),
        restore=RestoreSettings(target=connection),
        targets={"many": TargetSettings(connection=connection, prefix="{window}.")},
        completeness=tuple(
            CompletenessRule(name=rule["name"], query=rule["sql"], views=tuple(rule["views"]))
            for rule in said.get("completeness", ())
        ),
    )


@dg.definitions
def defs() -> dg.Definitions:
    """The assets, bound as in the code location that is shipped."""
    return dg.Definitions.merge(
        build_application_definitions(settings()),
        dg.Definitions(
            resources={"spark": SparkSessionResource()}, executor=dg.in_process_executor
        ),
    )
