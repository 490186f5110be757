"""Names of assets, groups, pools and tags.

The last part of a key is what a node of the lineage shows: it says what the asset is. A topic is
`kafka/<topic>`, since applications share topics; all else begins with the application's id.
"""

from collections.abc import Iterable
from typing import Final

import dagster as dg

from kstreams_assets.app.names import folded as folded
from kstreams_assets.errors import ConfigurationError

GROUP_OFFSETS: Final = "group_offsets"
"""Stands among the topics of a restore."""
RESTORED_COMPLETENESS: Final = "restored_completeness"
"""Stands among the topics of a restore where there are completeness rules."""
DRILL_POOL: Final = "kstreams_drills"
"""The pool (size 1) of all drills: side by side they would measure each other."""


class CollidingNamesError(ConfigurationError):
    """Two names that Dagster cannot tell apart."""

    def __init__(self, *, first: str, second: str) -> None:
        super().__init__(
            f"Dagster cannot tell {first!r} and {second!r} apart: it folds names to letters, digits"
            " and underscores.",
            remedy="Leave one of the two out (a topic: list it under not_mine; a store: give it"
            " ktable: false; an application: put it into a code location of its own), or rename it"
            " in Kafka.",
        )
        self.first = first
        self.second = second


def refuse_collisions(names: Iterable[str]) -> None:
    """Refuse names of which two fold to the same identifier.

    Raises:
        CollidingNamesError: It names the two.
    """
    seen: dict[str, str] = {}
    for name in sorted(set(names)):
        other = seen.setdefault(folded(name), name)
        if other != name:
            raise CollidingNamesError(first=other, second=name)


def topic_key(topic: str) -> dg.AssetKey:
    """The external asset of a topic."""
    return dg.AssetKey(["kafka", topic])


def backup_key(application_id: str, topic: str) -> dg.AssetKey:
    """The backup of a topic of an application."""
    return dg.AssetKey([application_id, "backup", topic])


def ktable_key(application_id: str, store: str) -> dg.AssetKey:
    """The snapshots of a state store of an application, as a table."""
    return dg.AssetKey([application_id, "ktable", store])


def recovery_points_key(application_id: str) -> dg.AssetKey:
    """The recovery points of an application."""
    return dg.AssetKey([application_id, "recovery_points"])


def restore_key(application_id: str, topic: str) -> dg.AssetKey:
    """A topic of an application, restored to another cluster."""
    return dg.AssetKey([application_id, "restore", topic])


def group_offsets_key(application_id: str) -> dg.AssetKey:
    """The group offsets of a restored application."""
    return dg.AssetKey([application_id, "restore", GROUP_OFFSETS])


def governance_key(application_id: str) -> dg.AssetKey:
    """What an application's cluster shows, compared with what is declared."""
    return dg.AssetKey([application_id, "governance"])


def completeness_key(application_id: str) -> dg.AssetKey:
    """The completeness rules of an application, evaluated at each window."""
    return dg.AssetKey([application_id, "completeness"])


def restore_completeness_key(application_id: str) -> dg.AssetKey:
    """The completeness rules of an application, evaluated on a restored cluster."""
    return dg.AssetKey([application_id, "restore", RESTORED_COMPLETENESS])


def drill_key(application_id: str) -> dg.AssetKey:
    """The restore drills of an application."""
    return dg.AssetKey([application_id, "drill"])


def expire_key(application_id: str) -> dg.AssetKey:
    """What a policy keeps of the backups of an application."""
    return dg.AssetKey([application_id, "expire"])


def second_copy_key(application_id: str) -> dg.AssetKey:
    """What of an application is in the second copy of its warehouse."""
    return dg.AssetKey([application_id, "second_copy"])


def verification_key(application_id: str) -> dg.AssetKey:
    """The looks at all that the warehouse holds of an application."""
    return dg.AssetKey([application_id, "verification"])


def group(application_id: str, part: str) -> str:
    """The group of an application's topics, backups and so on."""
    return f"{folded(application_id)}/{part}"


def pool(application_id: str) -> str:
    """The pool (size 1) that keeps an application's tables to one writing process."""
    return f"kstreams_{folded(application_id)}"


def restore_pool(application_id: str) -> str:
    """The pool (size 1) that keeps an application to one restore at a time."""
    return f"kstreams_restore_{folded(application_id)}"


def completeness_pool(application_id: str) -> str:
    """The pool (size 1) that keeps an application to one evaluation of its rules at a time."""
    return f"kstreams_completeness_{folded(application_id)}"


def drill_schedule(application_id: str) -> str:
    """The schedule of an application's restore drills."""
    return f"{folded(application_id)}_drill"


def recovery_points_sensor(application_id: str) -> str:
    """The sensor that takes an application's recovery points."""
    return f"{folded(application_id)}_recovery_points"


def backups_sensor(application_id: str) -> str:
    """The sensor that requests an application's backups."""
    return f"{folded(application_id)}_backups"


def reports_sensor(application_id: str) -> str:
    """The sensor that reports what the ledger has and Dagster has not."""
    return f"{folded(application_id)}_reports"


def follow_up_sensor(application_id: str) -> str:
    """The sensor that requests KTables and rules of windows that are backed up."""
    return f"{folded(application_id)}_follow_up"
