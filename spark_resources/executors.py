"""What an engine sends to executors of a Spark cluster: jars, the code of these packages, a secret.

Python and the dependencies of these packages must be installed there. Secrets of Kafka travel in
the tasks that need them; nothing of the engine's environment does.
"""

import socket
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from kstreams_assets.errors import ConfigurationError
from spark_resources.jars import verify_jars
from spark_resources.settings import SparkSettings

PACKAGES: Final = ("kstreams_assets", "spark_resources")
ROOT: Final = Path(__file__).resolve().parents[1]
SECRET_SETTING: Final = "spark.authenticate.secret"  # noqa: S105 (a name)
_STANDALONE: Final = "spark://"
LOOPBACK: Final = "127.0.0.1"
"""The address on which a local engine listens."""


def is_local(master: str) -> bool:
    """Whether tasks run in the JVM of the engine."""
    return master.startswith("local")


def write_package_archive(path: Path) -> None:
    """Write the code of these packages as a zip that Python imports from."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in PACKAGES:
            for file in sorted((ROOT / package).rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    archive.write(file, file.relative_to(ROOT))


def cluster_settings(settings: SparkSettings, archive: Path) -> Mapping[str, str]:
    """Return settings of Spark for a master that is not local.

    `archive` is served to executors from its path while the engine lives.

    Raises:
        ConfigurationError: See `read_secret`.
        JarsMissingError: There are no jars to send.
    """
    jars = sorted(verify_jars("spark", hashes=False).glob("*.jar"))
    read_secret(settings)
    return {
        **_addresses(settings.master),
        "spark.jars": ",".join(jar.as_uri() for jar in jars),
        # An executor finds its files in its current folder before it starts Python.
        "spark.files": archive.as_uri(),
        "spark.executorEnv.PYTHONPATH": archive.name,
        "spark.executor.extraJavaOptions": "-Duser.timezone=UTC",
        # Tasks carry secrets of Kafka, and all who reach the ports of a driver run code in it.
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
        "spark.io.encryption.enabled": "true",
        # A lost executor costs an attempt; a failed task does not, as it is not repeated.
        "spark.task.maxFailures": "4",
        # An executor that hangs is given up after a minute; one that does not reach the engine
        # ends itself after another.
        "spark.network.timeout": "60s",
        "spark.executor.heartbeatInterval": "5s",
        "spark.executor.heartbeat.maxFailures": "12",
    }


def read_secret(settings: SparkSettings) -> str | None:
    """Return the secret that an engine and a standalone cluster share; None without one.

    Raises:
        ConfigurationError: A standalone cluster needs it, or its file cannot be read.
    """
    if settings.cluster_secret_file is None:
        declined = str(settings.spark_config.get("spark.authenticate", "")).lower() == "false"
        if not settings.master.startswith(_STANDALONE) or declined:
            return None
        raise ConfigurationError(
            f"The master {settings.master} has no shared secret. Tasks carry the secrets of"
            " Kafka, and anyone who reaches the ports of an engine could run code in it.",
            remedy="Name the file that contains spark.authenticate.secret of master and workers:"
            " cluster_secret_file, or KSTREAMS_ASSETS_SPARK_CLUSTER_SECRET_FILE. In an isolated"
            " network: spark_config with spark.authenticate: false.",
        )
    try:
        secret = Path(settings.cluster_secret_file).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigurationError(
            f"cluster_secret_file {settings.cluster_secret_file} cannot be read ({reason}).",
            remedy="Check the path, and the rights of the user this process runs as.",
        ) from None
    if not secret:
        raise ConfigurationError(
            f"cluster_secret_file {settings.cluster_secret_file} is empty.",
            remedy="Write spark.authenticate.secret of master and workers into it.",
        )
    return secret


def _addresses(master: str) -> Mapping[str, str]:
    """Set the driver's address for executors: the one from which this host reaches the master."""
    if not master.startswith(_STANDALONE):
        return {}  # as Spark finds it, or as spark_config sets it
    first = urlsplit(master.split(",")[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((first.hostname or "", first.port or 7077))  # sends nothing
            own = str(probe.getsockname()[0])
        except OSError as error:
            raise ConfigurationError(
                f"The host of the master {master} is unknown ({error.strerror or error}).",
                remedy="Check `master`: spark://host:port.",
            ) from None
    own = LOOPBACK if own.startswith("127.") else own
    return {"spark.driver.host": own, "spark.driver.bindAddress": own}
