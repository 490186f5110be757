"""A broker with passwords and ACLs for a whole test session."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr

from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.local.cluster import LocalCluster
from tests.streams.cluster import passing_cluster

PASSWORDS = {"alice": "alice\\s; s=$1 #", "bob": "bob-secret"}


@pytest.fixture(scope="session")
def guarded_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Alice may do everything, bob what a test gives him; the inner listener allows everything.

    It is another cluster than `kafka_cluster`, so restores of that one's topics go here, too.
    """
    with passing_cluster(
        tmp_path_factory.mktemp("guarded"),
        client_protocol="SASL_PLAINTEXT",
        scram_users=PASSWORDS,
        properties={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:alice",
        },
    ) as cluster:
        yield cluster


def connection_of(
    cluster: LocalCluster, user: str, *, password: str = "", **more: Any
) -> KafkaConnection:
    """How a user reaches the broker, by the own password or a wrong one."""
    return KafkaConnection.model_validate(
        {
            "bootstrap_servers": cluster.bootstrap_servers,
            "security_protocol": "SASL_PLAINTEXT",
            "request_timeout_seconds": 20,
            "sasl": {
                "mechanism": "SCRAM-SHA-512",
                "username": user,
                "password": SecretStr(password or PASSWORDS[user]),
            },
            **more,
        }
    )
