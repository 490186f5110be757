"""How Spark is started, or reached. Pure: nothing here loads Spark."""

import os
from ipaddress import ip_address
from typing import Any, Final, Self
from urllib.parse import urlparse

from pydantic import BaseModel, Field, field_validator

from kstreams_assets.errors import ConfigurationError

_VARIABLE: Final = "KSTREAMS_ASSETS_SPARK_"


class SparkSettings(BaseModel):
    """How the engine is started, or which other Spark Connect server is used.

    Each is also a variable of the environment: `KSTREAMS_ASSETS_SPARK_DRIVER_MEMORY` is
    `driver_memory`.
    """

    spark_config: dict[str, Any] = Field(
        default_factory=dict,
        description="Further Spark settings, passed unchanged. Secrets do not belong here.",
    )
    master: str = Field(
        default="local[*]",
        description="Spark master URL: local[*] runs tasks in the engine itself, spark://host:port"
        " on a standalone cluster.",
    )
    cluster_secret_file: str | None = Field(
        default=None,
        description="A file with the secret (spark.authenticate.secret) that a standalone cluster"
        " and the engine share.",
    )
    cluster_python: str | None = Field(
        default=None,
        description="The Python of the cluster's workers, where it is not at the path of this one.",
    )
    remote: str | None = Field(
        default=None,
        description="Spark Connect URL (sc://host:port/;use_ssl=true) of a server that somebody"
        " else runs, with the same jars and Python packages; no engine is started then. Without TLS"
        " only a server on this host is used.",
    )
    driver_memory: str = Field(default="2g", description="Heap of the driver JVM.")
    shuffle_partitions: int = Field(default=4, description="Tasks after a shuffle.")
    java_options: str = Field(default="", description="Further options of the driver JVM.")
    class_data_archive: str | None = Field(
        default=None,
        description="A file for the classes of the JVM (class-data sharing), which shortens its"
        " start. An engine that ends writes it (200 MB, 10 s) where it does not exist; delete it"
        " after an update of Java or of the jars.",
    )
    engine_idle_s: float = Field(
        default=900.0, description="Seconds after which an engine ends that nobody has used."
    )

    @field_validator("remote")
    @classmethod
    def _require_tls(cls, remote: str | None) -> str | None:
        if remote is not None:
            require_tls(remote)
        return remote

    @classmethod
    def from_environment(cls, **given: Any) -> Self:  # noqa: ANN401 (fields)
        """The defaults, unless the environment or an argument that is not None says otherwise."""
        told = {
            name: value
            for name in cls.model_fields
            if name != "spark_config" and (value := os.environ.get(_VARIABLE + name.upper()))
        }
        return cls(**told, **{name: value for name, value in given.items() if value is not None})

    def session_settings(self) -> dict[str, str]:
        """Settings of each session."""
        return {
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": str(self.shuffle_partitions),
            "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
            # Parquet checks no page on its own.
            "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
            "spark.databricks.delta.snapshotPartitions": "2",
        }


def require_tls(remote: str) -> None:
    """Refuse a Spark Connect server on another host that is reached without TLS.

    Tasks carry the passwords of Kafka and of the store, and results carry production records.

    Raises:
        ConfigurationError: The URL names another host, and no `use_ssl=true`.
    """
    if not remote.startswith("sc://"):
        return  # which Spark refuses
    # As Spark reads it: `;name=value` after the address, the last one of a name counts.
    url = urlparse("http" + remote.removeprefix("sc"))
    told: dict[str, str] = {}
    for part in url.params.split(";"):
        name, _, value = part.partition("=")
        told[name] = value
    if told.get("use_ssl", "").lower() == "true" or _is_this_host(url.hostname or ""):
        return
    raise ConfigurationError(
        f"Spark Connect on {url.hostname} would be used without TLS. Tasks carry the passwords of"
        " Kafka and of the store, and anyone on the way could read them.",
        remedy=f"Add use_ssl=true to the URL (sc://{url.hostname}:15002/;use_ssl=true), in front of"
        " a server without TLS a proxy that has it; or bring the server to this host by a tunnel,"
        " as ssh -L 15002:localhost:15002, and name sc://localhost:15002.",
    )


def _is_this_host(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
