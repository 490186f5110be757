"""The files of a span, as the records table has them."""

from kstreams_assets.model.data_files import SpanFile
from kstreams_assets.model.files import path_in_table
from kstreams_assets.model.spans import SpanId
from kstreams_assets.repository.records import file_actions
from kstreams_assets.store import StorePath


def span_files(path: StorePath, span: SpanId) -> list[SpanFile]:
    """The files of one span, in offset order."""
    files = [
        SpanFile(path / path_in_table(row["path"]), row["file_records"], row["first"], row["last"])
        for row in file_actions(path).to_pylist()
        if (row["window"], row["topic"], row["partition"])
        == (span.window, span.partition.topic, span.partition.partition)
    ]
    return sorted(files, key=lambda file: file.first_offset)
