"""Every offset of a range is accounted for, whatever the log looks like."""

from hypothesis import given
from hypothesis import strategies as st

from kstreams_assets.kafka.raw_batch import RangeTally, RawBatch, content_of_range


def _batch(
    offsets: list[int],
    first: int,
    last: int,
    *,
    control: bool = False,
    aborted: bool | None = False,
) -> RawBatch:
    complete = len(offsets) == last - first + 1
    return RawBatch(
        base_offset=first,
        last_offset=last,
        record_count=len(offsets),
        producer_id=1,
        producer_epoch=0,
        is_transactional=control or aborted is not False,
        is_control=control,
        control_type="commit" if control and offsets else None,
        max_timestamp=0,
        record_offsets=None if complete else tuple(offsets),
        aborted=aborted,
    )


@st.composite
def logs(draw: st.DrawFn) -> list[RawBatch]:
    """Batches in order, with holes between and inside them, some emptied."""
    batches, position = [], draw(st.integers(0, 3))
    for _ in range(draw(st.integers(0, 12))):
        position += draw(st.integers(0, 3))
        if draw(st.integers(0, 3)) == 0:
            present = draw(st.booleans())
            batches.append(_batch([position] * present, position, position, control=True))
            position += 1
            continue
        last = position + draw(st.integers(0, 5))
        kept = [offset for offset in range(position, last + 1) if draw(st.integers(0, 3))]
        aborted = draw(st.sampled_from([False, True, None]))
        batches.append(_batch(kept, position, last, aborted=aborted))
        position = last + 1
    return batches


def _brute_force(batches: list[RawBatch], start: int, end: int) -> RangeTally:
    kinds = {}
    for batch in batches:
        offsets = range(batch.base_offset, batch.last_offset + 1)
        for offset in offsets if batch.record_offsets is None else batch.record_offsets:
            kinds[offset] = "marker" if batch.is_control else batch.aborted
    inside = [kinds.get(offset, "hole") for offset in range(start, end)]
    holes = [start + n for n, kind in enumerate(inside) if kind == "hole"]
    return RangeTally(
        start,
        end,
        visible=sum(kind is False for kind in inside),
        aborted=sum(kind is True for kind in inside),
        undecided=sum(kind is None for kind in inside),
        markers=inside.count("marker"),
        holes=len(holes),
        first_absent=min(holes, default=None),
    )


@given(logs(), st.integers(0, 30), st.integers(0, 40))
def test_against_brute_force(batches: list[RawBatch], start: int, length: int) -> None:
    end = start + length
    content = content_of_range(batches, start, end)
    expected = _brute_force(batches, start, end)
    expected.position = end
    assert content == expected
    counted = content.visible + content.aborted + content.undecided + content.markers
    assert counted + content.holes == length


def test_no_batch_is_one_hole() -> None:
    content = content_of_range([], 3, 7)
    assert (content.visible, content.holes, content.first_absent) == (0, 4, 3)


def test_emptied_control_batch_is_a_hole() -> None:
    batches = [_batch([5], 5, 5), _batch([], 6, 6, control=True), _batch([7], 7, 7)]
    content = content_of_range(batches, 5, 8)
    assert (content.visible, content.holes, content.first_absent) == (2, 1, 6)
