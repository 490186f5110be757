"""`kstreams-assets verify`: check for missing or altered warehouse files."""

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from kstreams_assets.cli import exit_codes
from kstreams_assets.cli.help import Command, option
from kstreams_assets.cli.options import apps_options, json_option
from kstreams_assets.cli.output import print_json, print_table
from kstreams_assets.cli.spark_run import new_run_id, spark_run
from kstreams_assets.errors import ConfigurationError, KStreamsAssetsError
from kstreams_assets.model.damage import DAMAGE
from kstreams_assets.settings import LEAST_RATE, ApplicationSettings
from kstreams_assets.store import StorePath, place_at
from kstreams_assets.texts import bytes_text, duration
from kstreams_assets.upkeep.public import VERIFICATION
from kstreams_assets.upkeep.repair import REPAIRED, RepairJob
from kstreams_assets.upkeep.verify import Verification, VerifyJob


@click.command("verify", cls=Command, epilog="kstreams-assets verify --app defs.yaml --full")
@apps_options
@option("--full", section="Checks", is_flag=True, help="Read each file and compare its SHA-256.")
@option(
    "--sample",
    section="Checks",
    metavar="SHARE",
    type=click.FloatRange(0, 1, min_open=True),
    help="With --full: read this share of the files, least recently read first.",
)
@option(
    "--bytes-per-second",
    "bytes_per_s",
    section="Limits",
    metavar="BYTES",
    type=click.IntRange(min=LEAST_RATE),
    help="With --full: maximum read rate.",
)
@option(
    "--public-key",
    section="Checks",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Verify signatures of the control tables (such as the ledger) with this Ed25519 key"
    " (PEM).",
)
@option(
    "--repair",
    "repairs",
    section="Repair",
    is_flag=True,
    help="Restore damaged files from a second copy or from Kafka, then verify again.",
)
@option(
    "--from",
    "copy",
    section="Repair",
    metavar="PLACE",
    help="With --repair: second copy, a folder or s3://bucket/prefix (overrides the YAML).",
)
@option(
    "--accept",
    section="Repair",
    metavar="REASON",
    default="",
    help="Accept the remaining damage as permanent, with this reason.",
)
@option("--on-engine", section="Limits", is_flag=True, help="With --full: read files with Spark.")
@option(
    "--no-record",
    section="Output",
    is_flag=True,
    help="Do not store the result in the warehouse.",
)
@json_option
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
    """Check for missing or altered warehouse files

    The command checks each table and its log, the ledger (the list of backed-up windows), gaps
    between windows, and names and sizes of all files. With --full it also checks file contents. For
    each damage it names a remedy, and the recovery points that cannot be restored.

    --repair moves damaged files to the folder _damaged and replaces them from a second copy or from
    Kafka.

    --accept turns the findings into warnings, so `expire` no longer refuses to run. `ready` still
    answers no while a file is missing or has another size. Restores that need a damaged file still
    fail.

    Exit code 1: damage was found and not accepted. With --repair: damage remains.
    """
    if not full and (sample is not None or on_engine or bytes_per_s is not None):
        raise ConfigurationError(
            "--sample, --bytes-per-second and --on-engine require --full.",
            remedy="Add --full, or remove them: a quick verification reads no file.",
        )
    if copy is not None and not repairs:
        raise ConfigurationError(
            "--from requires --repair.", remedy="Add --repair, or remove --from."
        )
    if accept and no_record:
        raise ConfigurationError(
            "--accept stores a reason in the warehouse, but --no-record stores nothing.",
            remedy="Remove one of them.",
        )
    documents: list[dict[str, Any]] = []
    codes = {0}
    with spark_run() if on_engine or repairs else nullcontext() as run:
        for settings in all_settings:
            job = VerifyJob(
                settings,
                full=full,
                sample=sample or 1.0,
                bytes_per_s=bytes_per_s,
                public_key=public_key,
                spark=run.spark if run and on_engine else None,
                record=not no_record,
                run_id=run.id if run else new_run_id(),
                accept=accept,
                log=_log,
            )
            try:
                if run and repairs:
                    done = RepairJob(job, _copy_of(settings, copy), run.spark).run()
                    found, document = done.verification, REPAIRED.document(done)
                else:
                    found = job.run()
                    document = VERIFICATION.document(found)
            except KStreamsAssetsError as error:
                if len(all_settings) == 1:
                    raise
                click.echo(f"{settings.application_id}: {error}", err=True)
                codes.add(exit_codes.ERROR)
                continue
            codes.add(0 if found.sound else exit_codes.CHECK_FAILED)
            documents.append(document)
            if not as_json:
                _print(found)
    if as_json:
        print_json({"applications": documents})
    if codes != {0}:
        sys.exit(max(codes))


def _copy_of(settings: ApplicationSettings, given: str | None) -> StorePath | None:
    return settings.second_copy.place if given is None else place_at(given)


def _log(line: str) -> None:
    click.echo(line, err=True)


def _print(found: Verification) -> None:
    state = "sound" if found.sound else f"{len(found.errors):,} damage(s)"
    read = f", {found.files:,} files read ({bytes_text(found.bytes)})" if found.files else ""
    share = f" of {found.sample:.0%}" if 0 < found.sample < 1 else ""
    title = (
        f"verify {found.application_id}: {state} ({found.kind.value}{share}{read},"
        f" {duration(found.took_ms)})"
    )
    if found.damages:
        print_table(
            title, *DAMAGE.table(found.damages, "what", "where", "description", "lost", "remedy")
        )
    else:
        click.echo(title)
    if found.unrecorded:
        click.echo(f"The result was not stored: {found.unrecorded}", err=True)
