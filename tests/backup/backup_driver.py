"""A backup run in a process of its own, which tells how far it is.

Arguments: a JSON object with bootstrap, warehouse, application_id, topics, windows (start, end,
key), hold (a milestone at which it waits to be killed) and here (whether it reads in this process).
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from kstreams_assets.app.model import AppTopic, StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.backup.commits import SpanReader
from kstreams_assets.backup.context import RunContext
from kstreams_assets.backup.planner import Planner
from kstreams_assets.backup.run import BackupRun
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.spans import Window
from kstreams_assets.repository.ledger import Ledger, TopicFactsTable
from kstreams_assets.settings import ApplicationSettings, ExecutorSettings, WindowSchedule
from spark_resources.session import LazySession
from tests.streams.workbench import ON_SPARK


def main() -> None:
    """Back up the windows, printing each milestone on a line of its own."""
    job = json.loads(sys.argv[1])

    def milestone(name: str) -> None:
        print(name, flush=True)  # noqa: T201 - the parent reads it
        if name == job["hold"]:
            time.sleep(120)

    def telling(owner: type, method: str, before: str | None, after: str | None) -> None:
        original: Callable[..., Any] = getattr(owner, method)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if before:
                milestone(before)
            result = original(*args, **kwargs)
            if after:
                milestone(after)
            return result

        setattr(owner, method, wrapper)

    telling(Planner, "plan", "locked", "planned")
    telling(SpanReader, "_write", "writing", "written")
    telling(TopicFactsTable, "record", None, "described")
    telling(Ledger, "record", "recording", "recorded")
    spark = LazySession()
    topics = tuple(AppTopic(name, TopicRoles({TopicRole.INPUT})) for name in job["topics"])
    connection = KafkaConnection(bootstrap_servers=job["bootstrap"])
    with KafkaCluster(connection) as cluster:
        settings = ApplicationSettings(
            application=StreamsApplication(job["application_id"], topics),
            topics=topics,
            connection=connection,
            warehouse=Warehouse.at(job["warehouse"]),
            windows=WindowSchedule.every("minute", start="2026-01-01"),
            spark=ExecutorSettings() if job["here"] else ON_SPARK,
        )
        run = BackupRun(
            RunContext(settings, topics, cluster, spark, "driver", job["windows"][0][0])
        )
        run.execute([Window(*window) for window in job["windows"]], newest_closed=None)
    milestone("done")


if __name__ == "__main__":
    main()
