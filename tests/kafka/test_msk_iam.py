"""Amazon MSK with IAM: tokens, and a broker that validates them as MSK does. Never run on MSK."""

import base64
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
from confluent_kafka.admin import AdminClient

from kstreams_assets.errors import AuthenticationFailedError, ConfigurationError
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.clients import java_config
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import CarriedConnection, KafkaConnection, MskIamSasl
from kstreams_assets.kafka.librdkafka import librdkafka_config
from kstreams_assets.kafka.msk_iam import LIFETIME_S, MskIamTokens
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from spark_resources.java import class_path, find_java
from tests.backup.writing import producer
from tests.streams.cluster import passing_cluster, unique_name

REGION, KEY, SECRET = "eu-central-1", "AKIDEXAMPLE0000", "wJalr/XUtn+FEMI=bPxRfiCYEXAMPLEKEY"
_SOURCE = Path(__file__).with_name("msk") / "MskTokenValidator.java"


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Credentials of AWS in the environment, and none elsewhere."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


def _connection(servers: str = "broker:9098", **sasl: object) -> KafkaConnection:
    return KafkaConnection.model_validate(
        {
            "bootstrap_servers": servers,
            "security_protocol": "SASL_PLAINTEXT",
            "request_timeout_seconds": 20,
            "sasl": {"mechanism": "AWS_MSK_IAM", "region": REGION, **sasl},
        }
    )


def _provider(**sasl: object) -> MskIamTokens:
    settings = _connection("broker:9098", **sasl).sasl
    assert isinstance(settings, MskIamSasl)
    return MskIamTokens(settings, bootstrap_servers="broker:9098")


def _signed_url(token: str) -> str:
    return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()


class TestToken:
    """What is signed."""

    def test_it_is_the_url_that_connects_to_the_cluster(self) -> None:
        token, ends_at = _provider().token_and_end()
        assert "=" not in token
        url = urlsplit(_signed_url(token))
        assert (url.scheme, url.netloc, url.path) == ("https", f"kafka.{REGION}.amazonaws.com", "/")
        query = dict(parse_qsl(url.query))
        date = query["X-Amz-Date"][:8]
        assert query.pop("X-Amz-Credential") == f"{KEY}/{date}/{REGION}/kafka-cluster/aws4_request"
        assert len(query.pop("X-Amz-Signature")) == 64
        del query["X-Amz-Date"]
        assert query == {
            "Action": "kafka-cluster:Connect",
            "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
            "X-Amz-Expires": str(LIFETIME_S),
            "X-Amz-SignedHeaders": "host",
            "User-Agent": "kstreams-assets",
        }
        assert 0 < ends_at - time.time() <= LIFETIME_S

    def test_a_session_token_is_part_of_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_SESSION_TOKEN", "of/a+role")
        query = dict(parse_qsl(urlsplit(_signed_url(_provider().token())).query))
        assert query["X-Amz-Security-Token"] == "of/a+role"

    def test_it_is_renewed_before_it_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        provider, now = _provider(), time.monotonic()
        first = provider.token_and_end()
        monkeypatch.setattr(time, "monotonic", lambda: now + 0.79 * LIFETIME_S)
        assert provider.token_and_end() == first
        monkeypatch.setattr(time, "monotonic", lambda: now + 0.81 * LIFETIME_S)
        assert provider.token_and_end() != first

    def test_without_credentials(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        with pytest.raises(AuthenticationFailedError, match="there are no AWS credentials"):
            _provider().token()

    def test_with_a_profile_that_is_absent(self) -> None:
        with pytest.raises(AuthenticationFailedError, match="no token was signed"):
            _provider(profile="nobody").token()


class TestConnection:
    """The block in the YAML."""

    def test_a_region_that_would_name_another_host_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="is not an AWS region"):
            _connection(region="evil.example.com/eu-central-1")

    def test_it_goes_to_tasks_without_a_secret(self) -> None:
        carried = CarriedConnection.of(_connection())
        assert carried.secrets == {}
        assert carried.opened() == _connection()

    def test_for_javas_client_it_is_the_library_of_aws(self) -> None:
        config = java_config(_connection(profile='pro"file'))
        assert config["sasl.mechanism"] == "AWS_MSK_IAM"
        assert config["sasl.jaas.config"] == (
            'software.amazon.msk.auth.iam.IAMLoginModule required awsProfileName="pro\\"file";'
        )
        handler = "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
        assert config["sasl.client.callback.handler.class"] == handler


@pytest.fixture(scope="module")
def msk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A broker that lets in whoever has a token of these keys."""
    folder = tmp_path_factory.mktemp("msk")
    compiler = find_java(compiler=True).compiler
    assert compiler is not None
    classes = folder / "classes"
    command = [compiler, "-cp", class_path("kafka"), "-d", classes, _SOURCE]
    subprocess.run(command, check=True, timeout=120)
    manifest = folder / "manifest"
    manifest.write_text("Premain-Class: MskTokenValidator\n", "ascii")
    agent = folder / "validator.jar"
    packs = [compiler.with_name("jar"), "cfm", agent, manifest, "-C", classes, "."]
    subprocess.run(packs, check=True, timeout=60)
    oauth = "org.apache.kafka.common.security.oauthbearer"
    listener = "listener.name.client.oauthbearer"
    with pytest.MonkeyPatch.context() as patch:
        keys = f"-Dmsk.key={KEY} -Dmsk.secret={SECRET} -Dmsk.region={REGION}"
        patch.setenv("JAVA_TOOL_OPTIONS", f"-javaagent:{agent} {keys}")
        with passing_cluster(
            folder / "broker",
            client_protocol="SASL_PLAINTEXT",
            properties={
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                f"{listener}.sasl.jaas.config": f"{oauth}.OAuthBearerLoginModule required;",
                f"{listener}.sasl.server.callback.handler.class": "MskTokenValidator",
            },
        ) as cluster:
            yield cluster


@pytest.mark.kafka
class TestBroker:
    """Each client gets in with a token, and not without."""

    def test_every_client_gets_in(self, msk: LocalCluster) -> None:
        topic, group = unique_name("seen"), unique_name("group")
        partition = TopicPartitionId(topic, 0)
        with KafkaCluster(_connection(msk.bootstrap_servers)) as cluster:
            cluster.create_topics([TopicSpec(topic, 1)])
            sender = producer(msk.internal_bootstrap_servers, linger_ms=0)
            sender.produce(topic, b"value")
            assert sender.flush(20) == 0
            assert list(cluster.describe_topics([topic])) == [topic]
            assert cluster.high_watermarks([partition]) == {partition: 1}
            cluster.commit_group_offsets(group, {partition: CommittedOffset(1, "")})
            assert cluster.group_offsets(group)[partition].offset == 1
        client = AdminClient(librdkafka_config(_connection(msk.bootstrap_servers)))
        assert topic in client.list_topics(timeout=20).topics

    def test_a_signature_by_another_key_is_refused(
        self, msk: LocalCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET[:-1])
        with KafkaCluster(_connection(msk.bootstrap_servers)) as cluster:
            with pytest.raises(AuthenticationFailedError):
                cluster.describe_topics(["t"])
            with pytest.raises(AuthenticationFailedError) as caught:
                cluster.group_offsets("g")
        assert SECRET[:-1] not in str(caught.value)

    def test_a_token_for_another_region_is_refused(self, msk: LocalCluster) -> None:
        with (
            KafkaCluster(_connection(msk.bootstrap_servers, region="us-east-1")) as cluster,
            pytest.raises(AuthenticationFailedError),
        ):
            cluster.group_offsets("g")
