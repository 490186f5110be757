"""A Spark Connect server on another host is used by TLS only: tasks carry passwords."""

import dagster as dg
import pytest

from kstreams_assets.errors import ConfigurationError
from spark_resources.resource import SparkSessionResource
from spark_resources.settings import SparkSettings

VARIABLE = "KSTREAMS_ASSETS_SPARK_REMOTE"

ACCEPTED = [
    "sc://localhost",
    "sc://localhost:15002/;token=abc",
    "sc://127.0.0.1:15002",
    "sc://127.8.0.1:15002/",
    "sc://[::1]:15002",
    "sc://connect.example.com/;use_ssl=true",
    "sc://connect.example.com:15002/;token=abc;use_ssl=TRUE",
    "sc://10.0.0.1:15002/;use_ssl=false;use_ssl=true",
]
REFUSED = [
    "sc://connect.example.com",
    "sc://connect.example.com:15002/",
    "sc://connect.example.com:15002/;token=s3cret",
    "sc://connect.example.com:15002/;use_ssl=false;token=s3cret",
    "sc://connect.example.com:15002/;use_ssl=true;use_ssl=false",
    "sc://connect.example.com:15002/;x_use_ssl=true",
    "sc://localhost@connect.example.com:15002",
    "sc://localhost.example.com:15002",
    "sc://10.0.0.1:15002",
    "sc://[fd00::1]:15002",
    "sc://0.0.0.0:15002",
]


@pytest.mark.parametrize("url", ACCEPTED)
def test_accepted(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert SparkSettings(remote=url).remote == url
    assert SparkSessionResource(remote=url).remote == url
    monkeypatch.setenv(VARIABLE, url)
    assert SparkSettings.from_environment().remote == url


@pytest.mark.parametrize("url", REFUSED)
def test_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, url)
    for read in (
        lambda: SparkSettings(remote=url),
        lambda: SparkSessionResource(remote=url),
        SparkSettings.from_environment,
    ):
        with pytest.raises(ConfigurationError, match="would be used without TLS") as raised:
            read()
        assert "use_ssl=true" in str(raised.value)
        assert "s3cret" not in str(raised.value)


def test_of_a_variable_that_dagster_reads_when_a_run_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resource = SparkSessionResource(remote=dg.EnvVar("MY_SPARK"))
    used = []

    @dg.asset
    def uses(spark: SparkSessionResource) -> None:
        used.append(spark.remote)

    for url in ("sc://localhost:1", "sc://elsewhere:1"):
        monkeypatch.setenv("MY_SPARK", url)
        dg.materialize([uses], resources={"spark": resource}, raise_on_error=False)
    assert used == ["sc://localhost:1"]
