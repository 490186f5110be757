"""The data files in ledger and snapshots, in their original state: of a table, or of all."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.data_files import ExpectedFile, ExpectedFiles
from kstreams_assets.model.spans import window_of
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.snapshots import expected_of_snapshot


def expected_files(warehouse: Warehouse, table: str) -> Sequence[ExpectedFile]:
    """The files of a table, given by its path below the warehouse; none of a control table.

    Includes those of increments whose window has its own rows.
    """
    kind, *rest = table.split("/")
    if kind == "records":
        return Repository.of(warehouse, rest[0]).ledger.expected_files(superseded=True)
    if kind == "ktables":
        return [*_of_snapshots(warehouse, *rest)]
    return ()


def expected_files_of(warehouse: Warehouse, application_id: str) -> list[ExpectedFile]:
    """The files of an application's records, then of its KTable snapshots, in their current use.

    Files of increments belong to their window. Unreadable tables have no files here: the checks of
    tables report them.
    """
    found: list[ExpectedFile] = []
    for of_table in (_of_records, _of_snapshots):
        try:
            found += of_table(warehouse, application_id)
        except KStreamsAssetsError:
            continue
    return found


def _of_records(warehouse: Warehouse, application_id: str) -> ExpectedFiles:
    files = Repository.of(warehouse, application_id).ledger.expected_files()
    keys = files.spans["window"].combine_chunks().dictionary_encode()
    windows = pa.array([window_of(key) for key in keys.dictionary.to_pylist()], pa.string())
    spans = files.spans.set_column(0, "window", windows.take(keys.indices))
    return ExpectedFiles(files.table, files.files, spans)


def _of_snapshots(
    warehouse: Warehouse, application_id: str, store: str | None = None
) -> Iterator[ExpectedFile]:
    stores = None if store is None else [store]
    for snapshot in Repository.of(warehouse, application_id).snapshots.of(stores=stores):
        yield from expected_of_snapshot(warehouse.ktable(application_id, snapshot.store), snapshot)
