"""`kstreams-assets info`: summarize the contents of a warehouse."""

from collections.abc import Sequence
from pathlib import Path

import click

from kstreams_assets.app_file.read import load_settings
from kstreams_assets.cli.help import Command
from kstreams_assets.cli.options import app_option, json_option, warehouse_option
from kstreams_assets.cli.output import print_json
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.layout import Warehouse
from kstreams_assets.metrics.info import WAREHOUSE, ApplicationInfo, WarehouseInfo, warehouse_info
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import bytes_text, duration, iso_time


@click.command(cls=Command, epilog="kstreams-assets info --warehouse /backup/warehouse")
@app_option("app_files", multiple=True)
@warehouse_option
@json_option
def info(app_files: Sequence[Path], warehouse: str | None, as_json: bool) -> None:
    """Summarize the contents of a warehouse

    The summary lists recovery points, windows, sizes and the newest checks of each application.
    With --app it also shows due windows (closed, but not backed up yet) and whether a restore is
    possible now. The command reads the warehouse only.
    """
    found = _infos(app_files, warehouse)
    if as_json:
        print_json({"warehouses": WAREHOUSE.documents(found)})
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
            "Neither --app nor --warehouse is given.",
            remedy="Give a YAML file with --app, or a warehouse with --warehouse.",
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
        return f"{exact.id} is exact ({_ago(exact.taken_at_ms, now_ms)})"
    if covered is not None and covered == found.newest_enough:
        ago = _ago(covered.taken_at_ms, now_ms)
        return f"{covered.id} is {covered.restorability}, like the application ({ago})"
    if covered is not None:
        ago = _ago(covered.taken_at_ms, now_ms)
        return f"{covered.id} is {covered.restorability} ({ago}); no point is exact"
    if found.newest_point is None:
        return "none"
    ago = _ago(found.newest_point.taken_at_ms, now_ms)
    if found.due is None:
        return f"{found.newest_point.id} ({ago}); add --app to see its restorability"
    return f"{found.newest_point.id} ({ago}); no point is covered by backups"


def _points(found: ApplicationInfo) -> str:
    oldest = found.oldest_point
    since = "" if oldest is None else f" since {iso_time(oldest.taken_at_ms)}"
    pinned = f", {found.pinned} pinned" if found.pinned else ""
    restores = (
        f", {found.unfinished_restores} unfinished restores" if found.unfinished_restores else ""
    )
    return f"{found.points:,}{since}{pinned}{restores}"


def _windows(found: ApplicationInfo) -> str:
    until = (
        "" if found.backed_up_to_ms is None else f", backed up to {iso_time(found.backed_up_to_ms)}"
    )
    together = f", {found.put_together} merged" if found.put_together else ""
    due = "" if found.due is None else f", {found.due} due"
    return f"{found.windows:,}{together}{due}{until}"


def _verified(found: ApplicationInfo, now_ms: int) -> str:
    verified = found.verified
    if verified.any_at_ms is None:
        return "never: kstreams-assets verify"
    full = (
        "never with --full"
        if verified.full_at_ms is None
        else f"with --full {_ago(verified.full_at_ms, now_ms)}"
    )
    state = f"{len(verified.open)} open findings" if verified.open else "sound"
    return f"{_ago(verified.any_at_ms, now_ms)}, {full}: {state}"


def _drill(found: ApplicationInfo, now_ms: int) -> str:
    if found.drilled_at_ms is None:
        return "never: kstreams-assets drill"
    return f"{'passed' if found.drill_passed else 'FAILED'} {_ago(found.drilled_at_ms, now_ms)}"


def _expire(found: ApplicationInfo) -> str:
    if found.due is None:
        return "add --app to see its policy"
    if found.expires is None:
        return "no policy (keep in the YAML): the default rule applies"
    return f"up to {found.expires:,} points to delete (kstreams-assets expire --dry-run)"


def _ago(at_ms: int, now_ms: int) -> str:
    return f"{duration(now_ms - at_ms)} ago" if at_ms <= now_ms else iso_time(at_ms)
