import pytest

from kstreams_assets.app.resolution import compile_java_pattern


@pytest.mark.parametrize(
    ("pattern", "matches", "does_not"),
    [
        ("orders.*", "orders-eu", "my-orders"),
        ("orders", "orders", "orders-eu"),  # the whole name, as Kafka's consumer does it
        (r"\Qa.b\E-.*", "a.b-c", "axb-c"),
        (r"x\Qa+", "xa+", "xaa"),
        ("(?<region>eu|us)-orders", "eu-orders", "de-orders"),
        (r"\[?in", "in", "out"),
    ],
)
def test_java_patterns(pattern: str, matches: str, does_not: str) -> None:
    compiled = compile_java_pattern(pattern)
    assert compiled is not None
    assert compiled.fullmatch(matches)
    assert not compiled.fullmatch(does_not)


@pytest.mark.parametrize("pattern", ["[a-z&&[^b]]+", "[a[bc]]", r"\p{Alpha}+", "a(", r"\h"])
def test_what_java_means_otherwise_is_not_understood(pattern: str) -> None:
    assert compile_java_pattern(pattern) is None
