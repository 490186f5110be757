"""The block `completeness` of the YAML, and recomputed stores: what is loaded, what is refused."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import examples
from kstreams_assets.app.rules import (
    CompletenessRule,
    Place,
    Recomputation,
    RuleLimits,
    Scope,
    WindowedBy,
)
from kstreams_assets.app_file.read import load_settings
from kstreams_assets.checks import Severity
from kstreams_assets.errors import RuleSqlError
from kstreams_assets.rules.view import KnownViews, views_of
from tests.cli.application import TYPE
from tests.orchestration.project import Project, messages_of
from tests.rules.rule_samples import attributes, settings, stores

DEFINITIONS = Path(examples.__file__).parent / "defs"
EXAMPLES = sorted(each.parent.name for each in DEFINITIONS.glob("*/defs.yaml"))


def _rule(**said: Any) -> CompletenessRule:
    return settings(completeness=[{"name": "r", **said}]).completeness[0]


def _refused(*rules: dict[str, Any], **more: Any) -> RuleSqlError:
    with pytest.raises(RuleSqlError) as caught:
        settings(completeness=list(rules), **more)
    return caught.value


def _written(tmp_path: Path, rules: str, **more: Any) -> tuple[Path, int]:
    """A file with these rules, and the line that they begin in."""
    head = yaml.safe_dump({"type": TYPE, "attributes": attributes(**more)}, sort_keys=False)
    file = tmp_path / "defs.yaml"
    file.write_text(f"{head}  completeness:\n{rules}", "utf-8")
    return file, head.count("\n") + 2


class TestLoaded:
    """What the YAML says becomes rules."""

    def test_sql(self) -> None:
        sql = "SELECT * FROM `orders.created.v1` o JOIN totals USING (_key)"
        assert _rule(sql=sql) == CompletenessRule(
            name="r", sql=sql, query=sql, views=("orders.created.v1", "totals")
        )

    def test_everything_that_can_be_said(self) -> None:
        rule = _rule(
            sql="SELECT id FROM orders",
            scope="window",
            severity="warn",
            blocking=False,
            on=["restore", "backup"],
            description="Why.",
            timeout_seconds=5,
            max_rows=7,
            max_memory_mib=3,
        )
        assert rule.limits == RuleLimits(timeout_seconds=5, max_rows=7, max_memory_mib=3)
        assert rule.on == [Place.RESTORE, Place.BACKUP]
        assert (rule.scope, rule.severity, rule.blocking) == (Scope.WINDOW, Severity.WARN, False)
        assert (rule.description, rule.line) == ("Why.", None)

    def test_a_balance_becomes_sql(self) -> None:
        rule = _rule(balance="orders == totals + orders-rejected", per="_key")
        assert rule.balance == "orders == totals + orders-rejected"
        assert rule.views == ("orders", "totals", "orders-rejected")
        assert "GROUP BY `_key`" in rule.query
        assert rule.on == [*Place]

    def test_recomputed_stores(self) -> None:
        more = stores()
        more["totals"]["recompute"] = {
            "source": "orders",
            "key": "customer",
            "where": "cents > 0",
            "values": {"orders": "count(*)"},
            "through": "by-customer-repartition",
            "max_rows": 9,
        }
        windows = {"size_ms": 60_000, "advance_ms": 20_000, "grace_ms": 5}
        more["per-minute"]["recompute"] = {"source": "orders", "windowed_by": windows}
        loaded = settings(stores=more)
        assert loaded.recomputed == (
            Recomputation(
                store="totals",
                source="orders",
                key="customer",
                values={"orders": "count(*)"},
                where="cents > 0",
                through="by-customer-repartition",
                max_rows=9,
            ),
            Recomputation(
                store="per-minute",
                source="orders",
                key="_key",
                windowed_by=WindowedBy(size_ms=60_000, advance_ms=20_000, grace_ms=5),
            ),
        )
        assert set(loaded.store_formats) == {"totals", "per-minute", "kept", "hidden"}

    def test_lines(self, tmp_path: Path) -> None:
        file, line = _written(tmp_path, "    - {name: a, sql: SELECT id FROM orders}\n")
        assert load_settings(file).completeness[0].line == line


class TestRefused:
    """What is wrong is an error at load, which names the rule."""

    @pytest.mark.parametrize("name", ["a-b", "a b", "", "1a", "a.b", "ä"])
    def test_names_that_are_no_identifiers(self, name: str) -> None:
        error = _refused({"name": name, "sql": "SELECT id FROM orders"})
        assert "its name is not an identifier" in str(error)

    def test_the_line_of_the_rule_and_the_line_of_the_problem(self, tmp_path: Path) -> None:
        rules = (
            "    - name: right\n      sql: SELECT id FROM orders\n"
            "    - name: money\n"
            "      description: >-\n        Two\n        lines.\n"
            "      sql: |\n"
            "        SELECT id,\n"
            "               centz\n"
            "        FROM orders\n"
        )
        file, line = _written(tmp_path, rules)
        with pytest.raises(RuleSqlError) as caught:
            load_settings(file)
        error = caught.value
        assert (
            file.read_text("utf-8").splitlines()[(error.problem_line or 0) - 1].strip() == "centz"
        )
        assert (error.line, error.problem_line) == (line + 2, line + 8)
        assert str(error).startswith(
            f"Completeness rule 'money' of {file}, line {line + 2} (the problem is in line"
            f" {line + 8}): there is no column 'centz'"
        )

    def test_the_line_of_a_recomputation(self, tmp_path: Path) -> None:
        more = stores()
        more["totals"]["recompute"] = {"source": "oders"}
        file, _ = _written(tmp_path, "    []\n", stores=more)
        with pytest.raises(RuleSqlError) as caught:
            load_settings(file)
        lines = file.read_text("utf-8").splitlines()
        assert lines[(caught.value.line or 0) - 1].strip() == "source: oders"

    def test_the_code_location_says_the_same_as_the_command_line(self, project: Project) -> None:
        """`dg check defs` loads the code location."""
        rules = [{"name": "money", "sql": "SELECT id\nFROM oders"}]
        file = project.write("shop", attributes(completeness=rules))
        with pytest.raises(RuleSqlError) as at_the_command_line:
            load_settings(file)
        with pytest.raises(Exception, match=r"(?s).*") as in_dagster:
            project.load()
        assert str(at_the_command_line.value) in messages_of(in_dagster.value)


class TestExamples:
    """The rules of the worked examples."""

    @pytest.mark.parametrize("example", EXAMPLES)
    def test_each_has_rules_over_views_that_there_are(self, example: str) -> None:
        loaded = load_settings(DEFINITIONS / example / "defs.yaml")
        views = views_of(loaded)
        assert loaded.completeness
        for rule in loaded.completeness:
            assert set(rule.views) <= set(views)
            assert rule.line is not None

    @pytest.mark.parametrize("example", EXAMPLES)
    def test_every_topic_that_a_rule_looks_into_has_a_format(self, example: str) -> None:
        """Of bytes a rule sees nothing."""
        loaded = load_settings(DEFINITIONS / example / "defs.yaml")
        known = KnownViews.of(loaded)
        looked_at = {name for rule in loaded.completeness for name in rule.views}
        for name in looked_at:
            view = known.views[name]
            assert view.format.key.encoding != "bytes", name

    def test_the_sums_that_are_recomputed(self) -> None:
        recomputed = {
            each.store
            for example in EXAMPLES
            for each in load_settings(DEFINITIONS / example / "defs.yaml").recomputed
        }
        assert recomputed == {
            "order-totals",
            "order-count-by-customer",
            "order-count-by-customer-v2",
            "risk-score-by-customer",
        }

    def test_the_balance_of_the_issue(self) -> None:
        rules = load_settings(DEFINITIONS / "orders_risk_scoring" / "defs.yaml").completeness
        said = {re.sub(r"\s+", " ", rule.balance or "") for rule in rules}
        assert (
            "orders.created.v1 == orders.risk-candidates.v1 + orders.filtered-out.v1"
            " + orders.error.v1" in said
        )
