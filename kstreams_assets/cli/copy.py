"""`kstreams-assets copy`: a second copy of the warehouse, in another folder or account."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from kstreams_assets.app_file.blocks import LEAST_RATE
from kstreams_assets.app_file.read import load_settings
from kstreams_assets.cli import exit_codes
from kstreams_assets.cli.output import print_json
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.layout import Warehouse
from kstreams_assets.settings import SecondCopySettings
from kstreams_assets.store import ObjectStoreSettings, StorePath, place_at
from kstreams_assets.texts import bytes_text, iso_time
from kstreams_assets.upkeep.copy import CopyResult, copy_warehouse
from kstreams_assets.upkeep.second_copy import Promoted, Pruned, promote, prune


@dataclass(frozen=True, slots=True)
class _Places:
    """What is copied and where to, as options and YAML say it."""

    source: Warehouse | None
    to: StorePath
    settings: SecondCopySettings


@click.command()
@click.option(
    "--app",
    "app_file",
    type=click.Path(path_type=Path),
    help="The component's YAML (defs.yaml), which may say warehouse and second_copy.",
)
@click.option("--application-id", help="Which document of the YAML, if it has several.")
@click.option("--warehouse", help="Folder of the tables, or s3://...; replaces the YAML's.")
@click.option("--to", help="Where the copy is: a folder, or s3://...; replaces the YAML's.")
@click.option("--to-profile", help="Profile of the AWS configuration for --to.")
@click.option("--to-endpoint", help="URL of the store of --to, if it is not AWS's.")
@click.option("--to-region", help="Region of the bucket of --to.")
@click.option(
    "--application",
    "applications",
    multiple=True,
    help="Copy the records of this application alone; may be given several times. Points, ledger"
    " and other small tables are copied as a whole. With --promote: what a partial copy holds.",
)
@click.option(
    "--point",
    "points",
    multiple=True,
    help="Copy of records and snapshots only what this recovery point needs; may be given several"
    " times.",
)
@click.option(
    "--bytes-per-second",
    type=click.IntRange(min=LEAST_RATE),
    help="Do not copy more than this per second; replaces the YAML's.",
)
@click.option(
    "--prune",
    "prunes",
    is_flag=True,
    help="Remove from the copy what the source removed more than a day ago.",
)
@click.option(
    "--promote",
    "promotes",
    is_flag=True,
    help="The first warehouse is lost: make the copy one of its own, which backups write.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
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
    """Keep a second copy of a warehouse, in another folder or account.

    What is new is copied, and all that is copied is compared. Backups may go on meanwhile. The copy
    is a warehouse at every moment, also when the command is killed; the next one goes on. Restores
    read a copy with --warehouse, and --notes-in for what they write. Exits 1 when the source could
    not give a file; all else is copied then. A source that lost a table is not followed.
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
        _tell(as_json, document, _promoted_text(places.to, state))
        return
    if places.source is None:
        raise ConfigurationError(
            "It is not said what is to be copied.", remedy="Give --warehouse, or --app."
        )
    result = copy_warehouse(
        places.source,
        places.to,
        applications=tuple(applications) or None,
        points=tuple(points) or None,
        bytes_per_s=bytes_per_second or places.settings.bytes_per_s,
    )
    removed = prune(places.to) if prunes and result.finished_at_ms is not None else None
    _tell(as_json, _document(result, removed), _text(result, removed))
    for file in result.lacking:
        click.echo(f"LACKING {file}", err=True)
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
    if settings.to is None:
        raise ConfigurationError(
            "It is not said where the copy is.", remedy="Give --to, or second_copy.to in the YAML."
        )
    return _Places(source, settings.to, settings)


def _promoted_text(place: StorePath, state: Promoted) -> str:
    text = f"{place} is a warehouse now, as of {iso_time(state.finished_at_ms)}."
    if state.missing:
        text += (
            f" It has no records of {', '.join(state.missing)}: back them up to another warehouse."
        )
    if state.regained:
        text += (
            f" The source had lost {', '.join(sorted(state.regained))} when it was copied last:"
            " they are as they were seen before. Run kstreams-assets verify."
        )
    return text


def _tell(as_json: bool, document: dict[str, Any], text: str) -> None:
    if as_json:
        print_json(document)
    else:
        click.echo(text)


def _document(result: CopyResult, removed: Pruned | None) -> dict[str, Any]:
    document: dict[str, Any] = {
        "source": result.source,
        "to": result.to,
        "tables": result.tables,
        "files_copied": result.files,
        "bytes_copied": result.bytes,
        "files_there": result.there,
        "finished_at": None if result.finished_at_ms is None else iso_time(result.finished_at_ms),
        "took_s": round(result.took_s, 3),
        "lacking": [
            {
                "table": file.table,
                "file": file.file,
                "window": file.window,
                "topic": file.topic,
                "partition": file.partition,
                "problem": file.problem,
            }
            for file in result.lacking
        ],
    }
    if removed is not None:
        document["pruned"] = {"files": removed.files, "bytes": removed.bytes}
    return document


def _text(result: CopyResult, removed: Pruned | None) -> str:
    text = (
        f"{result.to}: {result.files:,} files ({bytes_text(result.bytes)}) copied and compared,"
        f" {result.there:,} were there, {result.tables} tables, {result.took_s:.1f} s."
    )
    if result.finished_at_ms is None:
        text += (
            " Readers of the copy see what they saw before: a file of a control table is damaged"
            " in the source. Repair it (kstreams-assets verify), then copy again."
        )
    if removed is not None:
        text += f" {removed.files:,} files ({bytes_text(removed.bytes)}) were removed from it."
    return text
