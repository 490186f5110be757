"""What of a changelog the warehouse held before a recovery point was taken."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HeldPosition:
    """Records below `offset` in this life of a topic are in backups that were read already."""

    topic_id: str
    offset: int
