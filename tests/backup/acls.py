"""Rights of the user bob on a broker with an authorizer."""

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import (
    AclBinding,  # pyright: ignore[reportPrivateImportUsage]
    AclBindingFilter,  # pyright: ignore[reportPrivateImportUsage]
    AclOperation,  # pyright: ignore[reportPrivateImportUsage]
    AclPermissionType,  # pyright: ignore[reportPrivateImportUsage]
    AdminClient,
    ResourcePatternType,  # pyright: ignore[reportPrivateImportUsage]
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
)

from kstreams_assets.local.cluster import LocalCluster
from tests.timing import eventually

PASSWORD = "bob-secret"


@pytest.fixture(scope="module")
def secure_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A listener with passwords and ACLs, and an inner one for those who may do everything."""
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    with LocalCluster(
        tmp_path_factory.mktemp("rights"),
        client_protocol="SASL_PLAINTEXT",
        scram_users={"bob": PASSWORD},
        properties={"authorizer.class.name": authorizer, "super.users": "User:ANONYMOUS"},
    ) as cluster:
        yield cluster


class Acls:
    """Rights of bob."""

    def __init__(self, servers: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": servers})

    def allow(
        self, kind: ResourceType, name: str, operation: AclOperation, *, prefixed: bool = False
    ) -> None:
        """Give a right (on all whose names begin so), and wait until the broker heeds it."""
        pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
        binding = AclBinding(
            kind,
            name,
            pattern,
            "User:bob",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for future in self._admin.create_acls([binding], request_timeout=30).values():
            future.result(30)
        await_acl(self._admin, kind, name, operation, pattern=pattern)

    def withdraw(self, topic: str, operation: AclOperation) -> None:
        """Take a right on a topic away."""
        wanted = AclBindingFilter(
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.LITERAL,
            "User:bob",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for future in self._admin.delete_acls([wanted], request_timeout=30).values():
            assert len(future.result(30)) == 1
        await_acl(self._admin, ResourceType.TOPIC, topic, operation, is_there=False)


def await_acl(
    admin: AdminClient,
    kind: ResourceType,
    name: str,
    operation: AclOperation,
    *,
    pattern: ResourcePatternType = ResourcePatternType.LITERAL,
    is_there: bool = True,
) -> None:
    """The controller has accepted a change of bob's rights; the broker learns of it later."""
    wanted = AclBindingFilter(
        kind, name, pattern, "User:bob", "*", operation, AclPermissionType.ALLOW
    )
    assert eventually(
        lambda: bool(admin.describe_acls(wanted, request_timeout=30).result(30)) is is_there
    ), f"{name}: {operation}"
