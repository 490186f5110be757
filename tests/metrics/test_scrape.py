"""A scrape of applications whose brokers are down."""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.metrics.collect import Scrape
from kstreams_assets.repository.repository import Repository
from tests.backup.samples import cut, point
from tests.metrics.exposed import Exposed, when_up
from tests.orchestration.requesting import settings_of


def test_without_a_broker_the_warehouse_still_tells(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    patient = KafkaConnection(bootstrap_servers="127.0.0.1:1", request_timeout_seconds=60)
    settings = replace(settings_of(tmp_path), connection=patient)
    Repository.open(settings).points.append(point(1_800_000_000_000, cut(0, 5)))
    scrape = Scrape([settings], timeout_s=3)
    began = time.monotonic()
    scrape.collect()
    assert time.monotonic() - began < 30  # half of what a request may take
    found = when_up(partial(Exposed.of, scrape), source="warehouse")
    up = {s: found.one("kstreams_up", source=s) for s in ("cluster", "group")}
    assert up == {"cluster": 0, "group": 0}
    point_at = found.one("kstreams_recovery_point_timestamp_seconds", kind="newest")
    assert point_at == 1_800_000_000
    assert not {name for name in found.names if name.startswith(("kstreams_lag", "kstreams_log"))}
    assert caplog.text.count("Kafka at 127.0.0.1:1 did not answer within") >= 2


def test_each_application_by_itself(tmp_path: Path) -> None:
    one = settings_of(tmp_path)
    other = replace(
        one,
        application=replace(one.application, application_id="other"),
        warehouse=Warehouse(tmp_path / "gone"),
    )
    scrape = Scrape([one, other], timeout_s=2)
    found = when_up(partial(Exposed.of, scrape), application_id="shop", source="warehouse")
    assert found.one("kstreams_up", application_id="other", source="warehouse") == 0
