"""From which offset on a point has to save records, given what is safe already. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.held import HeldPosition
from kstreams_assets.recovery.point import RecoveryPoint


@dataclass(frozen=True, slots=True)
class Saving:
    """Records `[read_from, end)` are to be read; then all from `saved_from` on are saved."""

    saved_from: int
    read_from: int


@dataclass(frozen=True, slots=True)
class Safe:
    """What was safe before the point: earlier points' saved records, and backups.

    `newest` is the newest point (it saved its records in flight), `sealed` the newest sealed one:
    it counts for the changelogs where `newest` saved nothing of them. `held` is how far backups
    that were read already hold each changelog.
    """

    newest: RecoveryPoint | None
    sealed: RecoveryPoint | None
    held: Mapping[TopicPartitionId, HeldPosition]

    def changelog(
        self, partition: TopicPartitionId, topic_id: str, log_start: int, end: int
    ) -> Saving:
        """The tail of a changelog: from the later of backup and previous sealed point.

        Holes below that do no harm: what removed those records was there before this point.
        """
        held = self.held.get(partition)
        backed_up = held.offset if held and held.topic_id == topic_id else log_start
        backed_up = min(backed_up, end)
        cut = self.newest.cut(partition) if self.newest else None
        if cut is None or cut.saved_from is None:
            cut = self.sealed.cut(partition) if self.sealed else None
        if cut is None or cut.topic_id != topic_id or cut.saved_from is None:
            return Saving(backed_up, backed_up)
        read_from = min(cut.whole_below, end)
        if backed_up >= read_from:
            return Saving(backed_up, backed_up)
        return Saving(max(cut.saved_from, backed_up), read_from)

    def in_flight(
        self, partition: TopicPartitionId, topic_id: str, committed: int, end: int
    ) -> Saving:
        """The records of a repartition topic that were not processed at the point."""
        cut = self.newest.cut(partition) if self.newest else None
        if (
            cut is None
            or cut.topic_id != topic_id
            or cut.saved_from is None
            or cut.saved_from > committed
        ):
            return Saving(committed, committed)
        return Saving(committed, max(committed, min(cut.whole_below, end)))
