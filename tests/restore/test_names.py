"""Names on the target: derived, chosen, and those that cannot be."""

from typing import Any

import pytest

from kstreams_assets.app.names import name_problem
from kstreams_assets.restore.request import InputsAt, RestoreMode, RestoreRequest
from kstreams_assets.restore.target_topics import TargetNames, target_names

INTERNAL = ("shop-sums-changelog", "shop-sums-repartition", "shop-fk-subscription-response-topic")
TOPICS = ("orders", "totals", "shop-window", *INTERNAL)


def _names(
    of: tuple[str, ...] = TOPICS, internal: tuple[str, ...] = INTERNAL, /, **request: Any
) -> TargetNames:
    return target_names("shop", of, internal, RestoreRequest(**request))


def test_names_stay_the_same_unless_asked() -> None:
    names = _names()
    assert names.targets == {topic: topic for topic in TOPICS}
    assert (names.group, names.refusals) == ("shop", ())
    assert names.internal == set(INTERNAL)


def test_a_new_application_id_renames_internal_topics_only() -> None:
    names = _names(application_id="shop-b")
    assert names.group == "shop-b"
    assert names.targets == {
        "orders": "orders",
        "totals": "totals",
        "shop-window": "shop-window",
        "shop-sums-changelog": "shop-b-sums-changelog",
        "shop-sums-repartition": "shop-b-sums-repartition",
        "shop-fk-subscription-response-topic": "shop-b-fk-subscription-response-topic",
    }
    assert names.refusals == ()


def test_a_prefix_goes_before_all_but_internal_topics() -> None:
    names = _names(prefix="dr.")
    assert names.targets["orders"] == "dr.orders"
    assert names.targets["shop-window"] == "dr.shop-window"
    assert names.targets["shop-sums-changelog"] == "shop-sums-changelog"


def test_a_chosen_name_wins_over_the_prefix() -> None:
    names = _names(prefix="dr.", topics={"orders": "incoming"})
    assert (names.targets["orders"], names.targets["totals"]) == ("incoming", "dr.totals")
    assert names.refusals == ()


def test_excluded_topics_have_no_target() -> None:
    names = _names(exclude=("tot*", "shop-window"))
    assert names.excluded == {"totals", "shop-window"}
    assert set(names.targets) == {"orders", *INTERNAL}


def test_an_excluded_topic_in_which_the_group_goes_on_has_a_name() -> None:
    asked = {"exclude": ("orders",), "inputs_are_at": InputsAt.MAPPED, "prefix": "dr-"}
    names = _names(**asked)
    assert names.placed == {"orders": "dr-orders"}
    assert "orders" not in names.targets
    named = _names(**asked, topics={"orders": "live"})
    assert (named.placed, named.refusals) == ({"orders": "live"}, ())
    assert _names(exclude=("orders",)).placed == {}


@pytest.mark.parametrize(
    ("request_", "subject", "words"),
    [
        ({"topics": {"Orders": "x"}}, "topics: Orders", "near: orders"),
        ({"topics": {"zzz": "x"}}, "topics: zzz", "no topic 'zzz'."),
        ({"exclude": ("order",)}, "exclude: order", "near: orders"),
        ({"exclude": ("orders",), "topics": {"orders": "x"}}, "topics: orders", "excluded, too"),
        ({"topics": {"orders": "totals"}}, "topics orders, totals", "'totals'"),
        (
            {"topics": {"orders": "a.b", "totals": "a_b"}},
            "topics orders, totals",
            "'a.b' and 'a_b', which Kafka takes for one name",
        ),
        ({"prefix": "dr/"}, "topic orders", "'dr/orders'"),
        ({"topics": {"orders": "x" * 250}}, "topic orders", "250 characters"),
        ({"topics": {"orders": "__consumer_offsets"}}, "topic orders", "brokers"),
        ({"application_id": ""}, "application_id ''", "is empty"),
        ({"application_id": "a b"}, "application_id 'a b'", "other characters"),
        (
            {"topics": {"shop-sums-changelog": "elsewhere"}},
            "topic shop-sums-changelog",
            "looks for 'shop-sums-changelog'",
        ),
    ],
)
def test_refused(request_: dict[str, object], subject: str, words: str) -> None:
    found = [refusal for refusal in _names(**request_).refusals if refusal.subject == subject]
    assert len(found) == 1
    assert words in found[0].found
    assert found[0].action.endswith(".")


def test_every_refusal_is_listed() -> None:
    names = _names(topics={"nothing": "x", "orders": "."}, exclude=("no-such",))
    assert {r.subject for r in names.refusals} == {
        "topics: nothing",
        "topic orders",
        "exclude: no-such",
    }


def test_an_internal_topic_may_be_called_anything_where_it_is_not_restored() -> None:
    names = _names(mode=RestoreMode.REBUILD, topics={"shop-sums-changelog": "elsewhere"})
    assert names.refusals == ()


def test_an_internal_topic_with_a_prefix_of_its_own_must_be_named() -> None:
    topics, internal = ("orders", "ksql-sums-changelog"), ("ksql-sums-changelog",)
    assert _names(topics, internal).refusals == ()
    renamed = _names(topics, internal, application_id="b")
    assert [r.subject for r in renamed.refusals] == ["topic ksql-sums-changelog"]
    named = _names(topics, internal, application_id="b", topics={internal[0]: "b-sums-changelog"})
    assert named.refusals == ()


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249])
def test_legal_names(name: str) -> None:
    assert name_problem(name) is None


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "ä", "a b", "a:b", "a/b"])
def test_illegal_names(name: str) -> None:
    assert name_problem(name) is not None
