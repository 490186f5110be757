"""Balances: how they are read, what is refused, and that their SQL finds what does not balance."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstreams_assets.app.rules import Scope
from kstreams_assets.rules.balance import Comparison, Function, Term, balance_sql, parse_balance
from kstreams_assets.rules.sql_check import check_rule_sql
from kstreams_assets.rules.view import KnownViews, RuleTextError
from spark_resources.resource import SparkSessionResource
from spark_resources.rules import new_session
from tests.rules.rule_samples import known

TOPIC_NAME = st.from_regex(r"[A-Za-z0-9._-]{1,12}", fullmatch=True)


@pytest.fixture(scope="module", name="shop")
def of_shop() -> KnownViews:
    return known()


def _count(name: str, sign: int = 1) -> Term:
    return Term(sign, Function.COUNT, name)


class TestParser:
    """From the text to terms."""

    def test_the_balance_of_the_issue(self, shop: KnownViews) -> None:
        found = parse_balance("orders.created.v1 == orders-rejected + totals - steps", shop)
        assert found.left == (_count("orders.created.v1"),)
        assert found.comparison is Comparison.EQUAL
        assert found.right == (_count("orders-rejected"), _count("totals"), _count("steps", -1))

    def test_functions_and_numbers(self, shop: KnownViews) -> None:
        found = parse_balance(
            "SUM(orders.created.v1.cents)+ 12 >= count(store:totals) - in_flight(steps)", shop
        )
        assert found.left == (
            Term(1, Function.SUM, "orders.created.v1", ("cents",)),
            Term(1, None, number=12),
        )
        assert found.comparison is Comparison.AT_LEAST
        assert found.right == (_count("store:totals"), Term(-1, Function.IN_FLIGHT, "steps"))

    @pytest.mark.parametrize(
        ("text", "view", "column"),
        [
            ("sum(orders.cents)", "orders", ("cents",)),
            ("sum(orders.created.v1._value.cents)", "orders.created.v1", ("_value", "cents")),
            ("sum(`orders.created.v1`.cents)", "orders.created.v1", ("cents",)),
            ("sum(`orders`.`_value`.cents)", "orders", ("_value", "cents")),
            ("sum( kept._value )", "kept", ("_value",)),
        ],
    )
    def test_where_the_name_ends(
        self, shop: KnownViews, text: str, view: str, column: tuple[str, ...]
    ) -> None:
        assert parse_balance(f"{text} == 0", shop).left == (Term(1, Function.SUM, view, column),)

    def test_a_topic_may_be_called_like_a_number_or_function(self, shop: KnownViews) -> None:
        views = {name: shop.views["orders"] for name in ("7", "sum", "count", "-")}
        odd = KnownViews({**shop.views, **views})
        found = parse_balance("7 + sum == count + `-` - count(count)", odd)
        assert found.left == (_count("7"), _count("sum"))
        assert found.right == (_count("count"), _count("-"), _count("count", -1))

    @given(
        names=st.lists(TOPIC_NAME, min_size=2, max_size=6, unique_by=str.lower),
        signs=st.lists(st.sampled_from([1, -1]), min_size=6, max_size=6),
        quoted=st.booleans(),
        split=st.integers(1, 5),
        comparison=st.sampled_from(Comparison),
    )
    def test_whatever_is_written_is_read_back(
        self,
        names: list[str],
        signs: list[int],
        quoted: bool,
        split: int,
        comparison: Comparison,
        shop: KnownViews,
    ) -> None:
        """Names of any characters that Kafka allows, dashes and dots at either end included."""
        views = KnownViews({name: shop.views["orders"] for name in names})
        quoted = quoted or "-" in names
        terms = [_count(n, s) for n, s in zip(names, signs, strict=False)]
        split = min(split, len(terms) - 1)
        sides = [terms[:split], terms[split:]]
        for side in sides:
            side[0] = replace(side[0], sign=1)
        left, right = ("".join(_written(side, quoted=quoted)) for side in sides)
        found = parse_balance(f"{left} {comparison} {right}", views)
        assert (found.left, found.right) == (tuple(sides[0]), tuple(sides[1]))
        assert found.comparison is comparison

    @given(
        views=st.lists(TOPIC_NAME, min_size=1, max_size=4, unique_by=str.lower),
        column=st.lists(st.from_regex(r"[A-Za-z_]{1,6}", fullmatch=True), min_size=1, max_size=3),
    )
    def test_the_longest_name_counts(
        self, views: list[str], column: list[str], shop: KnownViews
    ) -> None:
        of = {name: shop.views["orders"] for name in views}
        written = f"{views[0]}.{'.'.join(column)}"
        term = parse_balance(f"sum({written}) == 0", KnownViews(of)).left[0]
        assert ".".join([term.view, *term.column]).lower() == written.lower()
        assert not [
            name
            for name in views
            if written.lower().startswith(f"{name.lower()}.") and len(name) > len(term.view)
        ]

    @given(st.text(alphabet="ordes.-+=<>() `17sumcnt_\n", max_size=40))
    def test_anything_else_is_refused_in_words(self, shop: KnownViews, text: str) -> None:
        refused = None
        try:
            parse_balance(text, shop)
        except RuleTextError as error:
            refused = error
        if refused is not None:
            assert refused.problem
            assert refused.line is None or 1 <= refused.line <= text.count("\n") + 1


def _written(side: Sequence[Term], *, quoted: bool) -> list[str]:
    names = [f"`{term.view}`" if quoted else term.view for term in side]
    signs = [""] + [" + " if term.sign == 1 else " - " for term in side[1:]]
    return [sign + name for sign, name in zip(signs, names, strict=True)]


class TestRefused:
    """What is refused, and why."""

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("", "column 1 of the balance has the end instead of a topic"),
            ("orders", "has the end instead of +, -, ==, <= or >="),
            ("orders = totals", "column 8 of the balance has '='"),
            ("orders == totals == steps", "column 18 of the balance has '==' instead of"),
            ("orders == totals steps", "has 'steps' instead of +, - or the end"),
            ("orders == + totals", "has '+' instead of a topic"),
            ("orders ==\n  totals * 2", "column 10 of the balance has '*'"),
            ("orders == oders", "there is no topic or store 'oders' (near: orders"),
            ("orders-totals == 0", "no topic or store 'orders-totals'"),
            ("orders -totals == 0", "has '-totals' instead of +, -"),
            ("orders == avg(steps)", "has 'avg' instead of one of the functions count, sum"),
            ("orders == sum(orders)", "sum(orders) names no column"),
            ("orders == sum(oders.cents)", "there is no topic or store 'oders'"),
            ("orders == sum(orders.euros)", "orders has no column 'euros' (there are: _key, "),
            ("orders == sum(orders.customer)", "sum(orders.customer) sums a value that is string"),
            ("orders == sum(plain._value)", "sum(plain._value) sums a value that is binary"),
            ("orders == count(totals", "has the end instead of `)`"),
            ("orders == in_flight(orders)", "in_flight(orders) is always 0"),
            ("orders == in_flight(kept)", "in_flight(kept) is always 0"),
            ("orders == left-out", "'left-out' is not backed up: the topic is excluded"),
            ("orders == store:hidden", "is not backed up: its changelog shop-hidden-changelog"),
            ("orders == `kept@before`", "a balance names no @before view"),
            ("1 == 1", "the balance has only numbers"),
        ],
    )
    def test_with_the_reason(self, shop: KnownViews, text: str, problem: str) -> None:
        with pytest.raises(RuleTextError, match=re.escape(problem)):
            balance_sql(text, per=None, known=shop, scope=Scope.EVERYTHING)

    def test_dashes_need_blanks_and_the_message_says_so(self, shop: KnownViews) -> None:
        with pytest.raises(RuleTextError, match="a - between terms needs blanks around it"):
            parse_balance("orders-totals == 0", shop)

    def test_the_line(self, shop: KnownViews) -> None:
        with pytest.raises(RuleTextError) as caught:
            parse_balance("orders\n== totals\n+ stps", shop)
        assert caught.value.line == 3

    @pytest.mark.parametrize(
        ("text", "per", "problem"),
        [
            ("orders == totals", "customer", "totals has no column 'customer'"),
            ("orders == places", "_key", "different types: string in orders, number in places"),
            ("orders == plain", "_key", "different types: string in orders, binary in plain"),
        ],
    )
    def test_groups(self, shop: KnownViews, text: str, per: str, problem: str) -> None:
        with pytest.raises(RuleTextError, match=problem):
            balance_sql(text, per=per, known=shop, scope=Scope.EVERYTHING)

    def test_groups_of_unknown_types_are_not(self, shop: KnownViews) -> None:
        assert balance_sql(
            "orders == payments", per="customer", known=shop, scope=Scope.EVERYTHING
        ).views == ("orders", "payments")


class TestSql:
    """What it stands for; that it is right, Spark shows below."""

    @pytest.mark.parametrize("scope", Scope)
    @pytest.mark.parametrize("per", [None, "_key"])
    def test_it_passes_the_check_of_rules(
        self, shop: KnownViews, scope: Scope, per: str | None
    ) -> None:
        text = "orders + 3 == sum(store:totals.rate) + steps - by-customer-repartition"
        made = balance_sql(text, per=per, known=shop, scope=scope)
        assert set(check_rule_sql(made.sql, shop, scope)) == set(made.views)

    def test_what_there_was_before_is_taken_away(self, shop: KnownViews) -> None:
        """Of stores and of what is in flight; of other topics the view has only what is new."""
        text = "orders == store:totals + in_flight(by-customer-repartition) + in_flight(steps)"
        made = balance_sql(text, per=None, known=shop, scope=Scope.WINDOW)
        assert made.views == (
            "orders",
            "store:totals",
            "store:totals@before",
            "by-customer-repartition",
            "by-customer-repartition@before",
            "steps",
            "steps@before",
        )


Rows = Sequence[tuple[Any, ...]]


def _run(
    spark: SparkSessionResource, shop: KnownViews, rows: dict[str, tuple[str, Rows]], **asked: Any
) -> list[tuple[Any, ...]]:
    """What the SQL of a balance returns over these rows (schema and content by view)."""
    session = new_session(spark.spark_session)
    for name, (schema, content) in rows.items():
        session.createDataFrame([*content], schema).createOrReplaceTempView(f"`{name}`")
    made = balance_sql(asked.pop("text"), known=shop, **asked)
    return sorted(map(tuple, session.sql(made.sql).collect()), key=str)


KEYED = "_key STRING, cents BIGINT, rate DOUBLE"


@pytest.mark.spark
class TestInSpark:
    """The SQL returns a row where the sides differ, and none where they do not."""

    def test_counts_and_sums_in_total(self, spark: SparkSessionResource, shop: KnownViews) -> None:
        rows: dict[str, tuple[str, Rows]] = {
            "orders": (KEYED, [("a", 5, 0.1), ("a", None, 0.2), (None, 7, 0.3)]),
            "store:totals": (KEYED, [("a", 12, 0.6)]),
            "orders-rejected": (KEYED, []),
        }
        everything = {"per": None, "scope": Scope.EVERYTHING}
        held = (
            "orders == store:totals + 2 + orders-rejected",
            "sum(orders.cents) == sum(store:totals.cents)",
            "sum(orders.rate) == sum(store:totals.rate)",
            "sum(orders-rejected.cents) == 0",
            "orders >= 3",
            "3 <= orders",
        )
        for text in held:
            assert _run(spark, shop, rows, text=text, **everything) == [], text
        violated = {
            "orders == store:totals": (3, 1, 2),
            "orders <= 2": (3, 2, 1),
            "orders >= 4": (3, 4, -1),
            "sum(orders.cents) - 1 == sum(store:totals.cents)": (11, 12, -1),
        }
        for text, row in violated.items():
            assert _run(spark, shop, rows, text=text, **everything) == [row], text

    def test_groups(self, spark: SparkSessionResource, shop: KnownViews) -> None:
        """A group that only one side has counts, and so does the group without a name."""
        rows: dict[str, tuple[str, Rows]] = {
            "orders": (KEYED, [("a", 1, 0.0), ("a", 1, 0.0), ("b", 1, 0.0), (None, 1, 0.0)]),
            "orders-rejected": (KEYED, [("a", 1, 0.0)]),
            "store:totals": (KEYED, [("a", 1, 0.0), ("c", 1, 0.0)]),
        }
        asked = {"per": "_key", "scope": Scope.EVERYTHING}
        text = "orders == orders-rejected + store:totals"
        assert _run(spark, shop, rows, text=text, **asked) == [
            ("b", 1, 0, 1),
            ("c", 0, 1, -1),
            (None, 1, 0, 1),
        ]
        assert _run(spark, shop, rows, text="orders-rejected <= orders", **asked) == []

    def test_growth_since_the_window_before(
        self, spark: SparkSessionResource, shop: KnownViews
    ) -> None:
        """Three new orders: one counted, one more in flight, one was and is in flight in steps."""
        flight = "_in_flight BOOLEAN"
        rows: dict[str, tuple[str, Rows]] = {
            "orders": ("_key STRING", [("a",), ("b",), ("c",)]),
            "store:totals": ("orders BIGINT", [(11,), (3,)]),
            "store:totals@before": ("orders BIGINT", [(10,), (3,)]),
            "by-customer-repartition": (flight, [(True,), (True,), (True,)]),
            "by-customer-repartition@before": (flight, [(True,), (True,)]),
            "steps": (flight, [(True,), (True,), (False,)]),
            "steps@before": (flight, [(True,), (False,)]),
        }
        text = (
            "orders == sum(store:totals.orders) + in_flight(by-customer-repartition)"
            " + in_flight(steps)"
        )
        asked = {"per": None, "scope": Scope.WINDOW}
        assert _run(spark, shop, rows, text=text, **asked) == []
        rows["steps@before"] = (flight, [(False,), (False,)])
        assert _run(spark, shop, rows, text=text, **asked) == [(3, 2, 1)]

    def test_a_sum_that_is_no_number_does_not_pass(
        self, spark: SparkSessionResource, shop: KnownViews
    ) -> None:
        rows: dict[str, tuple[str, Rows]] = {
            "orders": (KEYED, [("a", 1, float("nan"))]),
            "store:totals": (KEYED, [("a", 1, 1.0)]),
        }
        text = "sum(orders.rate) == sum(store:totals.rate)"
        asked = {"per": None, "scope": Scope.EVERYTHING}
        assert len(_run(spark, shop, rows, text=text, **asked)) == 1
