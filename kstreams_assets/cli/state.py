"""`kstreams-assets state`: what a store held of one key, now or in the past."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from kstreams_assets.app.store_columns import as_text, jsonable
from kstreams_assets.cli.options import app_options
from kstreams_assets.cli.output import print_json, print_table
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.ktables.state import (
    Key,
    KeyState,
    StateRow,
    history_of,
    state_at,
)
from kstreams_assets.restore.request import parse_instant
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import iso_time


@click.command()
@app_options
@click.option("--store", required=True, help="The state store.")
@click.option("--key", help="The key as text; JSON for a key with several fields.")
@click.option("--key-hex", help="The key's raw bytes instead, in hexadecimal.")
@click.option("--as-of", help="Newest snapshot that was complete then: 2026-11-21T14:30:00Z.")
@click.option("--history", is_flag=True, help="Every window in which the key changed.")
def state(
    settings: ApplicationSettings,
    as_json: bool,
    store: str,
    key: str | None,
    key_hex: str | None,
    as_of: str | None,
    history: bool,
) -> None:
    """What a store held of one key, from its snapshots. Needs no broker and no JVM.

    \f
    Raises UnknownStoreError, NoSnapshotError, KeyNotInStoreError, ConfigurationError.
    """
    wanted = _key(key, key_hex)
    as_of_ms = None if as_of is None else parse_instant(as_of)
    if history:
        states = history_of(settings, store, wanted, as_of_ms)
    else:
        states = [state_at(settings, store, wanted, as_of_ms)]
    if as_json:
        found = [_document(state) for state in states]
        print_json(
            {"application_id": settings.application_id, "store": store, "key": wanted.shown}
            | ({"history": found} if history else found[0])
        )
        return
    _print(store, wanted, states)


def _key(text: str | None, raw: str | None) -> Key:
    if (text is None) == (raw is None):
        raise ConfigurationError(
            "One of --key and --key-hex is needed, not both.",
            remedy="Give --key TEXT, or the raw bytes with --key-hex.",
        )
    if raw is None:
        return Key(text=text)
    try:
        return Key(raw=bytes.fromhex(raw.removeprefix("0x")))
    except ValueError as error:
        raise ConfigurationError(
            f"--key-hex is {raw!r}.", remedy="Give an even number of digits 0 to 9, a to f."
        ) from error


def _print(store: str, key: Key, states: Sequence[KeyState]) -> None:
    """A line for each row; of a window in which the key was gone one without a value."""
    of_key = [row for state in states for row in state.rows]
    parts = list(next((row.parts for row in of_key), {}))
    headings = [name.removesuffix("_ms").replace("_", " ") for name in parts]
    columns = ["window", "recovery point", "proved", *headings, "value", "timestamp"]
    shown = [(state, row) for state in states for row in state.rows or (None,)]
    rows = [_cells(state, row, parts) for state, row in shown]
    if any(row.headers for row in of_key):
        columns.append("headers")
        rows = [
            [*cells, "" if row is None else _headers(row)]
            for cells, (_, row) in zip(rows, shown, strict=True)
        ]
    print_table(f"Store {store}, key {key.shown}", columns, rows)
    for state in states:
        if not state.snapshot.proved:
            click.echo(f"NOTE {state.snapshot.window.key}: {state.snapshot.reason}", err=True)


def _cells(state: KeyState, row: StateRow | None, parts: Sequence[str]) -> list[object]:
    snapshot = state.snapshot
    cells: list[object] = [
        snapshot.window.key,
        iso_time(snapshot.taken_at_ms),
        "yes" if snapshot.proved else "no",
    ]
    if row is None:
        return [*cells, *("" for _ in parts), "(no such key)", ""]
    return [
        *cells,
        *(_part(name, row.parts[name]) for name in parts),
        _value(row),
        _instant(row.timestamp_ms),
    ]


def _part(name: str, value: object) -> str:
    if value is None:
        return ""
    return _instant(value) if name.endswith("_ms") and isinstance(value, int) else as_text(value)


def _value(row: StateRow) -> str:
    if row.decode_error is not None:
        raw = "" if row.value is None else f" 0x{row.value.hex()}"
        return f"({row.decode_error}){raw}"
    return "(deleted)" if row.value is None else as_text(row.decoded_value)


def _headers(row: StateRow) -> str:
    """Each as `name=text`; bytes that are no text in hexadecimal."""
    return ", ".join(f"{name}={_header_value(value)}" for name, value in row.headers)


def _header_value(value: bytes | None) -> str:
    if value is None:
        return "null"
    text = value.decode("utf-8", "replace")
    return text if text.isprintable() and text.encode() == value else f"0x{value.hex()}"


def _instant(epoch_ms: int) -> str:
    """A time where it is one; 0, -1 and what no calendar has stay numbers."""
    try:
        moment = datetime.fromtimestamp(epoch_ms / 1000, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return str(epoch_ms)
    return str(epoch_ms) if epoch_ms <= 0 else moment.isoformat(timespec="milliseconds")


def _document(state: KeyState) -> dict[str, Any]:
    snapshot = state.snapshot
    return {
        "window": snapshot.window.key,
        "recovery_point": snapshot.point_id,
        "taken_at": iso_time(snapshot.taken_at_ms),
        "proved": snapshot.proved,
        "reason": snapshot.reason,
        "rows": [_row(row) for row in state.rows],
    }


def _row(row: StateRow) -> Mapping[str, Any]:
    headers = [
        {"key": name, "value_hex": None if value is None else value.hex()}
        for name, value in row.headers
    ]
    return {
        **row.parts,
        "key": jsonable(row.decoded_key),
        "value": jsonable(row.decoded_value),
        "decode_error": row.decode_error,
        "timestamp_ms": row.timestamp_ms,
        "partition": row.partition,
        "offset": row.offset,
        "key_hex": None if row.key is None else row.key.hex(),
        "value_hex": None if row.value is None else row.value.hex(),
        **({"headers": headers} if headers else {}),
    }
