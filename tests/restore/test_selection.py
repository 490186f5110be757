"""Which offsets of which topics each mode takes, and what is committed for them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstreams_assets.app.model import Store
from kstreams_assets.offsets import OffsetRange, outside
from kstreams_assets.restore.request import InputsAt, InputsExtent, RestoreMode, RestoreRequest
from kstreams_assets.restore.selection import Selection, reduced, roles_at, select
from kstreams_assets.warehouse.point import GroupOffset, RecoveryPoint, WantedPartition
from tests.restore.planning_samples import INTERNAL, ROLES, application, point

STATE = RestoreRequest()
TAIL = RestoreRequest(inputs=InputsExtent.TAIL)
REBUILD = RestoreRequest(mode=RestoreMode.REBUILD)
WHOLE = (OffsetRange(10, 100),)


def _select(
    request: RestoreRequest = STATE,
    taken: RecoveryPoint | None = None,
    *,
    backed_up: set[str] | None = None,
    excluded: set[str] = frozenset(),  # pyright: ignore[reportArgumentType]
) -> Selection:
    return select(
        application(),
        set(ROLES) if backed_up is None else backed_up,
        taken or point(),
        request,
        excluded,
    )


def _partitions(selection: Selection) -> dict[str, WantedPartition]:
    return {topic.source: topic.partitions[0] for topic in selection.topics}


class TestState:
    def test_everything_but_repartition_topics_is_taken_whole(self) -> None:
        found = _select()
        ranges = {topic: wanted.ranges for topic, wanted in _partitions(found).items()}
        assert ranges == {
            **dict.fromkeys(ROLES, WHOLE),
            "shop-sums-repartition": (OffsetRange(80, 100),),
        }
        assert found.refusals == ()

    def test_committed_offsets_of_all_that_is_read_with_their_metadata(self) -> None:
        committed = {topic: p.committed for topic, p in _partitions(_select()).items()}
        assert committed == {
            "orders": GroupOffset("orders", 0, 60, "metadata of orders"),
            "names": GroupOffset("names", 0, 100, "metadata of names"),
            "between": GroupOffset("between", 0, 70, "metadata of between"),
            "shop-sums-repartition": GroupOffset(
                "shop-sums-repartition", 0, 80, "metadata of shop-sums-repartition"
            ),
            "rates": None,
            "totals": None,
            "shop-sums-changelog": None,
        }

    def test_ranges_of_other_transactions_are_left_out(self) -> None:
        bad = [OffsetRange(60, 65), OffsetRange(90, 95)]
        taken = point(excluded={"shop-sums-changelog": bad, "shop-sums-repartition": bad})
        found = _partitions(_select(taken=taken))
        assert found["shop-sums-changelog"].ranges == (
            OffsetRange(10, 60),
            OffsetRange(65, 90),
            OffsetRange(95, 100),
        )
        assert found["shop-sums-repartition"].ranges == (OffsetRange(80, 90), OffsetRange(95, 100))

    def test_the_tail_is_that_of_pure_inputs_only(self) -> None:
        found = _partitions(_select(TAIL))
        assert found["orders"].ranges == (OffsetRange(60, 100),)
        assert {found[topic].ranges for topic in ("rates", "names", "between", "totals")} == {WHOLE}

    @pytest.mark.parametrize(("offset", "start"), [(3, 10), (10, 10), (100, None)])
    def test_the_tail_begins_no_earlier_than_the_log(self, offset: int, start: int | None) -> None:
        found = _partitions(_select(TAIL, point(committed={"orders": offset})))
        expected = () if start is None else (OffsetRange(start, 100),)
        assert found["orders"].ranges == expected

    def test_without_a_committed_offset_there_is_none_and_everything_is_taken(self) -> None:
        found = _select(TAIL, point(committed={}))
        wanted = _partitions(found)
        assert {w.committed for w in wanted.values()} == {None}
        assert {w.ranges for w in wanted.values()} == {WHOLE}
        assert any("1 of 1 partitions of orders had no" in note for note in found.notes)

    @pytest.mark.parametrize(("request_", "told"), [(STATE, True), (REBUILD, False)])
    def test_a_store_with_logging_disabled_is_told(
        self, request_: RestoreRequest, told: bool
    ) -> None:
        logged, cache = Store("sums", "shop-sums-changelog"), Store("cache", None)
        names = Store("all-names", None, is_global=True)
        shop = replace(application(), stores=(cache, logged, names))
        notes = select(shop, set(ROLES), point(), request_, frozenset()).notes
        about_stores = [note for note in notes if note.startswith("Store ")]
        cache_starts_empty = "Store cache has no changelog (logging disabled): it starts empty."
        assert about_stores == ([cache_starts_empty] if told else [])

    def test_an_input_that_serves_as_changelog_and_ends_at_the_committed_offsets_is_told(
        self,
    ) -> None:
        told = "Input names serves as changelog"
        assert any(told in note for note in _select().notes)
        of_this_release = replace(point(), undeclared_topics=())
        assert not any(told in note for note in _select(taken=of_this_release).notes)


class TestRebuild:
    @pytest.mark.parametrize("mode", [RestoreMode.REBUILD, RestoreMode.INPUTS_UNTIL])
    def test_what_is_only_read_is_taken_what_is_written_is_made_empty(
        self, mode: RestoreMode
    ) -> None:
        found = _partitions(_select(RestoreRequest(mode=mode)))
        assert {topic: wanted.ranges for topic, wanted in found.items()} == {
            "orders": WHOLE,
            "rates": WHOLE,
            "names": WHOLE,
            "between": (),
            "totals": (),
        }

    def test_the_group_begins_at_the_first_restored_offset_without_metadata(self) -> None:
        bad = {"orders": [OffsetRange(10, 12)]}
        found = _partitions(_select(REBUILD, point(excluded=bad)))
        assert found["orders"].committed == GroupOffset("orders", 0, 12, "")
        assert found["names"].committed == GroupOffset("names", 0, 10, "")
        assert found["between"].committed == GroupOffset("between", 0, 10, "")
        assert (found["rates"].committed, found["totals"].committed) == (None, None)

    def test_not_from_the_tail(self) -> None:
        request = RestoreRequest(mode=RestoreMode.REBUILD, inputs=InputsExtent.TAIL)
        assert [r.subject for r in _select(request).refusals] == ["mode rebuild"]


class TestNotBackedUp:
    @pytest.mark.parametrize(
        "topic", ["orders", "rates", "names", "between", "shop-sums-changelog"]
    )
    def test_refused_where_the_state_needs_it(self, topic: str) -> None:
        found = _select(backed_up=set(ROLES) - {topic})
        assert [r.subject for r in found.refusals] == [f"topic {topic}"]
        assert "mode state needs it" in found.refusals[0].found

    def test_an_output_is_told(self) -> None:
        found = _select(backed_up=set(ROLES) - {"totals"})
        assert found.refusals == ()
        assert "totals" not in _partitions(found)
        assert any("totals is not backed up and not restored" in note for note in found.notes)

    def test_records_in_flight_come_from_the_point_all_the_same(self) -> None:
        found = _select(backed_up=set(ROLES) - {"shop-sums-repartition"})
        assert found.refusals == ()
        assert _partitions(found)["shop-sums-repartition"].ranges == (OffsetRange(80, 100),)

    def test_a_rebuild_needs_the_inputs_only(self) -> None:
        needed = {"orders", "rates", "names"}
        assert _select(REBUILD, backed_up=needed).refusals == ()
        found = _select(REBUILD, backed_up=needed - {"orders"})
        assert [r.subject for r in found.refusals] == ["topic orders"]

    def test_excluding_it_is_a_way_out_that_is_told(self) -> None:
        changelog = "shop-sums-changelog"
        found = _select(backed_up=set(ROLES) - {changelog}, excluded={changelog})
        assert found.refusals == ()
        assert any(f"{changelog} is excluded. The state needs it" in note for note in found.notes)
        assert f"Topic {changelog}" in found.notes[0]

    def test_nothing_left(self) -> None:
        found = _select(excluded=set(ROLES), taken=point(committed={}))
        assert found.refusals[0].found == "Nothing of it is wanted."


class TestExcludedInputs:
    """The group had committed offsets in them: it must be known where it goes on."""

    @pytest.mark.parametrize("topic", ["orders", "between", "shop-sums-repartition"])
    def test_are_refused_without_a_word(self, topic: str) -> None:
        (refusal,) = _select(excluded={topic}).refusals
        assert refusal.subject == f"topic {topic}"
        assert "committed offsets in 1 partition(s)" in refusal.found
        assert "--inputs-are-at mapped" in refusal.action

    @pytest.mark.parametrize("inputs_are_at", list(InputsAt))
    def test_with_a_word_they_are_left_as_they_are(self, inputs_are_at: InputsAt) -> None:
        found = _select(
            STATE.model_copy(update={"inputs_are_at": inputs_are_at}), excluded={"orders"}
        )
        assert found.refusals == ()
        assert "orders" not in _partitions(found)

    def test_the_word_needs_one(self) -> None:
        for excluded in (set[str](), {"totals"}):
            request = STATE.model_copy(update={"inputs_are_at": InputsAt.MAPPED})
            (refusal,) = _select(request, excluded=excluded).refusals
            assert refusal.subject == "inputs_are_at mapped"

    def test_where_nothing_was_committed_nothing_is_left_out(self) -> None:
        assert _select(taken=point(committed={}), excluded={"orders"}).refusals == ()

    def test_a_rebuild_begins_at_the_beginning_anyway(self) -> None:
        assert _select(REBUILD, excluded={"orders"}).refusals == ()


def test_topics_that_the_point_does_not_know_are_told() -> None:
    without = [topic for topic in ROLES if topic not in ("totals", "rates")]
    notes = _select(taken=point(topics=without, absent=["totals"])).notes
    assert any("Topic totals was not on the cluster" in note for note in notes)
    assert any("Topic rates was not known" in note for note in notes)


def test_a_changelog_that_had_vanished_is_refused_and_can_be_excluded() -> None:
    changelog = "shop-sums-changelog"
    taken = point(topics=[t for t in ROLES if t != changelog], absent=[changelog])
    [refusal] = _select(taken=taken).refusals
    assert refusal.subject == f"changelog {changelog}"
    assert "exclude it if it was deleted for good" in refusal.action
    assert _select(taken=taken, excluded={changelog}).refusals == ()
    assert _select(REBUILD, taken=taken).refusals == ()
    never_seen = point(topics=[t for t in ROLES if t != changelog])
    assert _select(taken=never_seen).refusals == ()


def test_topics_that_only_the_point_knows_are_taken_for_what_it_says() -> None:
    taken = point()
    extra = replace(taken.partitions[0], topic="old", roles=ROLES["totals"])
    taken = replace(taken, partitions=(*taken.partitions, extra))
    assert roles_at(application(), taken)["old"] == ROLES["totals"]
    assert any("old is not backed up" in note for note in _select(taken=taken).notes)


class TestReduced:
    def _topics(self, request: RestoreRequest, excluded: set[str] | None = None) -> dict[str, int]:
        found = reduced(point(), roles_at(application(), None), request, excluded or set())
        return {cut.topic: cut.log_start for cut in found.partitions}

    def test_all_of_it_for_the_state(self) -> None:
        assert self._topics(STATE) == dict.fromkeys(ROLES, 10)

    def test_inputs_and_globals_for_a_rebuild(self) -> None:
        assert self._topics(REBUILD) == {"orders": 10, "rates": 10, "names": 10}

    def test_of_a_tail_no_more_than_the_tail(self) -> None:
        assert self._topics(TAIL) == {**dict.fromkeys(ROLES, 10), "orders": 60}

    def test_nothing_of_what_is_excluded(self) -> None:
        assert set(self._topics(STATE, {"totals"})) == set(ROLES) - {"totals"}

    def test_internal_topics_are_none_of_a_rebuild(self) -> None:
        assert not INTERNAL & set(self._topics(REBUILD))

    def test_what_the_point_lacks_and_this_restore_needs(self) -> None:
        absent = ["orders", "totals", "shop-sums-changelog"]
        taken = replace(point(absent=absent), undeclared_topics=("new", "other"))

        def lacking(request: RestoreRequest, excluded: set[str]) -> tuple[set[str], set[str]]:
            found = reduced(taken, roles_at(application(), None), request, excluded)
            return set(found.absent_topics), set(found.unknown_topics)

        assert lacking(STATE, set()) == (set(absent), {"new", "other"})
        assert lacking(STATE, {"orders", "new"}) == (set(absent) - {"orders"}, {"other"})
        assert lacking(REBUILD, set()) == ({"orders"}, {"new", "other"})
        nothing = replace(taken, partitions=())
        found = reduced(nothing, roles_at(application(), None), STATE, set())
        assert set(found.absent_topics) == set(absent)

    def test_what_is_left_out_is_no_topic_that_the_point_does_not_know(self) -> None:
        taken = point()
        assert taken.undeclared_topics is None
        found = reduced(taken, roles_at(application(), None), STATE, {"orders"})
        assert found.unknown_topics == ()


_EDGES = st.lists(st.integers(0, 40), max_size=8).map(lambda found: sorted(set(found)))


@given(st.integers(0, 40), st.integers(0, 40), _EDGES)
def test_outside_is_what_a_set_would_say(start: int, end: int, edges: list[int]) -> None:
    bad = [OffsetRange(*pair) for pair in zip(edges[::2], edges[1::2], strict=False)]
    found = outside(start, end, bad)
    excluded = {offset for each in bad for offset in range(each.start, each.end)}
    assert [o for each in found for o in range(each.start, each.end)] == [
        o for o in range(start, end) if o not in excluded
    ]
    assert all(each.start < each.end for each in found)
