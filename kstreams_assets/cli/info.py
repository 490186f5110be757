"""`kstreams-assets info`: what a warehouse holds, on one screen."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from kstreams_assets.app_file.read import load_settings
from kstreams_assets.cli.output import print_json
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.layout import Warehouse
from kstreams_assets.metrics.info import ApplicationInfo, WarehouseInfo, warehouse_info
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import bytes_text, duration, iso_time


@click.command()
@click.option(
    "--app",
    "app_files",
    multiple=True,
    type=click.Path(path_type=Path),
    help="The component's YAML (defs.yaml); repeat for more. Of these also what is due is shown.",
)
@click.option("--warehouse", help="Folder of the tables, or s3://...; replaces the YAML's.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(app_files: Sequence[Path], warehouse: str | None, as_json: bool) -> None:
    """What a warehouse holds of every application: points, windows, bytes, last checks.

    Needs no broker and no JVM; with --warehouse not even a YAML.

    \f
    Raises ConfigurationError when neither a YAML nor a warehouse is given.
    """
    found = _infos(app_files, warehouse)
    if as_json:
        print_json({"warehouses": [_document(one) for one in found]})
        return
    for one in found:
        number = len(one.applications)
        click.echo(
            f"{one.root}: {number} application{'' if number == 1 else 's'}, tables of all"
            f" {bytes_text(one.table_bytes)}"
        )
        for application in one.applications:
            click.echo("")
            _show(application, one.now_ms)


def _infos(app_files: Sequence[Path], warehouse: str | None) -> list[WarehouseInfo]:
    settings = [load_settings(file, warehouse=warehouse) for file in app_files]
    if not settings and warehouse is None:
        raise ConfigurationError(
            "Neither a YAML nor a warehouse is given.",
            remedy="Give --app with the component's YAML, or --warehouse.",
        )
    if not settings and warehouse is not None:
        return [warehouse_info(Warehouse.at(warehouse))]
    by_place: dict[str, list[ApplicationSettings]] = {}
    for one in settings:
        by_place.setdefault(str(one.warehouse.root), []).append(one)
    return [warehouse_info(of_it[0].warehouse, of_it) for of_it in by_place.values()]


def _show(found: ApplicationInfo, now_ms: int) -> None:
    click.echo(click.style(found.application_id, bold=True))
    for name, text in _lines(found, now_ms):
        click.echo(f"  {name:<14}{text}")


def _lines(found: ApplicationInfo, now_ms: int) -> list[tuple[str, str]]:
    lines = [("newest point", _newest(found, now_ms)), ("points", _points(found))]
    lines.append(("windows", _windows(found)))
    roles = ", ".join(
        f"{role} {bytes_text(size)}" for role, size in sorted(found.bytes_by_role.items())
    )
    lines.append(
        (
            "stored",
            f"{bytes_text(found.bytes)}, {found.records:,} records: {roles or 'no records'};"
            f" saved with points {bytes_text(found.saved_bytes)},"
            f" KTables {bytes_text(found.ktable_bytes)}",
        )
    )
    if found.growth_per_day is not None:
        over = "" if found.growth is None else f", over {duration(found.growth.over_ms)} of backups"
        lines.append(("growth", f"{bytes_text(round(found.growth_per_day))} a day{over}"))
    lines.append(("verified", _verified(found, now_ms)))
    lines.append(("drill", _drill(found, now_ms)))
    lines.append(("expire", _expire(found)))
    if found.not_ready_because is not None:
        reasons = "; ".join(found.not_ready_because[:2])
        more = len(found.not_ready_because) - 2
        rest = f"; and {more} more (kstreams-assets ready)" if more > 0 else ""
        lines.append(("ready", f"no: {reasons}{rest}" if reasons else "yes"))
    return lines


def _newest(found: ApplicationInfo, now_ms: int) -> str:
    exact, covered = found.newest_exact, found.newest_covered
    if exact is not None:
        return f"{exact.id} restores exactly ({_ago(exact.taken_at_ms, now_ms)})"
    if covered is not None and covered == found.newest_enough:
        ago = _ago(covered.taken_at_ms, now_ms)
        return f"{covered.id} gives {covered.gives}, as the application does ({ago})"
    if covered is not None:
        ago = _ago(covered.taken_at_ms, now_ms)
        return f"{covered.id} gives {covered.gives} ({ago}); none restores exactly"
    if found.newest_point is None:
        return "none"
    ago = _ago(found.newest_point.taken_at_ms, now_ms)
    if found.due is None:
        return f"{found.newest_point.id} ({ago}); give --app to see what it restores"
    return f"{found.newest_point.id} ({ago}); no point is covered by backups"


def _points(found: ApplicationInfo) -> str:
    oldest = found.oldest_point
    since = "" if oldest is None else f" since {iso_time(oldest.taken_at_ms)}"
    pinned = f", {found.pinned} pinned" if found.pinned else ""
    restores = (
        f", {found.unfinished_restores} restores are not finished"
        if found.unfinished_restores
        else ""
    )
    return f"{found.points:,}{since}{pinned}{restores}"


def _windows(found: ApplicationInfo) -> str:
    until = (
        "" if found.backed_up_to_ms is None else f", backed up to {iso_time(found.backed_up_to_ms)}"
    )
    together = f", {found.put_together} put together" if found.put_together else ""
    due = "" if found.due is None else f", {found.due} due"
    return f"{found.windows:,}{together}{due}{until}"


def _verified(found: ApplicationInfo, now_ms: int) -> str:
    verified = found.verified
    if verified.any_at_ms is None:
        return "never: kstreams-assets verify"
    full = (
        "never in full"
        if verified.full_at_ms is None
        else f"in full {_ago(verified.full_at_ms, now_ms)}"
    )
    state = f"{len(verified.open)} findings are open" if verified.open else "sound"
    return f"{_ago(verified.any_at_ms, now_ms)}, {full}: {state}"


def _drill(found: ApplicationInfo, now_ms: int) -> str:
    if found.drilled_at_ms is None:
        return "never: kstreams-assets drill"
    return f"{'passed' if found.drill_passed else 'FAILED'} {_ago(found.drilled_at_ms, now_ms)}"


def _expire(found: ApplicationInfo) -> str:
    if found.due is None:
        return "give --app to see what its policy keeps"
    if found.expires is None:
        return "no policy: everything stays (keep: in the YAML)"
    return f"up to {found.expires:,} points would go (kstreams-assets expire --dry-run)"


def _ago(at_ms: int, now_ms: int) -> str:
    return f"{duration(now_ms - at_ms)} ago" if at_ms <= now_ms else iso_time(at_ms)


def _document(found: WarehouseInfo) -> dict[str, Any]:
    return {
        "warehouse": found.root,
        "table_bytes": found.table_bytes,
        "applications": [
            {
                "application_id": one.application_id,
                "points": one.points,
                "pinned": one.pinned,
                "newest_point": None if one.newest_point is None else one.newest_point.id,
                "oldest_point": None if one.oldest_point is None else one.oldest_point.id,
                "newest_exact": None if one.newest_exact is None else one.newest_exact.id,
                "newest_covered": None if one.newest_covered is None else one.newest_covered.id,
                "gives": None if one.newest_covered is None else one.newest_covered.gives.value,
                "windows": one.windows,
                "put_together": one.put_together,
                "due": one.due,
                "backed_up_to": None
                if one.backed_up_to_ms is None
                else iso_time(one.backed_up_to_ms),
                "records": one.records,
                "bytes": one.bytes,
                "bytes_by_role": dict(one.bytes_by_role),
                "saved_bytes": one.saved_bytes,
                "ktable_bytes": one.ktable_bytes,
                "growth_bytes_per_day": one.growth_per_day,
                "verified_at": _time(one.verified.any_at_ms),
                "verified_in_full_at": _time(one.verified.full_at_ms),
                "open_findings": len(one.verified.open),
                "drilled_at": _time(one.drilled_at_ms),
                "drill_passed": one.drill_passed,
                "unfinished_restores": one.unfinished_restores,
                "ready": None if one.not_ready_because is None else not one.not_ready_because,
                "expires": one.expires,
            }
            for one in found.applications
        ],
    }


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None else iso_time(at_ms)
