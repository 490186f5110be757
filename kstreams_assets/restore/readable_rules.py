"""Which completeness rules can be judged on a restored cluster, and why the others cannot. Pure."""

from collections.abc import Iterable
from typing import Final

from kstreams_assets.app.model import TopicRole
from kstreams_assets.completeness.rule import Place
from kstreams_assets.completeness.runnable import Runnable, runnables_of
from kstreams_assets.completeness.view import ViewKind
from kstreams_assets.restore.request import ChangelogSource, InputsExtent, RestoreMode
from kstreams_assets.restore.restores_table import StoredRestore
from kstreams_assets.settings import ApplicationSettings

_INPUT_ONLY: Final = frozenset({TopicRole.INPUT.value})


def rules_on_restores(settings: ApplicationSettings) -> list[Runnable]:
    """The rules with place `restore`, and the recomputed stores."""
    return [rule for rule in runnables_of(settings) if Place.RESTORE in rule.on]


def why_not_judged(rule: Runnable, restore: StoredRestore) -> str:
    """Why a rule cannot be judged on the target, and what can be done; empty if it can.

    What the backup itself lacks is seen when the rule is evaluated.
    """
    if restore.mode is not RestoreMode.STATE:
        return (
            f"The restore (mode {restore.mode.value}) brings back inputs only, everything else is"
            " recomputed. Evaluate the rule at a window once the application has caught up."
        )
    restored = {topic.source: topic for topic in restore.topics}
    views = [view for view, _ in rule.views.values()]
    absent = {view.topic for view in views} - restored.keys()
    if absent:
        return (
            f"The restore leaves out {_join(absent)}, which the rule reads. Restore all topics to"
            " have it judged."
        )
    asked = restore.asked
    read = {view.topic for view in views if view.kind is ViewKind.TOPIC}
    inputs = {topic for topic in read if frozenset(restored[topic].roles) == _INPUT_ONLY}
    if asked.get("inputs") == InputsExtent.TAIL.value and inputs:
        return (
            f"Only the tail of {_join(inputs)} was restored, but the rule reads it. Restore with"
            " inputs: full to have it judged."
        )
    logs = {topic for topic in read if TopicRole.CHANGELOG.value in restored[topic].roles}
    if asked.get("changelog_source") == ChangelogSource.SNAPSHOT.value and logs:
        return (
            f"{_join(logs)} was written from KTable snapshots, one record of each key, but the rule"
            " reads its log. Restore with changelog_source: raw to have it judged."
        )
    return ""


def _join(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
