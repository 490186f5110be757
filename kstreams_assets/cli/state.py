"""`kstreams-assets state`: the value of a key in a state store, now or in the past."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from kstreams_assets.app.store_columns import as_text, jsonable
from kstreams_assets.cli.help import Command, option
from kstreams_assets.cli.options import app_options, as_of_option, point_option
from kstreams_assets.cli.output import print_json, print_table
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.ktables.keys import Key, StateRow
from kstreams_assets.ktables.state import KeyState, history_of, state_at
from kstreams_assets.restore.request import parse_instant
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import iso_time


@click.command(
    cls=Command,
    epilog="kstreams-assets state --app defs.yaml --store order-totals --key c-1 --history",
)
@app_options
@option("--store", section="Selection", metavar="STORE", required=True, help="State store to read.")
@option(
    "--key", section="Selection", metavar="TEXT", help="Key as text, or as JSON for several fields."
)
@option(
    "--key-hex", section="Selection", metavar="HEX", help="Raw bytes of the key instead of --key."
)
@point_option
@as_of_option
@option(
    "--history",
    section="Output",
    is_flag=True,
    help="Print the value in each snapshot in which it differs from the previous snapshot.",
)
def state(
    settings: ApplicationSettings,
    as_json: bool,
    store: str,
    key: str | None,
    key_hex: str | None,
    point_id: str | None,
    as_of: str | None,
    history: bool,
) -> None:
    """Show the value of a key in a state store

    Without --point and --as-of, the command reads the newest snapshot, which `ktables make`
    creates. If the store has no snapshot, it reads the newest recovery point whose records are
    backed up. The command reads the warehouse only.
    """
    chosen = _key(key, key_hex)
    if point_id is not None and (history or as_of is not None):
        raise ConfigurationError(
            "--point cannot be combined with --as-of or --history.",
            remedy="Give a point or a time. --history ends at the time of --as-of.",
        )
    as_of_ms = None if as_of is None else parse_instant(as_of)
    if history:
        states = history_of(settings, store, chosen, as_of_ms)
    else:
        states = [state_at(settings, store, chosen, as_of_ms, point_id=point_id)]
    if as_json:
        found = [_document(state) for state in states]
        print_json(
            {"application_id": settings.application_id, "store": store, "key": chosen.shown}
            | ({"history": found} if history else found[0])
        )
        return
    _print(store, chosen, states)


def _key(text: str | None, raw: str | None) -> Key:
    if (text is None) == (raw is None):
        raise ConfigurationError(
            "Exactly one of --key and --key-hex is required.",
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
    """Print a line for each row, and one without a value for a window without the key."""
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
        if not state.proved:
            click.echo(f"NOTE {state.place}: {state.reason}", err=True)


def _cells(state: KeyState, row: StateRow | None, parts: Sequence[str]) -> list[object]:
    cells: list[object] = [
        state.window or "",
        iso_time(state.taken_at_ms),
        "yes" if state.proved else "no",
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
    """Format headers as `name=text`; binary values are shown in hexadecimal."""
    return ", ".join(f"{name}={_header_value(value)}" for name, value in row.headers)


def _header_value(value: bytes | None) -> str:
    if value is None:
        return "null"
    text = value.decode("utf-8", "replace")
    return text if text.isprintable() and text.encode() == value else f"0x{value.hex()}"


def _instant(epoch_ms: int) -> str:
    """Format a time; numbers outside the calendar, 0 and negative ones stay numbers."""
    try:
        moment = datetime.fromtimestamp(epoch_ms / 1000, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return str(epoch_ms)
    return str(epoch_ms) if epoch_ms <= 0 else moment.isoformat(timespec="milliseconds")


def _document(state: KeyState) -> dict[str, Any]:
    return {
        "window": state.window,
        "base_window": state.base_window,
        "recovery_point": state.point_id,
        "taken_at": iso_time(state.taken_at_ms),
        "proved": state.proved,
        "reason": state.reason,
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
