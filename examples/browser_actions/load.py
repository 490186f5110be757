"""Sends what browsers do: `python -m examples.browser_actions.load --bootstrap host:port`."""

from collections.abc import Iterator
from typing import Final

from examples.browser_actions.application import ACTIONS, CAPTCHAS, KNOWN_BROWSERS, VIEWS
from examples.browser_actions.events import EventGenerator
from examples.streams.load import Event, Events, load_command

CAPTCHA_EVERY: Final = 6


def events_of(seed: int) -> Events:
    """One view and one action for each index, sometimes a captcha; before all, known browsers."""
    generator = EventGenerator(seed=seed)

    def events(index: int) -> Iterator[Event]:
        if index == 0:
            for browser, label in generator.known_browsers():
                yield Event(KNOWN_BROWSERS, browser, label)
        view, action = generator.view(index), generator.action(index)
        yield Event(VIEWS, view.key, view.value)
        yield Event(ACTIONS, action.key, action.value)
        if index % CAPTCHA_EVERY == 0:
            captcha = generator.captcha(index // CAPTCHA_EVERY)
            yield Event(CAPTCHAS, captcha.key, captcha.value)

    return events


main = load_command(events_of, what="views, actions and captchas, and first the known browsers")

if __name__ == "__main__":
    main()
