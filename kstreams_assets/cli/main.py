"""`kstreams-assets`: one group of commands for each thing an operator does."""

import logging
import os
import sys
from typing import Any, NoReturn

import click

from kstreams_assets.cli import exit_codes
from kstreams_assets.cli.backup import backup
from kstreams_assets.cli.completeness import completeness
from kstreams_assets.cli.discover import discover
from kstreams_assets.cli.drill import drill
from kstreams_assets.cli.governance import governance
from kstreams_assets.cli.jars import jars
from kstreams_assets.cli.ktables import ktables
from kstreams_assets.cli.metrics import metrics
from kstreams_assets.cli.ready import ready
from kstreams_assets.cli.recovery_points import recovery_points
from kstreams_assets.cli.restore import restore
from kstreams_assets.cli.state import state
from kstreams_assets.cli.windows import windows
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.warehouse.delta import disk_remedy

_log = logging.getLogger("kstreams_assets.cli")


class _Commands(click.Group):
    """The commands; that nobody reads standard output to its end is no red check."""

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - as click has it
        """Run a command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Click would exit with 1, and Python complain when it flushes the rest at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(exit_codes.ERROR)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kstreams-assets", message="%(prog)s %(version)s")
@click.option("-v", "--verbose", is_flag=True, help="Progress on standard error.")
def cli(verbose: bool) -> None:
    """Back up and restore Kafka Streams applications as a unit.

    Exit code 0: done, every check passed. 1: a check failed. 2: an error, named in one line.
    130: interrupted.
    """
    logging.basicConfig(
        level=logging.WARNING,
        format="%(asctime)s %(levelname)s %(message)s",
        stream=sys.stderr,
    )
    for name in ("kstreams_assets", "spark_resources"):
        logging.getLogger(name).setLevel(logging.INFO if verbose else logging.WARNING)


cli.add_command(backup)
cli.add_command(completeness)
cli.add_command(discover)
cli.add_command(governance)
cli.add_command(drill)
cli.add_command(jars)
cli.add_command(ktables)
cli.add_command(metrics)
cli.add_command(ready)
cli.add_command(recovery_points)
cli.add_command(restore)
cli.add_command(state)
cli.add_command(windows)


def main() -> None:
    """Run the command line; an error is one line, its stack trace is logged with --verbose.

    Exit code 1 is for checks alone: whatever was not foreseen ends with 2.
    """
    try:
        cli.main(prog_name="kstreams-assets", standalone_mode=False)
    except KStreamsAssetsError as error:
        _end(str(error), error)
    except click.ClickException as error:
        error.show()
        sys.exit(exit_codes.ERROR)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted; what was committed stays, run the same command again.", err=True)
        sys.exit(exit_codes.INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - the one place where the unforeseen ends
        _end(_unforeseen(error), error)


def _end(text: str, error: Exception) -> NoReturn:
    click.echo(f"Error: {' '.join(text.split())}", err=True)
    _log.info("The stack trace of that error:", exc_info=error)
    sys.exit(exit_codes.ERROR)


def _unforeseen(error: Exception) -> str:
    # What follows the first line in errors of Java and Rust are their stack traces.
    said = next((line for line in str(error).splitlines() if line.strip()), "without a text")
    remedy = disk_remedy(error)
    if remedy is not None:
        return f"{said.strip().rstrip('.')}. {remedy}"
    return (
        f"{type(error).__name__}: {said.strip().rstrip('.')}. This was not foreseen: what was"
        " committed stays; run the command again as kstreams-assets -v ... for the stack trace,"
        " and report it."
    )


if __name__ == "__main__":
    main()
