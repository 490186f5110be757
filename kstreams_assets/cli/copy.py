"""`kstreams-assets copy`: copy a warehouse to another folder or account."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from kstreams_assets.app_file.read import load_settings
from kstreams_assets.cli import exit_codes
from kstreams_assets.cli.help import Command, option
from kstreams_assets.cli.options import (
    app_option,
    application_id_option,
    json_option,
    warehouse_option,
)
from kstreams_assets.cli.output import print_json
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.layout import Warehouse
from kstreams_assets.settings import LEAST_RATE, SecondCopySettings
from kstreams_assets.store import ObjectStoreSettings, StorePath, place_at
from kstreams_assets.texts import bytes_text, iso_time
from kstreams_assets.upkeep.copy import CopyJob, CopyResult
from kstreams_assets.upkeep.public import COPY
from kstreams_assets.upkeep.second_copy import Promoted, promote


@dataclass(frozen=True, slots=True)
class _Places:
    """Source and target of the copy, from options and YAML."""

    source: Warehouse | None
    to: StorePath
    settings: SecondCopySettings


@click.command(
    cls=Command,
    epilog="kstreams-assets copy --warehouse /backup/shop --to s3://other-account/shop",
)
@app_option("app_file")
@application_id_option
@warehouse_option
@option(
    "--to",
    section="Copy",
    metavar="PLACE",
    help="Copy: a folder or s3://bucket/prefix (overrides the YAML).",
)
@option("--to-profile", section="Copy", metavar="NAME", help="AWS profile for --to.")
@option("--to-endpoint", section="Copy", metavar="URL", help="Endpoint of --to outside AWS.")
@option("--to-region", section="Copy", metavar="REGION", help="Region of the bucket of --to.")
@option(
    "--application",
    "applications",
    section="Selection",
    metavar="ID",
    multiple=True,
    help="Copy records of this application only; with --promote: an application whose records the"
    " copy contains. Repeatable.",
)
@option(
    "--point",
    "points",
    section="Selection",
    metavar="ID",
    multiple=True,
    help="Copy records and snapshots of this recovery point only. Repeatable.",
)
@option(
    "--bytes-per-second",
    section="Limits",
    metavar="BYTES",
    type=click.IntRange(min=LEAST_RATE),
    help="Maximum copy rate (overrides the YAML).",
)
@option(
    "--prune",
    "prunes",
    section="Copy",
    is_flag=True,
    help="Delete files from the copy that the source deleted over a day ago.",
)
@option(
    "--promote",
    "promotes",
    section="Copy",
    is_flag=True,
    help="Turn the copy into a warehouse for backups, after the source is lost.",
)
@json_option
def copy(
    app_file: Path | None,
    application_id: str | None,
    warehouse: str | None,
    to: str | None,
    to_profile: str | None,
    to_endpoint: str | None,
    to_region: str | None,
    applications: Sequence[str],
    points: Sequence[str],
    bytes_per_second: int | None,
    prunes: bool,
    promotes: bool,
    as_json: bool,
) -> None:
    """Copy a warehouse to another folder or account

    The command copies new files and compares each copied file. Backups can run at the same time.
    The copy is consistent at any time. An interrupted copy continues with the next call.

    --application and --point limit the records and snapshots that are copied. All other tables,
    such as the lists of windows and recovery points, are always copied completely. If a table of
    the source is lost, the command stops and leaves the copy unchanged.

    To restore from a copy, give it to the restore with --warehouse. A copy is read-only, so name
    another folder with --state-in.

    Exit code 1: some files of the source could not be copied. All other files are copied.
    """
    store = {"profile": to_profile, "endpoint": to_endpoint, "region": to_region}
    given = {name: value for name, value in store.items() if value is not None}
    places = _places(app_file, application_id, warehouse, to, given)
    if promotes:
        state = promote(places.to, applications=tuple(applications) or None)
        document = {
            "promoted": str(places.to),
            "as_of": iso_time(state.finished_at_ms),
            "missing_applications": [*state.missing],
            "regained_tables": {**state.regained},
        }
        _print(as_json, document, _promoted_text(places.to, state))
        return
    if places.source is None:
        raise ConfigurationError(
            "The warehouse to copy is not specified.", remedy="Give --warehouse or --app."
        )
    result = CopyJob(
        places.source,
        places.to,
        applications=tuple(applications) or None,
        points=tuple(points) or None,
        bytes_per_s=bytes_per_second or places.settings.bytes_per_second,
        prunes=prunes,
    ).run()
    _print(as_json, _document(result), _text(result))
    for text in result.lacking_texts:
        click.echo(f"MISSING {text}", err=True)
    if result.lacking:
        sys.exit(exit_codes.CHECK_FAILED)


def _places(
    app_file: Path | None,
    application_id: str | None,
    warehouse: str | None,
    to: str | None,
    given: dict[str, str],
) -> _Places:
    source, settings = None, SecondCopySettings()
    if app_file is not None:
        loaded = load_settings(app_file, application_id=application_id, warehouse=warehouse)
        source, settings = loaded.warehouse, loaded.second_copy
    elif warehouse is not None:
        source = Warehouse.at(warehouse)
    if to is not None:
        return _Places(source, place_at(to, ObjectStoreSettings.model_validate(given)), settings)
    if settings.place is None:
        raise ConfigurationError(
            "The place of the copy is not specified.",
            remedy="Give --to, or second_copy.to in the YAML.",
        )
    return _Places(source, settings.place, settings)


def _promoted_text(place: StorePath, state: Promoted) -> str:
    text = f"{place} is now a warehouse, with the state of {iso_time(state.finished_at_ms)}."
    if state.missing:
        text += (
            f" It has no records of {', '.join(state.missing)}: back them up to another warehouse."
        )
    if state.regained:
        text += (
            f" The source had already lost {', '.join(sorted(state.regained))} at the last copy;"
            " the copy has their previous state. Run kstreams-assets verify."
        )
    return text


def _print(as_json: bool, document: dict[str, Any], text: str) -> None:
    if as_json:
        print_json(document)
    else:
        click.echo(text)


def _document(result: CopyResult) -> dict[str, Any]:
    pruned = {} if result.pruned is None else {"pruned": asdict(result.pruned)}
    return COPY.document(result) | pruned


def _text(result: CopyResult) -> str:
    text = (
        f"{result.to}: {result.files:,} files ({bytes_text(result.bytes)}) copied and compared,"
        f" {result.there:,} already existed; {result.tables} tables, {result.took_s:.1f} s."
    )
    if result.finished_at_ms is None:
        text += (
            " Readers still see the previous state of the copy, because a file of a control table"
            " is damaged in the source. Repair it (kstreams-assets verify --repair), then copy"
            " again."
        )
    if (pruned := result.pruned) is not None:
        text += f" Deleted {pruned.files:,} files ({bytes_text(pruned.bytes)}) from the copy."
    return text
