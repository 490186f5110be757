"""Declarations of an application that are compared with its cluster. Pure."""

from collections.abc import Collection
from typing import Annotated, Final, Self

from pydantic import Field

from kstreams_assets.app.declarations import require_known
from kstreams_assets.app.model import StreamsApplication, TopicRole
from kstreams_assets.app.names import internal_topic
from kstreams_assets.block import Block, CronText

_HOUR_MS: Final = 3_600_000


class Limits(Block):
    """Limits above which numbers are findings; numbers without a limit are not checked."""

    max_lag_records: int | None = Field(
        default=None,
        ge=0,
        description="How many records the application may be behind in one topic.",
        examples=[100_000],
    )
    max_tombstone_share: float | None = Field(
        default=0.9,
        ge=0,
        le=1,
        description="Share of tombstones among the records of a changelog, 0 to 1.",
    )
    max_store_growth: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="Share by which a store's rows may grow from one window to the next.",
        examples=[0.5],
    )
    max_partition_share: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Largest share of a topic's records that one partition may get (a hot key).",
        examples=[0.6],
    )


class Governance(Block):
    """Declarations of the application that are compared with its cluster.

    Lists are complete: anything else is a finding. Write internal topics with their full names, or
    without the application id. Owners and recovery objectives have their own places in the YAML
    (`owners`, `recovery_points.objective_seconds`, `drill`). What you omit is not declared, derived
    or evaluated.
    """

    inputs: tuple[str, ...] | None = Field(
        default=None, description="Every topic that it may read, including global tables."
    )
    outputs: tuple[str, ...] | None = Field(
        default=None, description="Every topic that it may write."
    )
    stores: tuple[str, ...] | None = Field(
        default=None, description="Every state store, including global ones."
    )
    internal_topics: tuple[str, ...] | None = Field(
        default=None,
        description="Every allowed internal topic.",
        examples=[["order-totals-changelog", "orders-by-customer-repartition"]],
    )
    partitions: dict[str, Annotated[int, Field(ge=1)]] = Field(
        default={}, description="Number of partitions, by topic.", examples=[{"orders": 12}]
    )
    replication_factor: int | None = Field(
        default=None,
        ge=1,
        description="Minimum number of replicas of internal topics; by default 3 on clusters with"
        " three brokers.",
        examples=[3],
    )
    min_insync_replicas: int | None = Field(
        default=None,
        ge=1,
        description="Minimum min.insync.replicas of internal topics; by default 2 with three"
        " replicas.",
        examples=[2],
    )
    rebuild_hours: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="How far back inputs must extend, so that the application can be rebuilt from"
        " them.",
        examples=[168],
    )
    limits: Limits = Field(default=Limits(), description="Limits above which numbers are findings.")
    every: CronText | None = Field(
        default=None,
        description="Cron schedule of the checks (UTC); without it, you run them by hand.",
        examples=["0 6 * * *"],
    )

    @property
    def rebuild_ms(self) -> int | None:
        """How far back inputs must extend, so that the application can be rebuilt from them."""
        return None if self.rebuild_hours is None else round(self.rebuild_hours * _HOUR_MS)

    def of(self, application: StreamsApplication) -> Self:
        """A copy with internal topics under their names on the cluster.

        Raises:
            ConfigurationError: The application does not have a declared topic or store.
        """
        topics, where = application.topics, f"application {application.application_id}"
        internal = {topic.name for topic in topics if topic.is_internal}

        def full(name: str, known: Collection[str]) -> str:
            whole = internal_topic(application.application_id, name)
            return whole if whole in known and name not in known else name

        def with_roles(*roles: TopicRole) -> set[str]:
            return {topic.name for topic in topics if topic.roles & set(roles)}

        def require(
            kind: str, key: str, names: Collection[str] | None, known: Collection[str]
        ) -> None:
            require_known(kind, names or (), known, where, keys=[f"governance.{key}"])

        require("input", "inputs", self.inputs, with_roles(TopicRole.INPUT, TopicRole.GLOBAL))
        require("output", "outputs", self.outputs, with_roles(TopicRole.OUTPUT))
        require("store", "stores", self.stores, {store.name for store in application.stores})
        named = self.internal_topics and tuple(
            full(name, internal) for name in self.internal_topics
        )
        require("internal topic", "internal_topics", named, internal)
        known = {topic.name for topic in topics}
        counts = {full(name, known): count for name, count in self.partitions.items()}
        require("topic of governance.partitions", "partitions", counts, known)
        return self.model_copy(update={"internal_topics": named, "partitions": counts})
