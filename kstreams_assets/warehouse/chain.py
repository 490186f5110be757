"""Stand-in until the chain of the control tables is there."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deltalake.exceptions import DeltaError

from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.layout import file_problem
from kstreams_assets.store import StorePath
from kstreams_assets.warehouse.table import open_delta


@dataclass(frozen=True, slots=True)
class TableProblem:
    """What is wrong with a control table, or with a file of it."""

    table: str
    file: str | None
    problem: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Head:
    """The newest version of a table, and its digest."""

    version: int
    digest: str


def table_problems(
    path: StorePath,
    name: str,
    *,
    read: bool = False,
    public_key: Path | None = None,
    throttle: Callable[[int], None] | None = None,
) -> list[TableProblem]:
    """What is wrong with a control table."""
    del read, public_key, throttle
    remedy = "Bring it back from a copy of the warehouse."
    try:
        table = open_delta(path, name)
    except (KStreamsAssetsError, DeltaError) as error:
        return [TableProblem(name, None, str(error), remedy)]
    if table is None:
        return []
    actions = table.get_add_actions(flatten=True)
    import pyarrow as pa

    found = []
    for row in pa.table(actions).select(["path", "size_bytes"]).to_pylist():
        problem = file_problem(path / row["path"], row["size_bytes"])
        if problem:
            found.append(TableProblem(name, row["path"], problem, remedy))
    return found


def head(path: StorePath) -> Head | None:
    """The newest version of a table."""
    table = open_delta(path, path.name)
    return None if table is None else Head(table.version(), "")


def shortened(path: StorePath, name: str, seen: Head) -> TableProblem | None:
    """That a table has lost commits since a look at it."""
    now = head(path)
    if now is not None and now.version >= seen.version:
        return None
    return TableProblem(
        name,
        None,
        f"it had version {seen.version} once, now it has {now.version if now else 'none'}",
        "Bring it back from a copy of the warehouse.",
    )
