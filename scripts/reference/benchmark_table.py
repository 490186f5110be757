"""The table of benchmarks, from the results of `python -m bench`."""

from pathlib import Path
from typing import NamedTuple

from bench.harness import CaseResult
from bench.machine import RESULTS

_MISSING = "not measured yet"


class _Row(NamedTuple):
    what: str
    case: str
    act: str
    figure: str = "seconds"
    unit: str = "s"


_CONSUMER = "ConsumerPerformance, fetch time"
_LOOP = "plain producer loop"
_CALLED = {_CONSUMER: "Kafka's consumer", _LOOP: "the plain loop"}

_ROWS = (
    _Row("1 M records of 1 KB: Kafka's own consumer", "plain", _CONSUMER),
    _Row("their backup, whole command", "plain", "backup"),
    _Row("the same in transactions, 5 % aborted", "transactional", "backup"),
    _Row("plain loop: files into two producers", "plain", _LOOP),
    _Row("restore, every record compared", "plain", "restore, every record compared"),
    _Row("window of 20 small spans, whole command", "windows", "20 spans, warm engine"),
    _Row("the same where no engine runs", "windows", "20 spans, no engine runs"),
    _Row("table of 6,000 orders, whole command", "orders", "ktables make"),
    _Row("six rules over 6,000 orders, whole command", "orders", "completeness check"),
    _Row("six rules over 120,000 orders, whole command", "many-orders", "completeness check"),
    _Row("table of 3 M changes, whole command", "ktable", "ktables make, from the begin"),
    _Row("state of one of its 300,000 keys", "ktable", "state of one key"),
    _Row("loss of the cluster costs (follower, 95th percentile)", "follow", "follow", "age_p95_s"),
    _Row("its follower uses, at 2,000 orders/s", "follow", "follow", "cores", "cores"),
    _Row(
        "from the loss until the application is RUNNING on a new broker, with all records compared"
        " and six rules evaluated",
        "recovery",
        "demo",
        "rto_s",
    ),
)


def benchmark_lines() -> list[str]:
    """The page."""
    return [
        "One machine with 2 cores, which the broker shares. `make bench` writes the results to"
        " `bench/results/`.",
        "",
        *table(RESULTS).splitlines(),
    ]


def table(results: Path) -> str:
    """The table from the results in a folder; trials (of another scale than 1) do not count."""
    lines = ["| what | measured | compared with | asked for |", "|---|---|---|---|"]
    for row in _ROWS:
        found = CaseResult.read(results / f"{row.case}.json")
        if found is None or found.scale != 1:
            lines.append(f"| {row.what} | {_MISSING} | | |")
            continue
        lines.append(_line(row, found))
    return "\n".join(lines) + "\n"


def _line(row: _Row, result: CaseResult) -> str:
    acts = {act.name: act for act in result.acts}
    if row.act not in acts:
        raise ValueError(f"bench/results/{row.case}.json has no act {row.act!r}")
    act, figures = acts[row.act], result.medians()[row.act]
    ratio = figures.get("ratio")
    compared = "" if ratio is None else f"{ratio:.2f} times {_CALLED[act.against]}"
    name = "ratio" if "ratio" in act.at_most else row.figure
    most = act.at_most.get(name)
    asked = ""
    if most is not None:
        asked = f"≤ {most:g}: {'met' if figures[name] <= most else 'not met'}"
    return f"| {row.what} | {figures[row.figure]:.1f} {row.unit} | {compared} | {asked} |"
