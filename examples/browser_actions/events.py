"""The records of the load generator: their content follows from a seed and an index alone."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_PRODUCTS: Final = 40
_ACTIONS: Final = ("login", "search", "checkout")
_KNOWN_EVERY: Final = 3
_FORGOTTEN_EVERY: Final = 12
_INVALID_SHARE: Final = 0.01


@dataclass(frozen=True, slots=True)
class Event:
    """One record; `browser` is None when the application finds none in it."""

    key: bytes
    value: bytes
    browser: str | None


class EventGenerator:
    """Makes views, actions and captchas: the same seed and index always give the same bytes.

    Every tenth action is done twice at the same time by the same browser (`action_pair`).
    """

    def __init__(self, *, seed: int = 1, browsers: int = 2000) -> None:
        self.seed: Final = seed
        self.browsers: Final = browsers

    def view(self, index: int) -> Event:
        """A view: key product, value `{"id", "browser"}`."""
        chance = random.Random(f"{self.seed}/view/{index}")
        product = f"product-{int(_PRODUCTS * chance.random() ** 2):03d}"
        browser = self.browser(chance.randrange(self.browsers))
        value = {"id": f"view-{self.seed}-{index:08d}", "browser": browser}
        if chance.random() < _INVALID_SHARE:
            return Event(product.encode(), b"no JSON", None)
        return Event(product.encode(), _json(value), browser)

    def action(self, index: int) -> Event:
        """An action: key its id, value `{"browser", "action"}`."""
        chance = random.Random(f"{self.seed}/action/{self.action_pair(index)}")
        browser = self.browser(chance.randrange(self.browsers))
        what = _ACTIONS[(index + chance.randrange(3)) % 3]
        value = {"browser": browser, "action": what}
        return Event(f"action-{self.seed}-{index:08d}".encode(), _json(value), browser)

    def action_pair(self, index: int) -> int:
        """The index of the action that this one repeats, or its own."""
        return index - 1 if index % 10 == 1 else index

    def captcha(self, index: int) -> Event:
        """A captcha: key browser, value `{"captcha"}`; the browsers solve them in turn."""
        browser = self.browser(index % self.browsers)
        return Event(browser.encode(), _json({"captcha": f"captcha-{self.seed}-{index}"}), browser)

    def browser(self, number: int) -> str:
        """The name of a browser (from 0)."""
        return f"browser-{number:06d}"

    def known_browsers(self) -> Sequence[tuple[bytes, bytes | None]]:
        """Keys and values for the topic `known-browsers`, in order.

        Every third browser is known; first all as "new", then by label, or forgotten again.
        """
        numbers = range(0, self.browsers, _KNOWN_EVERY)
        first = [(self.browser(number).encode(), b"new") for number in numbers]
        return [*first, *((self.browser(n).encode(), self.label(n)) for n in numbers)]

    def label(self, number: int) -> bytes | None:
        """What is known of a browser in the end."""
        if number % _KNOWN_EVERY or number % _FORGOTTEN_EVERY == 0:
            return None
        return b"crawler" if number % 2 else b"customer"


def _json(fields: dict[str, str]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()
