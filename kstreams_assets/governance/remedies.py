"""Commands of Kafka that mend what was found, and times as people write them. Pure."""

from typing import Final

_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def set_configs(bootstrap_servers: str, topic: str, **configs: str | int) -> str:
    """The command that sets configs of a topic; `_` in their names stands for a dot."""
    said = ",".join(
        f"{name.replace('_', '.')}=" + (f"[{value}]" if "," in str(value) else str(value))
        for name, value in configs.items()
    )
    return (
        f"kafka-configs.sh --bootstrap-server {bootstrap_servers} --alter --entity-type topics"
        f" --entity-name {topic} --add-config {said}"
    )


def delete_topic(bootstrap_servers: str, topic: str) -> str:
    """The command that deletes a topic."""
    return f"kafka-topics.sh --bootstrap-server {bootstrap_servers} --delete --topic {topic}"


def add_partitions(bootstrap_servers: str, topic: str, partitions: int) -> str:
    """The command that gives a topic more partitions."""
    return (
        f"kafka-topics.sh --bootstrap-server {bootstrap_servers} --alter --topic {topic}"
        f" --partitions {partitions}"
    )


def duration(milliseconds: int) -> str:
    """Milliseconds, and in brackets the same in the largest unit that is not too coarse."""
    if milliseconds < 0:
        return "without end"
    for length, unit in _UNITS:
        if milliseconds >= length:
            return f"{milliseconds} ms ({milliseconds / length:.3g} {unit})"
    return f"{milliseconds} ms"
