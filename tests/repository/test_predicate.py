"""Predicates hold for exactly the pairs that are meant."""

import pyarrow as pa

from kstreams_assets.repository.table import WindowTopic, windows_and_topics


def test_windows_with_the_same_topics_share_a_clause() -> None:
    pairs = [WindowTopic(f"w{n}", topic) for n in range(300) for topic in ("t", "u")]
    assert str(windows_and_topics([*pairs, WindowTopic("x", "t")])).count(" or ") == 1


def test_exactly_the_pairs() -> None:
    names = ["a", "b", "it's"]
    rows = [{"window": window, "topic": topic} for window in names for topic in names]
    chosen = {("a", "b"), ("a", "it's"), ("it's", "b"), ("b", "a")}
    table = pa.Table.from_pylist(rows)
    for pairs in (chosen, set[tuple[str, str]]()):
        found = table.filter(windows_and_topics(WindowTopic(*pair) for pair in pairs))
        assert {(row["window"], row["topic"]) for row in found.to_pylist()} == pairs
