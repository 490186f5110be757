"""`python -m bench [CASE ...]`: all cases without an argument, and the older benchmarks by name."""

import logging
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from bench import (
    commands,
    companion,
    copies,
    cuts,
    delta_reads,
    drill,
    large_window,
    ledger,
    live,
    points,
    scale,
    tables,
    windows,
)
from bench.harness import Opened, Options, run_case
from bench.machine import RESULTS
from kstreams_assets.errors import KStreamsAssetsError

CASES: Final[dict[str, Opened]] = {
    "plain": copies.PLAIN,
    "transactional": copies.TRANSACTIONAL,
    "small-records": copies.SMALL,
    "large-records": copies.LARGE,
    "store": copies.STORE,
    "large-window": large_window.large_window,
    "windows": windows.small,
    "orders": windows.ORDERS,
    "many-orders": windows.MANY_ORDERS,
    "ktable": tables.tables,
    "follow": live.follow,
    "recovery": live.recovery,
    "scale": scale.scale,
    "delta-reads": delta_reads.delta_reads,
    "companion": companion.companion,
}
_OTHERS: Final[dict[str, Callable[[], None]]] = {
    "commands": commands.main,
    "points": points.main,
    "ledger": ledger.main,
    "cuts": cuts.main,
    "drill": drill.main,
    "growth": scale.growth,
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", metavar="[CASE]...", nargs=-1)
@click.option("--rounds", default=3, show_default=True, help="That count, after one that warms up.")
@click.option("--scale", default=1.0, show_default=True, help="Of records and seconds, for trials.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=RESULTS,
    show_default=True,
    help="Folder of the results.",
)
@click.option(
    "--external",
    "externals",
    multiple=True,
    metavar="NAME=COMMAND",
    help="Time an outside program on the same data in the same rounds (plain, transactional,"
    " small-records, large-records); repeat. It gets BOOTSTRAP, TOPIC, RECORDS, PARTITIONS, DIR (an"
    " empty folder; what it holds then is what the program stored).",
)
@click.option("--external-prepare", default="", help="Run before each of them, not timed.")
@click.option("--external-cleanup", default="", help="Run after each of them, not timed.")
@click.option(
    "--beside",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="An earlier checkout that is measured in the same rounds (commands).",
)
def main(
    names: tuple[str, ...],
    rounds: int,
    scale: float,
    output: Path,
    externals: tuple[str, ...],
    external_prepare: str,
    external_cleanup: str,
    beside: Path | None,
) -> None:
    """Measure; each CASE becomes a JSON file and a page of the results.

    By name also: commands, points, ledger, cuts, drill, growth.
    """
    unknown = [name for name in names if name not in CASES | _OTHERS]
    if unknown:
        known = ", ".join([*CASES, *_OTHERS])
        raise click.UsageError(f"Unknown: {', '.join(unknown)}. There are: {known}.")
    if scale != 1 and output == RESULTS:
        raise click.UsageError("A trial (--scale) is no result: name another folder by --output.")
    wrong = [text for text in externals if "=" not in text]
    if wrong:
        raise click.UsageError(f"--external {wrong[0]}: there is no '='. Write NAME='COMMAND'.")
    pairs = dict(text.split("=", 1) for text in externals)
    logging.getLogger("kstreams_assets").setLevel(logging.ERROR)
    options = Options(rounds, scale, output, pairs, external_prepare, external_cleanup)
    # Brokers and engines end with what started them, also when this is asked to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    failed: list[str] = []
    for name in names or CASES:
        click.echo(f"== {name}")
        try:
            if name in CASES:
                run_case(name, CASES[name], options)
            elif name == "commands":
                commands.main(beside)
            else:
                _OTHERS[name]()
        except (RuntimeError, OSError, KStreamsAssetsError, subprocess.SubprocessError):
            traceback.print_exc()
            failed.append(name)
    if failed:
        raise click.ClickException(f"Not measured: {', '.join(failed)}; see above.")


if __name__ == "__main__":
    sys.exit(main())
