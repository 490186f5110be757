"""YAML in, assets out; and what is said when the YAML is wrong."""

from pathlib import Path
from typing import Any, ClassVar

import jsonschema
import pytest

from kstreams_assets.app_file.read import application_model
from kstreams_assets.components import KafkaStreamsAppComponent
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.kafka.connection import KafkaConnection, PasswordSasl
from kstreams_assets.orchestration.component import build_application_definitions
from kstreams_assets.settings import RestoreSettings
from tests.orchestration.project import Project, attributes, edges, messages_of, specs_of

SECRET = "hunter2-do-not-show"


def _fails(project: Project) -> str:
    """Everything that Dagster says on loading the project."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Dagster wraps it in its own errors
        project.graph()
    return messages_of(caught.value)


class TestAssets:
    """What becomes of an application."""

    def test_every_topic_has_a_backup_and_every_store_a_table(self, project: Project) -> None:
        project.write("shop", attributes())
        topics = {"in", "out", "shop-s-changelog"}
        assert set(project.graph()) == {
            "shop/recovery_points",
            *(f"kafka/{topic}" for topic in topics),
            *(f"shop/backup/{topic}" for topic in topics),
            "shop/ktable/s",
            *(f"shop/restore/{topic}" for topic in topics),
            "shop/restore/group_offsets",
            "shop/governance",
            "shop/restorable",
            "shop/verification",
        }

    def test_minimal_include_and_exclude(self, project: Project) -> None:
        project.write("shop", attributes(mode="minimal", include=["o*"], exclude=["in"]))
        backups = {key for key in project.graph() if key.startswith("shop/backup/")}
        assert backups == {"shop/backup/out", "shop/backup/shop-s-changelog"}

    def test_owners_tags_and_groups(self, project: Project) -> None:
        project.write("shop", attributes("shop.eu", owners=["team:shop"], tags={"domain": "x"}))
        specs = project.graph()
        assert all(spec.owners == ["team:shop"] for spec in specs.values())
        assert all(spec.tags["domain"] == "x" for spec in specs.values())
        assert {spec.group_name for spec in specs.values()} == {
            "shop_eu/topics",
            "shop_eu/backups",
            "shop_eu/ktables",
            "shop_eu/restore",
            "shop_eu/governance",
            "shop_eu/restorable",
            "shop_eu/verification",
        }

    def test_python_users_get_the_same(self, project: Project) -> None:
        project.write("shop", attributes())
        component = application_model(attributes())
        made = specs_of(build_application_definitions(component.settings(Path.cwd())))
        assert made.keys() == project.graph().keys()
        assert edges(made) == edges(project.graph())

    def test_topology_text_gives_edges(self, project: Project, order_processor: str) -> None:
        said = attributes("shop", topology="topology.txt")
        del said["topics"]
        path = project.write("shop", said)
        path.with_name("topology.txt").write_text(order_processor)
        repartition, changelog = (
            "kafka/shop-orders-by-customer-repartition",
            "kafka/shop-order-totals-changelog",
        )
        assert {edge for edge in edges(project.graph()) if edge[1].startswith("kafka/")} == {
            ("kafka/orders", repartition),
            (repartition, changelog),
            (changelog, "kafka/customer-totals"),
            ("kafka/orders", "kafka/orders-rejected"),
        }


class TestSeveralApplications:
    """They share topics, and nothing else."""

    def _topics(self, **roles: str) -> dict[str, Any]:
        return {"topics": {name.replace("__", "-"): {"roles": [r]} for name, r in roles.items()}}

    def test_two_versions_read_the_same_input(self, project: Project) -> None:
        for version in ("v1", "v2"):
            topics = self._topics(orders="input", **{f"totals__{version}": "output"})
            project.write(version, attributes(f"shop-{version}", **topics))
        specs = project.graph()
        assert ("kafka/orders", "shop-v1/backup/orders") in edges(specs)
        assert ("kafka/orders", "shop-v2/backup/orders") in edges(specs)
        tags = specs["kafka/orders"].tags
        assert {"kstreams/app-shop_v1", "kstreams/app-shop_v2"} <= tags.keys()
        assert specs["kafka/orders"].kinds == {"kafka", "topic", "source"}
        description = specs["kafka/orders"].description or ""
        assert "of `shop-v1`" in description
        assert "of `shop-v2`" in description

    def test_the_output_of_one_is_the_input_of_another(
        self, project: Project, order_processor: str
    ) -> None:
        first = attributes("first", topology="topology.txt", owners=["team:a"])
        del first["topics"]
        path = project.write("first", first)
        path.with_name("topology.txt").write_text(order_processor)
        topics = self._topics(customer__totals="input", report="output")
        project.write("second", attributes("second", **topics, owners=["team:b"]))
        specs = project.graph()
        shared = specs["kafka/customer-totals"]
        assert [dep.asset_key.to_user_string() for dep in shared.deps] == [
            "kafka/first-order-totals-changelog"
        ]
        assert shared.kinds == {"kafka", "topic"}
        assert shared.group_name == "first/topics"
        assert shared.owners == ["team:a", "team:b"]
        assert {"kstreams/role-output", "kstreams/role-input"} <= shared.tags.keys()
        assert ("kafka/customer-totals", "second/backup/customer-totals") in edges(specs)

    def test_several_in_one_file(self, project: Project) -> None:
        project.write("both", attributes("one"), attributes("two"))
        assert {"one/backup/in", "two/backup/in"} <= project.graph().keys()


class TestCollidingNames:
    """Dagster folds names; we say so in our own words."""

    def test_within_one_application(self) -> None:
        topics = {"a.b": {"roles": ["input"]}, "a_b": {"roles": ["output"]}}
        component = application_model(attributes(topics=topics))
        with pytest.raises(ConfigurationError, match=r"cannot tell 'a\.b' and 'a_b' apart"):
            build_application_definitions(component.settings(Path.cwd()))

    def test_across_two_applications(self, project: Project) -> None:
        for name, topic in (("one", "a.b"), ("two", "a_b")):
            project.write(name, attributes(name, topics={topic: {"roles": ["input"]}}))
        assert "cannot tell 'a.b' and 'a_b' apart" in _fails(project)

    def test_two_application_ids(self, project: Project) -> None:
        for name, topic in (("shop.eu", "x"), ("shop-eu", "y")):
            project.write(topic, attributes(name, topics={topic: {"roles": ["input"]}}))
        assert "cannot tell 'shop-eu' and 'shop.eu' apart" in _fails(project)


class TestWrongYaml:
    """One clear error, with the key and the file."""

    @pytest.mark.parametrize(
        ("change", "key"),
        [
            ({"applicaton": "x"}, "applicaton"),
            (
                {"connection": {"bootstrap_servers": "a:1", "security-protocol": "SSL"}},
                "security-protocol",
            ),
        ],
    )
    def test_unknown_key(self, project: Project, change: dict[str, Any], key: str) -> None:
        path = project.write("shop", attributes(**change))
        text = _fails(project)
        assert key in text
        assert str(path) in text or str(path.relative_to(project.root)) in text


class TestRestore:
    """The block `restore`."""

    def _settings(self, **block: Any) -> RestoreSettings:
        component = application_model(attributes(restore=block))
        return component.settings(Path.cwd()).restore

    def test_where_and_who(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TARGET_SERVERS", "b:2")
        password = {"env": "TARGET_PASSWORD"}
        said = self._settings(
            target={
                "bootstrap_servers": "{{ env('TARGET_SERVERS') }}",
                "security_protocol": "SASL_SSL",
                "sasl": {"mechanism": "PLAIN", "username": "u", "password": password},
            },
        )
        assert isinstance(said.target, KafkaConnection)
        assert said.target.bootstrap_servers == "b:2"
        assert isinstance(said.target.sasl, PasswordSasl)
        assert said.target.sasl.password.env == "TARGET_PASSWORD"

    def test_a_secret_of_the_target_in_clear(self, project: Project) -> None:
        target = {
            "bootstrap_servers": "a:1",
            "security_protocol": "SASL_SSL",
            "sasl": {"mechanism": "PLAIN", "username": "u", "password": SECRET},
        }
        project.write("shop", attributes(restore={"target": target}))
        text = _fails(project)
        assert "A secret is given as a plain str" in text
        assert SECRET not in text


class TestControl:
    """Where requests to commit on demand go."""

    TOKEN: ClassVar[dict[str, str]] = {"env": "SHOP_CONTROL_TOKEN"}

    def test_addresses_and_a_token(self, project: Project) -> None:
        urls = ["http://shop-control:7071", "http://[::1]:7071/"]
        points = {"control_urls": urls, "control_token": self.TOKEN}
        project.write("shop", attributes(recovery_points=points))
        assert "shop/recovery_points" in project.graph()

    @pytest.mark.parametrize(
        ("points", "problem"),
        [
            ({"control_urls": ["http://a:1"]}, "must be set together"),
            ({"control_token": TOKEN}, "must be set together"),
            (
                {"control_urls": ["http://a:1"], "control_token": TOKEN, "control_topic": "c"},
                "are both set",
            ),
            (
                {"control_urls": ["http://a:1", "https://b:1"], "control_token": TOKEN},
                "address 2 is not an http address",
            ),
            ({"control_urls": ["http://a"], "control_token": TOKEN}, "not of the form"),
            ({"control_urls": ["http://a:1/x"], "control_token": TOKEN}, "not of the form"),
            ({"control_urls": [f"http://u:{SECRET}@a:1"], "control_token": TOKEN}, "credentials"),
            ({"control_urls": ["http://a:1"], "control_token": SECRET}, "given as a plain str"),
        ],
    )
    def test_what_is_refused(self, project: Project, points: dict[str, Any], problem: str) -> None:
        project.write("shop", attributes(recovery_points=points))
        text = _fails(project)
        assert problem in text
        assert SECRET not in text


class TestSensors:
    """Whether the sensors are on."""

    @pytest.mark.parametrize("status", ["running", "stopped"])
    def test_sensors_take_their_status_from_the_yaml(
        self, project: Project, monkeypatch: pytest.MonkeyPatch, status: str
    ) -> None:
        monkeypatch.setenv("SHOP_SENSORS", status)
        project.write("shop", attributes("shop.eu", sensors="{{ env('SHOP_SENSORS', 'stopped') }}"))
        sensors = {sensor.name: sensor for sensor in project.load().sensors or ()}
        by_yaml = {"shop_eu_recovery_points", "shop_eu_backups", "shop_eu_follow_up"}
        assert sensors.keys() == {*by_yaml, "shop_eu_reports", "shop_eu_restorable"}
        assert {sensors[name].default_status.value.lower() for name in by_yaml} == {status}
        for name in ("shop_eu_reports", "shop_eu_restorable"):
            assert sensors[name].default_status.value == "RUNNING"


class TestSecrets:
    """They are named in YAML, and shown nowhere."""

    CONNECTION: ClassVar[dict[str, Any]] = {
        "bootstrap_servers": "localhost:1",
        "security_protocol": "SASL_SSL",
        "sasl": {
            "mechanism": "SCRAM-SHA-512",
            "username": "backup",
            "password": {"env": "KAFKA_PASSWORD"},
        },
    }

    def test_nowhere(self, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KAFKA_PASSWORD", SECRET)
        project.write("shop", attributes(connection=self.CONNECTION))
        definitions = project.load()
        shown = [repr(definitions)]
        for spec in specs_of(definitions).values():
            shown += [repr(spec), repr(spec.metadata), repr(spec.tags), str(spec.description)]
        component = application_model(attributes(connection=self.CONNECTION))
        settings = component.settings(Path.cwd())
        shown += [repr(component), str(component), repr(settings), str(settings.connection)]
        assert settings.connection.sasl is not None
        assert "KAFKA_PASSWORD" in repr(component)
        assert SECRET not in "\n".join(shown)

    def test_a_secret_in_clear_is_refused_and_not_repeated(self, project: Project) -> None:
        connection = {**self.CONNECTION, "sasl": {**self.CONNECTION["sasl"], "password": SECRET}}
        project.write("shop", attributes(connection=connection))
        text = _fails(project)
        assert "{env: NAME}" in text
        assert SECRET not in text

    def test_the_environment_need_not_hold_it_to_load(self, project: Project) -> None:
        project.write("shop", attributes(connection=self.CONNECTION))
        assert "shop/backup/in" in project.graph()


@pytest.mark.parametrize(
    ("seconds", "accepted"), [(5, True), ("{{ env('EVERY', '5') }}", True), ("soon", False)]
)
def test_a_number_may_come_from_the_environment(seconds: object, accepted: bool) -> None:
    schema = KafkaStreamsAppComponent.get_model_cls().model_json_schema()
    document = attributes("shop", recovery_points={"every_seconds": seconds})
    assert jsonschema.Draft202012Validator(schema).is_valid(document) is accepted
