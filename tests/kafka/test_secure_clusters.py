"""Every kind of connection against a real broker, through each of the three clients."""

import contextlib
import json
import logging
import subprocess
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,  # pyright: ignore[reportPrivateImportUsage]
    AclOperation,  # pyright: ignore[reportPrivateImportUsage]
    AclPermissionType,  # pyright: ignore[reportPrivateImportUsage]
    AdminClient,
    ResourcePatternType,  # pyright: ignore[reportPrivateImportUsage]
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
)
from kafka import KafkaAdminClient
from pydantic import SecretStr

from kstreams_assets.errors import (
    AuthenticationFailedError,
    AuthorizationFailedError,
    KStreamsAssetsError,
    TopicNotFoundError,
)
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.clients import java_config, tame_client_logs
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection, OAuthBearerSasl
from kstreams_assets.kafka.librdkafka import librdkafka_config
from kstreams_assets.kafka.raw_log import RawLogReader
from kstreams_assets.kafka.wire import kafka_python_arguments
from kstreams_assets.local.cluster import properties_text
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from spark_resources.jars import verify_jars
from spark_resources.java import find_java
from tests.backup.acls import await_acl
from tests.kafka.oidc import AUDIENCE, ISSUER, TokenEndpoint
from tests.kafka.tls import Authority
from tests.moto_server import Moto, moto, moto_server
from tests.streams.cluster import passing_cluster, unique_name

__all__ = ["moto", "moto_server"]
pytestmark = pytest.mark.kafka

# every character that JAAS, properties files or a shell could trip over
PASSWORD = 'al"ice\\s; sécret=$1 #'
CLIENT_SECRET = 'oidc"secret\\;#x'
LIMIT_S = 5.0
_ALLOWED_URLS = "org.apache.kafka.sasl.oauthbearer.allowed.urls"


@dataclass(frozen=True)
class SecureCluster:
    """A broker with what a client needs to be let in."""

    address: str
    internal_address: str
    authority: Authority
    endpoint: TokenEndpoint | None = None

    def connection(self, protocol: str, **settings: object) -> KafkaConnection:
        """A connection with a short time limit that trusts the broker's authority."""
        ssl = {"ca": self.authority.root} | dict(settings.pop("ssl", {}))  # type: ignore[call-overload]
        return KafkaConnection.model_validate(
            {
                "bootstrap_servers": self.address,
                "security_protocol": protocol,
                "request_timeout_seconds": LIMIT_S,
                "ssl": ssl,
                **settings,
            }
        )

    def sasl(self, mechanism: str, user: str, password: str) -> KafkaConnection:
        """A connection with user name and password."""
        sasl = {"mechanism": mechanism, "username": user, "password": SecretStr(password)}
        return self.connection("SASL_SSL", sasl=sasl)

    def oidc(self, secret: str = CLIENT_SECRET) -> KafkaConnection:
        """A connection with a token."""
        assert self.endpoint is not None
        sasl = {
            "mechanism": "OAUTHBEARER",
            "client_id": self.endpoint.client_id,
            "client_secret": SecretStr(secret),
            "token_endpoint_url": self.endpoint.url,
            "scope": "kafka",
        }
        return self.connection("SASL_SSL", sasl=sasl)


def _broker_tls(authority: Authority, client_auth: str) -> dict[str, str]:
    broker = authority.issue("broker")
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": broker.chain,
        "ssl.keystore.key": broker.pkcs8,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": authority.root,
        "ssl.client.auth": client_auth,
    }


