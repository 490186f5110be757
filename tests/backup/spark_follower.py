"""The command line, with all that is backed up read on Spark, however little it is."""

from collections.abc import Sequence

from kstreams_assets.backup.run import BackupRun
from kstreams_assets.cli.main import run
from kstreams_assets.lease import LockHandle
from spark_resources.span_tasks import SpanTask, Written


def _on_spark(
    self: BackupRun, tasks: Sequence[SpanTask], _: int, lock: LockHandle
) -> Sequence[Written]:
    return self._on_spark(tasks, lock) if tasks else []


if __name__ == "__main__":
    BackupRun._run = _on_spark  # pyright: ignore
    run()
