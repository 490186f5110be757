"""From which offset on a point saves records."""

from dataclasses import replace

import pytest

from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.spans import Position
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.recovery.completion import Safe, Saving
from tests.backup.samples import cut, point

PARTITION = TopicPartitionId("t", 0)
LIFE = "life-1"


def _point(
    saved_from: int | None, end: int, *excluded: OffsetRange, topic_id: str = LIFE
) -> RecoveryPoint:
    one = replace(cut(0, end, topic_id=topic_id), saved_from=saved_from, excluded=excluded)
    return point(1, one)


def _safe(
    earlier: RecoveryPoint | None = None, *, held: int | None = None, topic_id: str = LIFE
) -> Safe:
    backups = {} if held is None else {PARTITION: Position(topic_id, held)}
    return Safe(newest=earlier, sealed=earlier, held=backups)


@pytest.mark.parametrize(
    ("safe", "expected"),
    [
        pytest.param(_safe(), Saving(5, 5), id="nothing is safe: all the log has"),
        pytest.param(_safe(held=40), Saving(40, 40), id="the backup's end"),
        pytest.param(_safe(held=200), Saving(100, 100), id="a backup beyond the point"),
        pytest.param(_safe(held=40, topic_id="x"), Saving(5, 5), id="backup of another life"),
        pytest.param(_safe(_point(30, 60)), Saving(30, 60), id="only what came since a point"),
        pytest.param(
            _safe(_point(30, 60), held=50), Saving(50, 60), id="a backup within what was saved"
        ),
        pytest.param(
            _safe(_point(30, 60), held=70), Saving(70, 70), id="a backup beyond the sealed point"
        ),
        pytest.param(
            _safe(_point(30, 60, OffsetRange(45, 50))),
            Saving(30, 45),
            id="what an earlier point excluded may belong to this one",
        ),
        pytest.param(_safe(_point(30, 120)), Saving(30, 100), id="an earlier point beyond this"),
        pytest.param(_safe(_point(None, 60)), Saving(5, 5), id="a point that saved nothing of it"),
        pytest.param(_safe(_point(30, 60, topic_id="x")), Saving(5, 5), id="of another life"),
    ],
)
def test_changelog(safe: Safe, expected: Saving) -> None:
    assert safe.changelog(PARTITION, LIFE, log_start=5, end=100) == expected


@pytest.mark.parametrize(
    ("earlier", "expected"),
    [
        pytest.param(None, Saving(40, 40), id="nothing is safe"),
        pytest.param(_point(30, 60), Saving(40, 60), id="only what came since a point"),
        pytest.param(_point(40, 60), Saving(40, 60), id="saved from the same offset on"),
        pytest.param(_point(41, 60), Saving(40, 40), id="saved from further on"),
        pytest.param(_point(10, 30), Saving(40, 40), id="all of it processed since"),
        pytest.param(_point(30, 60, OffsetRange(50, 55)), Saving(40, 50), id="excluded then"),
        pytest.param(_point(30, 120), Saving(40, 100), id="an earlier point beyond this"),
        pytest.param(_point(None, 60), Saving(40, 40), id="a point that saved nothing of it"),
        pytest.param(_point(30, 60, topic_id="x"), Saving(40, 40), id="of another life"),
    ],
)
def test_in_flight(earlier: RecoveryPoint | None, expected: Saving) -> None:
    assert _safe(earlier).in_flight(PARTITION, LIFE, committed=40, end=100) == expected


def test_a_point_sealed_long_ago_counts_beside_a_newer_one_that_is_not() -> None:
    safe = Safe(newest=_point(None, 80), sealed=_point(30, 60), held={})
    assert safe.changelog(PARTITION, LIFE, log_start=5, end=100) == Saving(30, 60)
    other = TopicPartitionId("t", 1)
    assert safe.changelog(other, LIFE, log_start=5, end=100) == Saving(5, 5)
