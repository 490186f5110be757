"""Objects that hold connections until they are closed, and waiting that a signal can end."""

from types import TracebackType
from typing import Final, Self

SIGNALS_S: Final = 1.0
"""The longest wait of a main thread (s) that ends when a signal says so.

Python runs signal handlers in the main thread. A wait without end is interrupted only if the kernel
gave the signal to this very thread, which it need not do.
"""


class Closing:
    """A context manager that closes its object at the end of the block."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        raise NotImplementedError
