"""examples/ for Spring Boot, Strimzi and Confluent Cloud: the files load, and say what docs say."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kstreams_assets.app.model import TopicRole
from kstreams_assets.app_file.read import load_settings
from kstreams_assets.kafka.connection import KafkaConnection, MskIamSasl, PasswordSasl
from kstreams_assets.settings import ApplicationSettings, DeclaredGuarantee
from tests.docs.documents import blocks
from tests.examples.platforms.strimzi import CHECKOUT, Right, resources, rights

EXAMPLES = CHECKOUT / "examples"
PLATFORMS = ("spring_boot", "strimzi", "confluent_cloud", "msk")
HOW_TO = CHECKOUT / "docs/how-to"


def _settings(platform: str, folder: Path) -> ApplicationSettings:
    return load_settings(EXAMPLES / platform / "defs.yaml", warehouse=str(folder / "warehouse"))


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_application_loads_with_its_topology(platform: str, tmp_path: Path) -> None:
    settings = _settings(platform, tmp_path)
    assert settings.application_id == "order-processor"
    assert {topic.name for topic in settings.topics} == {
        "orders",
        "orders-rejected",
        "customer-totals",
        "order-processor-orders-by-customer-repartition",
        "order-processor-order-totals-changelog",
    }
    for name, secret in settings.connection.secrets():
        assert secret.source.startswith(("environment variable ", "file /etc/")), name


@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_file_is_named_in_its_how_to(platform: str) -> None:
    page = HOW_TO / f"use-with-{platform.replace('_', '-')}.md"
    text = page.read_text("utf-8")
    assert f"examples/{platform}" in text
    for file in (EXAMPLES / platform).iterdir():
        assert file.name in text or file.name == "topology.txt", file.name


def test_what_never_ran_says_so() -> None:
    for platform, name in {"confluent-cloud": "Confluent Cloud", "msk": "MSK"}.items():
        example = EXAMPLES / platform.replace("-", "_") / "defs.yaml"
        for file in (example, HOW_TO / f"use-with-{platform}.md"):
            assert re.search(f"never run on {name}", file.read_text("utf-8"), re.IGNORECASE)


class TestSpringBoot:
    """application.yml and defs.yaml describe one cluster, by the table of the how-to."""

    @pytest.fixture
    def spring(self) -> dict[str, Any]:
        file = EXAMPLES / "spring_boot/application.yml"
        return yaml.safe_load(file.read_text("utf-8"))["spring"]

    def test_both_files_have_the_same_values(self, spring: dict[str, Any], tmp_path: Path) -> None:
        settings, kafka = _settings("spring_boot", tmp_path), spring["kafka"]
        connection = settings.connection
        streams = kafka["streams"]
        assert settings.application_id == streams.get(
            "application-id", spring["application"]["name"]
        )
        assert connection.bootstrap_servers == kafka["bootstrap-servers"]
        assert connection.security_protocol == kafka["security"]["protocol"]
        assert connection.ssl is not None
        assert f"file:{connection.ssl.ca}" == kafka["ssl"]["trust-store-certificates"]
        assert connection.sasl is not None
        assert connection.sasl.mechanism == kafka["properties"]["sasl.mechanism"]
        assert streams["properties"]["processing.guarantee"] == "exactly_once_v2"
        assert settings.guarantee is DeclaredGuarantee.EXACT

    def test_every_property_of_the_table_is_in_the_file_or_of_other_security(
        self, spring: dict[str, Any]
    ) -> None:
        page = (HOW_TO / "use-with-spring-boot.md").read_text("utf-8")
        named = set(re.findall(r"^\| `(spring\.[\w.-]+)`", page, re.MULTILINE))
        assert len(named) >= 9
        absent = {name for name in named if not _has({"spring": spring}, name)}
        assert absent == {
            "spring.kafka.streams.application-id",
            "spring.kafka.ssl.key-store-certificate-chain",
        }

    def test_the_backup_has_another_user_than_the_application(
        self, spring: dict[str, Any], tmp_path: Path
    ) -> None:
        sasl = _settings("spring_boot", tmp_path).connection.sasl
        assert isinstance(sasl, PasswordSasl)
        login = spring["kafka"]["properties"]["sasl.jaas.config"]
        assert f'username="{sasl.username}"' not in login


def _has(tree: Any, name: str) -> bool:
    """Whether a property is there; keys may contain dots."""
    if not name:
        return True
    if not isinstance(tree, dict):
        return False
    return any(
        name == key or (name.startswith(f"{key}.") and _has(inner, name[len(key) + 1 :]))
        for key, inner in tree.items()
    )


class TestStrimzi:
    """Topics and rights are those of the application and of the docs."""

    def test_the_topics_are_the_inputs_and_outputs(self, tmp_path: Path) -> None:
        settings = _settings("strimzi", tmp_path)
        declared = {topic["metadata"]["name"] for topic in resources("topics.yaml")}
        roles = {TopicRole.INPUT, TopicRole.GLOBAL, TopicRole.OUTPUT}
        assert declared == {t.name for t in settings.application.topics if t.roles & roles}

    def test_the_rights_of_a_backup_are_those_of_the_docs(self) -> None:
        inputs_and_outputs = ("orders", "customer-totals", "orders-rejected")
        found = set(rights("user-backup.yaml"))
        documented = set(_documented_rights())
        for name in set(inputs_and_outputs) - {right.name for right in documented}:
            one = {right for right in documented if right.name == "orders"}
            documented |= {right._replace(name=name) for right in one}
        assert found == documented

    def test_the_rights_of_a_restore_are_those_of_the_docs(self) -> None:
        page = (HOW_TO / "connect-to-a-secured-cluster.md").read_text("utf-8")
        sentence = re.search(
            r"needs on the \*\*target\*\* (.+?) on the\s+topics, and (.+?) on the group"
            r" \((.+?) as well for ",
            page.replace("\n", " "),
        )
        assert sentence is not None
        of_topics, of_group, of_rollback = (
            {word.title().replace("_", "") for word in re.findall("`([A-Z_]+)`", part)}
            for part in sentence.groups()
        )
        for right in rights("user-restore.yaml"):
            allowed = of_topics if right.kind == "topic" else of_group | of_rollback
            assert right.operation in allowed
        for kind, operations in (("topic", of_topics), ("group", of_group | of_rollback)):
            by_name: dict[str, set[str]] = {}
            for right in rights("user-restore.yaml"):
                if right.kind == kind:
                    by_name.setdefault(right.name, set()).add(right.operation)
            assert all(found == operations for found in by_name.values())

    @pytest.mark.parametrize("name", ["user-backup.yaml", "user-restore.yaml"])
    def test_the_user_is_the_one_of_the_connection(self, name: str, tmp_path: Path) -> None:
        settings = _settings("strimzi", tmp_path)
        assert isinstance(settings.restore.target, KafkaConnection)
        of_connections = {
            connection.sasl.username
            for connection in (settings.connection, settings.restore.target)
            if isinstance(connection.sasl, PasswordSasl)
        }
        (user,) = resources(name)
        assert user["metadata"]["name"] in of_connections
        assert user["spec"]["authentication"]["type"] == "scram-sha-512"


_OF_IAM = {
    "ReadData": ("topic", "Read"),
    "WriteData": ("topic", "Write"),
    "CreateTopic": ("topic", "Create"),
    "DescribeTopicDynamicConfiguration": ("topic", "DescribeConfigs"),
    "AlterTopicDynamicConfiguration": ("topic", "AlterConfigs"),
    "AlterGroup": ("group", "Read"),
    "DescribeGroup": ("group", "Describe"),
    "DeleteGroup": ("group", "Delete"),
    "DescribeTransactionalId": ("transactional-id", "Describe"),
}
"""What right of Kafka each action of IAM is."""


class TestMsk:
    """IAM policies give the rights that Strimzi's users have."""

    @pytest.mark.parametrize("of", ["backup", "restore"])
    def test_the_policy_gives_the_rights_of_the_docs(self, of: str) -> None:
        assert set(_rights_by_iam(f"policy-{of}.json")) == set(rights(f"user-{of}.yaml"))

    @pytest.mark.parametrize("of", ["backup", "restore"])
    def test_who_reads_or_writes_a_topic_may_describe_it_and_connect(self, of: str) -> None:
        first, *others = _statements(f"policy-{of}.json")
        assert first["Action"] == ["kafka-cluster:Connect"]
        for statement in others:
            actions = {action.partition(":")[2] for action in statement["Action"]}
            assert "DescribeTopic" in actions or not actions & {"ReadData", "WriteData"}

    def test_the_source_and_the_target_are_in_their_regions(self, tmp_path: Path) -> None:
        settings = _settings("msk", tmp_path)
        target = settings.restore.target
        assert isinstance(target, KafkaConnection)
        for connection, policy in ((settings.connection, "backup"), (target, "restore")):
            assert isinstance(connection.sasl, MskIamSasl)
            regions = {
                resource.split(":")[3]
                for statement in _statements(f"policy-{policy}.json")
                for resource in statement["Resource"]
            }
            assert regions == {connection.sasl.region}


