"""The whole YAML of an application, and the settings it produces."""

from pathlib import Path
from typing import Annotated

from pydantic import AliasChoices, Field

from kstreams_assets.app.declarations import Declarations, require_known
from kstreams_assets.app.governance import Governance
from kstreams_assets.app.model import BackupMode, StreamsApplication
from kstreams_assets.app.roles import application_from_declarations, application_from_topology
from kstreams_assets.app.rules import DeclaredRule
from kstreams_assets.app.selection import select_topics
from kstreams_assets.app.topology import Topology, read_topology
from kstreams_assets.app_file.blocks import (
    Owner,
    SensorStatus,
    StoreBlock,
    TopicBlock,
    declarations,
    require_stores,
    require_targets,
    store_formats,
)
from kstreams_assets.app_file.rules import topic_formats, with_rules
from kstreams_assets.app_file.yaml_lines import yaml_lines
from kstreams_assets.block import LOCATED, Block
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.registry import RegistryConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import (
    WAREHOUSE_STORE,
    ApplicationSettings,
    BackupSettings,
    DeclaredGuarantee,
    DrillSettings,
    ExecutorSettings,
    KeepSettings,
    RecoveryPointSettings,
    RestoreSettings,
    SecondCopySettings,
    TargetSettings,
    VerifySettings,
    WindowSchedule,
)
from kstreams_assets.store import ObjectStoreSettings


