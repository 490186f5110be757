"""The blocks of the YAML of an application."""

import re
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from kstreams_assets.app.declarations import Declarations, StoreDeclaration, require_known
from kstreams_assets.app.governance import Governance, Limits
from kstreams_assets.app.model import StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.app.names import internal_topic
from kstreams_assets.app.rules import (
    Place,
    Recomputation,
    RuleLimits,
    Scope,
    WindowedBy,
)
from kstreams_assets.app.store_columns import SchemaTextError, parse_schema
from kstreams_assets.app.store_format import (
    BYTES,
    FRAMED,
    Encoding,
    Format,
    StoreFormat,
    StoreKind,
    kind_by_name,
)
from kstreams_assets.checks import Severity
from kstreams_assets.completeness.view import RuleTextError
from kstreams_assets.cron import is_cron
from kstreams_assets.drill.command import check_placeholders
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.home import expanded
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.settings import (
    BackupSettings,
    CommandSettings,
    DrillSettings,
    KeepLine,
    KeepSettings,
    RecoveryPointSettings,
    RestoreSettings,
    SecondCopySettings,
    VerifyExtent,
    VerifySettings,
    WindowSchedule,
    require_commands,
)
from kstreams_assets.store import ObjectStoreSettings, place_at


class Block(BaseModel):
    """A block of the YAML: unknown keys are errors, which do not show what was written."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class WrongBlockError(ConfigurationError):
    """A connection contradicts itself; `block` is where it stands, such as `restore.target`."""

    def __init__(self, block: str, error: ConfigurationError) -> None:
        super().__init__(error.problem, remedy=error.remedy)
        self.block = block


def in_block(block: str) -> WrapValidator:
    """Says of what a model refuses in which block it stands: a connection may stand in several."""

    def checked(said: object, handler: ValidatorFunctionWrapHandler) -> object:
        try:
            return handler(said)
        except ConfigurationError as error:
            raise WrongBlockError(block, error) from error

    return WrapValidator(checked)


_RULE_LIMITS: Final = RuleLimits()
_MOST: Final = 2_000_000_000
"""What Spark can count and hold by one number of 32 bits."""

_KEYS: Final = ("format", "schema")
_ENCODINGS: Final = ", ".join(Encoding)


def read_format(what: str, said: str | dict[str, Any] | None) -> Format:
    """The format of `what` (such as `the key of store 'a'`); nothing said means bytes.

    Raises:
        ConfigurationError: It names `what`.
    """
    if said is None:
        return BYTES
    block = {"format": said} if isinstance(said, str) else said
    unknown = sorted(block.keys() - set(_KEYS))
    if unknown or "format" not in block:
        found = f"unknown key {unknown[0]!r}" if unknown else "no key 'format'"
        raise ConfigurationError(
            f"{_begun(what)} has {found}.",
            remedy=f"Give one of {_ENCODINGS}, or {{format, schema}}.",
        )
    if block["format"] not in tuple(Encoding):
        raise ConfigurationError(
            f"{_begun(what)} has format {block['format']!r}.", remedy=f"Give one of {_ENCODINGS}."
        )
    return _checked(what, Encoding(block["format"]), block.get("schema"))


def _checked(what: str, encoding: Encoding, schema: object) -> Format:
    try:
        if schema is not None:
            parse_schema(str(schema))
        return Format(encoding, None if schema is None else str(schema))
    except SchemaTextError as error:
        raise ConfigurationError(
            f"The schema of {what} is not understood: {error}.",
            remedy="Write it as Spark's DDL: 'a BIGINT, b STRUCT<c: STRING>'.",
        ) from error
    except ConfigurationError as error:
        raise ConfigurationError(f"{_begun(what)}: {error.problem}", remedy=error.remedy) from error


def _begun(what: str) -> str:
    return what[0].upper() + what[1:]


class RuleLimitsModel(Block):
    """What a rule or a recomputation may use."""

    timeout_seconds: float = Field(
        default=_RULE_LIMITS.timeout_s,
        description="After how long its query is ended; the rule has then failed.",
    )
    max_rows: int = Field(
        default=_RULE_LIMITS.rows,
        description="How many rows in violation are counted; of more it is said that there are"
        " more.",
    )
    max_memory_mib: int = Field(
        default=_RULE_LIMITS.memory_bytes // 1024**2,
        description="How much a table that Spark holds in memory for a join may take, and the rows"
        " that are shown; the rule has failed where they take more.",
    )

    def limits(self) -> RuleLimits:
        """The limits, as they are declared; raises RuleTextError for numbers out of bounds."""
        if not 0 < self.timeout_seconds <= threading.TIMEOUT_MAX:
            raise RuleTextError(
                f"timeout_seconds is {self.timeout_seconds:g}", remedy="Give seconds above 0."
            )
        for name, value in (("max_rows", self.max_rows), ("max_memory_mib", self.max_memory_mib)):
            if not 1 <= value <= _MOST:
                raise RuleTextError(
                    f"{name} is {value}", remedy=f"Give a number from 1 to {_MOST:,}."
                )
        return RuleLimits(self.timeout_seconds, self.max_rows, self.max_memory_mib * 1024**2)


class RuleModel(RuleLimitsModel):
    """One completeness rule: `sql`, or `balance` as its short form.

    `sql` returns the rows in violation; it is Spark SQL over views that are named after topics and
    stores. `balance` is an equation of counts (`a.v1`), sums (`sum(a.v1.amount)`) and records in
    flight (`in_flight(a)`).
    """

    name: str = Field(description="Name of the rule, and of its asset check.")
    sql: str | None = Field(default=None, description="Returns the rows in violation.")
    balance: str | None = Field(
        default=None,
        description="Left side == right side, of topics and stores joined by + and -.",
        examples=["orders.created.v1 == orders.risk-candidates.v1 + orders.error.v1"],
    )
    per: str | None = Field(
        default=None,
        description="Balance for each value of this column (_key for the record key); in total"
        " without it.",
    )
    scope: Scope = Field(
        default=Scope.EVERYTHING,
        description="Whether everything up to the point counts, or what is new since the window"
        " before.",
    )
    severity: Severity = Field(default=Severity.ERROR, description="error or warn.")
    blocking: bool = Field(
        default=True,
        description="Whether a violation on a restored cluster keeps the group offsets away.",
    )
    on: list[Place] = Field(
        default=list(Place), description="Where it is evaluated: backup, ktables, restore."
    )
    description: str = Field(default="", description="What it says, in words.")

    @model_validator(mode="before")
    @classmethod
    def _read_on(cls, said: object) -> object:
        """YAML of version 1.1 takes a bare `on` for true."""
        if isinstance(said, dict) and True in said:
            return {"on" if key is True else key: value for key, value in said.items()}
        return said


class WindowedByModel(Block):
    """Tumbling or hopping windows of a recomputed store."""

    size_ms: int = Field(description="Length of a window.")
    advance_ms: int | None = Field(default=None, description="Of hopping windows; else the length.")
    grace_ms: int = Field(default=0, description="How late records may be.")

    def windowed_by(self) -> WindowedBy:
        """The windows, as they are declared."""
        return WindowedBy(
            size_ms=self.size_ms,
            advance_ms=self.size_ms if self.advance_ms is None else self.advance_ms,
            grace_ms=self.grace_ms,
        )


class RecomputeModel(RuleLimitsModel):
    """How a store of counts or sums follows from one input topic."""

    source: str = Field(description="The input topic.")
    key: str = Field(
        default="_key", description="SQL expression over its view that gives the store's key."
    )
    values: str | dict[str, str] = Field(
        default="count(*)",
        description="count(*) or sum(...); by field where the value has several.",
        examples=[{"count": "count(*)", "total_cents": "sum(amount_cents)"}],
    )
    where: str = Field(default="", description="SQL condition: which records count.")
    through: str | None = Field(
        default=None, description="The repartition topic between the two, if there is one."
    )
    windowed_by: WindowedByModel | None = Field(
        default=None, description="Windows of a windowed store."
    )

    def recomputation(self, store: str, line: int | None) -> Recomputation:
        """The recomputation of a store, as it is declared; `line` is where it stands."""
        values = {"": self.values} if isinstance(self.values, str) else self.values
        return Recomputation(
            store=store,
            source=self.source,
            key=self.key,
            values=dict(values),
            where=self.where,
            through=self.through,
            windowed_by=None if self.windowed_by is None else self.windowed_by.windowed_by(),
            line=line,
            limits=self.limits(),
        )


_HAVE_WINDOWED_KEYS: Final = (StoreKind.SUPPRESS, StoreKind.JOIN_BUFFER)
_WINDOWED_KEYS: Final = (StoreKind.KEY_VALUE, StoreKind.WINDOW, StoreKind.SESSION)


class StoreModel(Block):
    """What is said about one state store.

    At most one of `changelog`, `source_topic` and `logging_disabled`; without one the store's
    changelog is found by rule. `key` and `value` are `string`, `long`, `int`, `short`, `double`,
    `float`, `uuid`, `bytes`, `avro`, `protobuf`, or `{format: json, schema: "a BIGINT, b STRING"}`.
    """

    changelog: str | None = Field(default=None, description="Changelog topic of the store.")
    source_topic: str | None = Field(
        default=None, description="Source topic that serves as changelog (topology.optimization)."
    )
    logging_disabled: bool = Field(default=False, description="The store has no changelog.")
    unconfirmed: list[str] = Field(
        default=[],
        description="Why what rebuilds the store is a guess of `discover`; remove the key to"
        " confirm it. Until then no table, rule or restore of mode state reads the store.",
    )
    kind: StoreKind | None = Field(
        default=None,
        description="Kind of the store; without it key_value, or what a generated name tells.",
    )
    key: str | dict[str, Any] | None = Field(
        default=None,
        description="Format of the key (without windows); of a foreign-key subscription that of"
        " the primary key.",
        examples=["string", {"format": "json", "schema": "id BIGINT"}],
    )
    value: str | dict[str, Any] | None = Field(
        default=None,
        description="Format of the value; of a foreign-key subscription that of the foreign key.",
        examples=["long", {"format": "json", "schema": "count BIGINT, total DOUBLE"}],
    )
    window_size_ms: int | None = Field(
        default=None, description="Length of the windows; it is not in the changelog."
    )
    retention_ms: int | None = Field(
        default=None,
        description="Retention of windows and sessions, history retention of versions; without it"
        " nothing expires in the table.",
    )
    windowed_keys: StoreKind | None = Field(
        default=None,
        description="Of a suppress or join buffer: window or session if its keys are windowed.",
    )
    lineage: dict[str, list[str]] = Field(
        default={},
        description="Which topic.field each field of the value is computed from; an empty name is"
        " the whole value.",
        examples=[{"total": ["orders.amount"]}],
    )
    ktable: bool = Field(default=True, description="Whether tables are made of the store.")
    recompute: RecomputeModel | None = Field(
        default=None, description="How a store of counts or sums follows from an input."
    )

    def declaration(self, store: str) -> StoreDeclaration | None:
        """What rebuilds the store, None if the rules are to find it; raises ConfigurationError."""
        if self == StoreModel():
            raise ConfigurationError(
                f"Nothing is said about store {store!r}.",
                remedy="Give its key and value, or what rebuilds it, or leave it out of stores.",
            )
        if self.changelog is None and self.source_topic is None and not self.logging_disabled:
            return None
        try:
            return StoreDeclaration(
                changelog=self.changelog,
                source_topic=self.source_topic,
                logging_disabled=self.logging_disabled,
            )
        except ConfigurationError as error:
            raise ConfigurationError(
                f"Store {store!r}: {error.problem}", remedy="Give at most one of the three."
            ) from error

    @property
    def says_how_to_read(self) -> bool:
        """Whether anything is said about how the store is read."""
        rebuilt = StoreModel(
            changelog=self.changelog,
            source_topic=self.source_topic,
            logging_disabled=self.logging_disabled,
            unconfirmed=self.unconfirmed,
            ktable=self.ktable,
            recompute=self.recompute,
        )
        return self != rebuilt

    def format(self, store: str) -> StoreFormat:
        """How the store is read; raises ConfigurationError, which names the store."""
        self._check_windowed_keys(store)
        value = read_format(f"the value of store {store!r}", self.value)
        self._check_lineage(store, value)
        try:
            return StoreFormat(
                kind=self.kind or kind_by_name(store) or StoreKind.KEY_VALUE,
                key=read_format(f"the key of store {store!r}", self.key),
                value=value,
                window_size_ms=self.window_size_ms,
                retention_ms=self.retention_ms,
                windowed_keys=self.windowed_keys or StoreKind.KEY_VALUE,
                lineage=tuple((name, tuple(said)) for name, said in sorted(self.lineage.items())),
            )
        except ConfigurationError as error:
            raise ConfigurationError(
                f"Store {store!r}: {error.problem}", remedy=error.remedy
            ) from error

    def _check_windowed_keys(self, store: str) -> None:
        kind = self.kind or kind_by_name(store)
        if self.windowed_keys is None:
            return
        if kind not in _HAVE_WINDOWED_KEYS:
            raise ConfigurationError(
                f"Store {store!r} has windowed_keys, and is of kind {kind or 'key_value'}.",
                remedy="Only suppress and join_buffer have them; of other stores give the kind.",
            )
        if self.windowed_keys not in _WINDOWED_KEYS:
            raise ConfigurationError(
                f"Store {store!r}: windowed_keys is {self.windowed_keys}.",
                remedy=f"Give one of {', '.join(_WINDOWED_KEYS)}.",
            )

    def _check_lineage(self, store: str, value: Format) -> None:
        """Fields exist as far as the format tells; topics are looked up with the application."""
        if value.encoding not in FRAMED:
            fields = {""}
            if value.schema is not None:
                fields |= {path for each in parse_schema(value.schema) for path in each.paths()}
            where = f"the value of store {store!r}"
            require_known("lineage field", self.lineage.keys(), fields, where)
        for name, sources in self.lineage.items():
            bad = [source for source in sources if not source.strip(".")]
            if bad or not sources:
                raise ConfigurationError(
                    f"Store {store!r}: the lineage of {name!r} is {sources}.",
                    remedy="Give a list of topic.field.",
                )


def store_formats(stores: Mapping[str, StoreModel]) -> dict[str, StoreFormat]:
    """How stores are read, for those of which it is said; raises ConfigurationError."""
    return {name: model.format(name) for name, model in stores.items() if model.says_how_to_read}


def require_stores(stores: Mapping[str, StoreModel], application: StreamsApplication) -> None:
    """Raise ConfigurationError for the first store that the application does not have."""
    known = {store.name for store in application.stores}
    require_known("store", stores.keys(), known, f"application {application.application_id}")


_LIMITS: Final = Limits()
_HOUR_MS: Final = 3_600_000


class LimitsModel(Block):
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


class GovernanceModel(Block):
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
    if cron is not None and not is_cron(cron):
        raise ConfigurationError(
            f"governance.every is {cron!r}.",
            remedy="Give a cron schedule of five fields, such as '0 6 * * *'.",
        )


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


_DRILL: Final = DrillSettings()


class DrillModel(Block):
    """How restore drills of the application go."""

    command: list[str] = Field(
        default=[],
        description="Program and arguments that start the application in a drill;"
        " {client_properties} (a file with bootstrap.servers, the password and all else a client of"
        " the drill's cluster needs), {bootstrap_servers}, {application_id}, {state_dir} and"
        " {python} are filled in.",
        examples=[["java", "-jar", "shop.jar", "--properties", "{client_properties}"]],
    )
    environment: dict[str, str] = Field(
        default={},
        description="Environment of the application; the same is filled in, and"
        " {sasl_jaas_config} (with security.protocol SASL_PLAINTEXT and sasl.mechanism PLAIN).",
    )
    pass_on: list[str] = Field(
        default=[],
        description="Names of variables that the application gets from the drill's own environment,"
        " besides PATH, HOME, USER, LOGNAME, LANG, LC_ALL, TZ, TMPDIR and JAVA_HOME.",
        examples=[["KEYSTORE_PASSWORD"]],
    )
    working_directory: str | None = Field(
        default=None, description="Where it runs, relative to this file; without it, as the drill."
    )
    open_cluster: bool = Field(
        default=False,
        description="The drill's cluster listens without a password, for an application that cannot"
        " take one. Every user of the machine can read the restored records during the drill.",
    )
    running_line: str = Field(
        default=_DRILL.running_line,
        description="Regular expression of the line by which the application says it is RUNNING.",
    )
    start_timeout_seconds: float = Field(
        default=_DRILL.start_timeout_s,
        description="How long it may take until it is RUNNING, its stores restored.",
    )
    catch_up_timeout_seconds: float = Field(
        default=_DRILL.catch_up_timeout_s,
        description="How long it may take from there until its lag is zero.",
    )
    objective_seconds: float | None = Field(
        default=None,
        description="Recovery time objective: from the begin of the restore to caught up.",
        examples=[900],
    )
    every: str | None = Field(
        default=None,
        description="Cron schedule of drills (UTC); without it, drills are started by hand.",
        examples=["0 4 * * 0"],
    )

    def settings(self, folder: Path | None = None) -> DrillSettings:
        """The settings of drills; `folder` is where the YAML lies. Raises ConfigurationError."""
        for name, value in (
            ("start_timeout_seconds", self.start_timeout_seconds),
            ("catch_up_timeout_seconds", self.catch_up_timeout_seconds),
            ("objective_seconds", self.objective_seconds),
        ):
            if value is not None and not 0 < value < float("inf"):
                raise ConfigurationError(
                    f"drill.{name} is {value:g}.", remedy="Give a number of seconds above 0."
                )
        self._check_line()
        self._check_schedule()
        settings = DrillSettings(
            command=tuple(self.command),
            environment=dict(self.environment),
            pass_on=tuple(self.pass_on),
            working_directory=self._directory(folder),
            open_cluster=self.open_cluster,
            running_line=self.running_line,
            start_timeout_s=self.start_timeout_seconds,
            catch_up_timeout_s=self.catch_up_timeout_seconds,
            objective_s=self.objective_seconds,
            every=self.every,
        )
        if settings.command:
            check_placeholders(settings)
        return settings

    def _check_line(self) -> None:
        try:
            re.compile(self.running_line)
        except re.error as error:
            raise ConfigurationError(
                f"drill.running_line is {self.running_line!r}: {error}.",
                remedy="Give a regular expression of Python.",
            ) from None

    def _check_schedule(self) -> None:
        if self.every is None:
            return
        if not is_cron(self.every):
            raise ConfigurationError(
                f"drill.every is {self.every!r}.",
                remedy="Give a cron schedule of five fields, as 0 4 * * 0.",
            )
        if not self.command:
            raise ConfigurationError(
                "drill.every is given, but no drill.command.",
                remedy="Give drill.command: program and arguments that start the application.",
            )

    def _directory(self, folder: Path | None) -> str | None:
        if self.working_directory is None:
            return None
        directory = expanded(self.working_directory)
        return str(directory if folder is None else (folder / directory).resolve())


class VerifyModel(Block):
    """When it is looked whether all that the warehouse holds is as it was written."""

    every: str | None = Field(
        default=None,
        description="Cron schedule (UTC) of quick looks, or with `sample` of those that read a"
        " share of the files.",
        examples=["0 4 * * *"],
    )
    full_every: str | None = Field(
        default=None,
        description="Cron schedule (UTC) of looks that read every file.",
        examples=["0 5 * * 0"],
    )
    sample: float = Field(
        default=0.0,
        description="Share of the files that a look of `every` reads, those not read for longest;"
        " 0 for a quick look.",
        examples=[0.1],
    )
    bytes_per_second: int | None = Field(
        default=None, description="Read files no faster than this; without it, as fast as it goes."
    )

    def settings(self) -> VerifySettings:
        """The settings of verifications. Raises ConfigurationError."""
        for name, cron in (("every", self.every), ("full_every", self.full_every)):
            if cron is not None and not is_cron(cron):
                raise ConfigurationError(
                    f"verify.{name} is {cron!r}.",
                    remedy="Give a cron schedule of five fields, as 0 4 * * *.",
                )
        if not 0 <= self.sample <= 1:
            raise ConfigurationError(
                f"verify.sample is {self.sample:g}.", remedy="Give a share from 0 to 1."
            )
        limit = self.bytes_per_second
        if limit is not None and limit < LEAST_RATE:
            raise ConfigurationError(
                f"verify.bytes_per_second is {limit}.",
                remedy=f"Give at least {LEAST_RATE}, or leave it out.",
            )
        return VerifySettings(self.every, self.full_every, self.sample, limit)


_MIB: Final = 1024**2
_HOUR_S: Final = 3_600
_POINTS: Final = RecoveryPointSettings()
_RESTORE: Final = RestoreSettings()
_CODECS: Final = ("none", "lz4", "zstd", "snappy", "gzip")


class SensorStatus(StrEnum):
    """Whether the sensors are on before anybody has switched them in the UI."""

    STOPPED = "stopped"
    RUNNING = "running"


class SecondCopyModel(Block):
    """A second copy of the warehouse, best in another account."""

    to: str | None = Field(
        default=None,
        description="A folder, or s3://bucket/prefix.",
        examples=["s3://backup-copies/shop"],
    )
    every: str | None = Field(
        default=None,
        description="When it is brought up to date by a schedule, as cron, in UTC.",
        examples=["15 * * * *"],
    )
    bytes_per_second: int | None = Field(
        default=None, description="No more is copied per second.", examples=[20_000_000]
    )
    object_store: ObjectStoreSettings | None = Field(
        default=None,
        description="How the store of the copy is reached, with another profile for instance;"
        " null: as that of the warehouse.",
    )

    def settings(self, of_warehouse: ObjectStoreSettings) -> SecondCopySettings:
        """The settings; raises ConfigurationError for what cannot be meant."""
        if self.every is not None and not is_cron(self.every):
            raise ConfigurationError(
                f"second_copy.every: {self.every!r} is no cron expression.",
                remedy="Write five fields, such as '15 * * * *'.",
            )
        if self.every is not None and self.to is None:
            raise ConfigurationError(
                "second_copy.every: it is not said where to.", remedy="Say second_copy.to as well."
            )
        _check_limits("second_copy", self.bytes_per_second, None, None)
        store = of_warehouse if self.object_store is None else self.object_store
        return SecondCopySettings(
            to=None if self.to is None else place_at(self.to, store),
            every=self.every,
            bytes_per_s=self.bytes_per_second,
        )


class WindowsModel(Block):
    """How wall-clock time is cut into windows."""

    every: str = Field(
        description="`minute`, `hour`, `day`, or a cron schedule of five fields.",
        examples=["hour", "*/15 * * * *"],
    )
    start: str | None = Field(
        default=None,
        description="The first window: a date, or a date and time (never move it later). Without"
        " it, the window in which the application was first seen.",
        examples=["2026-11-01", "2026-11-01-13:30"],
    )
    timezone: str = Field(default="UTC", description="Only for windows of a day or more.")

    def schedule(self, first_seen_ms: Callable[[], int | None]) -> WindowSchedule:
        """The schedule; raises ConfigurationError."""
        schedule = WindowSchedule.every(self.every, start=self.start, timezone=self.timezone)
        return replace(schedule, first_seen_ms=first_seen_ms)


class TopicModel(Block):
    """What is said about one topic: its roles, against what names and topology tell; its format.

    `key` and `value` are as those of a store.
    """

    roles: list[TopicRole] = Field(
        default=[], description="input, global, repartition, changelog, output."
    )
    unconfirmed: list[str] = Field(
        default=[],
        description="Why the roles are a guess of `discover`; remove the key to confirm them. Until"
        " then no table, rule or restore of mode state reads the topic.",
    )
    key: str | dict[str, Any] | None = Field(
        default=None, description="Format of the keys, for completeness rules.", examples=["string"]
    )
    value: str | dict[str, Any] | None = Field(
        default=None,
        description="Format of the values, for completeness rules.",
        examples=[{"format": "json", "schema": "customer_id STRING, amount_cents BIGINT"}],
    )

    @property
    def says_how_to_read(self) -> bool:
        """Whether anything is said about how its records are read."""
        return self.key is not None or self.value is not None


class BackupModel(Block):
    """How backups are written; defaults fit most applications."""

    compression: str = Field(default="zstd", description="zstd, snappy, lz4_raw, gzip or none.")
    compression_level: int = Field(
        default=BackupSettings().compression_level, description="For zstd; above 2 buys little."
    )
    commit_bytes: int = Field(
        default=BackupSettings().commit_bytes,
        description="A long backfill commits about this many bytes at a time; a window of more is"
        " backed up in parts, each a commit.",
    )
    part_bytes: int = Field(
        default=BackupSettings().part_bytes,
        description="A part is a 25th of what is left of the window, but this many bytes at least"
        " and commit_bytes at most: what a kill costs.",
    )
    bytes_per_second: int | None = Field(
        default=None,
        description="No more is fetched from all brokers together, by all tasks of a process;"
        " counted as Kafka sends it, compressed. Recovery points are not throttled.",
        examples=[50_000_000],
    )
    broker_bytes_per_second: int | None = Field(
        default=None, description="No more is fetched from each broker.", examples=[10_000_000]
    )
    tasks: int | None = Field(
        default=None,
        description="How many tasks read at a time, each one partition after the other; without it"
        " as many as Spark has cores, in the process itself four.",
        examples=[8],
    )
    lock_wait_seconds: float = Field(
        default=BackupSettings().lock_wait_s,
        description="How long to wait for another run of the application.",
    )
    stable_wait_seconds: float = Field(
        default=BackupSettings().stable_wait_s,
        description="How long to wait for open transactions at a window's end.",
    )
    scan_stall_seconds: float = Field(
        default=BackupSettings().scan_stall_s,
        description="After the records are read, the logs are looked at for why offsets have none."
        " How long that may go without progress in a partition, before it is left to the next run.",
    )
    scan_connections: int = Field(
        default=BackupSettings().scan_connections,
        description="How many partitions are looked at side by side then.",
    )

    def settings(self) -> BackupSettings:
        """The settings of a run; raises ConfigurationError for numbers out of bounds."""
        _at_least("scan_stall_seconds", self.scan_stall_seconds, 1, block="backup")
        _at_least("scan_connections", self.scan_connections, 1, block="backup")
        _at_least("part_bytes", self.part_bytes, 1, block="backup")
        _check_limits("backup", self.bytes_per_second, self.broker_bytes_per_second, self.tasks)
        return BackupSettings(
            compression=self.compression,
            compression_level=self.compression_level,
            commit_bytes=self.commit_bytes,
            part_bytes=self.part_bytes,
            bytes_per_s=self.bytes_per_second,
            broker_bytes_per_s=self.broker_bytes_per_second,
            tasks=self.tasks,
            lock_wait_s=self.lock_wait_seconds,
            stable_wait_s=self.stable_wait_seconds,
            scan_stall_s=self.scan_stall_seconds,
            scan_connections=self.scan_connections,
        )


class RecoveryPointsModel(Block):
    """How recovery points are taken and kept; defaults fit most applications."""

    every_seconds: int = Field(
        default=_POINTS.every_s,
        description="How often the sensor takes a point; Dagster looks every five seconds.",
    )
    objective_seconds: int | None = Field(
        default=_POINTS.objective_s,
        description="Recovery point objective: how old the newest point may be that can be restored"
        " and gives what the application itself guarantees.",
        examples=[900],
    )
    keep_all_hours: float = Field(
        default=_POINTS.keep_all_s / _HOUR_S,
        description="For how long every point is kept; then the last of each window.",
    )
    seal_mib: int = Field(
        default=_POINTS.seal_bytes // _MIB,
        description="How much of the changelogs a point may save, so that it stays exact; counted"
        " as stored in Kafka and uncompressed. The memory that a recorder needs is a small multiple"
        " of it.",
    )
    closing_seal_mib: int = Field(
        default=_POINTS.closing_seal_bytes // _MIB,
        description="The same for the point at the end of a backup run.",
    )
    lookback_seconds: float = Field(
        default=_POINTS.lookback_s,
        description="How long before the point transactions are looked for: above the"
        " application's transaction timeout plus the brokers' abort scan interval.",
    )

    def settings(self) -> RecoveryPointSettings:
        """The settings of the recorder; raises ConfigurationError for numbers out of bounds."""
        _at_least("every_seconds", self.every_seconds, 1)
        if self.objective_seconds is not None:
            _at_least("objective_seconds", self.objective_seconds, self.every_seconds)
        _at_least("keep_all_hours", self.keep_all_hours, 0)
        _at_least("seal_mib", self.seal_mib, 0)
        _at_least("closing_seal_mib", self.closing_seal_mib, 0)
        _at_least("lookback_seconds", self.lookback_seconds, 1)
        return RecoveryPointSettings(
            every_s=self.every_seconds,
            objective_s=self.objective_seconds,
            keep_all_s=round(self.keep_all_hours * _HOUR_S),
            seal_bytes=self.seal_mib * _MIB,
            closing_seal_bytes=self.closing_seal_mib * _MIB,
            lookback_s=self.lookback_seconds,
        )


_UNITS_S: Final = {
    "s": 1,
    "min": 60,
    "h": 3_600,
    "d": 86_400,
    "w": 7 * 86_400,
    "mo": 31 * 86_400,
    "y": 366 * 86_400,
}
_LINES: Final = ("hourly", "daily", "weekly", "monthly", "yearly")


class KeptLogs(StrEnum):
    """What stays of inputs and outputs below the oldest kept point."""

    NEEDED = "needed"
    WHOLE = "whole"


class KeepModel(Block):
    """What `kstreams-assets expire` keeps; times as 90min, 36h, 7d, 4w, 6mo or 2y, not in m."""

    all: str = Field(
        default="2d", description="For how long every recovery point is kept.", examples=["2d"]
    )
    hourly: str | None = Field(
        default=None,
        description="For how long the last restorable point of each hour is kept.",
        examples=["7d"],
    )
    daily: str | None = Field(
        default=None,
        description="The same for days (in the time zone of the windows).",
        examples=["90d"],
    )
    weekly: str | None = Field(default=None, description="The same for weeks, from Monday on.")
    monthly: str | None = Field(default=None, description="The same for months.")
    yearly: str | None = Field(default=None, description="The same for years.")
    minimum: int = Field(
        default=3, description="So many points that restore exactly stay, however old they are."
    )
    logs: KeptLogs = Field(
        default=KeptLogs.NEEDED,
        description="needed: of inputs and outputs what the application needs to go on from the"
        " oldest kept point; whole: what Kafka held of them then, for rebuilds from the inputs.",
    )
    every: str | None = Field(
        default=None,
        description="Cron schedule of expire (UTC); without it, it is run by hand.",
        examples=["30 2 * * *"],
    )

    def settings(self) -> KeepSettings:
        """The policy. Raises ConfigurationError for what is no duration, number or schedule."""
        _at_least("minimum", self.minimum, 1, block="keep")
        if self.every is not None and not is_cron(self.every):
            raise ConfigurationError(
                f"keep.every is {self.every!r}.",
                remedy="Give a cron schedule of five fields, as 30 2 * * *.",
            )
        return KeepSettings(
            all_s=_seconds("keep.all", self.all),
            lines=tuple(
                KeepLine(name, _seconds(f"keep.{name}", given))
                for name in _LINES
                if (given := getattr(self, name)) is not None
            ),
            minimum=self.minimum,
            whole_logs=self.logs is KeptLogs.WHOLE,
            every=self.every,
        )


def _seconds(name: str, given: str) -> int:
    found = re.fullmatch(r"(\d+) *([a-z]+)", given.strip())
    if found is not None and found[2] == "m":
        raise ConfigurationError(
            f"{name} is {given!r}: m may mean minutes or months.",
            remedy=f"Give {found[1]}min or {found[1]}mo (months of 31 days; earlier releases took m"
            " for months).",
        )
    if found is None or found[2] not in _UNITS_S:
        raise ConfigurationError(
            f"{name} is {given!r}.",
            remedy="Give a number and a unit: min, h, d, w, mo (31 days) or y, as 36h or 90d.",
        )
    return int(found[1]) * _UNITS_S[found[2]]


class RestoreModel(Block):
    """Where to and how restores go; defaults fit most applications."""

    target: Annotated[KafkaConnection | None, in_block("restore.target")] = Field(
        default=None,
        description="The cluster that restores go to, in the form of `connection`; a run can name"
        " other bootstrap servers.",
    )
    compression: str = Field(
        default=_RESTORE.compression,
        description="Of the producer: none, lz4, zstd, snappy or gzip; none is fastest on a fast"
        " network.",
    )
    verify: VerifyExtent = Field(
        default=_RESTORE.verify,
        description="What is read back and compared: every record, a sample of each partition, or"
        " counts alone.",
    )
    delivery_timeout_seconds: float = Field(
        default=_RESTORE.delivery_timeout_s,
        description="How long a record may take to be acknowledged before the restore gives up.",
    )
    lock_wait_seconds: float = Field(
        default=_RESTORE.lock_wait_s,
        description="How long to wait for another restore of the same group on the target.",
    )
    bytes_per_second: int | None = Field(
        default=None,
        description="No more is produced to and read back from all brokers together, by all tasks"
        " of a process; completeness rules on the target count too.",
        examples=[50_000_000],
    )
    broker_bytes_per_second: int | None = Field(
        default=None,
        description="No more is produced to and read back from each broker; what brokers copy"
        " among themselves is not counted.",
        examples=[10_000_000],
    )
    tasks: int | None = Field(
        default=None,
        description="How many tasks write, and then read back, at a time; without it as many as"
        " Spark has cores.",
        examples=[8],
    )

    before_command: str | None = Field(
        default=None,
        description="A command that stops the application before a restore to target, as"
        " --before-command, which wins: program and arguments, no shell, no secrets. Restores to"
        " another cluster, or under another application id, do not run it.",
        examples=["kubectl scale deployment/orders --replicas=0"],
    )
    after_command: str | None = Field(
        default=None,
        description="A command that starts it once its group offsets are committed, as"
        " --after-command, which wins.",
        examples=["kubectl scale deployment/orders --replicas=3"],
    )
    command_timeout_seconds: float = Field(
        default=_RESTORE.commands.timeout_s,
        description="How long each of these commands may take, and the group's members to leave.",
    )
    pass_on: list[str] = Field(
        default=[],
        description="Names of variables that these commands get from the environment of the"
        " restore, besides PATH, HOME, USER, LOGNAME, LANG, LC_ALL, TZ, TMPDIR, JAVA_HOME, the"
        " address of Kubernetes and KUBECONFIG.",
        examples=[["AWS_PROFILE"]],
    )

    def settings(self) -> RestoreSettings:
        """The settings of a restore; raises ConfigurationError."""
        if self.compression not in _CODECS:
            raise ConfigurationError(
                f"restore.compression is {self.compression!r}.",
                remedy=f"Give one of {', '.join(_CODECS)}.",
            )
        _at_least("delivery_timeout_seconds", self.delivery_timeout_seconds, 1, block="restore")
        _at_least("lock_wait_seconds", self.lock_wait_seconds, 0, block="restore")
        _check_limits("restore", self.bytes_per_second, self.broker_bytes_per_second, self.tasks)
        require_commands(
            self.before_command,
            self.after_command,
            self.command_timeout_seconds,
            block="restore.",
        )
        return RestoreSettings(
            target=self.target,
            compression=self.compression,
            delivery_timeout_s=self.delivery_timeout_seconds,
            lock_wait_s=self.lock_wait_seconds,
            verify=self.verify,
            commands=CommandSettings(
                before=self.before_command,
                after=self.after_command,
                timeout_s=self.command_timeout_seconds,
                pass_on=tuple(self.pass_on),
            ),
            bytes_per_s=self.bytes_per_second,
            broker_bytes_per_s=self.broker_bytes_per_second,
            tasks=self.tasks,
        )


LEAST_RATE: Final = 10_000


def _check_limits(block: str, rate: int | None, of_broker: int | None, tasks: int | None) -> None:
    """A rate of next to nothing would never end; raises ConfigurationError."""
    for setting, value, least in (
        ("bytes_per_second", rate, LEAST_RATE),
        ("broker_bytes_per_second", of_broker, LEAST_RATE),
        ("tasks", tasks, 1),
    ):
        if value is not None:
            _at_least(setting, value, least, block=block)


def _at_least(setting: str, value: float, lowest: float, *, block: str = "recovery_points") -> None:
    if not lowest <= value < float("inf"):
        raise ConfigurationError(
            f"{block}.{setting} is {value:g}.",
            remedy=f"Give a number of at least {lowest:g}"
            + (" (every_seconds)." if setting == "objective_seconds" else "."),
        )


def declarations(
    *,
    topics: dict[str, TopicModel],
    stores: dict[str, StoreModel],
    inputs: list[str],
    outputs: list[str],
    not_mine: list[str],
) -> Declarations:
    """What the YAML says about topics and stores; raises ConfigurationError."""
    return Declarations(
        topic_roles={
            name: TopicRoles(model.roles)
            for name, model in topics.items()
            if model.roles or not model.says_how_to_read
        },
        stores={
            name: declared
            for name, model in stores.items()
            if (declared := model.declaration(name)) is not None
        },
        inputs=frozenset(inputs),
        outputs=frozenset(outputs),
        not_mine=frozenset(not_mine),
        unconfirmed_topics={
            name: tuple(model.unconfirmed) for name, model in topics.items() if model.unconfirmed
        },
        unconfirmed_stores={
            name: tuple(model.unconfirmed) for name, model in stores.items() if model.unconfirmed
        },
    )
