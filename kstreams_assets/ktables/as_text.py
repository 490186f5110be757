"""Decoded keys and values as text and as JSON. Pure."""

import json
from typing import Any


def as_text(value: object) -> str:
    """A decoded key or value in a line: text as it is, structures as JSON, bytes readable."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        text = value.decode("utf-8", errors="replace")
        return text if text.isprintable() and "\ufffd" not in text else f"0x{value.hex()}"
    return json.dumps(value, default=_plain, ensure_ascii=False)


def jsonable(value: object) -> Any:  # noqa: ANN401 - whatever JSON can hold
    """A decoded key or value as JSON holds it: bytes as hex, times and decimals as text."""
    return json.loads(json.dumps(value, default=_plain))


def _plain(value: object) -> str:
    return f"0x{value.hex()}" if isinstance(value, bytes) else str(value)
