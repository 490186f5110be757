"""Sums over spans, and what is left unexplained."""

from kstreams_assets.warehouse.spans import Gap, GapCause, SpanContent, SpanResult
from tests.backup.samples import backup, result, span, window_backup

MARKER = Gap(GapCause.TRANSACTION_MARKER, 10, 20, 3)
RETENTION = Gap(GapCause.RETENTION, 0, 10, 10)
RECREATED = Gap(GapCause.TOPIC_RECREATED, 500, None, None)
UNEXPLAINED = Gap(GapCause.UNEXPLAINED, 10, 20, 2)


def test_losses_are_the_gaps_that_are_gone_for_good() -> None:
    found = result(span(0, 20), RETENTION, MARKER, RECREATED)
    assert found.losses == (RETENTION, RECREATED)


def test_every_offset_is_explained() -> None:
    assert result(span(0, 20), RETENTION, MARKER, records=7).unaccounted == 0
    assert result(span(5, 5)).unaccounted == 0


def test_too_few_and_too_many() -> None:
    assert result(span(0, 20), RETENTION, MARKER, records=5).unaccounted == 2
    assert result(span(0, 20), RETENTION, MARKER, records=9).unaccounted == -2


def test_unexplained_offsets_explain_nothing() -> None:
    assert result(span(0, 20), UNEXPLAINED, records=18).unaccounted == 2


def test_offsets_of_an_earlier_topic_explain_nothing_here() -> None:
    earlier = Gap(GapCause.TOPIC_RECREATED, 2, 7, 5)  # of another life, or another window
    assert result(span(5, 20), earlier, records=10).unaccounted == 5
    assert result(span(5, 20), RECREATED, records=15).unaccounted == 0


def test_sums() -> None:
    contents = [
        SpanContent(records=5, bytes=100, stored_bytes=40, tombstones=1),
        SpanContent(records=7, bytes=200, stored_bytes=50, tombstones=2),
    ]
    spans = [
        SpanResult(span(0, 10, partition=number), content, ())
        for number, content in enumerate(contents)
    ]
    topic = backup(*spans)
    assert (topic.records, topic.bytes, topic.stored_bytes) == (12, 300, 90)
    assert (topic.tombstones, topic.missing_offsets) == (3, 8)
    assert window_backup(topic, topic).records == 24
