"""What changelog keys hold beside the key itself: windows and sessions."""

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from kstreams_assets.ktables.store_format import WINDOWED, StoreKind
from spark_resources.ktable_values import Decoded, int_at, long_at, problem_when, size_text

_LONG_BYTES: Final = 8
_SEQUENCE_BYTES: Final = 4
_MOST_MS: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class KeyParts:
    """The inner key, and what stands behind it as named columns.

    All are NULL where `problem` says that the bytes are too few for it.
    """

    inner: Column
    columns: dict[str, Column]
    problem: Column

    def around(self, key: Decoded) -> Decoded:
        """The decoded inner key, with the problem of the whole."""
        if not self.columns:
            return key
        inner = F.concat(key.problem, F.lit(" (before the window)"))
        return Decoded(F.when(self.problem.isNull(), key.value), F.coalesce(self.problem, inner))


def parts_of(
    column: Column, kind: StoreKind, window_size_ms: int | None, *, in_store: bool = True
) -> KeyParts:
    """The parts of a key of this kind.

    `in_store`: a window's key ends with a sequence number, as in the changelog of a window store;
    elsewhere (windowed serdes, buffers behind windows) it ends with the window's start.
    """
    if kind in WINDOWED:
        return _window(column, window_size_ms, sequence=_SEQUENCE_BYTES if in_store else 0)
    if kind is StoreKind.SESSION:
        return _session(column)
    return KeyParts(column, {}, F.lit(None).cast("string"))


def _window(column: Column, window_size_ms: int | None, *, sequence: int) -> KeyParts:
    suffix = _LONG_BYTES + sequence
    fits = F.length(column) >= suffix
    start = F.when(fits, long_at(column, -suffix))
    end = F.lit(None).cast("bigint")
    if window_size_ms is not None:
        # As Kafka Streams does: a window that would end beyond the last millisecond ends there.
        end = F.coalesce(F.try_add(start, F.lit(window_size_ms).cast("bigint")), F.lit(_MOST_MS))
        end = F.when(fits, end)
    columns = {"window_start_ms": start, "window_end_ms": end}
    if sequence:
        columns["sequence_number"] = F.when(fits, int_at(column, -sequence).cast("int"))
    problem = problem_when(
        ~fits, size_text(column), f" where the key of a window has at least {suffix}"
    )
    return KeyParts(_before(column, suffix), columns, problem)


def _session(column: Column) -> KeyParts:
    """Kafka Streams writes the end first."""
    suffix = 2 * _LONG_BYTES
    fits = F.length(column) >= suffix
    end = F.when(fits, long_at(column, -suffix))
    start = F.when(fits, long_at(column, -_LONG_BYTES))
    problem = F.coalesce(
        problem_when(
            ~fits, size_text(column), f" where the key of a session has at least {suffix}"
        ),
        problem_when(start > end, "a session that ends before it starts"),
    )
    columns = {"session_start_ms": start, "session_end_ms": end}
    return KeyParts(_before(column, suffix), columns, problem)


def _before(column: Column, suffix: int) -> Column:
    size = F.length(column) - suffix
    return F.when(size >= 0, F.substring(column, F.lit(1), size))
