"""Components: YAML in, Dagster definitions out."""

from kstreams_assets.components.kafka_streams_app import KafkaStreamsAppComponent

__all__ = ["KafkaStreamsAppComponent"]
