"""The clusters of an application and of its targets as resources, for the assets of users."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from confluent_kafka.admin import AdminClient
from pydantic import SecretStr

from kstreams_assets.app_file.read import application_model
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.orchestration.component import build_application_definitions
from kstreams_assets.orchestration.kafka_resource import KafkaResource
from kstreams_assets.secret import Secret
from tests.orchestration.project import Project, attributes, specs_of

SECURED: dict[str, Any] = {
    "bootstrap_servers": "dr-1:9092, dr-2:9092",
    "security_protocol": "SASL_PLAINTEXT",
    "sasl": {"mechanism": "PLAIN", "username": "backup", "password": {"env": "DR_PASSWORD"}},
}


def test_an_application_brings_its_cluster_and_its_targets(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DR_PASSWORD", "hunter2")
    targets = {"dr": {"connection": SECURED}, "laptop": {}}
    project.write("shop", attributes("shop", targets=targets))
    project.write("stock", attributes("stock", connection={"bootstrap_servers": "other:1"}))
    definitions = project.load()
    specs_of(definitions)
    found = definitions.resources or {}

    assert {key: one.bootstrap_servers for key, one in found.items()} == {
        "kafka_shop": "localhost:1",
        "kafka_shop__dr": "dr-1:9092,dr-2:9092",
        "kafka_stock": "other:1",
    }
    target = found["kafka_shop__dr"]
    assert target.connection == KafkaConnection.model_validate(SECURED)
    assert target.client_config()["sasl.password"] == "hunter2"
    assert "hunter2" not in repr(target) + str(target.get_resource_definition().config_schema)


@pytest.mark.kafka
def test_an_asset_of_a_user_asks_the_cluster_of_the_application(
    kafka_cluster: LocalCluster,
) -> None:
    model = application_model(
        attributes(connection={"bootstrap_servers": kafka_cluster.bootstrap_servers})
    )

    @dg.asset
    def cluster_id(kafka_shop: KafkaResource) -> dg.MaterializeResult:
        admin = AdminClient(kafka_shop.client_config())
        with kafka_shop.cluster() as cluster:
            ours = cluster.cluster_id()
        theirs = admin.list_topics(timeout=20).cluster_id
        return dg.MaterializeResult(metadata={"ours": ours, "theirs": theirs or ""})

    definitions = build_application_definitions(model.settings(Path()))
    done = dg.materialize([cluster_id], resources=definitions.resources)
    (event,) = done.asset_materializations_for_node("cluster_id")
    expected = (kafka_cluster.data_dir / "cluster.id").read_text()
    assert [event.metadata[name].value for name in ("ours", "theirs")] == [expected, expected]


def test_a_secret_that_is_a_value_does_not_become_configuration() -> None:
    sasl = {**SECURED["sasl"], "password": Secret.of(SecretStr("hunter2"))}
    connection = KafkaConnection.model_validate({**SECURED, "sasl": sasl})
    with pytest.raises(ConfigurationError, match=r"sasl\.password") as caught:
        KafkaResource.of(connection)
    assert "hunter2" not in str(caught.value)
