import pytest

from kstreams_assets.app.model import (
    AppTopic,
    BackupMode,
    StreamsApplication,
    TopicRole,
    TopicRoles,
)
from kstreams_assets.app.selection import select_topics
from kstreams_assets.errors import ConfigurationError

APP = StreamsApplication(
    "orders",
    tuple(
        AppTopic(name, TopicRoles(roles))
        for name, roles in sorted(
            {
                "Orders": {TopicRole.INPUT},
                "customers": {TopicRole.GLOBAL},
                "clean": {TopicRole.INPUT, TopicRole.OUTPUT},
                "orders-by-x-repartition": {TopicRole.REPARTITION},
                "orders-totals-changelog": {TopicRole.CHANGELOG},
                "totals": {TopicRole.OUTPUT},
            }.items()
        )
    ),
)
MINIMAL = ["Orders", "clean", "customers", "orders-totals-changelog"]


def _names(mode: BackupMode, **patterns: list[str]) -> list[str]:
    return [topic.name for topic in select_topics(APP, mode=mode, **patterns)]


def test_modes() -> None:
    assert _names(BackupMode.FULL) == [topic.name for topic in APP.topics]
    assert _names(BackupMode.MINIMAL) == MINIMAL
    assert _names(BackupMode.LOGS) == ["Orders", "clean", "customers", "totals"]


def test_a_topic_without_a_known_role_is_in_full_backups_alone() -> None:
    unknown = TopicRoles()
    assert [mode for mode in BackupMode if mode.includes(unknown)] == [BackupMode.FULL]


def test_include_adds_back_and_does_not_restrict() -> None:
    assert _names(BackupMode.MINIMAL, include=["tot*"]) == [*MINIMAL, "totals"]
    assert _names(BackupMode.FULL, include=["tot*"]) == [topic.name for topic in APP.topics]


def test_exclude_wins_over_include() -> None:
    selected = _names(BackupMode.MINIMAL, include=["*"], exclude=["*-repartition", "c?ean"])
    assert selected == ["Orders", "customers", "orders-totals-changelog", "totals"]


def test_patterns_are_case_sensitive_and_match_whole_names() -> None:
    assert "Orders" in _names(BackupMode.FULL, exclude=["orders*"])
    with pytest.raises(ConfigurationError):
        _names(BackupMode.FULL, exclude=["rders"])


@pytest.mark.parametrize("setting", ["include", "exclude"])
def test_a_pattern_without_match_is_an_error_with_near_names(setting: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        _names(BackupMode.FULL, **{setting: ["TOTALS*"]})
    assert f"The {setting} pattern 'TOTALS*'" in str(caught.value)
    assert "totals" in str(caught.value).split("(near: ")[1]


def test_nothing_left_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="remains for backup"):
        _names(BackupMode.FULL, exclude=["*"])
