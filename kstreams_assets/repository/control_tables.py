"""The control tables of a warehouse: their newest versions, and their damage."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from kstreams_assets.checks import Severity
from kstreams_assets.layout import MARKER, MARKER_REMEDY
from kstreams_assets.model.damage import Damage, DamageKind, Head
from kstreams_assets.model.tables import CONTROL_TABLES
from kstreams_assets.repository.chain import head, shortened, table_problems
from kstreams_assets.repository.repository import Repository
from kstreams_assets.store.failures import storage_failures


class ControlTables:
    """All control tables of a warehouse, with the rows of all its applications."""

    def __init__(self, repo: Repository) -> None:
        self._warehouse = repo.warehouse

    def heads(self) -> dict[str, Head]:
        """The newest version of each table that can be read."""

        def look(name: str) -> Head | None:
            try:
                return head(self._warehouse.control(name))
            except OSError:
                return None

        return {name: found for name, found in _of_each_table(look) if found is not None}

    def damaged(
        self,
        seen: Mapping[str, Head] | None = None,
        *,
        read: bool = False,
        public_key: Path | None = None,
        throttle: Callable[[int], None] | None = None,
    ) -> list[Damage]:
        """Tables that are not intact, or that have lost commits since `seen`.

        With `read` their contents are checked, too. Includes the marker of the warehouse.

        Raises:
            NewerLayoutError: A newer release wrote a table.
            WarehouseError: The warehouse cannot be read.
        """

        def look(name: str) -> list[Damage]:
            found = self.problems(name, read=read, public_key=public_key, throttle=throttle)
            before = None if seen is None else seen.get(name)
            if before is None:
                return found
            path = self._warehouse.control(name)
            with storage_failures(path):
                lost = shortened(path, name, before)
            return found if lost is None else [*found, replace(lost, by_reading=read)]

        return [
            *self._of_marker(),
            *(damage for _, damages in _of_each_table(look) for damage in damages),
        ]

    def problems(
        self,
        name: str,
        *,
        read: bool = True,
        public_key: Path | None = None,
        throttle: Callable[[int], None] | None = None,
    ) -> list[Damage]:
        """The same for one table, including its contents unless `read` is false."""
        path = self._warehouse.control(name)
        with storage_failures(path):
            return table_problems(path, name, read=read, public_key=public_key, throttle=throttle)

    def _of_marker(self) -> Iterable[Damage]:
        with storage_failures(self._warehouse.root):
            problem = self._warehouse.marker_problem()
        if problem:
            yield Damage(
                DamageKind.WAREHOUSE,
                MARKER,
                f"the marker of the warehouse: {problem}",
                MARKER_REMEDY,
                # Releases before markers wrote none.
                severity=Severity.ERROR
                if (self._warehouse.root / MARKER).exists()
                else Severity.WARN,
            )


def _of_each_table(look: Callable[[str], Any]) -> Iterable[tuple[str, Any]]:
    # A store answers each request late, but many at once.
    with ThreadPoolExecutor(len(CONTROL_TABLES)) as pool:
        return list(zip(CONTROL_TABLES, pool.map(look, CONTROL_TABLES), strict=True))
