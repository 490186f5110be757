"""Rules and dashboard ask for metrics that there are, by labels that these have."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import promql_parser as promql
import pytest

from kstreams_assets.checks import Severity
from kstreams_assets.metrics.catalogue import APPLICATION, METRICS
from kstreams_assets.metrics.collect import GROUP_STATES
from kstreams_assets.model.rule_results import Outcome
from tests.deploy.rendered import KUBERNETES, one

_OF_PROMETHEUS = {"up": ("namespace", "service")}
"""What Prometheus itself knows of what it scrapes, by a ServiceMonitor."""

VALUES: Mapping[str, set[str]] = {
    "state": set(GROUP_STATES),
    "severity": {each.value for each in Severity},
    "outcome": {each.value for each in Outcome},
    "kind": {"newest", "covered", "exact"},
}
"""What these labels can be."""


def _rules() -> list[dict[str, Any]]:
    (group,) = one("PrometheusRule/kstreams-assets")["spec"]["groups"]
    return group["rules"]


def _panels() -> list[dict[str, Any]]:
    return _dashboard()["panels"]


def _dashboard() -> dict[str, Any]:
    made = one("ConfigMap/kstreams-assets-dashboard")
    assert made["metadata"]["labels"] == {"grafana_dashboard": "1"}
    return json.loads(made["data"]["kstreams-assets.json"])


def _expressions() -> Iterator[tuple[str, str]]:
    for rule in _rules():
        yield rule["alert"], rule["expr"]
    for panel in _panels():
        for target in panel["targets"]:
            yield f"panel {panel['title']}", target["expr"].replace("$application_id", "shop")


def _parts(expression: Any) -> Iterator[Any]:
    """The expression and all within it."""
    yield expression
    for name in ("lhs", "rhs", "expr", "vector_selector", "param"):
        inner = getattr(expression, name, None)
        if inner is not None:
            yield from _parts(inner)
    if isinstance(expression, promql.Call):
        for argument in expression.args:
            yield from _parts(argument)


def _labels(metric: str | None) -> tuple[str, ...]:
    assert metric is not None  # a selector by labels alone
    if metric in _OF_PROMETHEUS:
        return _OF_PROMETHEUS[metric]
    return (APPLICATION, *METRICS[metric].labels)


def _selectors(expression: Any) -> list[promql.VectorSelector]:
    return [part for part in _parts(expression) if isinstance(part, promql.VectorSelector)]


def problems(text: str) -> list[str]:
    """What is wrong with an expression."""
    try:
        expression = promql.parse(text)
    except ValueError as error:
        return [str(error)]
    found = []
    for selector in _selectors(expression):
        name = selector.name or ""
        if name not in METRICS and name not in _OF_PROMETHEUS:
            found.append(f"there is no metric {name}")
            continue
        for matcher in selector.matchers.matchers:
            if matcher.name not in _labels(name):
                found.append(f"{name} has no label {matcher.name}")
            exact = [matcher.value] if "|" not in matcher.value else matcher.value.split("|")
            known = VALUES.get(matcher.name)
            if known is not None and not set(exact) <= known:
                found.append(f"{matcher.name} is never {matcher.value}")
    for wanted, inside in _grouped(expression):
        for name in {selector.name or "" for selector in _selectors(inside)}:
            if name in METRICS and not set(wanted) <= set(_labels(name)):
                found.append(f"{name} has not all of {', '.join(wanted)}")
    return found


def _grouped(expression: Any) -> Iterator[tuple[Iterable[str], Any]]:
    """Labels in `by (...)` and `on (...)`, with what has to have them."""
    for part in _parts(expression):
        modifier = getattr(part, "modifier", None)
        if isinstance(part, promql.AggregateExpr) and modifier is not None:
            yield modifier.labels, part.expr
        elif isinstance(part, promql.BinaryExpr) and modifier is not None and modifier.matching:
            yield modifier.matching.labels, part


def test_every_expression_is_valid_and_asks_for_what_there_is() -> None:
    asked = list(_expressions())
    assert len(asked) >= 25
    assert {where: found for where, text in asked if (found := problems(text))} == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kstreams_readyness == 0", "there is no metric kstreams_readyness"),
        ('kstreams_ready{topic="orders"} == 0', "kstreams_ready has no label topic"),
        ('kstreams_group_state{state="stable"}', "state is never stable"),
        ("sum by (topic) (rate(kstreams_ready[5m]))", "kstreams_ready has not all of topic"),
        ("kstreams_up - on (topic) kstreams_ready", "kstreams_up has not all of topic"),
    ],
)
def test_a_wrong_expression_is_found(text: str, problem: str) -> None:
    assert problem in problems(text)


def test_an_expression_that_is_none_is_found() -> None:
    assert problems("sum by (") != []


def test_every_alert_says_which_application_and_what() -> None:
    for rule in _rules():
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert re.fullmatch(r"\d+[mhd]", rule.get("for", "1m"))
        summary = rule["annotations"]["summary"]
        known = {label for s in _selectors(promql.parse(rule["expr"])) for label in _labels(s.name)}
        named = set(re.findall(r"\$labels\.(\w+)", summary))
        assert named <= known
        assert APPLICATION in named or rule["alert"] == "KStreamsAssetsFollowerGone"
    names = [rule["alert"] for rule in _rules()]
    assert len(names) == len(set(names))


def test_the_rules_of_the_how_to_are_among_them() -> None:
    """docs/how-to/watch-with-prometheus.md has the same alerts, for those without the operator."""
    text = (KUBERNETES.parents[1] / "docs/how-to/watch-with-prometheus.md").read_text("utf-8")
    alerts = text.partition("## 4. Alerts")[2].partition("```text")[2].partition("```")[0]
    asked = {re.split(r"\s{2,}for |\s{2,}$", line)[0].strip() for line in alerts.splitlines()}
    named = {s.name for line in asked if line for s in _selectors(promql.parse(line))}
    ours = {s.name for rule in _rules() for s in _selectors(promql.parse(rule["expr"]))}
    # What a backfill finds in older windows is no alert of an operator at night.
    assert named - ours == {"kstreams_completeness_evaluations_total"}


def test_the_service_monitor_finds_the_follower() -> None:
    spec = one("ServiceMonitor/kstreams-assets")["spec"]
    service = one("Service/kstreams-follower")
    wanted: Mapping[str, str] = spec["selector"]["matchLabels"]
    assert wanted.items() <= service["metadata"]["labels"].items()
    (endpoint,) = spec["endpoints"]
    assert endpoint == {
        "port": service["spec"]["ports"][0]["name"],
        "path": "/metrics",
        "interval": "30s",
        "scrapeTimeout": "10s",
    }
    (rule,) = [rule for rule in _rules() if rule["alert"] == "KStreamsAssetsFollowerGone"]
    (up,) = _selectors(promql.parse(rule["expr"]))
    found = {matcher.name: matcher.value for matcher in up.matchers.matchers}
    assert found == {
        "namespace": service["metadata"]["namespace"],
        "service": service["metadata"]["name"],
    }


def test_the_dashboard_is_whole() -> None:
    dashboard = _dashboard()
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = set()
    for panel in panels:
        grid = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & places, panel["title"]
        places |= cells
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            labels = {n for s in _selectors(promql.parse(target["expr"])) for n in _labels(s.name)}
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels
            assert "$application_id" in target["expr"]
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert variables.keys() == {"datasource", "application_id"}
    asked = variables["application_id"]["query"]["query"]
    found = re.fullmatch(r"label_values\((\w+), (\w+)\)", asked)
    assert found is not None
    assert found[2] in _labels(found[1])
