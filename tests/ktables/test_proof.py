"""When a snapshot is proved to be the store's content."""

from dataclasses import replace

from kstreams_assets.app.model import TopicRole, TopicRoles
from kstreams_assets.model.chains import StoredSpan, chains_of
from kstreams_assets.model.point import Guarantee, PartitionCut, RecoveryPoint
from kstreams_assets.offsets import OffsetRange
from kstreams_assets.repository.state_proof import Proof, ProofFacts, prove, thinned_spans
from tests.backup.samples import cut, point, window
from tests.backup.stored import stored_span

CHANGELOG = TopicRoles({TopicRole.CHANGELOG})
GLOBAL = TopicRoles({TopicRole.GLOBAL})


def _point(
    index: int, *cuts: PartitionCut, sealed: bool = False, guarantee: Guarantee = Guarantee.EXACT
) -> RecoveryPoint:
    """The closing point of a window."""
    taken = point(window(index).end_ms - 1, *cuts, point_id=f"p{index}")
    return replace(taken, sealed=sealed, guarantee=guarantee, ledger_version=taken.taken_at_ms)


def _cut(end: int, *, saved_from: int | None = None, roles: TopicRoles = CHANGELOG) -> PartitionCut:
    return replace(cut(0, end), roles=roles, saved_from=saved_from)


def _facts(*spans: StoredSpan, delete_retention_ms: int = 40) -> ProofFacts:
    windows = [span.window for span in spans]
    return ProofFacts("t", chains_of(spans), windows, delete_retention_ms)


def _prove(facts: ProofFacts, taken: RecoveryPoint, *sealed: RecoveryPoint) -> Proof:
    return prove(facts, taken, taken.partitions, sealed)


WHOLE = (stored_span(0, 10), stored_span(10, 20, index=1))
HOLED = (stored_span(0, 10), stored_span(10, 20, index=1, first_hole=14))
LATE_HOLED = (WHOLE[0], stored_span(10, 20, index=1, first_hole=14, recorded_at_ms=50))
LATER = _point(8, _cut(30))
"""Taken after those were read."""
AFTER = stored_span(20, 30, index=2, recorded_at_ms=60)


class TestJudged:
    def test_contiguous_backups_prove_it(self) -> None:
        assert _prove(_facts(*WHOLE), _point(1, _cut(20))).proved

    def test_a_hole_below_the_point_does_not(self) -> None:
        proof = _prove(_facts(*HOLED), _point(1, _cut(20)))
        assert not proof.proved
        assert "t-0: compaction may have removed records of the point" in proof.reason
        assert "no longer had offset 14" in proof.reason

    def test_unless_the_point_is_sealed(self) -> None:
        assert _prove(_facts(*HOLED), _point(1, _cut(20, saved_from=10), sealed=True)).proved

    def test_a_point_that_is_not_exact(self) -> None:
        taken = _point(1, _cut(20), guarantee=Guarantee.AT_LEAST_ONCE)
        assert _prove(_facts(*WHOLE), taken) == Proof(False, taken.reason)

    def test_windows_that_are_not_backed_up_are_missing(self) -> None:
        last = stored_span(20, 30, index=2)
        proof = _prove(_facts(WHOLE[0], last), _point(2, _cut(30)))
        assert (proof.proved, proof.missing) == (False, True)
        assert "back up the windows between w0000 and w0002" in proof.reason
        assert _prove(_facts(), _point(0, _cut(5))).missing

    def test_records_that_were_lost_are_told_and_not_missing(self) -> None:
        lost = stored_span(10, 20, index=1, read_start=15)
        proof = _prove(_facts(WHOLE[0], lost), _point(1, _cut(20)))
        assert (proof.proved, proof.missing) == (False, False)
        assert "offsets 10 to 14 could no longer be read" in proof.reason


class TestDeletions:
    """A deletion at the hole, and a backup from before it that holds what it deleted."""

    def test_a_hole_read_long_after_the_backup_before_it(self) -> None:
        proof = _prove(_facts(*LATE_HOLED, AFTER), LATER)
        assert not proof.proved
        assert "t-0: compaction may have removed deletions" in proof.reason
        assert "window w0001" in proof.reason
        assert "offset 14" in proof.reason

    def test_not_within_the_time_for_which_deletions_are_kept(self) -> None:
        facts = _facts(*LATE_HOLED, AFTER, delete_retention_ms=100)
        assert _prove(facts, LATER).proved

    def test_not_without_an_earlier_backup(self) -> None:
        """In a log that is read at once nothing is left of what a missing deletion deleted."""
        first = stored_span(0, 20, index=1, first_hole=14, recorded_at_ms=50)
        assert _prove(_facts(first, AFTER), LATER).proved

    def test_not_where_a_sealed_point_saved_all_of_it(self) -> None:
        facts, taken = _facts(*LATE_HOLED, AFTER), LATER
        assert _prove(facts, taken, _point(1, _cut(20, saved_from=10), sealed=True)).proved
        late = _point(1, _cut(20, saved_from=15), sealed=True)
        assert not _prove(facts, taken, late).proved
        open_then = replace(_cut(20, saved_from=10), excluded=(OffsetRange(15, 16),))
        assert not _prove(facts, taken, _point(1, open_then, sealed=True)).proved

    def test_not_above_the_point(self) -> None:
        assert _prove(_facts(*LATE_HOLED), _point(1, _cut(14))).proved

    def test_holes_of_a_sealed_point_s_own_windows_are_no_excuse_for_earlier_ones(self) -> None:
        taken = _point(8, _cut(30, saved_from=20), sealed=True)
        assert not _prove(_facts(*LATE_HOLED, AFTER), taken).proved


class TestGlobalTopics:
    def test_a_hole_read_after_the_point(self) -> None:
        taken = _point(1, _cut(20, roles=GLOBAL))
        assert _prove(_facts(*WHOLE), taken).proved
        proof = _prove(_facts(*HOLED), taken)
        assert not proof.proved
        assert "from 14 on" in proof.reason


def test_thinned_spans_meet_the_ranges_above_their_hole() -> None:
    chain = chains_of([*HOLED, AFTER])["t", 0, "life-1"]
    assert thinned_spans(chain, [OffsetRange(14, 15)]) == [HOLED[1]]
    assert thinned_spans(chain, [OffsetRange(10, 14), OffsetRange(20, 30)]) == []
    assert thinned_spans(None, [OffsetRange(0, 30)]) == []
