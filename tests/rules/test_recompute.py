"""Recomputed stores: what is refused at load, and what Spark makes of the SQL."""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from kstreams_assets.app.rules import Recomputation, Scope, WindowedBy
from kstreams_assets.rules.recompute import recompute_sql
from kstreams_assets.rules.sql_check import check_recomputation, check_rule_sql
from kstreams_assets.rules.view import KnownViews, RuleTextError
from spark_resources.resource import SparkSessionResource
from spark_resources.rules import new_session
from tests.rules.rule_samples import known, stores, topics

MINUTE = 60_000
TUMBLING = WindowedBy(size_ms=MINUTE, advance_ms=MINUTE, grace_ms=5_000)
HOPPING = WindowedBy(size_ms=MINUTE, advance_ms=20_000, grace_ms=5_000)
VALUES = {"orders": "count(*)", "cents": "sum(cents)"}


@pytest.fixture(scope="module", name="shop")
def of_shop() -> KnownViews:
    return known()


def _totals(**changed: Any) -> Recomputation:
    said: dict[str, Any] = {
        "store": "totals",
        "source": "orders",
        "key": "customer",
        "values": VALUES,
        "where": "cents > 0",
        "through": "by-customer-repartition",
    }
    return Recomputation(**{**said, **changed})


def _per_minute(windows: WindowedBy | None = TUMBLING, **changed: Any) -> Recomputation:
    said: dict[str, Any] = {"store": "per-minute", "source": "orders", "key": "customer"}
    return Recomputation(**{**said, "values": {"": "count(*)"}, "windowed_by": windows, **changed})


class TestDeclared:
    """What is declared is checked at load."""

    @pytest.mark.parametrize(
        "declared",
        [
            _totals(),
            _totals(values={"rate": "sum(rate * 2)"}, where="", through=None),
            _totals(values={"orders": "count(*) FILTER (WHERE cents > 5)"}, key="lower(customer)"),
            _totals(source="payments", key="whatever", through=None, where="", values=VALUES),
            Recomputation(store="kept", source="orders", key="_key", values={"": "sum(rate)"}),
            _per_minute(),
            _per_minute(HOPPING, through="by-customer-repartition"),
        ],
    )
    def test_what_is_right(self, shop: KnownViews, declared: Recomputation) -> None:
        check_recomputation(declared, shop)
        made = recompute_sql(declared, shop.views)
        assert set(check_rule_sql(made.sql, shop, Scope.EVERYTHING)) == set(made.views)
        assert (made.late_sql is None) == (declared.windowed_by is None)
        if made.late_sql is not None:
            assert check_rule_sql(made.late_sql, shop, Scope.EVERYTHING)

    @pytest.mark.parametrize(
        ("declared", "problem"),
        [
            (_totals(store="nothing"), "the store 'nothing' is not backed up"),
            (_totals(store="hidden"), "its changelog shop-hidden-changelog is excluded"),
            (_totals(source="oders"), "source: there is no topic 'oders' (near: orders"),
            (_totals(source="store:totals"), "source: there is no topic 'store:totals'"),
            (_totals(source="orders-rejected"), "'orders-rejected' is not an input"),
            (_totals(source="by-customer-repartition"), "is not an input of the application"),
            (_totals(source="left-out"), "'left-out' is not backed up"),
            (_totals(through="orders"), "through 'orders' is not a repartition topic"),
            (_totals(values={}), "it has no values"),
            (_totals(values={"orders": "max(cents)"}), "values.orders is 'max(cents)'"),
            (_totals(values={"orders": "count(DISTINCT id)"}), "values.orders is 'count(DIST"),
            (_totals(values={"orders": "sum(cents) + 1"}), "values.orders is 'sum(cents) + 1'"),
            (_totals(values={"orders": "sum(cents"}), "values.orders is 'sum(cents'"),
            (_totals(values={"euros": "count(*)"}), "no field 'euros' (there are: orders, cents"),
            (_totals(values={"": "count(*)"}), "values is a number, but the store's value is"),
            (_totals(key="custumer"), "do not match source orders: there is no column 'custumer'"),
            (_totals(where="centz > 0"), "there is no column 'centz' (near: cents"),
            (_totals(where="cents >"), "do not match source orders: the SQL cannot be parsed"),
            (_totals(values={"cents": "sum(centz)"}), "there is no column 'centz'"),
            (
                _totals(source="places", key="at.city", where="at.city = 'x'", values=VALUES),
                "there is no column 'cents'",
            ),
            (_totals(windowed_by=TUMBLING), "of kind key_value, but recompute has windowed_by"),
            (_per_minute(None), "of kind window, but recompute has no windowed_by"),
            (
                _per_minute(WindowedBy(size_ms=10, advance_ms=20, grace_ms=0)),
                "windowed_by has size_ms 10, advance_ms 20",
            ),
            (_per_minute(WindowedBy(size_ms=10, advance_ms=10, grace_ms=-1)), "grace_ms -1"),
        ],
    )
    def test_what_is_wrong(self, shop: KnownViews, declared: Recomputation, problem: str) -> None:
        with pytest.raises(RuleTextError, match=re.escape(problem)):
            check_recomputation(declared, shop)

    def test_fields_of_the_source_must_be_in_what_is_in_flight(self) -> None:
        plain = {"roles": ["repartition"], "key": "string", "value": "string"}
        more = known(topics={**topics(), "shop-by-customer-repartition": plain})
        with pytest.raises(RuleTextError, match="do not match through by-customer-repartition"):
            check_recomputation(_totals(), more)

    @pytest.mark.parametrize("kind", ["session", "versioned"])
    def test_other_kinds_of_stores(self, kind: str) -> None:
        said = {**stores(), "kept": {"kind": kind, "key": "string", "value": "long"}}
        declared = _totals(store="kept", values={"": "count(*)"})
        with pytest.raises(RuleTextError, match=f"stores of kind {kind} cannot be recomputed"):
            check_recomputation(declared, known(stores=said))

    def test_a_windowed_store_without_retention(self) -> None:
        """What has expired cannot be told from what is missing."""
        window = {"kind": "window", "key": "string", "value": "long", "window_size_ms": MINUTE}
        with pytest.raises(RuleTextError, match="retention of the windowed store is not declared"):
            check_recomputation(_per_minute(), known(stores={**stores(), "per-minute": window}))


