"""The resources of examples/strimzi as Kafka has them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

CHECKOUT = Path(__file__).resolve().parents[3]
FOLDER = CHECKOUT / "examples/strimzi"


class Right(NamedTuple):
    """What a user may do, in the words of kafka-acls.sh."""

    kind: str
    name: str
    is_prefix: bool
    operation: str


def resources(name: str) -> list[dict[str, Any]]:
    """The resources of a file."""
    return list(yaml.safe_load_all((FOLDER / name).read_text("utf-8")))


def rights(name: str) -> Iterator[Right]:
    """The rights of the user in a file, as the User Operator creates them."""
    (user,) = resources(name)
    for acl in user["spec"]["authorization"]["acls"]:
        resource = acl["resource"]
        is_prefix = resource.get("patternType", "literal") == "prefix"
        for operation in acl["operations"]:
            yield Right(resource["type"], resource["name"], is_prefix, operation)
