"""Which views there are, what they are called, and which columns they have."""

import pytest

from kstreams_assets.app.model import TopicRole
from kstreams_assets.app.rules import Scope
from kstreams_assets.app.store_columns import COMMON_COLUMNS
from kstreams_assets.app.store_format import BYTES, Encoding
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.rules.view import (
    KnownViews,
    MissingColumnError,
    RuleTextError,
    View,
    ViewKind,
    column_type,
    views_of,
)
from tests.rules.rule_samples import known, settings, topics


@pytest.fixture(scope="module", name="shop")
def of_shop() -> KnownViews:
    return known()


@pytest.fixture(scope="module")
def views() -> dict[str, View]:
    return dict(views_of(settings()))


class TestNames:
    """What views are called by."""

    def test_every_topic_that_is_backed_up(self, views: dict[str, View]) -> None:
        backed_up = topics().keys() - {"left-out", "shop-hidden-changelog"}
        assert {v.name for v in views.values() if v.kind is ViewKind.TOPIC} == backed_up
        assert all(views[name].topic == name for name in backed_up)

    def test_internal_topics_without_the_application_id(self, views: dict[str, View]) -> None:
        assert views["by-customer-repartition"] is views["shop-by-customer-repartition"]
        assert views["totals-changelog"] is views["shop-totals-changelog"]

    def test_a_store_has_its_name_and_one_that_is_no_topic(self, views: dict[str, View]) -> None:
        assert views["kept"] is views["store:kept"]
        assert views["kept"].kind is ViewKind.STORE
        assert views["kept"].topic == "shop-kept-changelog"

    def test_where_a_topic_has_the_name_it_is_the_topic(self, views: dict[str, View]) -> None:
        assert views["totals"].kind is ViewKind.TOPIC
        assert views["store:totals"].kind is ViewKind.STORE
        assert views["store:totals"].name == "totals"

    def test_a_topic_that_is_excluded_keeps_its_name(self) -> None:
        """A rule must not become one about another thing when a topic is excluded."""
        excluded = ["left-out", "shop-hidden-changelog", "totals"]
        found = views_of(settings(exclude=excluded))
        assert "totals" not in found
        assert found["store:totals"].kind is ViewKind.STORE

    def test_an_alias_gives_way_to_a_topic(self) -> None:
        more = {**topics(), "by-customer-repartition": {"roles": ["output"]}}
        assert views_of(settings(topics=more))["by-customer-repartition"].roles == {
            TopicRole.OUTPUT
        }

    def test_stores_without_a_table_are_there_those_without_a_backup_not(
        self, views: dict[str, View]
    ) -> None:
        assert {v.name for v in views.values() if v.kind is ViewKind.STORE} == {
            "totals",
            "per-minute",
            "kept",
        }

    def test_before(self, views: dict[str, View]) -> None:
        have = {name for name in ("orders", "totals", "plain") if views[name].has_before}
        assert not have
        for name in ("store:totals", "by-customer-repartition", "steps", "kept"):
            assert views[name].has_before


class TestColumns:
    """Which columns they have, and of which types."""

    def test_of_a_struct(self, views: dict[str, View]) -> None:
        assert views["orders"].columns == (*COMMON_COLUMNS, "id", "customer", "cents", "rate")

    def test_of_bytes(self, views: dict[str, View]) -> None:
        assert views["plain"].columns == COMMON_COLUMNS
        assert views["plain"].format.value == BYTES

    def test_of_a_windowed_store(self, views: dict[str, View]) -> None:
        parts = ("window_start_ms", "window_end_ms", "sequence_number")
        assert views["per-minute"].columns == (*COMMON_COLUMNS, *parts)

    def test_of_avro_nothing_is_known(self, views: dict[str, View]) -> None:
        assert views["payments"].columns is None
        assert column_type(views["payments"], ("whatever", "there", "is")) is None

    def test_a_field_named_like_a_common_column_gives_way(self, views: dict[str, View]) -> None:
        assert views["places"].columns == (*COMMON_COLUMNS, "at", "tags")
        assert column_type(views["places"], ("_value", "_offset")) == "bigint"
        assert column_type(views["places"], ("_offset",)) == "bigint"

    @pytest.mark.parametrize(
        ("view", "path", "expected"),
        [
            ("orders", ("_key",), "string"),
            ("orders", ("_value",), "struct"),
            ("orders", ("_VALUE", "Cents"), "bigint"),
            ("orders", ("rate",), "double"),
            ("places", ("at",), "struct"),
            ("places", ("at", "street", "no"), "int"),
            ("places", ("tags",), "array"),
            ("places", ("tags", "anything"), None),
            ("per-minute", ("window_start_ms",), "bigint"),
            ("kept", ("_value",), "double"),
        ],
    )
    def test_types(
        self, views: dict[str, View], view: str, path: tuple[str, ...], expected: str | None
    ) -> None:
        assert column_type(views[view], path) == expected

    @pytest.mark.parametrize(
        ("view", "path", "available"),
        [
            ("places", ("at", "town"), ("city", "street")),
            ("places", ("at", "street", "name"), ("no",)),
            ("orders", ("_value", "euros"), ("id", "customer", "cents", "rate")),
            ("orders", ("cents", "x"), ()),
            ("plain", ("_value", "x"), ()),
            ("orders", ("_offset", "x"), ()),
        ],
    )
    def test_what_is_not_there(
        self, views: dict[str, View], view: str, path: tuple[str, ...], available: tuple[str, ...]
    ) -> None:
        with pytest.raises(MissingColumnError) as caught:
            column_type(views[view], path)
        assert caught.value.available == available


