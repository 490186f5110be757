"""What a recovery point is worth to rules: covered, exact, complete; reads nothing itself."""

from collections.abc import Sequence, Set
from dataclasses import replace

from kstreams_assets.completeness.content import Moment, Part, ViewPart, wanted
from kstreams_assets.completeness.snapshots import Snapshots
from kstreams_assets.completeness.standing import Standing, listed
from kstreams_assets.completeness.view import View, ViewKind
from kstreams_assets.warehouse.contents import Contents
from kstreams_assets.warehouse.judge import PointStatus, Restores
from kstreams_assets.warehouse.point import PartitionCut, RecoveryPoint, WantedPartition


class PointWorth:
    """Judges one point for rules, each by the topics and stores that it looks at."""

    def __init__(
        self,
        moment: Moment,
        *,
        contents: Contents,
        snapshots: Snapshots,
        backed_up: Set[str],
    ) -> None:
        self._moment, self._contents = moment, contents
        self._snapshots, self._backed_up = snapshots, backed_up

    def standings(self, views: Sequence[Sequence[ViewPart]]) -> list[Standing]:
        """What stands against judging each of some rules, given the views of each."""
        logged = [[one for one in of_rule if not one.of_snapshot] for of_rule in views]
        return [
            self._standing(of_rule, standing)
            for of_rule, standing in zip(views, self._judged(logged), strict=True)
        ]

    def _standing(self, views: Sequence[ViewPart], standing: Standing) -> Standing:
        missing = {one.view.topic for one in views if not self._is_backed_up(one.view)}
        if missing:
            return Standing(not_covered=f"Not in the backup: {listed(sorted(missing))}.")
        doubts = [self._snapshot_doubt(one) for one in views if one.of_snapshot]
        return replace(
            standing,
            unproven=" ".join(doubt for doubt in (*doubts, standing.unproven) if doubt),
            incomplete=listed(text for one in views for text in self._incomplete(one)),
            unknown=self._unknown(views),
        )

    def standings_of_restored(
        self, views: Sequence[Sequence[ViewPart]], besides: Sequence[Sequence[str]]
    ) -> list[Standing]:
        """The same for a cluster that was restored from the point, with `besides` missing there.

        What the backup does not hold was accepted with the restore.
        """
        covered = [
            [one for one in of_rule if one.view.topic in self._backed_up] for of_rule in views
        ]
        return [
            replace(
                standing,
                not_covered="",
                unproven=standing.unproven or standing.not_covered,
                incomplete=listed([*self._begun_late(of_rule), *texts]),
            )
            for of_rule, standing, texts in zip(views, self._judged(covered), besides, strict=True)
        ]

    def _judged(self, views: Sequence[Sequence[ViewPart]]) -> list[Standing]:
        """What the point, and the one before where it is looked at, give of each rule's topics."""
        points: list[RecoveryPoint] = []
        slices: list[tuple[int, int]] = []
        for of_rule in views:
            first = len(points)
            now = [one for one in of_rule if one.part is not Part.BEFORE]
            then = [one for one in of_rule if one.part is Part.BEFORE]
            points.append(self._narrowed(self._moment.point, now))
            if self._moment.before is not None and then:
                points.append(self._narrowed(self._moment.before, then))
            slices.append((first, len(points)))
        statuses = self._contents.statuses(points)
        return [_standing_of(statuses[first:end]) for first, end in slices]

    def _narrowed(self, point: RecoveryPoint, views: Sequence[ViewPart]) -> RecoveryPoint:
        """The point with only the partitions and offsets that are looked at."""
        cuts = [
            _narrowed(one) for each in views for one in wanted(each.view, self._moment, each.part)
        ]
        return point.narrowed(cuts)

    def _incomplete(self, asked: ViewPart) -> list[str]:
        """Partitions of a topic of which records are missing for good."""
        if not _is_counted(asked):
            return []
        found = []
        for one in wanted(asked.view, self._moment, asked.part):
            lost = self._contents.missing(one)
            if lost and lost[0].start == 0:
                found.append(f"{one.cut.id} begins at offset {lost[0].end} in the backup")
            elif lost:
                lacking = f"{lost[0].start} to {lost[0].end - 1}"
                found.append(f"{one.cut.id} lacks offsets {lacking} in the backup")
        return found

    def _begun_late(self, views: Sequence[ViewPart]) -> list[str]:
        """Partitions of which a restore from the point has not all records."""
        topics = {one.view.topic for one in views if _is_counted(one)}
        return [
            f"{cut.id} begins at offset {cut.log_start} in the backup"
            for cut in self._moment.point.partitions
            if cut.topic in topics and cut.log_start > 0
        ]

    def _unknown(self, views: Sequence[ViewPart]) -> str:
        known = {cut.topic for cut in self._moment.point.partitions}
        unknown = sorted({one.view.topic for one in views} - known)
        return f"The recovery point does not know {listed(unknown)}." if unknown else ""

    def _is_backed_up(self, view: View) -> bool:
        """Records in flight are saved with the point, whatever is backed up."""
        return view.topic in self._backed_up or view.is_transient

    def _snapshot_doubt(self, asked: ViewPart) -> str:
        point = self._moment.at(asked.part)
        if asked.view.store is None or point is None:
            return ""
        return self._snapshots.doubt(asked.view.store, point.id)


def _standing_of(statuses: Sequence[PointStatus]) -> Standing:
    by_gift = {status.gives: status for status in statuses}
    bad = by_gift.get(Restores.NOTHING)
    if bad is not None:
        return Standing(not_covered=f"Recovery point {bad.id}: {bad.reason}")
    repeating = by_gift.get(Restores.AT_LEAST_ONCE)
    unproven = by_gift.get(Restores.UNPROVEN)
    return Standing(
        repeats=repeating.reason.rstrip(".") if repeating else "",
        unproven=unproven.reason if unproven else "",
    )


def _is_counted(asked: ViewPart) -> bool:
    """Whether a view shows all records of a topic, or all that are new."""
    view = asked.view
    return not (view.kind is ViewKind.STORE or view.is_transient or asked.part is Part.BEFORE)


def _narrowed(one: WantedPartition) -> PartitionCut:
    """The cut with only the offsets that are looked at."""
    if not one.ranges:
        return replace(one.cut, end=one.cut.log_start, excluded=())
    start = max(one.cut.log_start, one.ranges[0].start)
    return replace(one.cut, log_start=start, end=max(start, one.ranges[-1].end))
