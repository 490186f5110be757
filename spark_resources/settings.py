"""Settings for starting Spark, or connecting to it. Pure: nothing here loads Spark."""

import os
from ipaddress import ip_address
from typing import Any, Final, Self
from urllib.parse import urlparse

from pydantic import BaseModel, Field, field_validator

from kstreams_assets.errors import ConfigurationError

_VARIABLE: Final = "KSTREAMS_ASSETS_SPARK_"


class SparkSettings(BaseModel):
    """How the engine is started, or which other Spark Connect server is used.

    Each setting is also an environment variable: `KSTREAMS_ASSETS_SPARK_DRIVER_MEMORY` is
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
        description="The Python of the cluster's workers, if its path differs from this one's.",
    )
    remote: str | None = Field(
        default=None,
        description="Spark Connect URL (sc://host:port/;use_ssl=true) of an existing server"
        " with the same jars and Python packages; no engine is started then. Without TLS"
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
        default=900.0, description="Seconds after which an unused engine ends."
    )

    @field_validator("remote")
    @classmethod
    def _require_tls(cls, remote: str | None) -> str | None:
        if remote is not None:
            require_tls(remote)
        return remote

    @classmethod
    def from_environment(cls, **given: Any) -> Self:  # noqa: ANN401 (fields)
        """Return the settings in the arguments, else in the environment; None means not given."""
        from_variables: dict[str, Any] = {
            name: value
            for name in cls.model_fields
            if name != "spark_config" and (value := os.environ.get(_VARIABLE + name.upper()))
        }
        return cls(
            **from_variables | {name: value for name, value in given.items() if value is not None}
        )

    def session_settings(self) -> dict[str, str]:
        """Return the settings of each session."""
        return {
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": str(self.shuffle_partitions),
            "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
            # Parquet does not check pages by default.
            "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
            "spark.databricks.delta.snapshotPartitions": "2",
        }


def require_tls(remote: str) -> None:
    """Raise for a Spark Connect server on another host that is reached without TLS.

    Tasks carry the passwords of Kafka and of the store, and results carry production records.

    Raises:
        ConfigurationError: The URL names another host, without `use_ssl=true`.
    """
    if not remote.startswith("sc://"):
        return  # which Spark refuses
    # Like Spark reads it: `;name=value` after the address, the last one of a name counts.
    url = urlparse("http" + remote.removeprefix("sc"))
    parameters: dict[str, str] = {}
    for part in url.params.split(";"):
        name, _, value = part.partition("=")
        parameters[name] = value
    if parameters.get("use_ssl", "").lower() == "true" or _is_this_host(url.hostname or ""):
        return
    raise ConfigurationError(
        f"Spark Connect on {url.hostname} would be used without TLS. Tasks carry the passwords of"
        " Kafka and of the store, and anyone on the way could read them.",
        remedy=f"Add use_ssl=true to the URL (sc://{url.hostname}:15002/;use_ssl=true). Put a TLS"
        " proxy in front of a server without TLS, or tunnel the server to this host, such as by"
        " ssh -L 15002:localhost:15002, and use sc://localhost:15002.",
    )


def _is_this_host(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
