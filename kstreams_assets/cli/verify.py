"""`kstreams-assets verify`: is all that the warehouse holds as it was written?"""

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from kstreams_assets.app_file.blocks import LEAST_RATE
from kstreams_assets.cli import exit_codes
from kstreams_assets.cli.options import apps_options
from kstreams_assets.cli.output import print_json, print_table
from kstreams_assets.cli.spark_run import SparkRun, new_run_id, spark_run
from kstreams_assets.errors import ConfigurationError, KStreamsAssetsError
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store import StorePath, place_at
from kstreams_assets.texts import bytes_text, duration, iso_time
from kstreams_assets.upkeep.repair import Repair, repair
from kstreams_assets.upkeep.verify import Verification
from kstreams_assets.upkeep.verify import verify as look


@click.command("verify")
@apps_options
@click.option("--full", is_flag=True, help="Read every file and compare its digest.")
@click.option(
    "--sample",
    type=click.FloatRange(0, 1, min_open=True),
    help="With --full: read this share of the files, those not read for longest.",
)
@click.option(
    "--bytes-per-second",
    "bytes_per_s",
    type=click.IntRange(min=LEAST_RATE),
    help="Do not read more than this.",
)
@click.option(
    "--public-key",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Compare signatures of the control tables with this key (Ed25519, PEM).",
)
@click.option(
    "--repair",
    "repairs",
    is_flag=True,
    help="Put back what is damaged, from a second copy (--from) or from Kafka, and look again.",
)
@click.option(
    "--from",
    "copy",
    help="With --repair: the second copy, a folder or s3://...; replaces the YAML's.",
)
@click.option(
    "--accept",
    metavar="REASON",
    default="",
    help="What is found (after --repair) counts as lost for good: a warning with this reason.",
)
@click.option("--on-engine", is_flag=True, help="Read files as tasks of the engine.")
@click.option(
    "--no-record", is_flag=True, help="Store nothing in the warehouse (a copy mounted read-only)."
)
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
def verify(
    all_settings: Sequence[ApplicationSettings],
    full: bool,
    sample: float | None,
    bytes_per_s: int | None,
    public_key: Path | None,
    repairs: bool,
    copy: str | None,
    accept: str,
    on_engine: bool,
    no_record: bool,
    as_json: bool,
) -> None:
    """Whether all that a warehouse holds is as it was written; names what is damaged.

    Needs no broker. Looks at tables, their chains of commits, the ledger, names and sizes of all
    files, and whether windows follow each other; with --full also at what is in the files. What is
    damaged is named with the recovery points that it takes away and what to do. With --repair each
    damaged file is taken from a second copy, or its window read again from Kafka; what was damaged
    is kept in the folder _damaged. What nobody can bring back is given up with --accept: expire and
    ready go on then; restores refuse what needs it as before. Exits 1 when something is damaged
    (still, with --repair), 2 when it could not be looked at.
    """
    if not full and (sample is not None or on_engine or bytes_per_s is not None):
        raise ConfigurationError(
            "--sample, --bytes-per-second and --on-engine go with --full.",
            remedy="Add --full, or leave them out: a quick look reads no file.",
        )
    if copy is not None and not repairs:
        raise ConfigurationError("--from goes with --repair.", remedy="Add it, or leave both out.")
    if accept and no_record:
        raise ConfigurationError(
            "--accept is noted in the warehouse, --no-record stores nothing.",
            remedy="Leave one of them out.",
        )
    documents: list[dict[str, Any]] = []
    codes = {0}
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(spark_run()) if on_engine or repairs else None
        for settings in all_settings:

            def found_now(
                settings: ApplicationSettings = settings,
                run: SparkRun | None = run,
                *,
                accept: str = "",
            ) -> Verification:
                return look(
                    settings,
                    full=full,
                    sample=sample or 1.0,
                    bytes_per_s=bytes_per_s,
                    public_key=public_key,
                    spark=None if run is None or not on_engine else run.spark,
                    record=not no_record,
                    run_id=new_run_id() if run is None else run.id,
                    accept=accept,
                    log=_log,
                )

            made: Sequence[Repair] = ()
            try:
                found = found_now(accept="" if repairs else accept)
                if repairs and run is not None and found.damages:
                    made = repair(
                        settings,
                        found.damages,
                        copy=_copy_of(settings, copy),
                        spark=run.spark,
                        run_id=run.id,
                        log=_log,
                    )
                    found = found_now(accept=accept)
            except KStreamsAssetsError as error:
                if len(all_settings) == 1:
                    raise
                click.echo(f"{settings.application_id}: {error}", err=True)
                codes.add(exit_codes.ERROR)
                continue
            codes.add(0 if found.sound else exit_codes.CHECK_FAILED)
            document = _document(found)
            if repairs:
                document["repairs"] = [one.document() for one in made]
            documents.append(document)
            if not as_json:
                _print(found)
    if as_json:
        print_json({"applications": documents})
    if codes != {0}:
        sys.exit(max(codes))


def _copy_of(settings: ApplicationSettings, said: str | None) -> StorePath | None:
    return settings.second_copy.to if said is None else place_at(said)


def _log(line: str) -> None:
    click.echo(line, err=True)


def _print(found: Verification) -> None:
    state = "sound" if found.sound else f"{len(found.errors):,} damage(s)"
    read = f", {found.files:,} files read ({bytes_text(found.bytes)})" if found.files else ""
    share = f" of {found.sample:.0%}" if 0 < found.sample < 1 else ""
    title = (
        f"verify {found.application_id}: {state} ({found.kind.value} look{share}{read},"
        f" {duration(found.took_ms)})"
    )
    if found.damages:
        print_table(
            title,
            ["what", "where", "problem", "points taken away", "what to do"],
            [
                [
                    f"{one.kind.value}{'' if one in found.errors else ' (warning)'}",
                    one.subject if one.subject == one.place else f"{one.subject}\n{one.place}",
                    f"{one.problem}\naccepted: {one.accepted}" if one.accepted else one.problem,
                    one.points_lost or "",
                    one.remedy,
                ]
                for one in found.damages
            ],
        )
    else:
        click.echo(title)
    if found.unrecorded:
        click.echo(f"The result was not stored: {found.unrecorded}", err=True)


def _document(found: Verification) -> dict[str, Any]:
    covered = found.covered_since_ms
    return {
        "application_id": found.application_id,
        "sound": found.sound,
        "kind": found.kind.value,
        "sample": found.sample,
        "verified_at": iso_time(found.began_at_ms),
        "took_ms": found.took_ms,
        "files": found.files,
        "bytes": found.bytes,
        "every_file_read_since": None if covered is None else iso_time(covered),
        "recorded": not found.unrecorded,
        "damages": [one.document() for one in found.damages],
    }
