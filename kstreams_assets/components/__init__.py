"""Components: YAML in, Dagster definitions out."""

from kstreams_assets.orchestration.component import KafkaStreamsAppComponent
from kstreams_assets.orchestration.translator import (
    AssetKind,
    KafkaStreamsAsset,
    KafkaStreamsTranslator,
)

__all__ = [
    "AssetKind",
    "KafkaStreamsAppComponent",
    "KafkaStreamsAsset",
    "KafkaStreamsTranslator",
]