def _statements(name: str) -> list[dict[str, list[str]]]:
    return json.loads((EXAMPLES / "msk" / name).read_text("utf-8"))["Statement"]


def _rights_by_iam(name: str) -> Iterator[Right]:
    for statement in _statements(name):
        for resource in statement["Resource"]:
            kind, *_, called = resource.split(":")[5].split("/")
            for action in statement["Action"]:
                of_kind, operation = _OF_IAM.get(action.partition(":")[2], ("", ""))
                if of_kind != kind:
                    assert action in ("kafka-cluster:Connect", "kafka-cluster:DescribeTopic")
                    continue
                words = "transactionalId" if kind == "transactional-id" else kind
                yield Right(words, called.removesuffix("*"), called.endswith("*"), operation)


def _documented_rights() -> list[Right]:
    """The commands of docs/how-to/connect-to-a-secured-cluster.md, for this application."""
    page = HOW_TO / "connect-to-a-secured-cluster.md"
    (text,) = [b.text for b in blocks("bash") if b.file == page and "kafka-acls.sh" in b.text]
    kinds = {"--topic": "topic", "--group": "group", "--transactional-id": "transactionalId"}
    found = []
    for line in text.splitlines():
        words = shlex.split(line.replace("orders-app", "order-processor"))
        if not words or words[0] != "$acls":
            continue
        options = list(zip(words[1::2], words[2::2], strict=True))
        operations = [value for option, value in options if option == "--operation"]
        is_prefix = ("--resource-pattern-type", "prefixed") in options
        found += [
            Right(kinds[option], name, is_prefix, operation)
            for option, name in options
            if option in kinds
            for operation in operations
        ]
    return found
