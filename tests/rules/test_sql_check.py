"""SQL of rules: what Spark accepts is accepted, and what is wrong is named with its line."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import examples
from kstreams_assets.app.rules import Scope
from kstreams_assets.app.store_columns import COMMON_COLUMNS
from kstreams_assets.app_file.read import load_settings
from kstreams_assets.rules.recompute import recompute_sql
from kstreams_assets.rules.sql_check import check_rule_sql, spark_functions
from kstreams_assets.rules.view import KnownViews, RuleTextError, View, views_of
from spark_resources.resource import SparkSessionResource
from spark_resources.rules import new_session
from tests.rules.rule_samples import known

EXAMPLES = sorted((Path(examples.__file__).parent / "defs").glob("*/defs.yaml"))
ACCEPTED = tuple(
    statement.strip()
    for statement in Path(__file__).with_name("accepted.sql").read_text("utf-8").split(";\n")
    if statement.strip()
)
"""One statement of every kind, over the views of `rule_samples`."""
ONLY_TOLERATED = (
    # Whether these columns are there is known only when they are read.
    "SELECT whatever.there.is, p.more FROM payments p",
    "SELECT * FROM orders o JOIN payments p ON p.order_id = o.id WHERE amount > 0",
)
COMMON = ", ".join(COMMON_COLUMNS)


@pytest.fixture(scope="module", name="shop")
def of_shop() -> KnownViews:
    return known()


class TestAccepted:
    """What is right passes, and says what it reads."""

    @pytest.mark.parametrize("sql", [*ACCEPTED, *ONLY_TOLERATED])
    def test_ordinary_spark_sql(self, shop: KnownViews, sql: str) -> None:
        assert check_rule_sql(sql, shop, Scope.EVERYTHING)

    def test_the_views_that_it_reads(self, shop: KnownViews) -> None:
        sql = """
            WITH a AS (SELECT id FROM `Orders.Created.V1`)
            SELECT a.id FROM a JOIN `by-customer-repartition` ON true
            WHERE a.id IN (SELECT _key FROM `store:totals` UNION SELECT _key FROM totals)
        """
        assert check_rule_sql(sql, shop, Scope.EVERYTHING) == (
            "by-customer-repartition",
            "orders.created.v1",
            "store:totals",
            "totals",
        )

    def test_what_there_was_before(self, shop: KnownViews) -> None:
        sql = "SELECT n.orders FROM `store:totals` n JOIN `store:totals@before` USING (_key)"
        assert check_rule_sql(sql, shop, Scope.WINDOW) == ("store:totals", "store:totals@before")
        with pytest.raises(RuleTextError, match="exists only in rules with scope: window"):
            check_rule_sql(sql, shop, Scope.EVERYTHING)


class TestRefused:
    """What is wrong is refused, with the line and what there is."""

    @pytest.mark.parametrize(
        "sql",
        [
            "SELECT java_method('java.lang.System', 'getenv', 'HOME') AS x FROM orders",
            "SELECT Reflect ('java.lang.System', 'load', '/tmp/x.so') AS x FROM orders",
            "SELECT `reflect`('java.lang.System', 'getenv', 'HOME') AS x FROM orders",
            "SELECT try_reflect('java.lang.System', 'getenv', 'HOME') AS x FROM orders",
            "SELECT system.builtin.java_method('java.lang.System', 'getenv', 'A') FROM orders",
            "SELECT id FROM orders WHERE id IN (SELECT /* */ reflect/**/('a', 'b') FROM orders)",
            "SELECT from_protobuf(_key, 'M', '/etc/passwd') AS x FROM orders",
            "SELECT from_xml(id, 'a INT', map('rowValidationXSDPath', '/etc/x')) FROM orders",
            "SELECT TRANSFORM(id) USING '/bin/sh -c id' AS (x STRING) FROM orders",
            "FROM orders SELECT TRANSFORM(id) USING 'id' AS (x STRING)",
            "FROM orders MAP id USING 'id' AS (x STRING)",
            'FROM orders REDUCE id USING "id" AS (x STRING)',
            "SELECT id FROM python_worker_logs(), orders",
        ],
    )
    def test_what_reaches_out_of_the_data(self, shop: KnownViews, sql: str) -> None:
        with pytest.raises(RuleTextError, match=r"it (calls|passes rows to a program)"):
            check_rule_sql(sql, shop, Scope.EVERYTHING)

    @pytest.mark.parametrize(
        "sql",
        [
            "SELECT id FROM orders JOIN text.`/etc/passwd` ON true",
            "SELECT id FROM orders, IDENTIFIER('parquet.`/etc`')",
            "SELECT id FROM orders WHERE id > ${env:HOME}",
        ],
    )
    def test_files_and_variables_are_no_part_of_a_rule(self, shop: KnownViews, sql: str) -> None:
        with pytest.raises(RuleTextError):
            check_rule_sql(sql, shop, Scope.EVERYTHING)

    @pytest.mark.parametrize(
        "sql",
        [
            "SELECT 'reflect(' AS said, id FROM orders -- java_method('a')",
            "SELECT reflect.id FROM orders AS reflect",
            "SELECT o.id FROM orders o JOIN orders p USING (id)",
        ],
    )
    def test_words_that_call_nothing_are_left_alone(self, shop: KnownViews, sql: str) -> None:
        assert check_rule_sql(sql, shop, Scope.EVERYTHING)

    @pytest.mark.parametrize(
        ("sql", "line", "problem"),
        [
            ("SELECT *\nFROM orders\nWHERE (id = 'a'", 3, "the SQL cannot be parsed at \"'a'\""),
            ("SELEC * FROM orders", 1, "the SQL cannot be parsed at 'FROM'"),
            ("SELECT 'open FROM orders", None, "the SQL cannot be parsed"),
            ("", None, "it is 0 statements"),
            ("SELECT id FROM orders; SELECT id FROM orders", None, "it is 2 statements"),
            ("INSERT INTO orders VALUES (1)", None, "a statement INSERT, not a SELECT"),
            ("CREATE TABLE x AS SELECT id FROM orders", None, "a statement CREATE, not a SELECT"),
            ("DROP TABLE orders", None, "a statement DROP, not a SELECT"),
            ("SET a = b", None, "a statement SET, not a SELECT"),
            ("SELECT 1", None, "it reads neither a topic nor a store"),
            ("SELECT id\nFROM oders", 2, "there is no topic or store 'oders' (near: orders"),
            ("SELECT * FROM zzz", 1, "there is no topic or store 'zzz' (there are: by-customer"),
            ("SELECT 1\nFROM orders.created.v1", 2, "orders.created.v1 contains dots or dashes"),
            ("SELECT 1\nFROM orders-rejected", 2, "orders-rejected contains dots or dashes"),
            ("SELECT 1 FROM json.`/etc/x`", 1, "there is no topic or store 'json./etc/x'"),
            ("SELECT 1 FROM `left-out`", 1, "'left-out' is not backed up: the topic is excluded"),
            ("SELECT 1 FROM hidden", 1, "'hidden' is not backed up: its changelog"),
            (
                "SELECT\n  idd\nFROM orders",
                2,
                "there is no column 'idd' (near: id; there are: _key",
            ),
            ("SELECT o.idd FROM orders o", 1, "there is no column 'o.idd'"),
            ("SELECT x.id FROM orders o", 1, "there is no column 'x.id'"),
            ("SELECT _value.euros FROM orders", 1, "orders has no field '_value.euros' (there are"),
            ("SELECT at.street.x FROM places", 1, "no field 'at.street.x' (there are: no)"),
            ("SELECT cents.x FROM orders", 1, "orders has no field 'cents.x'"),
            ("SELECT cents FROM plain", 1, "there is no column 'cents' (there are: " + COMMON),
            ("SELECT id FROM orders ORDER BY\n idd", 2, "there is no column 'idd'"),
            ("SELECT _offset FROM (SELECT id FROM orders)", 1, "there are: id)"),
            ("WITH a AS (SELECT id FROM orders) SELECT cents FROM a", 1, "there are: id)"),
            ("SELECT id FROM orders o JOIN totals t ON t.id = o.id", 1, "no column 't.id'"),
            ("SELECT (SELECT x.id FROM totals) FROM orders", 1, "there is no column 'x.id'"),
            ("SELECT 1 FROM orders o, (SELECT o.id FROM totals)", 1, "no column 'o.id'"),
            ("SELECT transform(tags, t -> tt) FROM places", 1, "there is no column 'tt'"),
            ("SELECT count_iff(\nid) FROM orders", 1, "no function 'count_iff' (near: count_if"),
            ("SELECT 1,\n strpos(id, 'a') FROM orders", 2, "Spark has no function 'strpos'"),
        ],
    )
    def test_with_the_line_and_the_reason(
        self, shop: KnownViews, sql: str, line: int | None, problem: str
    ) -> None:
        with pytest.raises(RuleTextError, match=re.escape(problem)) as caught:
            check_rule_sql(sql, shop, Scope.EVERYTHING)
        assert caught.value.line == line

    def test_dotted_names_are_told_to_be_put_in_backticks(self, shop: KnownViews) -> None:
        for sql in ("SELECT 1 FROM orders.created.v1", "SELECT 1 FROM a JOIN orders-rejected"):
            with pytest.raises(RuleTextError, match=r"Write it as `orders[.-]\w+.*`"):
                check_rule_sql(sql, shop, Scope.EVERYTHING)


def _refused_by(spark: SparkSession, statements: Iterable[str]) -> dict[str, str]:
    """Statements that Spark does not understand, with what it says."""
    refused: dict[str, str] = {}
    for sql in statements:
        try:
            spark.sql(sql).schema  # noqa: B018 (analyses it)
        except Exception as error:  # noqa: BLE001 (whatever Spark says)
            refused[sql] = str(error).splitlines()[0]
    return refused


def _shows(spark: SparkSession, views: Iterable[tuple[str, View]]) -> None:
    """Empty views with the columns that rules see."""
    types: dict[str, str] = {
        "_partition": "INT",
        "_offset": "BIGINT",
        "_timestamp": "TIMESTAMP",
        "_timestamp_ms": "BIGINT",
        "_window": "STRING",
        "_headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
        "_in_flight": "BOOLEAN",
        "_decode_error": "STRING",
        "_key": "STRING",
    }
    for name, view in views:
        fields = {each.name: each.type for each in view.fields}
        schema = view.format.value.schema
        value = f"STRUCT<{schema}>" if schema else "BIGINT"
        columns = [
            f"`{column}` {types.get(column) or (value if column == '_value' else None) or of}"
            for column in view.columns or ()
            if (of := fields.get(column, "BIGINT"))
        ]
        empty: list[tuple[Any, ...]] = []
        spark.createDataFrame(empty, ", ".join(columns)).createOrReplaceTempView(f"`{name}`")


@pytest.mark.spark
class TestAgainstSpark:
    """The check and the real Spark agree."""

    def test_what_is_accepted_here_spark_accepts(
        self, spark: SparkSessionResource, shop: KnownViews
    ) -> None:
        """Otherwise the samples above would show nothing."""
        session = new_session(spark.spark_session)
        _shows(session, ((n, v) for n, v in shop.views.items() if v.columns is not None))
        assert _refused_by(session, ACCEPTED) == {}

    @pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.parent.name)
    def test_the_rules_of_the_examples(self, spark: SparkSessionResource, file: Path) -> None:
        settings = load_settings(file)
        views = views_of(settings)
        recomputed = [recompute_sql(each, views) for each in settings.recomputed]
        named = {name for rule in settings.completeness for name in rule.views}
        named |= {name for made in recomputed for name in made.views}
        session = new_session(spark.spark_session)
        _shows(session, ((name, views[name]) for name in named))
        statements = [rule.query for rule in settings.completeness]
        statements += [sql for made in recomputed for sql in (made.sql, made.late_sql) if sql]
        assert _refused_by(session, statements) == {}

    def test_the_list_of_functions_is_that_of_spark(self, spark: SparkSessionResource) -> None:
        session = new_session(spark.spark_session)
        listed = {row[0] for row in session.sql("SHOW SYSTEM FUNCTIONS").collect()}
        names = {name for name in listed if name.replace("_", "").isalnum()}
        assert spark_functions() == names