class ApplicationModel(Block):
    """One Kafka Streams application: topics with lineage, recovery points, backups and restores.

    Save the text of `Topology.describe()` in a file next to the YAML (`topology`), or declare
    topics with their roles; `kstreams-assets discover` writes both from a running application.
    """

    application_id: str = Field(description="The `application.id` of the application.")
    connection: Annotated[KafkaConnection, LOCATED] = Field(
        description="How to reach the cluster; secrets as {env: NAME}, {file: PATH} or"
        " {aws: {name: NAME}}."
    )
    warehouse: str = Field(
        description="Where the tables are: a folder on a local or mounted disk, or"
        " s3://bucket/prefix."
    )
    object_store: Annotated[ObjectStoreSettings, LOCATED] = Field(
        default=ObjectStoreSettings(),
        description="Connection settings of the warehouse's object store.",
    )
    object_store_resource: str = Field(
        default=WAREHOUSE_STORE,
        pattern=r"^[A-Za-z_]\w*$",
        description="Key of the S3Resource in Dagster for this store. Applications with the same"
        " store share it; an application with another store needs its own key.",
    )
    state_in: str | None = Field(
        default=None,
        validation_alias=AliasChoices("state_in", "notes_in"),
        description="Another place for the progress and reports of restores and drills, so that"
        " they only read the warehouse. Required to restore from a second copy. Former name:"
        " `notes_in`.",
    )
    windows: Annotated[WindowSchedule, LOCATED] = Field(
        description="How time is divided into windows."
    )
    topology: str | None = Field(
        default=None,
        description="File with the text of Topology.describe(), relative to this one.",
    )
    mode: BackupMode = Field(
        default=BackupMode.FULL,
        description="`full`: every role; `minimal`: inputs, globals and changelogs; `logs`: inputs,"
        " globals and outputs, from which no state can be restored.",
    )
    include: list[str] = Field(default=[], description="Globs of topics that the mode omits.")
    exclude: list[str] = Field(default=[], description="Globs of topics that are not backed up.")
    topics: dict[str, TopicBlock] = Field(
        default={}, description="Roles and formats of topics; roles override all other sources."
    )
    stores: dict[str, StoreBlock] = Field(
        default={}, description="Formats of stores, for tables, and their changelogs."
    )
    completeness: list[DeclaredRule] = Field(
        default=[], description="Rules that detect lost records."
    )
    governance: Governance | None = Field(
        default=None, description="Declarations about the application, compared with the cluster."
    )
    drill: DrillSettings = Field(default=DrillSettings(), description="How restore drills run.")
    second_copy: SecondCopySettings = Field(
        default=SecondCopySettings(), description="Where a second copy of the warehouse is."
    )
    verify: VerifySettings = Field(
        default=VerifySettings(), description="When the warehouse is checked for damage."
    )
    spark: ExecutorSettings = Field(
        default=ExecutorSettings(), description="When Spark is used to read Kafka."
    )
    schema_registry: Annotated[RegistryConnection | None, LOCATED] = Field(
        default=None,
        description="Where the schemas of Avro and Protobuf are (Confluent's REST interface).",
    )
    inputs: list[str] = Field(default=[], description="Further topics that the application reads.")
    outputs: list[str] = Field(default=[], description="Further topics that it writes.")
    not_mine: list[str] = Field(
        default=[], description="Topics of other applications, or that it no longer uses."
    )
    other_application_ids: list[str] = Field(
        default=[], description="Applications of the cluster whose ids start like this one."
    )
    owners: list[Owner] = Field(
        default=[],
        description="E-mail addresses or team:NAME. Dagster shows them as owners of every asset.",
    )
    tags: dict[str, str] = Field(default={}, description="Tags of every asset.")
    description: str = Field(default="", description="What the application does.")
    backup: BackupSettings = Field(default=BackupSettings(), description="How backups are written.")
    recovery_points: RecoveryPointSettings = Field(
        default=RecoveryPointSettings(), description="How recovery points are taken and kept."
    )
    guarantee: DeclaredGuarantee = Field(
        default=DeclaredGuarantee.AUTO,
        description="The application's own guarantee, which is also required of its recovery"
        " points: exact (exactly_once_v2) or at_least_once. auto: derived from its newest records;"
        " one instance without transactions makes it at_least_once.",
    )
    keep: KeepSettings | None = Field(
        default=None,
        description="Which recovery points `expire` keeps; by default those that the recorder"
        " keeps (`recovery_points.keep_all_hours`).",
    )
    restore: RestoreSettings = Field(
        default=RestoreSettings(), description="Default target of restores, and how they run."
    )
    targets: dict[str, TargetSettings] = Field(
        default={},
        description="Clusters to which restores write, by name: `restore run --target NAME`, and"
        " `target` in Dagster's launchpad.",
    )
    sensors: SensorStatus = Field(
        default=SensorStatus.STOPPED,
        description="Whether sensors (recovery points, backups, follow-up) run from the start.",
    )

    def settings(self, folder: Path, *, file: str = "defs.yaml") -> ApplicationSettings:
        """All settings, checked; `folder` contains the YAML `file`."""
        application = self.application(folder)
        require_stores(self.stores, application)
        require_targets(self.restore, self.targets)
        return with_rules(
            self._without_rules(application, folder),
            rules=self.completeness,
            stores=self.stores,
            lines=yaml_lines(folder / file, self.application_id),
        )

    def _without_rules(self, application: StreamsApplication, folder: Path) -> ApplicationSettings:
        warehouse = Warehouse.at(self.warehouse, self.object_store, state_in=self.state_in)
        repo = Repository.of(warehouse, self.application_id)
        return ApplicationSettings(
            application=application,
            topics=select_topics(
                application, mode=self.mode, include=self.include, exclude=self.exclude
            ),
            connection=self.connection,
            warehouse=warehouse,
            windows=self.windows.seen_since(repo.first_seen_ms),
            backup=self.backup,
            recovery_points=self.recovery_points,
            guarantee=self.guarantee,
            keep=self.keep,
            restore=self.restore,
            targets=dict(self.targets),
            store_formats=store_formats(self.stores),
            without_ktable=frozenset(n for n, model in self.stores.items() if not model.ktable),
            topic_formats=topic_formats(self.topics, application),
            governance=(self.governance or Governance()).of(application),
            drill=self.drill.in_folder(folder),
            second_copy=self.second_copy.beside(self.object_store),
            verify=self.verify,
            spark=self.spark,
            registry=self.schema_registry,
            object_store_resource=self.object_store_resource,
            sensors_running=self.sensors is SensorStatus.RUNNING,
            owners=tuple(self.owners),
            tags=dict(self.tags),
            description=self.description,
        )

    def application(self, folder: Path) -> StreamsApplication:
        """The application according to topology text and declarations."""
        return self.described(self.read_topology(folder))

    def read_topology(self, folder: Path) -> Topology | None:
        """The text of `topology`, None without one; `folder` contains the YAML."""
        if self.topology is None:
            return None
        file = folder / self.topology
        if not file.is_file():
            raise ConfigurationError(
                f"The topology file {file} does not exist.",
                remedy="Save the output of Topology.describe() under that name, or run"
                " kstreams-assets discover and declare the topics.",
            )
        return read_topology(file)

    def described(self, topology: Topology | None) -> StreamsApplication:
        """The application according to this topology (None for none) and the declarations."""
        said = self.declarations
        if topology is None:
            application = application_from_declarations(
                self.application_id, said, other_application_ids=self.other_application_ids
            )
        else:
            application = application_from_topology(
                self.application_id,
                topology,
                declarations=said,
                other_application_ids=self.other_application_ids,
            )
        where = f"application {self.application_id}"
        topics = {topic.name for topic in application.topics}
        require_known("topic", said.unconfirmed_topics.keys(), topics, where, keys=["topics"])
        return application

    @property
    def declarations(self) -> Declarations:
        """The declarations about topics and stores."""
        return declarations(
            topics=self.topics,
            stores=self.stores,
            inputs=self.inputs,
            outputs=self.outputs,
            not_mine=self.not_mine,
        )
