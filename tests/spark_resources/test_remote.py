"""A Spark Connect server on another host is used by TLS only: tasks carry passwords."""

from pathlib import Path

import dagster as dg
import pytest

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.orchestration.location import load_applications
from spark_resources.resource import SparkSessionResource
from spark_resources.settings import SparkSettings

MODULE = "location_with_variables"
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


def test_a_code_location_and_a_command_read_the_same_variables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Otherwise Dagster starts a second engine. What code sets has precedence."""
    (tmp_path / "pyproject.toml").write_text(
        f'[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "{MODULE}"\n'
    )
    (tmp_path / MODULE / "defs").mkdir(parents=True)
    for package in (tmp_path / MODULE, tmp_path / MODULE / "defs"):
        (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("KSTREAMS_ASSETS_JARS", str(tmp_path))
    monkeypatch.setenv(VARIABLE, "sc://localhost:1")
    location = load_applications(str(tmp_path / MODULE / "definitions.py"))()
    resources = location.resources
    assert resources is not None

    @dg.asset
    def uses(spark: SparkSessionResource) -> None:
        spark.check()  # needs jars unless the server is elsewhere

    def run(spark: object) -> bool:
        return dg.materialize([uses], resources={"spark": spark}, raise_on_error=False).success

    assert run(resources["spark"])
    monkeypatch.delenv(VARIABLE)
    assert not run(resources["spark"])
    monkeypatch.setenv(VARIABLE, REFUSED[0])
    assert not run(resources["spark"])
    assert run(SparkSessionResource(remote="sc://localhost:1"))
    given = SparkSettings.from_environment(remote="sc://localhost:1", driver_memory=None)
    assert (given.remote, given.driver_memory) == ("sc://localhost:1", "2g")
