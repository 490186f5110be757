"""Runs the acts of a case in turn, round by round, and writes down what they took.

Machines differ from hour to hour: what is compared runs in the same round, and a ratio is the
median of the ratios of the rounds. Round 0 warms up and does not count.
"""

import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.machine import RESULTS, machine

_RATIO: Final = "ratio"


@dataclass(frozen=True, slots=True)
class Measured:
    """What an act took once: wall-clock and CPU seconds, memory and stored bytes in MB (10^6).

    `cpu_s` and `peak_mb` are those of all our processes together (client, engine, its Python
    workers), not of the broker; `stored_mb` is what lies on disk afterwards. `figures` are others,
    by name with their unit.
    """

    seconds: float
    cpu_s: float | None = None
    peak_mb: float | None = None
    stored_mb: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict[str, float])

    def named(self) -> dict[str, float]:
        """Every figure by its name."""
        own = {
            "seconds": self.seconds,
            "cpu_s": self.cpu_s,
            "peak_mb": self.peak_mb,
            "stored_mb": self.stored_mb,
        }
        return {**{n: v for n, v in own.items() if v is not None}, **self.figures}


@dataclass(frozen=True, slots=True)
class Act:
    """Something that is timed.

    `against` names the act that its seconds are compared with, in the same round; `at_most` says
    what must hold, by figure (`ratio`, `seconds`, `peak_mb`, ...). An act that runs `once` has no
    round 0.
    """

    name: str
    run: Callable[[], Measured]
    against: str = ""
    at_most: Mapping[str, float] = field(default_factory=dict[str, float])
    once: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """Acts on the same data; `notes` say what the figures mean."""

    title: str
    acts: Sequence[Act]
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Options:
    """How the cases are run; `externals` are commands of others by name."""

    rounds: int = 3
    scale: float = 1.0
    output: Path = RESULTS
    externals: Mapping[str, str] = field(default_factory=dict[str, str])
    external_prepare: str = ""
    external_cleanup: str = ""

    def scaled(self, count: float, least: int = 1) -> int:
        """A number of records or seconds as large as asked for."""
        return max(least, round(count * self.scale))


Opened = Callable[[Options], AbstractContextManager[Case]]
"""Prepares the data of a case; they are gone when the block ends."""


@dataclass(frozen=True, slots=True)
class ActResult:
    """Every round of an act, and what must hold."""

    name: str
    against: str
    at_most: Mapping[str, float]
    rounds: Sequence[Mapping[str, float]]

    def medians(self, others: Mapping[str, "ActResult"]) -> dict[str, float]:
        """Medians of the figures, and the ratio to the act that it is compared with."""
        names = list(dict.fromkeys(name for one in self.rounds for name in one))
        found = {n: median(one[n] for one in self.rounds if n in one) for n in names}
        if self.against in others:
            pairs = zip(self.rounds, _as_long(others[self.against].rounds, self), strict=True)
            found[_RATIO] = median(mine["seconds"] / its["seconds"] for mine, its in pairs)
        return found

    def met(self, medians: Mapping[str, float]) -> dict[str, bool]:
        """Whether what must hold does, by figure."""
        return {n: n in medians and medians[n] <= most for n, most in self.at_most.items()}


def _as_long(rounds: Sequence[Mapping[str, float]], other: ActResult) -> list[Mapping[str, float]]:
    """The rounds, or their last one for what ran only once."""
    return list(rounds) if len(rounds) == len(other.rounds) else [rounds[-1]] * len(other.rounds)


