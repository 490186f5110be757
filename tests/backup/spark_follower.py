"""The command line, with all that is backed up read on Spark, however little it is."""

from collections.abc import Sequence

from kstreams_assets.backup.commits import SpanReader
from kstreams_assets.cli.main import run
from spark_resources.span_tasks import SpanTask, Written


def _on_spark(self: SpanReader, tasks: Sequence[SpanTask], _: int) -> Sequence[Written]:
    return self._on_spark(tasks) if tasks else []


if __name__ == "__main__":
    SpanReader._run = _on_spark  # pyright: ignore
    run()
