"""The load generator of the browser actions: reproducible, with repeated and broken records."""

import json

from examples.browser_actions.application import ACTIONS, CAPTCHAS, KNOWN_BROWSERS, VIEWS
from examples.browser_actions.events import EventGenerator
from examples.browser_actions.load import CAPTCHA_EVERY, events_of


def test_seed_and_index_give_the_records() -> None:
    one, other = EventGenerator(seed=3), EventGenerator(seed=3)
    for make, again in (
        (one.view, other.view),
        (one.action, other.action),
        (one.captcha, other.captcha),
    ):
        made = [make(index) for index in range(300)]
        assert [again(index) for index in reversed(range(300))] == made[::-1]
    assert EventGenerator(seed=4).view(0) != one.view(0)


def test_repeated_actions_are_of_the_same_browser() -> None:
    generator = EventGenerator(seed=1)
    repeated = [index for index in range(1000) if generator.action_pair(index) != index]
    assert len(repeated) == 100
    for index in repeated:
        first, second = generator.action(index - 1), generator.action(index)
        assert first.browser == second.browser
        assert first.key != second.key
        assert first.value != second.value


def test_some_views_are_broken() -> None:
    generator = EventGenerator(seed=1)
    made = [generator.view(index) for index in range(2000)]
    broken = [view for view in made if view.browser is None]
    assert 0 < len(broken) < 60
    assert all(json.loads(v.value)["browser"] == v.browser for v in made if v.browser is not None)
    assert len({view.key for view in made}) == 40


def test_a_browser_solves_each_captcha_once() -> None:
    generator = EventGenerator(seed=1, browsers=50)
    made = [generator.captcha(index) for index in range(100)]
    assert [captcha.key for captcha in made[:50]] == [captcha.key for captcha in made[50:]]
    assert len({captcha.value for captcha in made}) == 100


def test_known_browsers_are_relabelled_and_forgotten() -> None:
    generator = EventGenerator(seed=1, browsers=120)
    written = generator.known_browsers()
    last = dict(written)
    assert len(written) == 2 * len(last)
    assert set(last.values()) == {None, b"crawler", b"customer"}
    assert {value for _, value in written[: len(last)]} == {b"new"}


def test_known_browsers_go_before_all_else() -> None:
    events = events_of(1)
    first = [event.topic for event in events(0)]
    assert first == [KNOWN_BROWSERS] * (len(first) - 3) + [VIEWS, ACTIONS, CAPTCHAS]
    assert len(first) > 1000
    assert [event.topic for event in events(1)] == [VIEWS, ACTIONS]
    assert [event.topic for event in events(CAPTCHA_EVERY)] == [VIEWS, ACTIONS, CAPTCHAS]
