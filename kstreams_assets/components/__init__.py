"""Components: YAML in, Dagster definitions out."""

from kstreams_assets.orchestration.component import KafkaStreamsAppComponent

__all__ = ["KafkaStreamsAppComponent"]
