"""Says how two records differ, without showing what is in them. Pure."""

import hashlib
from collections import Counter
from typing import Any, Final, NamedTuple

CREATE_TIME: Final = 1

_TIMESTAMP_TYPES: Final = {0: "none", CREATE_TIME: "CreateTime", 2: "LogAppendTime"}

Headers = list[tuple[str, bytes | None]] | None


class Record(NamedTuple):
    """A record without its offset; `time` is (timestamp type, milliseconds)."""

    time: Any
    key: bytes | None
    value: bytes | None
    headers: Headers


def describe_difference(backup: Record, target: Record) -> str:
    """What of the target's record is not as in the backup.

    Payloads are told by length and the start of their SHA-256 alone: they may be secret.
    """
    parts = []
    if backup.key != target.key:
        parts.append(f"key is {_about(target.key)} instead of {_about(backup.key)}")
    if backup.value != target.value:
        parts.append(f"value is {_about(target.value)} instead of {_about(backup.value)}")
    if backup.time != target.time:
        parts.append(_times(backup.time, target.time))
    if backup.headers != target.headers:
        parts.append(_headers(backup.headers or [], target.headers or []))
    return "; ".join(parts)


def _about(payload: bytes | None) -> str:
    if payload is None:
        return "null"
    if not payload:
        return "empty"
    return f"{len(payload)} bytes (sha256 {hashlib.sha256(payload).hexdigest()[:8]})"


def _times(backup: Any, target: tuple[int, int]) -> str:  # noqa: ANN401
    kind, timestamp_ms = target
    if kind != CREATE_TIME:
        name = _TIMESTAMP_TYPES.get(kind, str(kind))
        return f"timestamp type is {name} instead of CreateTime"
    return f"timestamp is {timestamp_ms} instead of {backup[1]}"


def _headers(backup: list[tuple[str, bytes | None]], target: list[tuple[str, bytes | None]]) -> str:
    if len(backup) != len(target):
        return f"has {len(target)} headers instead of {len(backup)}"
    if Counter(backup) == Counter(target):
        return f"its {len(target)} headers stand in another order"
    pairs = zip(backup, target, strict=True)
    number, (wanted, found) = next(
        (number, pair) for number, pair in enumerate(pairs, 1) if pair[0] != pair[1]
    )
    which = f"header {number} of {len(target)}"
    if wanted[0] != found[0]:
        return f"{which} has another name"
    return f"{which}: value is {_about(found[1])} instead of {_about(wanted[1])}"
