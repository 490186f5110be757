"""Kafka Streams applications to look at, and the demo."""
