"""Objects that hold connections until they are closed."""

from types import TracebackType
from typing import Self


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
