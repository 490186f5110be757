"""What becomes of errors of the raw logs; the method itself is tried on real applications."""

from typing import Any, NoReturn, cast

import pytest

from kstreams_assets.errors import (
    CoordinatorRecordError,
    CorruptBatchError,
    KStreamsAssetsError,
    OffsetOutOfRangeError,
)
from kstreams_assets.recovery.methods import NotTaken, Scene
from kstreams_assets.recovery.transactions import TransactionsMethod


class _Failing:
    """A cluster of which the first question fails."""

    def __init__(self, error: KStreamsAssetsError) -> None:
        self._error = error

    def metadata(self) -> NoReturn:
        raise self._error


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (CoordinatorRecordError(topic="t", offset=7, reason="version 9"), False),
        (CorruptBatchError(partition="t-0", offset=7, reason="magic 1"), False),
        (OffsetOutOfRangeError(partition="t-0", offset=1, log_start=2, log_end=3), True),
    ],
)
def test_what_cannot_be_read_leaves_the_point_to_other_methods(
    error: KStreamsAssetsError, again: bool
) -> None:
    scene = Scene(cast("Any", _Failing(error)), cast("Any", None), cast("Any", None))

    assert TransactionsMethod(scene).take() == NotTaken(error.problem.rstrip("."), again=again)