@dataclass(frozen=True, slots=True)
class CaseResult:
    """A case as it was measured; what its JSON file holds."""

    case: str
    title: str
    command: str
    scale: float
    machine: Mapping[str, str]
    notes: Sequence[str]
    acts: Sequence[ActResult]

    @classmethod
    def read(cls, file: Path) -> "CaseResult | None":
        """The result in a file, None where there is none."""
        if not file.is_file():
            return None
        told: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        told["acts"] = [
            ActResult(**{name: act[name] for name in ("name", "against", "at_most", "rounds")})
            for act in told["acts"]
        ]
        return cls(**told)

    def medians(self) -> dict[str, dict[str, float]]:
        """The medians of each act, by its name."""
        by_name = {act.name: act for act in self.acts}
        return {act.name: act.medians(by_name) for act in self.acts}

    def write(self, folder: Path) -> None:
        """As JSON with every round, and as Markdown."""
        folder.mkdir(parents=True, exist_ok=True)
        document = asdict(self)
        medians = self.medians()
        for told, act in zip(document["acts"], self.acts, strict=True):
            told["medians"] = medians[act.name]
            told["met"] = act.met(medians[act.name])
        text = json.dumps(document, indent=1, default=str) + "\n"
        (folder / f"{self.case}.json").write_text(text, encoding="utf-8")
        (folder / f"{self.case}.md").write_text(markdown(self), encoding="utf-8")


def run_case(name: str, opened: Opened, options: Options) -> CaseResult:
    """Run a case: each act once in each round, one after the other."""
    rounds: dict[str, list[dict[str, float]]] = {}
    with opened(options) as case:
        for number in range(options.rounds + 1):
            for act in case.acts:
                if act.once and number != 1:
                    continue
                measured = act.run()
                figures = {n: round(value, 4) for n, value in measured.named().items()}
                print(f"{name}, round {number}: {act.name}: {_line(figures)}", flush=True)
                if number:
                    rounds.setdefault(act.name, []).append(figures)
    result = CaseResult(
        case=name,
        title=case.title,
        command=shlex.join(["python", "-m", "bench", *sys.argv[1:]]),
        scale=options.scale,
        machine=machine(),
        notes=tuple(case.notes),
        # What must hold is about the full size.
        acts=[
            ActResult(a.name, a.against, a.at_most if options.scale == 1 else {}, rounds[a.name])
            for a in case.acts
        ],
    )
    result.write(options.output)
    return result


def _line(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {_number(value)}" for name, value in figures.items())


def markdown(result: CaseResult) -> str:
    """A result as a page."""
    medians = result.medians()
    extra = list(dict.fromkeys(n for of_act in medians.values() for n in of_act))
    extra = [n for n in extra if n not in {"seconds", _RATIO}]
    rows = [["act", "seconds", "least to most", _RATIO, *extra, "must hold"]]
    for act in result.acts:
        of_act = medians[act.name]
        seconds = [one["seconds"] for one in act.rounds]
        spread = f"{_number(min(seconds))} to {_number(max(seconds))}" if len(seconds) > 1 else ""
        ratio = f"{of_act[_RATIO]:.2f} x {act.against}" if _RATIO in of_act else ""
        told = [
            f"{name} ≤ {_number(act.at_most[name])}: {'met' if holds else 'NOT MET'}"
            for name, holds in act.met(of_act).items()
        ]
        rows.append(
            [
                act.name,
                _number(of_act["seconds"]),
                spread,
                ratio,
                *(_number(of_act[n]) if n in of_act else "" for n in extra),
                "; ".join(told),
            ]
        )
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, "|---" * len(rows[0]) + "|")
    counted = max(len(act.rounds) for act in result.acts)
    facts = [f"- {name}: {value}" for name, value in result.machine.items()]
    if result.scale != 1:
        facts.append(f"- scale {result.scale:g}: a trial, not the figures of the product")
    notes = [
        f"Medians of {counted} rounds after one that does not count; every round is in"
        f" `{result.case}.json`. CPU and memory are those of all our processes together, without"
        " the broker.",
        *result.notes,
    ]
    head = [f"# {result.title}", "", f"`{result.command}`", "", *facts, ""]
    return "\n".join([*head, *lines, "", *notes, ""])


def _number(value: float) -> str:
    if value >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value == round(value) else f"{value:.2f}"
