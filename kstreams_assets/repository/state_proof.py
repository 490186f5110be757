"""Whether the state of a store at a recovery point is proved by the backups of its topic. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kstreams_assets.model.chains import DELETE_RETENTION_MS, Chain, StoredSpan
from kstreams_assets.model.point import PartitionCut, PartitionIncarnation, RecoveryPoint
from kstreams_assets.model.restorability import Restorability
from kstreams_assets.model.spans import Window
from kstreams_assets.offsets import OffsetRange, RangeSet
from kstreams_assets.repository.evaluator import RestorabilityEvaluator


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether a state is proved; `missing` is set if windows of it are not backed up at all."""

    proved: bool
    reason: str
    missing: bool = False


@dataclass(frozen=True, slots=True)
class ProofFacts:
    """Facts about one topic: its backups, the windows, how long deletions stay in its log."""

    topic: str
    chains: Mapping[PartitionIncarnation, Chain]
    windows: Sequence[Window]
    delete_retention_ms: int = DELETE_RETENTION_MS

    def chain(self, cut: PartitionCut) -> Chain | None:
        """The backups of a partition of the topic incarnation in a cut."""
        return self.chains.get((cut.topic, cut.partition, cut.topic_id))


def prove(
    facts: ProofFacts,
    point: RecoveryPoint,
    cuts: Sequence[PartitionCut],
    sealed: Iterable[RecoveryPoint],
) -> Proof:
    """Evaluate the state of one topic at a point.

    Args:
        facts: Facts about the topic.
        point: The point.
        cuts: The position of the state in each partition (see `plan.state_cuts`).
        sealed: Sealed points whose saved records are used where backups have holes.
    """
    narrowed = point.narrowed(cuts)
    evaluator = RestorabilityEvaluator(
        facts.chains,
        roles={},
        backed_up={facts.topic},
        closed=sorted(facts.windows),
        delete_retention_ms=None,
    )
    status = evaluator.evaluate([narrowed])[0]
    if any(_is_missing(cut, facts.chain(cut)) for cut in cuts):
        return Proof(False, status.reason, missing=True)
    if status.restorability is not Restorability.EXACT:
        return Proof(False, status.reason)
    points = [*sealed, point] if point.sealed else list(sealed)
    for cut in cuts:
        chain = facts.chain(cut)
        doubt = _global_doubt(cut, chain, point) or (
            _deletion_doubt(cut, chain, points, facts.delete_retention_ms) if chain else ""
        )
        if doubt:
            return Proof(False, doubt)
    return Proof(True, status.reason)


def thinned_spans(chain: Chain | None, ranges: Sequence[OffsetRange]) -> list[StoredSpan]:
    """Spans that overlap the ranges at or above their first hole."""
    return [
        span
        for span in (chain.spans if chain else ())
        if span.first_hole is not None
        and any(r.start < span.end and span.first_hole < r.end for r in ranges)
    ]


def _is_missing(cut: PartitionCut, chain: Chain | None) -> bool:
    """Whether some window of `[log start, end)` is not backed up; lost records do not count."""
    end = cut.end if cut.saved_from is None else min(cut.saved_from, cut.end)
    if cut.log_start >= end:
        return False
    if chain is None:
        return True
    return chain.recorded.reach(max(cut.log_start, min(chain.begin, end))) < end


def _global_doubt(cut: PartitionCut, chain: Chain | None, point: RecoveryPoint) -> str:
    """The evaluator ignores holes of topics that are not changelogs."""
    if cut.roles.is_changelog or chain is None:
        return ""
    hole = chain.hole_read_after(cut.log_start, cut.end, point.ledger_version)
    if hole is None:
        return ""
    return (
        f"{cut.topic}-{cut.partition}: compaction may have removed records of the point before they"
        f" were read; the log did not have all offsets from {hole} on."
    )


def _deletion_doubt(
    cut: PartitionCut, chain: Chain, sealed: Iterable[RecoveryPoint], delete_retention_ms: int
) -> str:
    whole = _saved_whole(cut, sealed)
    doubts = (
        hole.doubt(cut.id, cut.log_start, cut.end, whole, delete_retention_ms)
        for hole in chain.late_holes(delete_retention_ms)
    )
    return next((f"{doubt}." for doubt in doubts if doubt), "")


def _saved_whole(cut: PartitionCut, sealed: Iterable[RecoveryPoint]) -> RangeSet:
    """Offsets whose records were all saved by sealed points."""
    ranges: list[OffsetRange] = []
    for point in sealed:
        other = point.cut(cut.id)
        if other and other.topic_id == cut.topic_id:
            ranges += other.saved
    return RangeSet(ranges)
