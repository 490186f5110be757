"""Schemas of JSON are checked without a JVM, and never more freely than Spark does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstreams_assets.app.store_columns import SchemaTextError, parse_schema
from spark_resources.resource import SparkSessionResource

GOOD = {
    "a BIGINT": ["a"],
    "a: int, `b-c.d` string": ["a", "b-c.d"],
    "a DECIMAL, b dec(38), c NUMERIC(10, 2)": ["a", "b", "c"],
    "a STRUCT<b: STRUCT<c: DOUBLE>, d ARRAY<STRUCT<e: INT>>>, f DATE": [
        "a",
        "a.b",
        "a.b.c",
        "a.d",
        "f",
    ],
    "a MAP<STRING, ARRAY<BOOLEAN>> COMMENT 'a, > text', timestamp TIMESTAMP_NTZ": [
        "a",
        "timestamp",
    ],
    "count SMALLINT, order TINYINT, end BINARY, _x FLOAT\n,y REAL, z LONG": [
        "count",
        "order",
        "end",
        "_x",
        "y",
        "z",
    ],
}
BAD = {
    "": "column 1 has the end instead of the name of a field",
    "a": "column 2 has the end instead of a type",
    "a BIGNIT": "column 3 has 'BIGNIT' instead of a type",
    "a INT,": "column 7 has the end instead of the name of a field",
    "a INT b INT": "column 7 has 'b' instead of a comma",
    "a INT NOT NULL": "column 7 has 'NOT' instead of a comma",
    "a INT, A INT": "column 8 has 'A' instead of a new name (case is ignored)",
    "a STRUCT<>": "column 10 has '>' instead of the name",
    "a STRUCT<b: INT": "column 16 has the end instead of a comma or '>'",
    "a ARRAY<INT": "instead of '>'",
    "a ARRAY": "instead of '<'",
    "a MAP<INT, INT>": "column 7 has 'INT' instead of STRING",
    "a DECIMAL(39)": "column 11 has '39' instead of a number up to 38",
    "a DECIMAL(5, 6)": "column 14 has '6' instead of a number up to 5",
    "a VARCHAR(5)": "instead of a type",
    "a INT; DROP TABLE x": "column 6 has ';' instead of a name, a type or one of",
    "1a INT": "column 1 has '1a' instead of the name",
    "`a b` INT": "instead of the name of a field",
    "a INT COMMENT x": "instead of a comment in single quotes",
    "a INT> , b INT": "column 6 has '>' instead of a comma",
}


@pytest.mark.parametrize("ddl", GOOD)
def test_fields(ddl: str) -> None:
    assert [path for field in parse_schema(ddl) for path in field.paths()] == GOOD[ddl]


@pytest.mark.parametrize("ddl", BAD)
def test_refused(ddl: str) -> None:
    with pytest.raises(SchemaTextError) as caught:
        parse_schema(ddl)
    assert BAD[ddl] in str(caught.value)


@given(st.text("abAINT<>(),:`' SRUCY\n19", max_size=40) | st.text(max_size=20))
def test_any_text_is_read_or_refused(ddl: str) -> None:
    try:
        assert parse_schema(ddl)
    except SchemaTextError as error:
        assert "column" in str(error)  # noqa: PT017


@pytest.mark.spark
@pytest.mark.parametrize("ddl", GOOD)
def test_spark_reads_the_same_fields(spark: SparkSessionResource, ddl: str) -> None:
    frame = spark.spark_session.sql(f"SELECT from_json('[]', \"ARRAY<STRUCT<{ddl}>>\") AS list")
    names = frame.schema["list"].dataType.elementType.names  # pyright: ignore
    assert names == [field.name for field in parse_schema(ddl)]