FIELDS = "customer STRING, cents BIGINT, rate DOUBLE"
POSITION = "_partition INT, _offset BIGINT, _timestamp_ms BIGINT, _decode_error STRING"
LOGGED = f"_key STRING, _value STRUCT<{FIELDS}>, {FIELDS}, {POSITION}"


def _record(
    customer: str | None,
    cents: int | None = 1,
    *,
    key: str | None = None,
    at_ms: int = 0,
    partition: int = 0,
    offset: int = 0,
    value: bool = True,
    error: str | None = None,
) -> tuple[Any, ...]:
    shown = (customer, cents, 0.1) if value else None
    flat = shown or (None, None, None)
    return (key, shown, *flat, partition, offset, at_ms, error)


def _rows(
    spark: SparkSessionResource,
    declared: Recomputation,
    *,
    orders: Sequence[tuple[Any, ...]],
    in_flight: Sequence[tuple[Any, ...]] = (),
    store: tuple[str, Sequence[tuple[Any, ...]]],
) -> tuple[list[dict[str, Any]], int | None]:
    """What the SQL of a recomputation returns, and how many records came too late."""
    shop = known()
    made = recompute_sql(declared, shop.views)
    session = new_session(spark.spark_session)
    views = {"orders": (LOGGED, orders), "by-customer-repartition": (LOGGED, in_flight)}
    views[made.views[-1]] = store
    for name, (schema, content) in views.items():
        session.createDataFrame([*content], schema).createOrReplaceTempView(f"`{name}`")
    found = [row.asDict() for row in session.sql(made.sql).collect()]
    if made.late_sql is None:
        return found, None
    return found, session.sql(made.late_sql).collect()[0][0]


TOTALS = "_key STRING, _value STRUCT<orders: BIGINT, cents: BIGINT, rate: DOUBLE>"


def _kept(totals: Mapping[str, tuple[int, int]]) -> tuple[str, list[tuple[Any, ...]]]:
    return TOTALS, [(key, (orders, cents, 0.0)) for key, (orders, cents) in totals.items()]


def _counted(windows: Mapping[tuple[str, int], int]) -> tuple[str, list[tuple[Any, ...]]]:
    schema = "_key STRING, window_start_ms BIGINT, _value BIGINT"
    return schema, [(key, start, count) for (key, start), count in windows.items()]


