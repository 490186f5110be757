"""Rights of the user bob on a broker with an authorizer."""

import time

from confluent_kafka.admin import (
    AclBinding,  # pyright: ignore[reportPrivateImportUsage]
    AclBindingFilter,  # pyright: ignore[reportPrivateImportUsage]
    AclOperation,  # pyright: ignore[reportPrivateImportUsage]
    AclPermissionType,  # pyright: ignore[reportPrivateImportUsage]
    AdminClient,
    ResourcePatternType,  # pyright: ignore[reportPrivateImportUsage]
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
)


class Acls:
    """Rights of bob."""

    def __init__(self, servers: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": servers})

    def allow(
        self, kind: ResourceType, name: str, operation: AclOperation, *, prefixed: bool = False
    ) -> None:
        """Give a right (on all whose names begin so), and wait until the broker heeds it."""
        binding = AclBinding(
            kind,
            name,
            ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL,
            "User:bob",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for future in self._admin.create_acls([binding], request_timeout=10).values():
            future.result(10)
        time.sleep(0.5)

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
        for future in self._admin.delete_acls([wanted], request_timeout=10).values():
            assert len(future.result(10)) == 1
        time.sleep(0.5)
