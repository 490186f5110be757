"""Which points have the KTable snapshots that a restore needs, and what is said of the others."""

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import replace
from typing import Any

import pytest

from kstreams_assets.app.store_format import StoreFormat, StoreKind
from kstreams_assets.checks import Finding
from kstreams_assets.ktables.snapshot import Snapshot, SnapshotPartition, TableStore
from kstreams_assets.offsets import OffsetRange
from kstreams_assets.restore.plan import SnapshotSource
from kstreams_assets.restore.planner import plan_topics
from kstreams_assets.restore.preconditions import Facts, refusals
from kstreams_assets.restore.selection import WantedTopic
from kstreams_assets.restore.snapshots import (
    ChosenSnapshot,
    SnapshotState,
    from_raw_logs,
    other_cuts,
)
from kstreams_assets.warehouse.spans import Window
from tests.restore.planning_samples import findings, point, stored, stored_topic, target, there
from tests.restore.snapshot_samples import CHANGELOG, snapshot, store

P = point().id
CLOSED = {P: "w1", "other": "w2"}


def _state(
    stores: Iterable[TableStore],
    snapshots: Iterable[Snapshot],
    *,
    excluded: Set[str] = frozenset(),
    topics: Mapping[str, Set[str]] | None = None,
) -> SnapshotState:
    def topics_at(ids: Collection[str]) -> Mapping[str, Set[str]]:
        assert topics is not None, f"looked up {ids} for nothing"
        return topics

    return SnapshotState(
        stores, snapshots, closed_by=CLOSED, excluded=excluded, topics_at=topics_at
    )


class TestMissing:
    def test_nothing(self) -> None:
        state = _state([store()], [snapshot()])
        assert state.missing(P) == ""
        assert state.of(P) == {CHANGELOG: ChosenSnapshot(store(), snapshot())}

    def test_none_was_made(self) -> None:
        state = _state([store("counts", "shop-counts-changelog"), store()], [])
        text = state.missing(P)
        assert "counts (none was made), sums (none was made)" in text
        assert state.of(P) == {}

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"proved": False, "reason": "Not sealed."}, "sums (not proved: Not sealed)"),
            ({"fingerprint": "another"}, "sums (the format of the store was another one)"),
            ({"topic": "renamed"}, "sums (none was made)"),
            ({"point_id": "other"}, "sums (none was made)"),
        ],
    )
    def test_one_that_will_not_do(self, changes: Mapping[str, object], words: str) -> None:
        made = replace(snapshot(), **changes)  # pyright: ignore[reportArgumentType]
        state = _state([store()], [made], topics={P: {CHANGELOG}})
        assert words in state.missing(P)
        assert state.of(P) == {}

    def test_only_changelogs_that_are_wanted_and_nothing_else_count(self) -> None:
        stores = [
            store("names", "names", is_changelog_only=False),
            store("left-out", "shop-left-out-changelog"),
            store(),
        ]
        state = _state(stores, [snapshot()], excluded={"shop-left-out-changelog"})
        assert state.missing(P) == ""
        assert list(state.of(P)) == [CHANGELOG]

    def test_a_store_that_came_later(self) -> None:
        late = store("late", "shop-late-changelog")
        state = _state([late, store()], [snapshot()], topics={P: {CHANGELOG}})
        assert state.missing(P) == ""
        there_already = {P: {CHANGELOG, late.topic}}
        state = _state([late, store()], [snapshot()], topics=there_already)
        assert "late (none was made)" in state.missing(P)

    def test_a_point_that_closes_no_window(self) -> None:
        state = _state([store()], [snapshot()])
        assert "It closes no window that is backed up" in state.missing("between")
        assert _state([], []).missing("between") == ""

    @pytest.mark.parametrize("changes", [{"proved": False}, {"fingerprint": "another"}])
    def test_of_two_windows_that_a_point_closes_the_one_that_will_do_counts(
        self, changes: Mapping[str, Any]
    ) -> None:
        other = snapshot(window=Window(60_000, 120_000, "w2"), **changes)
        for order in ([other, snapshot()], [snapshot(), other]):
            assert _state([store()], order).missing(P) == ""

    def test_many(self) -> None:
        stores = [store(f"s{number}", f"t{number}") for number in range(5)]
        assert "and 2 more" in _state(stores, []).missing(P)


def test_the_remedy_names_the_window() -> None:
    state = _state([store()], [])
    assert state.first_closing(["x", P, "other"]) == P
    assert "kstreams-assets ktables make --window w1, or set changelog_source" in state.remedy(P)
    assert "closes a window" in state.remedy("x")


def _wanted() -> WantedTopic:
    return next(t for t in findings().selection.topics if t.source == CHANGELOG)


class TestCuts:
    def _refusals(self, *partitions: SnapshotPartition) -> list[str]:
        made = snapshot(partitions=partitions)
        return [str(r) for r in other_cuts(_wanted(), ChosenSnapshot(store(), made))]

    def test_as_the_point_has_them(self) -> None:
        assert self._refusals(*snapshot().partitions) == []

    @pytest.mark.parametrize(
        "changes",
        [{"end": 99}, {"topic_id": "another"}, {"excluded": (OffsetRange(20, 30),)}],
    )
    def test_others(self, changes: Mapping[str, object]) -> None:
        (part,) = snapshot().partitions
        (text,) = self._refusals(replace(part, **changes))  # pyright: ignore[reportArgumentType]
        assert "store sums: Its KTable snapshot of window w1 was not made of partition 0" in text
        assert "ktables make --window w1" in text

    def test_a_partition_that_it_does_not_know(self) -> None:
        assert len(self._refusals()) == 1


def test_changelogs_that_come_from_the_raw_log_all_the_same() -> None:
    mixed, without = from_raw_logs(findings().selection.topics, {})
    assert "Source topics that serve as changelog come from the raw log: names." in mixed
    assert f"No tables are made of the stores of {CHANGELOG}" in without
    assert len(from_raw_logs(findings().selection.topics, {CHANGELOG: object()})) == 1


def _begun(found: Facts) -> list[Finding]:
    return refusals(found, plan_topics(found)[0], largest={}, writers={})


class TestBegun:
    def _found(self, records: int) -> Facts:
        return findings(
            target=target(there(CHANGELOG)),
            stored=stored(stored_topic(CHANGELOG, records=records)),
            snapshots={CHANGELOG: SnapshotSource("sums", "w1", raw_records=9, raw_bytes=90)},
        )

    def test_with_the_same_rows(self) -> None:
        found = self._found(5)
        assert list(_begun(found)) == []

    def test_with_other_ones(self) -> None:
        found = self._found(4)
        (refusal,) = _begun(found)
        assert f"topic {CHANGELOG}: This restore was begun with 4 records" in str(refusal)


def test_a_format_decides_which_snapshots_count() -> None:
    versioned = StoreFormat(kind=StoreKind.VERSIONED, retention_ms=1)
    stores = [store(format=versioned)]
    made = snapshot(fingerprint=versioned.fingerprint)
    assert _state(stores, [made]).missing(P) == ""
    assert _state(stores, [snapshot()], topics={P: {CHANGELOG}}).missing(P) != ""
