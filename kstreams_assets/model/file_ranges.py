"""Select files of a table to merge, by ranges of the column along which it grows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class FileRange:
    """A file of a table: its weight (rows or bytes) and the range of its growing column.

    `low` and `high` are numbers in all files of a table, or texts in all of them.
    """

    weight: int
    low: Any
    high: Any


def ranges_to_rewrite(
    files: Sequence[FileRange], touched: Callable[[FileRange], bool], *, enough: int
) -> list[tuple[Any, Any]]:
    """Ranges whose files become one each: small neighbours, and those with rows to drop.

    A file of the weight `enough` is left alone unless it is `touched`; a range is closed when its
    files have that weight, so that the work per range is limited. Files with overlapping ranges
    stay together. Oldest first, `[low, high]`.
    """
    runs = _runs(sorted(files, key=lambda f: f.low), touched, enough)
    return [(run.low, run.high) for run in runs if run.files > 1 or run.is_touched]


def files_less(files: Sequence[FileRange], ranges: Sequence[tuple[Any, Any]]) -> int:
    """The number of files saved if the files of each of these ranges became one."""
    return sum(
        sum(low <= file.low and file.high <= high for file in files) - 1 for low, high in ranges
    )


@dataclass(slots=True)
class _Run:
    """Neighbouring files that become one."""

    low: Any
    high: Any
    weight: int
    is_touched: bool
    takes_more: bool
    files: int = 1

    def add(self, file: FileRange, *, is_touched: bool) -> None:
        self.high = max(self.high, file.high)
        self.weight += file.weight
        self.is_touched |= is_touched
        self.files += 1


def _runs(
    files: Sequence[FileRange], touched: Callable[[FileRange], bool], enough: int
) -> list[_Run]:
    runs: list[_Run] = []
    for file in files:
        is_touched = touched(file)
        joins = is_touched or file.weight < enough
        if runs and (file.low <= runs[-1].high or (runs[-1].takes_more and joins)):
            runs[-1].add(file, is_touched=is_touched)
            runs[-1].takes_more = joins and runs[-1].weight < enough
        else:
            takes_more = joins and file.weight < enough
            runs.append(_Run(file.low, file.high, file.weight, is_touched, takes_more))
    return runs
