"""The translator: the one place where the assets of an application get their keys."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Final

import dagster as dg

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.settings import ApplicationSettings

APPLICATION_TAG: Final = "kstreams/app"
"""Tag of every asset: its application."""


OUTAGE_RETRIES: Final = dg.RetryPolicy(max_retries=2, delay=20, backoff=dg.Backoff.LINEAR)
"""Two repetitions, after 20 and after 40 seconds."""


class AssetKind(StrEnum):
    """What an asset shows of an application."""

    TOPIC = "topic"
    RECOVERY_POINTS = "recovery_points"
    BACKUP = "backup"
    KTABLE = "ktable"
    COMPLETENESS = "completeness"
    RESTORABLE = "restorable"
    RESTORE = "restore"
    RESTORED_COMPLETENESS = "restored_completeness"
    GROUP_OFFSETS = "group_offsets"
    DRILL = "drill"
    GOVERNANCE = "governance"
    EXPIRE = "expire"
    VERIFICATION = "verification"
    SECOND_COPY = "second_copy"


_BELOW_RESTORE: Final = {AssetKind.RESTORED_COMPLETENESS, AssetKind.GROUP_OFFSETS}


@dataclass(frozen=True, slots=True)
class KafkaStreamsAsset:
    """One asset of an application, as a translator sees it.

    Attributes:
        kind: What it shows.
        application_id: The Kafka Streams `application.id`.
        name: The topic (`TOPIC`, `BACKUP`, `RESTORE`) or the state store (`KTABLE`), as Kafka has
            it; empty for assets of which an application has one.
    """

    kind: AssetKind
    application_id: str
    name: str = ""

    def __str__(self) -> str:
        """As an error names it."""
        of = f" {self.name!r}" if self.name else ""
        return f"{self.kind}{of} of {self.application_id}"


class KafkaStreamsTranslator:
    """Keys and attributes of the assets of an application; subclass it to change them.

    A key must depend on the asset alone: it is asked for at load time and in each run and tick.

    Examples:
        ```python
        class Production(KafkaStreamsTranslator):
            def get_asset_key(self, asset):
                return super().get_asset_key(asset).with_prefix("production")

            def get_asset_spec(self, asset, spec):
                if asset.kind is not AssetKind.KTABLE:
                    return spec
                return spec.replace_attributes(automation_condition=dg.AutomationCondition.eager())
        ```
    """

    def get_asset_key(self, asset: KafkaStreamsAsset) -> dg.AssetKey:
        """The key of an asset.

        A topic is `kafka/<topic>`, because applications share topics. All other keys begin with the
        application's id. The last part says what the asset is: the lineage shows it.
        """
        if asset.kind is AssetKind.TOPIC:
            return dg.AssetKey(["kafka", asset.name])
        path = [asset.application_id]
        if asset.kind in _BELOW_RESTORE:
            path.append(AssetKind.RESTORE)
        path.append(asset.kind)
        if asset.name:
            path.append(asset.name)
        return dg.AssetKey([str(part) for part in path])

    def get_asset_spec(
        self,
        asset: KafkaStreamsAsset,
        spec: dg.AssetSpec,
    ) -> dg.AssetSpec:
        """The spec of an asset; `spec` is the default one, with the key of `get_asset_key`.

        Change group, tags, owners, description, metadata or automation condition with
        `spec.replace_attributes` and `spec.merge_attributes`. The key stays.
        """
        return spec

    def get_retry_policy(self, kind: AssetKind) -> dg.RetryPolicy | None:
        """How often a step is repeated after an outage, and after which pauses; None: never.

        Asked for `BACKUP`, `KTABLE` and `COMPLETENESS`. Other failures are not repeated.
        """
        return OUTAGE_RETRIES


@dataclass(frozen=True, slots=True)
class DagsterSettings(ApplicationSettings):
    """The settings of an application with the translator of its assets."""

    translator: KafkaStreamsTranslator = field(default_factory=KafkaStreamsTranslator)

    @classmethod
    def of(
        cls, settings: ApplicationSettings, translator: KafkaStreamsTranslator | None
    ) -> "DagsterSettings":
        """The same settings with a translator; without one that which they have, or the default."""
        values = {one.name: getattr(settings, one.name) for one in fields(settings)}
        if translator is not None:
            values["translator"] = translator
        return cls(**values)


_DEFAULT: Final = KafkaStreamsTranslator()


def key_of(settings: ApplicationSettings, kind: AssetKind, name: str = "") -> dg.AssetKey:
    """The key of an asset of an application, as its translator gives it."""
    return translator_of(settings).get_asset_key(
        KafkaStreamsAsset(kind, settings.application_id, name)
    )


def translator_of(settings: ApplicationSettings) -> KafkaStreamsTranslator:
    """The translator of an application's assets."""
    return settings.translator if isinstance(settings, DagsterSettings) else _DEFAULT


_Asset = dg.AssetsDefinition | dg.AssetSpec


def translated(
    settings: ApplicationSettings, known: Iterable[KafkaStreamsAsset], assets: Iterable[_Asset]
) -> list[_Asset]:
    """Assets with the attributes that the translator gives them.

    Args:
        settings: Those of the application.
        known: Every asset that the application has.
        assets: Their definitions, with translated keys.

    Raises:
        ConfigurationError: The translator gives two assets one key, or one another key here.
    """
    translator = translator_of(settings)
    by_key = _by_key(translator, known)

    def translate(spec: dg.AssetSpec) -> dg.AssetSpec:
        asset = by_key[spec.key]
        found = translator.get_asset_spec(asset, spec)
        if found.key != spec.key:
            raise ConfigurationError(
                f"get_asset_spec of {type(translator).__name__} gives {asset} the key"
                f" {found.key.to_user_string()}; get_asset_key gives"
                f" {spec.key.to_user_string()}.",
                remedy="Change keys in get_asset_key only: dependencies, sensors and reports use"
                " it, too.",
            )
        kept = {"topic": spec.metadata["topic"]} if asset.kind is AssetKind.TOPIC else {}
        return found.merge_attributes(
            tags={APPLICATION_TAG: settings.application_id}, metadata=kept
        )

    return list(dg.map_asset_specs(translate, assets))


def _by_key(
    translator: KafkaStreamsTranslator, known: Iterable[KafkaStreamsAsset]
) -> dict[dg.AssetKey, KafkaStreamsAsset]:
    by_identifier: dict[str, KafkaStreamsAsset] = {}
    by_key: dict[dg.AssetKey, KafkaStreamsAsset] = {}
    for asset in known:
        key = translator.get_asset_key(asset)
        other = by_identifier.setdefault(key.to_python_identifier(), asset)
        if other != asset:
            raise ConfigurationError(
                f"{type(translator).__name__} gives {other} and {asset} keys that Dagster cannot"
                f" distinguish: {translator.get_asset_key(other).to_user_string()} and"
                f" {key.to_user_string()}.",
                remedy="Return a key of its own for each asset from get_asset_key: use asset.kind,"
                " asset.application_id and asset.name.",
            )
        by_key[key] = asset
    return by_key
