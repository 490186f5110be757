"""Finds the jars, and compares them with the lock file.

This module downloads nothing: a missing jar is an error that names the command.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from kstreams_assets.errors import ConfigurationError, JarsMissingError
from kstreams_assets.home import expanded, require_passwd_entry, user_cache

JarSet = Literal["spark", "kafka", "kafka43", "kafka39", "registry"]
"""`kafka43` and `kafka39`, older releases, and `registry`, a schema registry, serve only tests."""
JAR_SETS: Final[tuple[JarSet, ...]] = get_args(JarSet)
JARS_VARIABLE: Final = "KSTREAMS_ASSETS_JARS"
LOCK_FILE: Final = "jars.lock"

_CLIENTS: Final = "kafka-clients-"
_PACKAGE: Final = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class LockedJar:
    """One line of the lock file: a jar, byte for byte."""

    jar_set: JarSet
    file_name: str
    size: int
    sha256: str


def checkout_root() -> Path | None:
    """Return the root of the checkout this package runs from, None when it is installed."""
    root = _PACKAGE.parent
    return root if (root / "jars" / LOCK_FILE).is_file() else None


def lists_directory() -> Path:
    """Return the folder with the lock file and the Ivy files: in the checkout, or package data."""
    root = checkout_root()
    return root / "jars" if root is not None else _PACKAGE / "jar_lists"


def jars_home() -> Path:
    """Return the folder that holds one folder of jars per set; it need not exist yet.

    KSTREAMS_ASSETS_JARS wins, then `.jars` of the checkout, then the user's cache.
    """
    configured = os.environ.get(JARS_VARIABLE)
    if configured:
        return expanded(configured).absolute()
    root = checkout_root()
    return root / ".jars" if root is not None else user_cache("jars")


def jars_directory(jar_set: JarSet) -> Path:
    """Return the folder of one set of jars; it need not exist yet."""
    return jars_home() / jar_set


def fetch_command(jar_set: JarSet) -> str:
    """Return the command that fetches a set of jars, as text for a person."""
    return f"kstreams-assets jars fetch {jar_set}"


def read_lock(jar_set: JarSet, *, lock_file: Path | None = None) -> tuple[LockedJar, ...]:
    """Read the jars of one set from the lock file, in its order.

    Raises ConfigurationError when the file is absent, malformed or has no jar of the set.
    """
    path = lock_file if lock_file is not None else lists_directory() / LOCK_FILE
    remedy = "Restore jars/jars.lock from the repository, or reinstall kstreams-assets."
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise ConfigurationError(f"Cannot read {path}: {error}.", remedy=remedy) from error
    jars: list[LockedJar] = []
    for number, line in enumerate(lines, start=1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        if len(fields) != 4 or fields[0] not in JAR_SETS or not fields[2].isdigit():
            raise ConfigurationError(f"Line {number} of {path} is malformed.", remedy=remedy)
        if fields[0] == jar_set:
            jars.append(LockedJar(jar_set, fields[1], int(fields[2]), fields[3]))
    if not jars:
        raise ConfigurationError(f"{path} lists no jar of the set {jar_set}.", remedy=remedy)
    return tuple(jars)


def kafka_release(jar_set: JarSet) -> str:
    """Return the release of Kafka of a set of jars, such as `4.4.0`.

    Raises ConfigurationError as `read_lock` does, and for a set without Kafka.
    """
    for jar in read_lock(jar_set):
        if jar.file_name.startswith(_CLIENTS):
            return jar.file_name.removeprefix(_CLIENTS).removesuffix(".jar")
    raise ConfigurationError(
        f"The set {jar_set} has no {_CLIENTS}*.jar.", remedy="Name one of kafka, kafka43, kafka39."
    )


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file as lower-case hexadecimal text."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetched_files(directory: Path) -> list[Path]:
    """Return the jars in a folder, and archives of jars, in the order of their names."""
    return sorted((*directory.glob("*.jar"), *directory.glob("*.tar.gz")))


def differences(directory: Path, locked: tuple[LockedJar, ...], *, hashes: bool) -> tuple[str, ...]:
    """Name the jars of a folder that are absent, differ from the lock, or are not in it.

    A jar that is not in the lock counts: `<folder>/*` would put it on the class path.
    """
    found = {path.name: path for path in fetched_files(directory)}
    wrong: list[str] = []
    for jar in locked:
        path = found.pop(jar.file_name, None)
        if path is None:
            wrong.append(jar.file_name)
        elif path.stat().st_size != jar.size:
            wrong.append(f"{jar.file_name} (size {path.stat().st_size}, locked {jar.size})")
        elif hashes and sha256_of(path) != jar.sha256:
            wrong.append(f"{jar.file_name} (sha256 differs)")
    wrong.extend(f"{name} (not in {LOCK_FILE})" for name in sorted(found))
    return tuple(wrong)


def verify_jars(set_name: JarSet, *, hashes: bool) -> Path:
    """Return the folder of a set of jars after comparing it with the lock file.

    Names and sizes are compared, with `hashes` the SHA-256 too (a quarter of a second per 100 MB).
    Raises JarsMissingError with the command that fetches the jars.
    """
    directory = jars_directory(set_name)
    wrong = differences(directory, read_lock(set_name), hashes=hashes)
    if wrong:
        raise JarsMissingError(directory=directory, missing=wrong, command=fetch_command(set_name))
    return directory


def require_delta_jar() -> None:
    """Compare the installed delta-spark and pyspark with the jar of Delta Lake that is fetched.

    The package computes the jar's coordinate from its own release and that of pyspark. Spark would
    resolve the coordinate at each start; this project fetches the jar once, by its checksum.

    Raises:
        ConfigurationError: The lock file lists another release of the jar.
    """
    from delta import configure_spark_with_delta_pip
    from pyspark.sql import SparkSession

    builder = configure_spark_with_delta_pip(SparkSession.Builder())
    coordinate = str(builder._options["spark.jars.packages"])  # noqa: SLF001 # pyright: ignore
    _, artifact, release = coordinate.split(":")
    needed = f"{artifact}-{release}.jar"
    if needed not in {jar.file_name for jar in read_lock("spark")}:
        raise ConfigurationError(
            f"delta-spark and pyspark as installed need {needed}. {LOCK_FILE} does not list it.",
            remedy="Install the releases of delta-spark and pyspark that this release names, or"
            " change spark-ivy.xml and relock (python -m spark_resources.fetch_jars).",
        )


def class_path(set_name: JarSet) -> str:
    """Return the Java class path of a set of jars, verified by name and size.

    Raises JarsMissingError, for Spark also ConfigurationError: it does not start for this user.
    """
    if set_name == "spark":
        require_passwd_entry()
    return f"{verify_jars(set_name, hashes=False)}/*"
