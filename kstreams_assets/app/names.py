"""The names of Kafka Streams' internal topics, and the applications they belong to.

Source of the rules: `ProcessorStateManager.storeChangelogTopic`, `ProcessorContextUtils` and
`StreamsResetter.matchesInternalTopicFormat` of Kafka Streams 4.x.
"""

import re
from collections.abc import Iterable

_CHANGELOG_SUFFIX = "-changelog"

# Topics between two sub-topologies, without the prefix. The topics of a foreign-key join do not end
# in "-repartition", whether named or not.
_REPARTITION = re.compile(
    r".+-repartition"
    r"|.+-subscription-registration-topic"
    r"|.+-subscription-response-topic"
    r"|(?:.+-)?KTABLE-FK-JOIN-SUBSCRIPTION-(?:REGISTRATION|RESPONSE)-[0-9]+-topic"
)

_RESPONSE = re.compile(
    r"-subscription-response-topic$|KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-[0-9]+-topic$"
)

BROKER_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Topics of the brokers themselves; a subscription by pattern never reads them."""

LONGEST_NAME = 249
"""Kafka's limit: a partition's folder, with number and suffix, must fit into a file name."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def name_problem(name: str) -> str | None:
    """Why Kafka rejects a topic name, None if it is valid (`Topic.validate` of Kafka)."""
    if not name:
        return "is empty"
    if name in (".", ".."):
        return "is a folder name"
    if len(name) > LONGEST_NAME:
        return f"has {len(name)} characters, Kafka allows {LONGEST_NAME}"
    if not _LEGAL.fullmatch(name):
        return "contains characters other than letters, digits, '.', '_' and '-'"
    if name in BROKER_TOPICS:
        return "belongs to the brokers"
    return None


def internal_topic(prefix: str, name: str) -> str:
    """The name on the cluster of the internal topic `name` of a topology text."""
    return f"{prefix}-{name}"


def changelog_of(application_id: str, store: str) -> str:
    """The changelog topic of a logged store."""
    return internal_topic(application_id, store + _CHANGELOG_SUFFIX)


def store_of(application_id: str, topic: str) -> str | None:
    """The store whose changelog has this name; None if it is not a changelog name."""
    rest = _without_prefix(application_id, topic)
    if rest is None or not is_changelog_name(rest):
        return None
    return rest.removesuffix(_CHANGELOG_SUFFIX)


def is_changelog_name(name: str) -> bool:
    """Whether a name without prefix is a changelog name."""
    return len(name) > len(_CHANGELOG_SUFFIX) and name.endswith(_CHANGELOG_SUFFIX)


def is_repartition_name(name: str) -> bool:
    """Whether a name without prefix is a repartition or foreign-key subscription topic."""
    return _REPARTITION.fullmatch(name) is not None


def is_subscription_response_name(name: str) -> bool:
    """Whether a name without prefix is the response topic of a foreign-key join."""
    return is_repartition_name(name) and _RESPONSE.search(name) is not None


def is_internal_name(application_id: str, topic: str) -> bool:
    """Whether Kafka Streams could have created this topic for this application.

    Stricter than Kafka's own reset tool: the part between prefix and suffix must not be empty, so
    `orders-eu-changelog` is a changelog of `orders` and not of `orders-eu`.
    """
    rest = _without_prefix(application_id, topic)
    return rest is not None and (is_changelog_name(rest) or is_repartition_name(rest))


def repartition_name(application_id: str, topic: str) -> str | None:
    """The part after the prefix of a repartition or subscription topic; None for other topics."""
    rest = _without_prefix(application_id, topic)
    return rest if rest is not None and is_repartition_name(rest) else None


def owner_of(topic: str, application_ids: Iterable[str]) -> str | None:
    """The application of a topic with an internal name; None if it matches none of them.

    The longest application id wins: `orders-eu-x-changelog` belongs to `orders-eu`, not to
    `orders`.
    """
    owners = [known for known in application_ids if is_internal_name(known, topic)]
    return max(owners, key=len, default=None)


def _without_prefix(application_id: str, topic: str) -> str | None:
    prefix = application_id + "-"
    return topic[len(prefix) :] if topic.startswith(prefix) else None


def sanitize_name(name: str) -> str:
    """The identifier that Dagster makes of a name."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)
