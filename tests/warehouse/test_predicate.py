"""Predicates hold for exactly the pairs that are meant."""

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from kstreams_assets.warehouse.table import WindowTopic, sql_string, windows_and_topics


def test_windows_with_the_same_topics_share_a_clause() -> None:
    pairs = [WindowTopic(f"w{n}", topic) for n in range(300) for topic in ("t", "u")]
    text = windows_and_topics([*pairs, WindowTopic("x", "t")])
    assert text.count(" OR ") == 1
    assert len(text) < 3000


def test_quotes() -> None:
    assert sql_string("it's") == "'it''s'"


def test_exactly_the_pairs(tmp_path: Path) -> None:
    names = ["a", "b", "it's"]
    rows = [{"window": window, "topic": topic} for window in names for topic in names]
    write_deltalake(tmp_path, pa.Table.from_pylist(rows))
    chosen = {("a", "b"), ("a", "it's"), ("it's", "b"), ("b", "a")}
    table = DeltaTable(tmp_path)
    table.delete(windows_and_topics(WindowTopic(*pair) for pair in chosen))
    left = {(row["window"], row["topic"]) for row in table.to_pyarrow_table().to_pylist()}
    assert left == {(row["window"], row["topic"]) for row in rows} - chosen
