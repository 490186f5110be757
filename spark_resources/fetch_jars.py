"""Fetches the jars with the Ivy that pyspark ships: `python -m spark_resources.fetch_jars`.

A jar is fetched from the repositories that Ivy is configured for, compared with jars.lock in a
temporary folder, and only then moved to its final folder.
"""

import contextlib
import fcntl
import importlib.util
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from kstreams_assets.errors import ConfigurationError, KStreamsAssetsError
from spark_resources.jars import (
    JAR_SETS,
    LOCK_FILE,
    JarSet,
    LockedJar,
    checkout_root,
    differences,
    fetched_files,
    jars_directory,
    jars_home,
    lists_directory,
    read_lock,
    sha256_of,
)
from spark_resources.java import find_java

_FETCH_TIMEOUT_S: Final = 1200.0
_NEEDED: Final[tuple[JarSet, ...]] = ("spark", "kafka")
_LOCK_HEADER: Final = (
    "# set file size sha256; written by: python -m spark_resources.fetch_jars --relock all\n"
)


def fetch_jars(jar_set: JarSet) -> bool:
    """Fetch a set of jars to its folder; return False if all jars were there with the right hash.

    Raises KStreamsAssetsError (also if a hash differs: then no jar is installed),
    JavaNotFoundError, ConfigurationError.
    """
    locked = read_lock(jar_set)
    directory = jars_directory(jar_set)
    with _only_one_fetch():
        if not differences(directory, locked, hashes=True):
            return False
        with tempfile.TemporaryDirectory(prefix=f".{jar_set}-", dir=jars_home()) as temporary:
            fetched = _retrieve(jar_set, Path(temporary))
            wrong = differences(fetched, locked, hashes=True)
            if wrong:
                raise KStreamsAssetsError(
                    f"Fetched jars do not match {LOCK_FILE}: {', '.join(wrong)}.",
                    remedy="Do not use these jars: check the contents of your repository mirror."
                    " After an intended change of jars/*-ivy.xml, run again with --relock.",
                )
            _put_in_place(fetched, directory, Path(temporary) / "replaced")
    return True


def relock(jar_sets: Sequence[JarSet]) -> None:
    """Fetch the given sets, install them, and write their sizes and hashes to jars.lock.

    Works in a checkout only. Raises KStreamsAssetsError, JavaNotFoundError, ConfigurationError.
    """
    root = checkout_root()
    lock_file = lists_directory() / LOCK_FILE
    if root is None:
        raise ConfigurationError(
            "An installed package has a fixed lock file.", remedy="Relock in a checkout."
        )
    locked: list[LockedJar] = []
    with _only_one_fetch():
        for jar_set in JAR_SETS:
            if jar_set not in jar_sets:
                locked.extend(read_lock(jar_set))
                continue
            with tempfile.TemporaryDirectory(prefix=f".{jar_set}-", dir=jars_home()) as temporary:
                fetched = _retrieve(jar_set, Path(temporary))
                locked.extend(_describe(jar_set, fetched))
                _put_in_place(fetched, jars_directory(jar_set), Path(temporary) / "replaced")
    lines = [f"{jar.jar_set} {jar.file_name} {jar.size} {jar.sha256}\n" for jar in locked]
    lock_file.write_text(_LOCK_HEADER + "".join(lines), "utf-8")


def _describe(jar_set: JarSet, directory: Path) -> list[LockedJar]:
    return [
        LockedJar(jar_set, path.name, path.stat().st_size, sha256_of(path))
        for path in fetched_files(directory)
    ]


@contextlib.contextmanager
def _only_one_fetch() -> Iterator[None]:
    """Let a second fetch on this machine wait for the first one."""
    home = jars_home()
    home.mkdir(parents=True, exist_ok=True)
    with (home / ".fetch.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _put_in_place(fetched: Path, directory: Path, replaced: Path) -> None:
    if directory.exists():
        directory.rename(replaced)
    fetched.rename(directory)


def _retrieve(jar_set: JarSet, temporary: Path) -> Path:
    """Let Ivy fetch a set into a folder below `temporary`, with a separate cache.

    The user's Ivy cache is not used: a damaged file in it would cause the same error each time.
    """
    directory = temporary / "jars"
    command = [
        str(find_java().executable),
        "-jar",
        str(_ivy_jar()),
        "-ivy",
        str(lists_directory() / f"{jar_set}-ivy.xml"),
        "-cache",
        str(temporary / "cache"),
        "-retrieve",
        f"{directory}/[artifact]-[revision].[ext]",
        "-m2compatible",
    ]
    try:
        result = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_FETCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise KStreamsAssetsError(
            f"Ivy did not fetch the {jar_set} jars within {_FETCH_TIMEOUT_S:g} s.",
            remedy="Check the network (and its proxy) and try again.",
        ) from error
    if result.returncode != 0:
        raise KStreamsAssetsError(
            f"Ivy could not fetch the {jar_set} jars: {_reason(result.stdout)}.",
            remedy="Check the network (and its proxy); behind a mirror, configure it for Ivy or set"
            " KSTREAMS_ASSETS_JARS to a folder that contains the jars; then try again.",
        )
    return directory


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        for jar in sorted(Path(location).glob("jars/ivy-*.jar")):
            return jar
    raise ConfigurationError(
        "The Ivy jar of pyspark is missing.", remedy="Run: pip install pyspark==4.2.0"
    )


def _reason(output: str) -> str:
    """Return the cause in Ivy's output: the modules not found, else its last lines."""
    missing = sorted(set(re.findall(r":: (\S+#\S+;\S+): not found", output)))
    if missing:
        return "not found: " + ", ".join(missing)
    exceptions = [line for line in output.splitlines() if line.startswith("Exception in thread")]
    if exceptions:
        return exceptions[0]
    lines = [line.strip() for line in output.splitlines() if line.strip(" \t:|-")]
    return " / ".join(lines[-5:])


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument(
    "names", nargs=-1, metavar="[SET]...", type=click.Choice([*JAR_SETS, "all"]), required=False
)
@click.option("--relock", "write_lock", is_flag=True, help="Write jars.lock (in a checkout only).")
def main(names: Sequence[str], *, write_lock: bool) -> None:
    """Download jars and compare them with jars.lock

    The default sets are `spark` (backups, restores) and `kafka` (local broker of drills). The sets
    `kafka43`, `kafka39` and `registry` are for tests of this project.

    Jars are stored in the folder KSTREAMS_ASSETS_JARS (default: .jars in a checkout, otherwise
    ~/.cache/kstreams-assets/jars).
    """
    wanted = names or _NEEDED
    jar_sets: tuple[JarSet, ...] = tuple(
        name for name in JAR_SETS if name in wanted or "all" in wanted
    )
    try:
        if write_lock:
            relock(jar_sets)
            click.echo(f"{lists_directory() / LOCK_FILE} written")
            return
        for jar_set in jar_sets:
            fetched = fetch_jars(jar_set)
            state = "fetched and verified" if fetched else "already there, verified"
            click.echo(f"{jar_set} jars: {state} ({jars_directory(jar_set)})")
    except KStreamsAssetsError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
