"""The chain of an application in one `dg.materialize`: topics, backups, table, rule, verdict."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest
from confluent_kafka import Producer

from kstreams_assets.app.model import Store, TopicRole
from kstreams_assets.app.rules import CompletenessRule
from kstreams_assets.app.store_format import Encoding, Format, StoreFormat
from kstreams_assets.components import AssetKind, KafkaStreamsAsset, KafkaStreamsTranslator
from kstreams_assets.model.groups import CommittedOffset
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.orchestration.component import build_application_definitions
from kstreams_assets.settings import ApplicationSettings, WindowSchedule
from spark_resources.resource import SparkSessionResource
from tests.e2e.test_dagster_run import take_point_in
from tests.streams.workbench import Workbench

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.e2e,
    pytest.mark.usefixtures("closed_in_order"),
]

ROWS = {"anna": 3, "ben": 0}


class Production(KafkaStreamsTranslator):
    """All keys below `production`."""

    def get_asset_key(self, asset: KafkaStreamsAsset) -> dg.AssetKey:
        """The default key with a prefix."""
        return super().get_asset_key(asset).with_prefix("production")


def _shop(workbench: Workbench) -> ApplicationSettings:
    """Two orders, a store with two totals, one of them against a rule; an empty group."""
    orders = workbench.topic("orders")
    compacted = {"cleanup.policy": "compact", "min.compaction.lag.ms": "86400000"}
    totals = workbench.topic("totals", role=TopicRole.CHANGELOG, configs=compacted)
    offsets = {TopicPartitionId(orders, 0): CommittedOffset(2, "")}
    producer = Producer({"bootstrap.servers": workbench.bootstrap_servers})
    for key, count in ROWS.items():
        producer.produce(orders, key)
        producer.produce(totals, count.to_bytes(8, "big"), key)
    assert producer.flush(20) == 0
    workbench.cluster.commit_group_offsets(workbench.application_id, offsets)
    settings = workbench.application_settings
    yesterday = f"{datetime.now(tz=UTC) - timedelta(days=1):%Y-%m-%d}"
    rule = CompletenessRule(
        name="no_empty_total",
        query="SELECT _key FROM totals WHERE _value = 0",
        views=("totals",),
    )
    formats = StoreFormat(key=Format(Encoding.STRING), value=Format(Encoding.LONG))
    return replace(
        settings,
        application=replace(settings.application, stores=(Store("totals", totals),)),
        windows=WindowSchedule.every("minute", start=yesterday),
        store_formats={"totals": formats},
        completeness=(rule,),
    )


def test_from_the_topics_to_the_verdict(workbench: Workbench, spark: SparkSessionResource) -> None:
    settings, translator = _shop(workbench), Production()
    window = f"{datetime.now(tz=UTC) - timedelta(minutes=10):%Y-%m-%d-%H:%M}"
    take_point_in(workbench, window)
    definitions = build_application_definitions(settings, translator)
    orders, totals = sorted(topic.name for topic in settings.topics)

    def key(kind: AssetKind, name: str = "") -> dg.AssetKey:
        return translator.get_asset_key(KafkaStreamsAsset(kind, settings.application_id, name))

    backups = [key(AssetKind.BACKUP, name) for name in (orders, totals)]
    table, rules = key(AssetKind.KTABLE, "totals"), key(AssetKind.COMPLETENESS)
    verdict = key(AssetKind.RESTORABLE)

    done = dg.materialize(
        [asset for asset in definitions.assets or () if isinstance(asset, dg.AssetsDefinition)],
        selection=[*backups, table, rules, verdict],
        resources={"spark": spark},
        partition_key=window,
    )

    records = {
        event.asset_key: event.materialization.metadata
        for event in done.get_asset_materialization_events()
    }
    assert {key: records[key]["records"].value for key in backups} == dict.fromkeys(backups, 2)
    assert records[table]["rows"].value == 2
    newest = max(workbench.points(), key=lambda point: point.taken_at_ms)
    assert records[verdict]["newest_exact_point"].value == newest.id
    checks = {(e.asset_key, e.check_name): e for e in done.get_asset_check_evaluations()}
    assert {asset for asset, _ in checks} == records.keys()
    red = {check for check, evaluated in checks.items() if not evaluated.passed}
    assert red == {(rules, "no_empty_total"), (verdict, "restorable")}
    assert checks[rules, "no_empty_total"].metadata["violations"].value == 1
    assert "windows are not backed up" in (checks[verdict, "restorable"].description or "")
