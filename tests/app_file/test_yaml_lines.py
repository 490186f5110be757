"""Where in the YAML rules stand."""

from pathlib import Path

import pytest

from kstreams_assets.app_file.yaml_lines import NO_LINES, RuleLines, yaml_lines

YAML = """\
# A comment.
type: kstreams_assets.components.KafkaStreamsAppComponent
attributes:
  application_id: shop
  stores:
    totals:
      recompute:
        source: orders
    plain: {key: string}
  completeness:
    - name: literal
      sql: |
        SELECT *
        FROM orders
    - name: folded
      sql: >-
        SELECT *
        FROM orders
    - name: plain
      sql: SELECT * FROM orders
    - {name: flow, balance: orders == totals}
    - name: without
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "defs.yaml"


def test_rules_and_texts(file: Path) -> None:
    file.write_text(YAML, "utf-8")
    found = yaml_lines(file, "shop")
    assert found.file == file
    assert found.rules == (
        RuleLines(11, 13, is_literal=True),
        RuleLines(15, 16),
        RuleLines(19, 20),
        RuleLines(21, 21),
        RuleLines(22),
    )
    assert found.recomputed == {"totals": RuleLines(8)}
    assert found.of_rule(1) == RuleLines(15, 16)
    assert found.of_rule(5) is None


def test_lines_of_the_text(file: Path) -> None:
    """Those that are named are the ones with the text."""
    file.write_text(YAML, "utf-8")
    literal, folded, plain, *_, without = yaml_lines(file, "shop").rules
    lines = YAML.splitlines()
    assert lines[(literal.of_text(1) or 0) - 1].strip() == "SELECT *"
    assert lines[(literal.of_text(2) or 0) - 1].strip() == "FROM orders"
    assert folded.of_text(2) == 16
    assert plain.of_text(1) == 20
    assert without.of_text(1) is None


def test_the_application_is_chosen_among_documents(file: Path) -> None:
    other = YAML.replace("shop", "other")
    file.write_text(f"{YAML}---\n{other}---\ntype: else.Thing\n", "utf-8")
    assert yaml_lines(file, "shop").rules[0].rule == 11
    assert yaml_lines(file, "other").rules[0].rule == 11 + YAML.count("\n") + 1
    assert yaml_lines(file, "third") == NO_LINES


def test_an_only_application_may_be_a_template(file: Path) -> None:
    file.write_text(YAML.replace("shop", "\"{{ env('APP') }}\""), "utf-8")
    assert yaml_lines(file, "shop").rules[0].rule == 11


@pytest.mark.parametrize("text", ["a: [", "", "- 1", "type: X\nattributes: 1", "\x00"])
def test_what_cannot_be_told(file: Path, text: str) -> None:
    file.write_text(text, "utf-8")
    assert yaml_lines(file, "shop") == NO_LINES


def test_no_file(file: Path) -> None:
    assert yaml_lines(file, "shop") == NO_LINES
