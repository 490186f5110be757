"""`kstreams-assets`: the command line for operators."""

import atexit
import contextlib
import gc
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn

import click

from kstreams_assets.cli import exit_codes
from kstreams_assets.cli.help import Group
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.home import home_failure
from kstreams_assets.secret import mask_secrets

_log = logging.getLogger("kstreams_assets.cli")


_OF_SPARK: Final = ("pyspark", "py4j", "grpc")
_OF_GRPC: Final = ("Cannot invoke RPC", "Channel closed")
"""gRPC raises a plain ValueError with these messages when its connection is lost."""


class _Masked(logging.Formatter):
    """Mask secrets: a stack trace can contain the arguments of a library call."""

    def format(self, record: logging.LogRecord) -> str:
        return mask_secrets(super().format(record))


COMMANDS: Final = {
    "backup": "Back up all due windows or selected ones",
    "companion": "Find the optional jar for at-least-once apps",
    "completeness": "Evaluate completeness rules and list results",
    "copy": "Copy a warehouse to another folder or account",
    "discover": "Discover topics and stores of an application",
    "drill": "Test a restore on a throwaway cluster",
    "engine": "Manage the shared Spark engine of this host",
    "expire": "Delete recovery points and backups by policy",
    "follow": "Back up an application every few seconds",
    "governance": "Compare declared settings with the cluster",
    "info": "Summarize the contents of a warehouse",
    "init": "Create a Dagster project for backups",
    "jars": "Download jars of Spark and of a local Kafka",
    "ktables": "Create snapshots of stores, one row per key",
    "metrics": "Export metrics for Prometheus",
    "ready": "Check if the application is restorable now",
    "recovery-points": "Take, list, show and pin recovery points",
    "restore": "Restore an application to another cluster",
    "state": "Show the value of a key in a state store",
    "verify": "Check for missing or altered warehouse files",
    "windows": "List closed windows and their backup state",
}
"""The module of a command is imported when the command runs, so that the help is quick."""


class _Commands(Group):
    """All commands; a closed standard output ends with the exit code of an error."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            _keep_pandas_out()
            name = cmd_name.replace("-", "_")
            self.add_command(getattr(import_module(f"kstreams_assets.cli.{name}"), name))
        return super().get_command(ctx, cmd_name)

    def with_all(self) -> click.Group:
        """Import every command and return this group."""
        for name in COMMANDS:
            self.get_command(click.Context(self), name)
        return self

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - as click has it
        """Run the selected command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Click would exit with 1, and Python would report an error when it flushes the rest.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(exit_codes.ERROR)


class _Absent(MetaPathFinder):
    """Hide pandas from imports while this finder comes first."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        """Reject pandas; return None for other modules, so that Python asks the next finder."""
        del path, target
        if fullname == "pandas":
            raise ModuleNotFoundError(name=fullname)


def _keep_pandas_out() -> None:
    """Prevent pyarrow from importing pandas.

    pyarrow tries this import once, when it creates its first array. No command needs pandas in
    this process, and the import takes a fifth of the time of `take`. Spark Connect needs pandas
    and can still import it.
    """
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    absent = _Absent()
    sys.meta_path.insert(0, absent)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(absent)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="kstreams-assets discover --application-id shop --bootstrap kafka:9092 \\\n"
    "  --output defs.yaml\nkstreams-assets follow --app defs.yaml",
)
@click.version_option(package_name="kstreams-assets", message="%(prog)s %(version)s")
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Print progress and stack traces to standard error.",
)
def cli(verbose: bool) -> None:
    """Back up and restore Kafka Streams applications

    Topics, state and group offsets of an application are backed up together and restored together.

    Warehouse: the folder or bucket that contains the backups. Recovery point: the offsets of an
    application at one time, to which it can be restored. Window: a time span, such as an hour,
    whose records are backed up together. Engine: a local Spark process that commands share.

    Exit code 0: success. Exit code 1: a check failed. Exit code 2: an error. Exit code 130:
    interrupted.
    """
    standard_error = logging.StreamHandler(sys.stderr)
    standard_error.setFormatter(_Masked("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[standard_error])
    if not verbose:
        for handler in logging.getLogger().handlers:
            handler.addFilter(_is_not_of_py4j)
    # A terminal shows progress; a log file or an e-mail from cron contains warnings only.
    level = logging.INFO if verbose or sys.stderr.isatty() else logging.WARNING
    for name in ("kstreams_assets", "spark_resources"):
        logging.getLogger(name).setLevel(level)
    _log.setLevel(logging.INFO if verbose else logging.WARNING)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Return False for py4j, which logs to the root logger the errors that it also raises."""
    return "py4j" not in Path(record.pathname).parts


def main() -> None:
    """Run the command line; an error is one line, its stack trace is logged with --verbose.

    Exit code 1 is for checks alone: unexpected errors end with 2.
    """
    try:
        cli.main(prog_name="kstreams-assets", standalone_mode=False)
    except KStreamsAssetsError as error:
        if _was_interrupted(error):
            _interrupted()
        _end(str(error) if error.remedy else _unforeseen(error), error)
    except click.ClickException as error:
        error.show()
        sys.exit(exit_codes.ERROR)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _interrupted()
    except Exception as error:  # noqa: BLE001 - the one place where the unforeseen ends
        if _was_interrupted(error):
            _interrupted()
        _end(_unforeseen(error), error)


def _interrupted() -> NoReturn:
    click.echo("Interrupted. Committed work is kept; run the same command again.", err=True)
    sys.exit(exit_codes.INTERRUPTED)


def _was_interrupted(error: BaseException | None) -> bool:
    """Return whether Ctrl-C caused this error; Spark, for example, then fails while it stops."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.add(id(error))
        error = error.__context__
    return False


def _end(text: str, error: Exception) -> NoReturn:
    click.echo(f"Error: {mask_secrets(' '.join(text.split()))}", err=True)
    _log.info("The stack trace of that error:", exc_info=error)
    sys.exit(exit_codes.ERROR)


def _unforeseen(error: Exception) -> str:
    # The lines after the first one in errors of Java and Rust are stack traces.
    said = next((line for line in str(error).splitlines() if line.strip()), "no message")
    if type(error).__module__.partition(".")[0] in _OF_SPARK or said.startswith(_OF_GRPC):
        from spark_resources.failures import spark_failure

        failure = spark_failure(error)
        if failure is not None:
            return str(failure)
    if (homeless := home_failure(error)) is not None:
        return str(homeless)
    from kstreams_assets.store.folders import disk_remedy

    remedy = disk_remedy(error)
    if remedy is not None:
        return f"{said.strip().rstrip('.')}. {remedy}"
    return (
        f"{type(error).__name__}: {said.strip().rstrip('.')}. This error was not expected."
        " Committed work is kept. Run the command again as kstreams-assets -v ... for the stack"
        " trace, and report it."
    )


def run() -> NoReturn:
    """Run `main` as the whole process, and end it without unloading modules.

    Unloading takes a third of a second in each command. Collecting garbage while modules are
    imported takes a quarter of a second [measured].
    """
    gc.set_threshold(200_000)
    code = 0
    try:
        main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else exit_codes.ERROR if stop.code else 0
    atexit._run_exitfuncs()  # noqa: SLF001 - os._exit does not call them
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the reader left, or the stream is closed
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
