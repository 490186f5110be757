"""What a user asks of a drill. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DrillRequest:
    """Which recovery point is restored, and whether everything stays there afterwards.

    The newest exact point unless `point_id`, or `as_of_ms` (epoch milliseconds; the newest point
    that was complete then) says otherwise. With `keep` the local cluster, the state directory and
    the application's log stay.
    """

    point_id: str | None = None
    as_of_ms: int | None = None
    keep: bool = False
