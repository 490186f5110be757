"""A writer in a process of its own: takes the lease of an application and commits, round by round.

Arguments: the warehouse's URL, a name, how many rounds, seconds of a lease, and optionally
`pause` (stop between the look at the table and the commit until a line comes by standard input).
"""

import json
import sys
import uuid

import pyarrow as pa

from kstreams_assets.layout import Warehouse
from kstreams_assets.lease import warehouse_lock
from kstreams_assets.model.files import NewFile
from kstreams_assets.repository.committer import commit, fence, uncommitted
from kstreams_assets.repository.records import RECORDS, ensure_records
from kstreams_assets.store import ObjectStoreSettings, StorePath, write_parquet
from kstreams_assets.store.locks import LeaseLostError

APPLICATION = "shop"


def new_file(folder: StorePath, name: str, number: int) -> NewFile:
    """One record of a window of its own."""
    row = {"partition": 0, "offset": number, "key": b"k", "value": name.encode()}
    columns = [field for field in RECORDS if field.name not in ("window", "topic")]
    rows = pa.Table.from_pylist([row], schema=pa.schema(columns))
    file = f"{uuid.uuid4().hex}.parquet"
    write_parquet(rows, folder / file)
    told = {
        "name": file,
        "size": (folder / file).stat().st_size,
        "digest": "",
        "stats": json.dumps({"numRecords": 1}),
        "payload_bytes": 1,
        "values": json.dumps({"window": f"{name}-{number:04d}", "topic": "orders"}),
        "about": "{}",
    }
    return NewFile.from_task_row(folder, told)


def main() -> None:
    """Commit, and say `committed NAME NUMBER` or `refused NAME NUMBER` for each round."""
    url, name, rounds, lease_s, *paused = sys.argv[1:]
    warehouse = Warehouse.at(url, ObjectStoreSettings(lease_s=float(lease_s)))
    path = warehouse.records(APPLICATION)
    for number in range(int(rounds)):
        with warehouse_lock(
            warehouse.lock_file(APPLICATION), purpose=f"{name} {number}", wait_s=120
        ) as lock:
            table = fence(path, ensure_records(path), lock)
            assert table is not None
            with uncommitted(path) as folder:
                file = new_file(folder, name, number)
            if paused:
                print("ready", flush=True)  # noqa: T201 (the parent reads it)
                sys.stdin.readline()
            try:
                commit(
                    path,
                    table,
                    [file],
                    writer=lock,
                    replaces=[],
                    provenance={"run_id": name},
                )
                outcome = "committed"
            except LeaseLostError:
                outcome = "refused"
            print(outcome, name, number, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
