"""What is declared of an application, to be compared with its cluster. Pure."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Limits:
    """From where on numbers are findings; times in milliseconds, shares between 0 and 1.

    None is not looked at. `store_growth` is how much a store may grow from one window to the next,
    as a share of its rows.
    """

    max_lag_records: int | None = None
    max_tombstone_share: float | None = 0.9
    max_store_growth: float | None = None
    max_partition_share: float | None = None
    """The largest share of an input's records that one partition may get (a hot key)."""


@dataclass(frozen=True, slots=True)
class Governance:
    """The declaration of one application; None and empty mean: not declared, derived or not judged.

    `stores`, `inputs`, `outputs` and `internal_topics` are all that there may be, by name.
    `partitions` are partition counts by topic. `replication_factor` and `min_insync_replicas` are
    the lowest that internal topics may have. `rebuild_ms` is how far back inputs must reach to
    rebuild the application from them (milliseconds).
    """

    inputs: frozenset[str] | None = None
    outputs: frozenset[str] | None = None
    stores: frozenset[str] | None = None
    internal_topics: frozenset[str] | None = None
    partitions: tuple[tuple[str, int], ...] = ()
    replication_factor: int | None = None
    min_insync_replicas: int | None = None
    rebuild_ms: int | None = None
    limits: Limits = field(default_factory=Limits)
    every: str | None = None
    """Cron schedule of the checks; None for checks by hand only."""
    declared: bool = False
    """Whether the YAML has a block `governance`; without one only what always holds is judged."""