def _jaas(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


@pytest.fixture(scope="module")
def sasl_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCluster]:
    """SASL_SSL with PLAIN, SCRAM and OAUTHBEARER, and ACLs that give only alice every right."""
    directory: Path = tmp_path_factory.mktemp("sasl")
    authority = Authority()
    security = "org.apache.kafka.common.security"
    client = "listener.name.client"
    with contextlib.ExitStack() as stack:
        endpoint = stack.enter_context(TokenEndpoint("oidc-client", CLIENT_SECRET))
        keys = endpoint.write_keys(directory / "jwks.json")
        properties = _broker_tls(authority, "none") | {
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            f"{client}.plain.sasl.jaas.config": f"{security}.plain.PlainLoginModule required"
            f' user_alice="{_jaas(PASSWORD)}" user_bob="bob-secret";',
            f"{client}.oauthbearer.sasl.jaas.config": f"{security}.oauthbearer"
            ".OAuthBearerLoginModule required;",
            f"{client}.oauthbearer.sasl.server.callback.handler.class": f"{security}.oauthbearer"
            ".OAuthBearerValidatorCallbackHandler",
            "sasl.oauthbearer.jwks.endpoint.url": keys,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:alice;User:oidc-client",
        }
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys}"
        patch.setenv("JAVA_TOOL_OPTIONS", allowed)
        cluster = stack.enter_context(
            passing_cluster(
                directory / "broker",
                properties=properties,
                client_protocol="SASL_SSL",
                scram_users={"alice": "scram-secret", "bob": "bob-secret"},
            )
        )
        patch.undo()
        yield SecureCluster(
            cluster.bootstrap_servers, cluster.internal_bootstrap_servers, authority, endpoint
        )


@pytest.fixture(scope="module")
def mutual_tls_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCluster]:
    """SSL with client certificates required."""
    authority = Authority()
    with passing_cluster(
        tmp_path_factory.mktemp("mtls"),
        properties=_broker_tls(authority, "required"),
        client_protocol="SSL",
    ) as cluster:
        yield SecureCluster(
            cluster.bootstrap_servers, cluster.internal_bootstrap_servers, authority
        )


@pytest.fixture(scope="module")
def tls_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCluster]:
    """SSL that only encrypts."""
    authority = Authority()
    with passing_cluster(
        tmp_path_factory.mktemp("tls"),
        properties=_broker_tls(authority, "none"),
        client_protocol="SSL",
    ) as cluster:
        yield SecureCluster(
            cluster.bootstrap_servers, cluster.internal_bootstrap_servers, authority
        )


