"""The block `governance` of the YAML."""

from collections.abc import Collection
from typing import Final

import dagster as dg
from pydantic import Field

from kstreams_assets.app.declarations import require_known
from kstreams_assets.app.model import StreamsApplication, TopicRole
from kstreams_assets.app.names import internal_topic
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.governance.facts import Governance, Limits

_LIMITS: Final = Limits()
_HOUR_MS: Final = 3_600_000


class LimitsModel(dg.Resolvable, dg.Model):
    """From where on numbers are findings; what is not given is not looked at."""

    max_lag_records: int | None = Field(
        default=None,
        description="How many records the application may be behind in one topic.",
        examples=[100_000],
    )
    max_tombstone_share: float | None = Field(
        default=_LIMITS.max_tombstone_share,
        description="Share of tombstones among the records of a changelog, 0 to 1.",
    )
    max_store_growth: float | None = Field(
        default=None,
        description="Share by which a store's rows may grow from one window to the next.",
        examples=[0.5],
    )
    max_partition_share: float | None = Field(
        default=None,
        description="Largest share of a topic's records that one partition may get (a hot key).",
        examples=[0.6],
    )

    def settings(self) -> Limits:
        """The limits; raises ConfigurationError for numbers out of bounds."""
        _bounded("limits.max_lag_records", self.max_lag_records, 0)
        _bounded("limits.max_tombstone_share", self.max_tombstone_share, 0, 1)
        _bounded("limits.max_store_growth", self.max_store_growth, 0)
        _bounded("limits.max_partition_share", self.max_partition_share, 0, 1)
        return Limits(
            max_lag_records=self.max_lag_records,
            max_tombstone_share=self.max_tombstone_share,
            max_store_growth=self.max_store_growth,
            max_partition_share=self.max_partition_share,
        )


class GovernanceModel(dg.Resolvable, dg.Model):
    """What is declared of the application, to be compared with its cluster.

    Lists are all that there may be. Internal topics go by their full names, or without the
    application id. Owners and recovery objectives have their own places in the YAML (`owners`,
    `recovery_points.objective_seconds`, `drill`).
    """

    inputs: list[str] | None = Field(
        default=None, description="Every topic that it may read, global tables included."
    )
    outputs: list[str] | None = Field(default=None, description="Every topic that it may write.")
    stores: list[str] | None = Field(
        default=None, description="Every state store, global ones included."
    )
    internal_topics: list[str] | None = Field(
        default=None,
        description="Every internal topic that there may be.",
        examples=[["order-totals-changelog", "orders-by-customer-repartition"]],
    )
    partitions: dict[str, int] = Field(
        default={}, description="Number of partitions, by topic.", examples=[{"orders": 12}]
    )
    replication_factor: int | None = Field(
        default=None,
        description="Fewest replicas of internal topics; without it 3 where there are three"
        " brokers.",
        examples=[3],
    )
    min_insync_replicas: int | None = Field(
        default=None,
        description="Lowest min.insync.replicas of internal topics; without it 2 of three"
        " replicas.",
        examples=[2],
    )
    rebuild_hours: float | None = Field(
        default=None,
        description="How far back inputs must reach to rebuild the application from them.",
        examples=[168],
    )
    limits: LimitsModel = Field(
        default=LimitsModel(), description="From where on numbers are findings."
    )
    every: str | None = Field(
        default=None,
        description="Cron schedule of the checks (UTC); without it, they are run by hand.",
        examples=["0 6 * * *"],
    )

    def settings(self, application: StreamsApplication) -> Governance:
        """The declaration, of an application that has all that it names.

        Raises:
            ConfigurationError: A topic or store that the application does not have.
            ConfigurationError: A number is out of bounds, or the schedule is none.
        """
        _bounded("replication_factor", self.replication_factor, 1)
        _bounded("min_insync_replicas", self.min_insync_replicas, 1)
        _bounded("rebuild_hours", self.rebuild_hours, 0)
        for count in self.partitions.values():
            _bounded("partitions", count, 1)
        _check_schedule(self.every)
        names = _Names(application)
        return Governance(
            inputs=names.topics("input", self.inputs, TopicRole.INPUT, TopicRole.GLOBAL),
            outputs=names.topics("output", self.outputs, TopicRole.OUTPUT),
            stores=names.stores(self.stores),
            internal_topics=names.internal(self.internal_topics),
            partitions=tuple(sorted(names.partitions(self.partitions).items())),
            replication_factor=self.replication_factor,
            min_insync_replicas=self.min_insync_replicas,
            rebuild_ms=None if self.rebuild_hours is None else round(self.rebuild_hours * _HOUR_MS),
            limits=self.limits.settings(),
            every=self.every,
            declared=True,
        )


def governance_settings(
    model: GovernanceModel | None, application: StreamsApplication
) -> Governance:
    """The declaration of an application, with a block `governance` or without; raises
    ConfigurationError.
    """
    return Governance() if model is None else model.settings(application)


class _Names:
    """Looks declared names up among those of the application."""

    def __init__(self, application: StreamsApplication) -> None:
        self._application = application
        self._where = f"application {application.application_id}"

    def topics(
        self, kind: str, names: list[str] | None, *roles: TopicRole
    ) -> frozenset[str] | None:
        """Topics with one of these roles."""
        known = {t.name for t in self._application.topics if t.roles & set(roles)}
        return self._known(kind, names, known)

    def stores(self, names: list[str] | None) -> frozenset[str] | None:
        """Stores."""
        return self._known("store", names, {store.name for store in self._application.stores})

    def internal(self, names: list[str] | None) -> frozenset[str] | None:
        """Internal topics, under their names on the cluster."""
        if names is None:
            return None
        known = {topic.name for topic in self._application.topics if topic.is_internal}
        return self._known("internal topic", [self._full(name, known) for name in names], known)

    def partitions(self, counts: dict[str, int]) -> dict[str, int]:
        """Counts by topics' names on the cluster."""
        known = {topic.name for topic in self._application.topics}
        full = {self._full(name, known): count for name, count in counts.items()}
        self._known("topic of governance.partitions", list(full), known)
        return full

    def _full(self, name: str, known: Collection[str]) -> str:
        full = internal_topic(self._application.application_id, name)
        return full if full in known and name not in known else name

    def _known(
        self, kind: str, names: list[str] | None, known: Collection[str]
    ) -> frozenset[str] | None:
        if names is None:
            return None
        require_known(kind, names, known, self._where)
        return frozenset(names)


def _check_schedule(cron: str | None) -> None:
    if cron is None:
        return
    try:
        dg.ScheduleDefinition(name="governance", job_name="governance", cron_schedule=cron)
    except dg.DagsterInvalidDefinitionError as error:
        raise ConfigurationError(
            f"governance.every is {cron!r}.",
            remedy="Give a cron schedule of five fields, such as '0 6 * * *'.",
        ) from error


def _bounded(
    setting: str, value: float | None, lowest: float, highest: float = float("inf")
) -> None:
    if value is None or (lowest <= value <= highest and value != float("inf")):
        return
    upper = "" if highest == float("inf") else f" and at most {highest:g}"
    raise ConfigurationError(
        f"governance.{setting} is {value:g}.",
        remedy=f"Give a number of at least {lowest:g}{upper}.",
    )
