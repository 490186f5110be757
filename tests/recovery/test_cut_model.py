"""Cuts of a simulated application under random interleavings, judged by brute force.

The simulation knows of each batch to which transaction it belongs; a cut is right if it takes whole
transactions, of every task and producer a prefix, of readers only with what they read, and tells
exactly their offsets.
"""

import random
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kstreams_assets.recovery import cut as cut_module
from kstreams_assets.recovery.cut import Blocker, Cut
from kstreams_assets.recovery.group_commits import GroupLog
from kstreams_assets.recovery.identity import TransactionId
from tests.recovery.simulated_application import Habits, SimulatedApplication
from tests.recovery.simulated_sampler import Order, Sampler, wrongs

_STEPS = 320
_HASTY = Order(wait_ms=10)
"""Waits so shortly that long transactions seldom write anything meanwhile."""
_SAMPLES = 2
_LONGEST = 4_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one sample; `wrong` says what contradicts the cut."""

    decision: Cut | Blocker | None
    wrong: list[str] = field(default_factory=list)
    asked_for_ongoing: bool = False


def simulate(seed: int, habits: Habits, order: Order | None = None) -> list[Verdict]:
    """Let an application run, take samples of it meanwhile, and judge them when all is decided."""
    rng = random.Random(seed)
    application = SimulatedApplication(rng, habits)
    samplers = [Sampler(application, order or Order()) for _ in range(_SAMPLES)]
    waiting: list[tuple[int, Generator[int, None, None]]] = [
        (rng.randrange(40, _STEPS), sampler.steps()) for sampler in samplers
    ]
    for step in range(_LONGEST):
        waiting = [one for item in waiting for one in _due(item, step)]
        if not waiting:
            break
        application.step()
    application.drain()
    return [
        Verdict(
            one.decision,
            wrongs(application, one.decision) if isinstance(one.decision, Cut) else [],
            asked_for_ongoing=one.sample is not None and one.sample.ongoing is not None,
        )
        for one in samplers
    ]


def _due(
    item: tuple[int, Generator[int, None, None]], step: int
) -> Iterator[tuple[int, Generator[int, None, None]]]:
    """Let a sampler do what is due, and tell when it goes on."""
    when, steps = item
    while when <= step:
        pause = next(steps, None)
        if pause is None:
            return
        when += pause
    yield when, steps


_HABITS = {
    "new clients": Habits(),
    "old clients": Habits(old_clients=1.0),
    "both, during an upgrade": Habits(threads=3, old_clients=0.5),
    "many punctuations": Habits(punctuation=0.6, trouble=0.05),
    "many punctuations of old clients": Habits(punctuation=0.6, old_clients=0.7),
    "threads that die": Habits(threads=3, trouble=0.08),
    "slow markers": Habits(threads=3, prompt_markers=0.3),
    "four threads": Habits(threads=4, foreign=False),
}


_LEADERLESS = {
    f"{name} clients": Habits(threads=3, punctuation=0.6, leaderless=0.01, old_clients=share)
    for name, share in (("new", 0.0), ("old", 1.0), ("both", 0.5))
}


class TestExact:
    """No cut is ever wrong, and few samples are refused."""

    @pytest.mark.parametrize("name", _HABITS)
    def test_seeded_runs(self, name: str) -> None:
        outcomes: Counter[str] = Counter()
        for seed in range(38):
            for verdict in simulate(seed, _HABITS[name], Order(longest_pause=(3, 40)[seed % 2])):
                assert not verdict.wrong, f"seed {seed}: {verdict.wrong}"
                cut = verdict.decision
                outcomes["decided" if isinstance(cut, Cut) else f"refused: {cut}"] += 1
                if isinstance(cut, Cut):
                    outcomes["excluded ranges"] += any(cut.excluded.values())
                    outcomes["punctuations"] += cut.punctuations > 0
        assert outcomes["decided"] > 0.9 * 38 * _SAMPLES, outcomes
        # otherwise the simulation would not show what matters
        assert outcomes["excluded ranges"] > 0, outcomes
        assert outcomes["punctuations"] > 0, outcomes

    @pytest.mark.parametrize("name", _LEADERLESS)
    def test_markers_far_later_than_the_wait(self, name: str) -> None:
        decided = 0
        for seed in range(60):
            for verdict in simulate(seed, _LEADERLESS[name], Order(longest_pause=40)):
                assert not verdict.wrong, f"seed {seed}: {verdict.wrong}"
                decided += isinstance(verdict.decision, Cut)
        assert decided > (0.6 if _LEADERLESS[name].old_clients else 0.9) * 60 * _SAMPLES

    def test_long_transactions_with_little_data_are_decided(self) -> None:
        habits = Habits(threads=10, punctuation=0.6, commit=0.01, trouble=0.0)
        verdicts = [one for seed in range(60) for one in simulate(seed, habits, _HASTY)]
        assert not any(verdict.wrong for verdict in verdicts)
        assert sum(isinstance(one.decision, Cut) for one in verdicts) > 0.97 * len(verdicts)
        assert sum(one.asked_for_ongoing for one in verdicts) > 0.1 * len(verdicts)

    @settings(max_examples=40, deadline=None)
    @given(
        seed=st.integers(0, 2**32),
        habits=st.builds(
            Habits,
            threads=st.integers(1, 4),
            old_clients=st.sampled_from((0.0, 0.5, 1.0)),
            punctuation=st.sampled_from((0.0, 0.15, 0.6)),
            prompt_markers=st.sampled_from((0.3, 0.7, 0.9)),
            trouble=st.sampled_from((0.0, 0.02, 0.1)),
            commit=st.sampled_from((0.03, 0.25)),
            leaderless=st.sampled_from((0.0, 0.01, 0.03)),
            foreign=st.booleans(),
        ),
        # any lookback: the guard against short ones makes refusals of what would be wrong
        lookback=st.one_of(st.none(), st.integers(0, 300)),
        longest_pause=st.sampled_from((0, 3, 40)),
    )
    @example(  # the marker of a transaction comes between the looks at two partitions, and the next
        57460,  # one of the same epoch begins; its offsets lie before the lookback
        Habits(
            threads=1,
            old_clients=0.5,
            punctuation=0.6,
            prompt_markers=0.3,
            trouble=0.02,
            commit=0.25,
            leaderless=0.01,
            foreign=False,
        ),
        None,
        3,
    )
    def test_any_run(
        self, seed: int, habits: Habits, lookback: int | None, longest_pause: int
    ) -> None:
        order = Order(lookback=lookback, longest_pause=longest_pause)
        for verdict in simulate(seed, habits, order):
            assert not verdict.wrong


@contextmanager
def _patched(target: object, name: str, replacement: object) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, name, replacement)
        yield


def _without_guard() -> AbstractContextManager[None]:
    return _patched(cut_module._Decision, "_refuse_short_lookback", lambda _self, _own: None)


def _no_punctuations(_self: object, with_offsets: object, _undecided: object) -> object:
    return with_offsets


def _all_punctuations(
    self: "cut_module._Decision", with_offsets: frozenset, undecided: frozenset
) -> frozenset:
    committed = {t for t, s in self.transactions.items() if cut_module._is_committed(s)}
    return with_offsets | (committed - undecided)


def _rule_with(limit: Callable[[int, int], int]) -> AbstractContextManager[None]:
    """The rule by markers, as a function of the early high watermark and the end of the data."""

    def is_needed(segment, early, last) -> bool:
        marker, partition = segment.marker, segment.partition
        limits = early.get(partition, 0), last.get(partition, 0)
        return marker is not None and marker.offset < limit(*limits)

    return _patched(cut_module, "_is_needed", is_needed)


def _no_torn() -> AbstractContextManager[None]:
    return _patched(cut_module, "torn_transaction", lambda *_: None)


@dataclass(frozen=True, slots=True)
class Mutation:
    """Something left out or done in another order, and the habits that show it."""

    habits: Habits = field(default_factory=Habits)
    order: Order = field(default_factory=Order)
    patched: Callable[[], AbstractContextManager[None]] = nullcontext


_SLOW = Order(longest_pause=40)
_PUNCTUATING = Habits(threads=3, punctuation=0.6, trouble=0.03)
_MUTATIONS = {
    "lookback at the last stable offset": Mutation(
        Habits(threads=4, prompt_markers=0.3), Order(late_lookback=True), _without_guard
    ),
    "no rule for punctuations": Mutation(
        _PUNCTUATING,
        patched=lambda: _patched(cut_module._Decision, "_with_punctuations", _no_punctuations),
    ),
    "every punctuation": Mutation(
        _PUNCTUATING,
        patched=lambda: _patched(cut_module._Decision, "_with_punctuations", _all_punctuations),
    ),
    "no look at what was decided before the offsets": Mutation(
        _PUNCTUATING, patched=lambda: _rule_with(lambda _early, last: last)
    ),
    "no look at what follows a marker": Mutation(
        Habits(threads=3, punctuation=0.6, trouble=0.1, prompt_markers=0.9, commit=0.5),
        Order(longest_pause=80),
        patched=lambda: _rule_with(lambda early, _last: early),
    ),
    "no look at later transactions of a producer": Mutation(
        _PUNCTUATING,
        _SLOW,
        patched=lambda: _patched(TransactionId, "__lt__", lambda _self, _other: False),
    ),
    "offsets, and ends much later": Mutation(order=Order(offsets_before_ends=40)),
    "offsets older than what they are said to hold": Mutation(order=Order(offsets_lag=40)),
    "offsets while some are undecided": Mutation(
        Habits(threads=3, prompt_markers=0.3), Order(require_stable=False)
    ),
    "old clients' epochs taken for transactions": Mutation(
        Habits(old_clients=1.0),
        patched=lambda: _patched(cut_module, "shared_epochs", lambda _segments: frozenset()),
    ),
    "no look at what may have been decided before the first look": Mutation(
        _LEADERLESS["new clients"], patched=_no_torn
    ),
    "the same with old clients": Mutation(_LEADERLESS["old clients"], patched=_no_torn),
    "first high watermarks before the first look": Mutation(
        _LEADERLESS["new clients"], Order(first_ends_first=True, longest_pause=40)
    ),
    "pending offsets taken for none": Mutation(
        Habits(threads=4, prompt_markers=0.3),
        _SLOW,
        patched=lambda: _patched(GroupLog, "undecided", property(lambda _self: ())),
    ),
}


@pytest.mark.parametrize("name", _MUTATIONS)
def test_what_is_left_out_shows(name: str) -> None:
    mutation = _MUTATIONS[name]
    with mutation.patched():
        assert any(
            verdict.wrong
            for seed in range(150)
            for verdict in simulate(seed, mutation.habits, mutation.order)
        )
