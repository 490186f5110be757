"""Text that goes into Markdown as it is: names and messages are no markup."""

import re
from typing import Final

_CODE: Final = re.compile(r"(`[^`]*`)")
_SIGNS: Final = re.compile(r"([\\*_<>\[\]|~])")


def plain(text: str) -> str:
    """The text with a backslash before each sign of Markdown and HTML, except in `code`."""
    parts = _CODE.split(text)
    return "".join(
        part if index % 2 else _SIGNS.sub(r"\\\1", part) for index, part in enumerate(parts)
    )
