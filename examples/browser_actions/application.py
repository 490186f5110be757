"""Browser actions: counts, hopping windows, a stream-stream left join, a store of its own."""

from pathlib import Path
from typing import Final

from examples.streams.application import Example

VIEWS: Final = "product-views"
ACTIONS: Final = "user-actions"
CAPTCHAS: Final = "captchas-solved"
KNOWN_BROWSERS: Final = "known-browsers"
POPULAR: Final = "popular-products"
COUNTS: Final = "browser-counts"
WINDOW_COUNTS: Final = "browser-window-counts"
CHECKS: Final = "captcha-checks"

EXAMPLE: Final = Example(
    source=Path(__file__).with_name("BrowserActions.java"),
    application_id="browser-actions",
    topics={
        VIEWS: {},
        ACTIONS: {},
        CAPTCHAS: {},
        KNOWN_BROWSERS: {"cleanup.policy": "compact"},
        POPULAR: {},
        COUNTS: {},
        WINDOW_COUNTS: {},
        CHECKS: {},
    },
    config={},
)