def _java_topics(connection: KafkaConnection, directory: Path) -> list[str]:
    """The topics as Kafka's own Java tool lists them over this connection."""
    settings = directory / "client.properties"
    settings.write_text(properties_text(java_config(connection).items()), "ascii")
    system = (
        [f"-D{_ALLOWED_URLS}={connection.sasl.token_endpoint_url}"]
        if isinstance(connection.sasl, OAuthBearerSasl)
        else []
    )
    result = subprocess.run(
        [
            str(find_java().executable),
            "-XX:TieredStopAtLevel=1",
            *system,
            "-cp",
            f"{verify_jars('kafka', hashes=False)}/*",
            "org.apache.kafka.tools.TopicCommand",
            "--bootstrap-server",
            connection.bootstrap_servers,
            "--command-config",
            str(settings),
            "--list",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    return result.stdout.split()


def _python_topics(connection: KafkaConnection) -> list[str]:
    tame_client_logs()
    client = KafkaAdminClient(
        **kafka_python_arguments(connection),
        bootstrap_timeout_ms=10_000,  # pyright: ignore[reportCallIssue]
    )
    try:
        return list(client.list_topics())
    finally:
        client.close()


def _assert_all_clients_get_in(
    connection: KafkaConnection, internal_address: str, directory: Path
) -> None:
    topic = unique_name("seen")
    with KafkaCluster(KafkaConnection(bootstrap_servers=internal_address)) as admin:
        admin.create_topics([TopicSpec(topic, 1)])
    partition = TopicPartitionId(topic, 0)
    with KafkaCluster(connection) as cluster:
        assert list(cluster.describe_topics([topic])) == [topic]
        assert cluster.high_watermarks([partition]) == {partition: 0}
        assert cluster.group_state(unique_name("group")) is None
    client = AdminClient(librdkafka_config(connection))
    assert topic in client.list_topics(timeout=10).topics
    assert topic in _python_topics(connection)
    assert topic in _java_topics(connection, directory)


@pytest.mark.parametrize(
    ("mechanism", "password"),
    [("PLAIN", PASSWORD), ("SCRAM-SHA-512", "scram-secret")],
)
def test_password_mechanisms_get_in(
    sasl_cluster: SecureCluster, tmp_path: Path, mechanism: str, password: str
) -> None:
    connection = sasl_cluster.sasl(mechanism, "alice", password)
    _assert_all_clients_get_in(connection, sasl_cluster.internal_address, tmp_path)


def test_tokens_of_an_oidc_provider_get_in(sasl_cluster: SecureCluster, tmp_path: Path) -> None:
    _assert_all_clients_get_in(sasl_cluster.oidc(), sasl_cluster.internal_address, tmp_path)


def test_tls_gets_in(tls_cluster: SecureCluster, tmp_path: Path) -> None:
    connection = tls_cluster.connection("SSL")
    _assert_all_clients_get_in(connection, tls_cluster.internal_address, tmp_path)


@pytest.mark.parametrize("encrypted", [False, True])
def test_client_certificate_with_its_chain_gets_in(
    mutual_tls_cluster: SecureCluster, tmp_path: Path, encrypted: bool
) -> None:
    """The broker trusts the root only, so each client must send the intermediate too."""
    issued = mutual_tls_cluster.authority.issue("client")
    certificate = tmp_path / "client.pem"
    certificate.write_text(issued.chain)
    ssl: dict[str, object] = {"certificate": str(certificate)}
    key = tmp_path / "key.pem"
    key.write_text(issued.encrypted("key-secret") if encrypted else issued.pkcs8)
    ssl["private_key"] = {"file": str(key)}
    if encrypted:
        ssl["key_password"] = SecretStr("key-secret")
    connection = mutual_tls_cluster.connection("SSL", ssl=ssl)
    _assert_all_clients_get_in(connection, mutual_tls_cluster.internal_address, tmp_path)


def _both_refusals(connection: KafkaConnection) -> list[AuthenticationFailedError]:
    """What the librdkafka side and the kafka-python side of the control plane say."""
    refusals = []
    with KafkaCluster(connection) as cluster:
        for call in (lambda: cluster.describe_topics(["t"]), lambda: cluster.group_offsets("g")):
            with pytest.raises(AuthenticationFailedError) as caught:
                call()
            refusals.append(caught.value)
    return refusals


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_wrong_password_is_told_at_once_and_never_shown(
    sasl_cluster: SecureCluster,
    mechanism: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = "wr0ng-pa55word"
    connection = sasl_cluster.sasl(mechanism, "alice", wrong)
    patient = connection.model_copy(update={"request_timeout_seconds": 60.0})
    started = time.monotonic()
    refusals = _both_refusals(patient)
    assert time.monotonic() - started < 40  # nobody waited for the timeout
    shown = caplog.text + "".join(capfd.readouterr())
    for refusal in refusals:
        assert mechanism in str(refusal)
        assert "uthentication" in refusal.reason or "redential" in refusal.reason
        shown += "".join(traceback.format_exception(refusal)) + repr(refusal.__dict__)
    shown += repr(connection) + str(connection) + connection.model_dump_json()
    assert wrong not in shown
    assert "Traceback" not in caplog.text


def test_right_password_is_in_no_log(
    sasl_cluster: SecureCluster,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    for mechanism, password in (("PLAIN", "bob-secret"), ("SCRAM-SHA-256", "bob-secret")):
        with KafkaCluster(sasl_cluster.sasl(mechanism, "bob", password)) as cluster:
            for call in (
                lambda: cluster.describe_topics(["t"]),
                lambda: cluster.group_offsets("g"),
            ):
                with pytest.raises(AuthorizationFailedError):
                    call()
    assert "Authenticated as bob" in caplog.text  # the logs are really captured
    shown = caplog.text + "".join(capfd.readouterr())
    assert "bob-secret" not in shown


def test_refused_client_secret(
    sasl_cluster: SecureCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for refusal in _both_refusals(sasl_cluster.oidc("wr0ng-client-secret")):
        assert "OAUTHBEARER" in str(refusal)
        assert "wr0ng-client-secret" not in str(refusal) + caplog.text


def test_untrusted_broker_certificate(tls_cluster: SecureCluster) -> None:
    stranger = SecureCluster(tls_cluster.address, "", Authority("stranger"))
    for refusal in _both_refusals(stranger.connection("SSL")):
        assert "certificate" in refusal.reason


def test_missing_client_certificate(mutual_tls_cluster: SecureCluster) -> None:
    for refusal in _both_refusals(mutual_tls_cluster.connection("SSL")):
        assert "certificate" in refusal.reason.lower()


def test_host_name_is_verified_unless_told_otherwise(tls_cluster: SecureCluster) -> None:
    elsewhere = tls_cluster.address.replace("127.0.0.1", "localhost")  # not in the certificate
    connection = SecureCluster(elsewhere, "", tls_cluster.authority)
    for refusal in _both_refusals(connection.connection("SSL")):
        assert "certificate" in refusal.reason or "mismatch" in refusal.reason
    lax = connection.connection("SSL", ssl={"verify_host_name": False})
    with KafkaCluster(lax) as cluster:
        with pytest.raises(TopicNotFoundError):
            cluster.describe_topics(["nothing"])
        assert cluster.group_state("nobody") is None


class TestRights:
    """bob may do only what each test grants him; every refusal names operation, resource, right."""

    @pytest.fixture
    def topic(self, sasl_cluster: SecureCluster) -> str:
        """A topic bob has no right on."""
        name = unique_name("guarded")
        internal = KafkaConnection(bootstrap_servers=sasl_cluster.internal_address)
        with KafkaCluster(internal) as admin:
            admin.create_topics([TopicSpec(name, 1)])
        return name

    @pytest.fixture
    def bob(self, sasl_cluster: SecureCluster) -> KafkaConnection:
        """A user without rights."""
        return sasl_cluster.sasl("PLAIN", "bob", "bob-secret")

    def _grant(
        self,
        cluster: SecureCluster,
        name: str,
        *operations: AclOperation,
        kind: ResourceType = ResourceType.TOPIC,
    ) -> None:
        admin = AdminClient({"bootstrap.servers": cluster.internal_address})
        bindings = [
            AclBinding(
                kind,
                name,
                ResourcePatternType.LITERAL,
                "User:bob",
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for operation in operations
        ]
        for future in admin.create_acls(bindings, request_timeout=30).values():
            future.result(timeout=30)
        for operation in operations:
            await_acl(admin, kind, name, operation)

    def _assert_refusal(self, error: KStreamsAssetsError, resource: str, needed: str) -> None:
        assert isinstance(error, AuthorizationFailedError)
        assert resource in error.resource
        assert error.needed == needed
        assert needed in str(error)

    def test_without_describe(self, bob: KafkaConnection, topic: str) -> None:
        partition = TopicPartitionId(topic, 0)
        with KafkaCluster(bob) as cluster, RawLogReader(bob) as raw:
            assert topic not in cluster.topics()
            calls = (
                lambda: cluster.describe_topics([topic]),
                lambda: cluster.last_stable_offsets([partition]),
                lambda: list(raw.scan(partition, 0, 1, deadline_s=LIMIT_S)),
            )
            for call in calls:
                with pytest.raises(AuthorizationFailedError) as caught:
                    call()
                self._assert_refusal(caught.value, topic, "DESCRIBE")

    def test_without_describe_on_the_group(self, bob: KafkaConnection) -> None:
        with KafkaCluster(bob) as cluster:
            for call in (cluster.group_offsets, cluster.group_state):
                with pytest.raises(AuthorizationFailedError) as caught:
                    call("orders-app")
                self._assert_refusal(caught.value, "group orders-app", "DESCRIBE")

    def test_without_describe_configs(
        self, sasl_cluster: SecureCluster, bob: KafkaConnection, topic: str
    ) -> None:
        self._grant(sasl_cluster, topic, AclOperation.DESCRIBE)
        with KafkaCluster(bob) as cluster:
            with pytest.raises(AuthorizationFailedError) as caught:
                cluster.describe_topics([topic])
            self._assert_refusal(caught.value, topic, "DESCRIBE_CONFIGS")

    def test_without_read(
        self, sasl_cluster: SecureCluster, bob: KafkaConnection, topic: str
    ) -> None:
        self._grant(sasl_cluster, topic, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
        with KafkaCluster(bob) as cluster:
            assert topic in cluster.topics()
            with pytest.raises(AuthorizationFailedError) as caught:
                cluster.require_read([topic])
            self._assert_refusal(caught.value, topic, "READ")
        with RawLogReader(bob) as raw:
            with pytest.raises(AuthorizationFailedError) as caught:
                list(raw.scan(TopicPartitionId(topic, 0), 0, 1, deadline_s=LIMIT_S))
            self._assert_refusal(caught.value, topic, "READ")

    def test_with_read(self, sasl_cluster: SecureCluster, bob: KafkaConnection, topic: str) -> None:
        operations = (AclOperation.READ, AclOperation.DESCRIBE_CONFIGS)
        self._grant(sasl_cluster, topic, *operations)
        with KafkaCluster(bob) as cluster:
            cluster.require_read([topic])

    def test_unseen_transactions_come_with_a_reason(self, bob: KafkaConnection) -> None:
        with KafkaCluster(bob) as cluster:
            seen = cluster.transactional_topics("orders")
        assert seen.topics == frozenset()
        assert seen.reason is not None
        assert "DESCRIBE" in seen.reason

    def test_committing_and_deleting_offsets(
        self, sasl_cluster: SecureCluster, bob: KafkaConnection, topic: str
    ) -> None:
        group = unique_name("group")
        partition = TopicPartitionId(topic, 0)
        offsets = {partition: CommittedOffset(1, "")}
        with KafkaCluster(bob) as cluster:
            calls = (
                (lambda: cluster.commit_group_offsets(group, offsets), "READ"),
                (lambda: cluster.delete_group_offsets(group, offsets), "DELETE"),
            )
            self._grant(sasl_cluster, group, AclOperation.DESCRIBE, kind=ResourceType.GROUP)
            assert cluster.group_operations(group) == {"DESCRIBE"}
            for call, needed in calls:
                with pytest.raises(AuthorizationFailedError) as caught:
                    call()
                self._assert_refusal(caught.value, f"group {group}", needed)
            rights = (AclOperation.READ, AclOperation.DELETE)
            self._grant(sasl_cluster, group, *rights, kind=ResourceType.GROUP)
            assert cluster.group_operations(group) == {"DESCRIBE", "READ", "DELETE"}
            internal = KafkaConnection(bootstrap_servers=sasl_cluster.internal_address)
            with KafkaCluster(internal) as admin:
                admin.commit_group_offsets(group, offsets)  # else there is nothing to delete
            for call, _ in calls:
                with pytest.raises(AuthorizationFailedError) as caught:
                    call()
                self._assert_refusal(caught.value, f"topic {topic}", "READ")
            self._grant(sasl_cluster, topic, AclOperation.READ)
            for call, _ in calls:
                call()
            assert cluster.group_offsets(group) == {}

    def test_creating_and_altering_topics(
        self, sasl_cluster: SecureCluster, bob: KafkaConnection, topic: str
    ) -> None:
        new = unique_name("new")
        with KafkaCluster(bob) as cluster:
            problems = cluster.validate_topics([TopicSpec(new, 1), TopicSpec(topic, 1)])
            assert set(problems) == {new, topic}
            for name, problem in problems.items():
                self._assert_refusal(problem, f"topic {name}", "CREATE")
            with pytest.raises(AuthorizationFailedError) as caught:
                cluster.alter_topic_configs({topic: {"retention.ms": "-1"}})
            self._assert_refusal(caught.value, f"topic {topic}", "ALTER_CONFIGS")
            self._grant(sasl_cluster, new, AclOperation.CREATE)
            assert list(cluster.validate_topics([TopicSpec(new, 1), TopicSpec(topic, 1)])) == [
                topic
            ]
            self._grant(sasl_cluster, topic, AclOperation.ALTER_CONFIGS)
            cluster.alter_topic_configs({topic: {"retention.ms": "-1"}})


def test_a_password_in_aws_secrets_manager(sasl_cluster: SecureCluster, moto: Moto) -> None:
    """Our requests and those of librdkafka, with a value of a JSON secret."""
    arn = moto.secret(json.dumps({"username": "alice", "password": PASSWORD}))
    password = {"aws": {"name": arn, "key": "password"}}
    sasl = {"mechanism": "PLAIN", "username": "alice", "password": password}
    connection = sasl_cluster.connection("SASL_SSL", sasl=sasl)
    topic = unique_name("aws")
    with KafkaCluster(connection) as cluster:
        cluster.create_topics([TopicSpec(topic, partitions=1)])
        assert set(cluster.describe_topics([topic])) == {topic}


def test_a_wrong_password_in_aws_secrets_manager_is_not_shown(
    sasl_cluster: SecureCluster, moto: Moto
) -> None:
    password = {"aws": {"name": moto.secret("wrong-hunter2")}}
    sasl = {"mechanism": "PLAIN", "username": "alice", "password": password}
    connection = sasl_cluster.connection("SASL_SSL", sasl=sasl)
    with KafkaCluster(connection) as cluster, pytest.raises(AuthenticationFailedError) as caught:
        cluster.cluster_id()
    assert "wrong-hunter2" not in "".join(traceback.format_exception(caught.value))