@pytest.mark.spark
class TestInSpark:
    """The SQL returns what differs from what Kafka Streams would have."""

    def test_counts_and_sums(self, spark: SparkSessionResource) -> None:
        orders = [
            _record("a", 5),
            _record("a", 7),
            _record("b", 1),
            _record("c", 2),  # still on its way
            _record("a", 9),  # still on its way
            _record("d", -1),  # does not count
            _record(None, 3),  # no key
            _record("e", value=False),  # no value
        ]
        in_flight = [_record("c", 2, key="c"), _record("a", 9, key="a")]
        held = {"a": (2, 12), "b": (1, 1)}
        found, late = _rows(spark, _totals(), orders=orders, in_flight=in_flight, store=_kept(held))
        assert (found, late) == ([], None)

    def test_every_kind_of_difference(self, spark: SparkSessionResource) -> None:
        orders = [_record("a", 5), _record("b", 1), _record("c", 4)]
        held = {"a": (1, 6), "c": (2, 4), "x": (1, 1)}
        found, _ = _rows(spark, _totals(), orders=orders, store=_kept(held))
        assert sorted(tuple(row.values()) for row in found if row["expected"] is not None) == [
            ("a", "cents", "5", "6"),
            ("b", "cents", "1", None),
            ("b", "orders", "1", None),
            ("c", "orders", "1", "2"),
        ]
        assert {row["key"] for row in found if row["expected"] is None} == {"x"}

    def test_more_in_flight_than_came_in(self, spark: SparkSessionResource) -> None:
        """A record was lost from the backup of the input: its key is named."""
        found, _ = _rows(
            spark, _totals(), orders=[], in_flight=[_record("a", 5, key="a")], store=_kept({})
        )
        assert {(row["key"], row["field"], row["expected"]) for row in found} == {
            ("a", "cents", "-5"),
            ("a", "orders", "-1"),
        }

    def test_what_cannot_be_decoded_counts_as_long_as_nothing_is_asked_of_it(
        self, spark: SparkSessionResource
    ) -> None:
        """It has a value, and `count(*)` counts it; a tombstone with a bad key has none."""
        broken = _record("a", key="a", value=False, error="value: 3 bytes, not one JSON object")
        tombstone = _record("a", key="a", value=False, error="key: 3 bytes, not UTF-8")
        declared = _totals(where="", key="_key", values={"orders": "count(*)"}, through=None)
        found, _ = _rows(spark, declared, orders=[broken, tombstone], store=_kept({"a": (1, 0)}))
        assert found == []

    def test_sums_of_floating_point_numbers(self, spark: SparkSessionResource) -> None:
        """Adding up in another order is no difference; a thousandth is."""
        declared = Recomputation(
            store="kept", source="orders", key="customer", values={"": "sum(rate)"}
        )
        orders = [_record("a")] * 3
        schema = "_key STRING, _value DOUBLE"
        for value, expected in ((0.1 + 0.1 + 0.1, 0), (0.3, 0), (0.301, 1), (float("nan"), 1)):
            found, _ = _rows(spark, declared, orders=orders, store=(schema, [("a", value)]))
            assert len(found) == expected, value

    @pytest.mark.parametrize("windows", [TUMBLING, HOPPING], ids=["tumbling", "hopping"])
    def test_windows(self, spark: SparkSessionResource, windows: WindowedBy) -> None:
        """As `TimeWindows.windowsFor` of Kafka Streams gives them, from 0 on."""
        chance = random.Random(7)
        times = sorted(chance.randrange(5 * MINUTE) for _ in range(60))
        orders = [
            _record(chance.choice("ab"), at_ms=at, offset=offset, value=offset % 7 > 0)
            for offset, at in enumerate(times)
        ]
        named = [(row[2] or "", row[7]) for row in orders if row[2]]
        held = _windows(named, windows)
        found, late = _rows(spark, _per_minute(windows), orders=orders, store=_counted(held))
        assert (found, late) == ([], 0)
        changed = dict(held)
        (key, start) = next(iter(changed))
        changed[key, start] += 1
        changed.pop(list(changed)[-1])
        found, late = _rows(spark, _per_minute(windows), orders=orders, store=_counted(changed))
        assert len(found) == 2
        assert {"key": key, "window_start_ms": start}.items() <= found[0].items() or (
            {"key": key, "window_start_ms": start}.items() <= found[1].items()
        )

    def test_late_records_are_counted(self, spark: SparkSessionResource) -> None:
        """Late is what comes when its window has been closed for as long as the grace period."""
        closed = MINUTE + TUMBLING.grace_ms
        for newest, expected in ((closed - 1, 0), (closed, 1)):
            orders = [
                _record("a", at_ms=newest, offset=0),
                _record("b", at_ms=MINUTE - 1, offset=1),
                _record("b", at_ms=newest, offset=0, partition=1),
            ]
            _, late = _rows(spark, _per_minute(), orders=orders, store=_counted({}))
            assert late == expected

    def test_a_repartition_topic_mixes_partitions(self, spark: SparkSessionResource) -> None:
        """Records of one partition may have overtaken those of the other, and nobody knows."""
        declared = _per_minute(through="by-customer-repartition")
        orders = [
            _record("a", at_ms=0, offset=0),
            _record("a", at_ms=10 * MINUTE - 1, offset=0, partition=1),
        ]
        lacking, whole = {("a", 9 * MINUTE): 1}, {("a", 0): 1, ("a", 9 * MINUTE): 1}
        found, late = _rows(spark, declared, orders=orders, store=_counted(whole))
        assert (found, late) == ([], 0)
        found, late = _rows(spark, declared, orders=orders, store=_counted(lacking))
        assert (len(found), late) == (1, 1)
        found, late = _rows(spark, declared, orders=orders, store=_counted({**whole, ("a", 0): 2}))
        assert (len(found), late) == (1, 0), "too many: no lateness explains that"

    def test_expired_windows_are_in_neither(self, spark: SparkSessionResource) -> None:
        orders = [_record("a", at_ms=at, offset=at) for at in (0, 1 * MINUTE, 12 * MINUTE)]
        held = {("a", 12 * MINUTE): 1, ("a", MINUTE): 5}
        found, _ = _rows(spark, _per_minute(), orders=orders, store=_counted(held))
        assert found == []


def _windows(records: Iterable[tuple[str, int]], windows: WindowedBy) -> dict[tuple[str, int], int]:
    """Counts per key and window, by trying every window that there may be."""
    found: dict[tuple[str, int], int] = defaultdict(int)
    for (key, at), count in Counter(records).items():
        for start in range(0, at + 1, windows.step_ms):
            if start <= at < start + windows.size_ms:
                found[key, start] += count
    return dict(found)