class TestFormats:
    """Formats of topics in the YAML."""

    def test_the_name_without_the_application_id_is_the_topic(self) -> None:
        more = {**topics(), "by-customer-repartition": {"key": "long", "value": "int"}}
        del (
            more["shop-by-customer-repartition"]["key"],
            more["shop-by-customer-repartition"]["value"],
        )
        format_ = settings(topics=more).topic_formats["shop-by-customer-repartition"]
        assert (format_.key.encoding, format_.value.encoding) == (Encoding.LONG, Encoding.INT)

    def test_not_twice(self) -> None:
        more = {**topics(), "by-customer-repartition": {"key": "long"}}
        with pytest.raises(ConfigurationError, match="two blocks in topics"):
            settings(topics=more)

    def test_unknown_topics_are_refused(self) -> None:
        with pytest.raises(ConfigurationError, match=r"'oders' is not in .*near: orders"):
            settings(topics={**topics(), "oders": {"key": "string"}})

    def test_a_changelog_is_read_as_its_store(self) -> None:
        more = {**topics(), "shop-kept-changelog": {"roles": ["changelog"], "value": "long"}}
        with pytest.raises(ConfigurationError, match=r"is a changelog.*of its store instead"):
            settings(topics=more)

    def test_a_format_that_is_none_names_the_topic(self) -> None:
        with pytest.raises(ConfigurationError, match=r"topics\.orders\.value has format 'text'"):
            settings(topics={**topics(), "orders": {"roles": ["input"], "value": "text"}})


class TestKnownViews:
    """Looking names up."""

    def test_case_does_not_matter(self, shop: KnownViews) -> None:
        found = shop.find("Orders.Created.V1", Scope.EVERYTHING)
        assert found is not None
        assert found.name == "orders.created.v1"

    def test_unless_that_leaves_two(self) -> None:
        two = known(topics={**topics(), "PLAIN": {"roles": ["output"]}})
        assert two.find("Plain", Scope.EVERYTHING) is None
        found = two.find("PLAIN", Scope.EVERYTHING)
        assert found is not None
        assert found.name == "PLAIN"

    @pytest.mark.parametrize(
        ("name", "why"),
        [
            ("left-out", "the topic is excluded"),
            ("hidden", "its changelog shop-hidden-changelog is excluded"),
            ("store:hidden", "its changelog shop-hidden-changelog is excluded"),
            ("hidden-changelog", "the topic is excluded"),
            ("cache", "the store has no changelog"),
        ],
    )
    def test_what_is_not_backed_up(self, shop: KnownViews, name: str, why: str) -> None:
        with pytest.raises(RuleTextError, match=f"is not backed up: {why}"):
            shop.find(name, Scope.EVERYTHING)

    def test_near_names(self, shop: KnownViews) -> None:
        assert shop.find("order", Scope.EVERYTHING) is None
        assert shop.near("order").startswith("near: orders")
        assert "store:kept" not in shop.near("zzzzzz")
        assert "store:totals" in shop.near("zzzzzz")

    def test_before_in_rules_about_windows(self, shop: KnownViews) -> None:
        found = shop.find("store:totals@before", Scope.WINDOW)
        assert found is not None
        assert found.name == "store:totals@before"
        with pytest.raises(RuleTextError, match="exists only in rules with scope: window"):
            shop.find("store:totals@before", Scope.EVERYTHING)
        with pytest.raises(RuleTextError, match="there is no orders@before"):
            shop.find("orders@before", Scope.WINDOW)
