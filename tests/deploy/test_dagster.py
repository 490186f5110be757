"""deploy/dagster: values for Dagster's own chart fit our image and what `init` makes."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from dagster._cli import create_dagster_cli

from kstreams_assets.cli.init import DAGSTER_YAML
from kstreams_assets.cli.main import cli as our_cli
from tests.deploy.rendered import CHECKOUT, DEPLOY, everything, one
from tests.deploy.test_manifests import parse

FILE = DEPLOY / "dagster/values.yaml"


@pytest.fixture
def values() -> dict[str, Any]:
    return yaml.safe_load(FILE.read_text("utf-8"))


@pytest.fixture
def deployment(values: dict[str, Any]) -> dict[str, Any]:
    (found,) = values["dagster-user-deployments"]["deployments"]
    return found


def test_the_chart_is_of_the_version_of_dagster() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["project"]
    (pin,) = [text for text in project["dependencies"] if text.startswith("dagster==")]
    assert f"--version {pin.partition('==')[2]} " in FILE.read_text("utf-8")


def test_the_code_location_is_started_by_a_command_that_there_is(
    deployment: dict[str, Any],
) -> None:
    # The chart puts these words before the arguments.
    words = ["api", "grpc", "-h", "127.0.0.1", "-p", str(deployment["port"])]
    cli = create_dagster_cli()
    parse(cli, [*words, *deployment["dagsterApiGrpcArgs"]], None)
    with pytest.raises(click.NoSuchOption):
        parse(cli, [*words, *deployment["dagsterApiGrpcArgs"], "--not-an-option"], None)


def test_it_loads_what_init_makes_with_the_files_where_they_are_mounted(
    deployment: dict[str, Any], tmp_path: Path
) -> None:
    project = Path("/opt/kstreams-assets/project")
    words = ["init", str(tmp_path / "project"), "--module", "backups"]
    our_cli.main(words, standalone_mode=False)
    application = one("ConfigMap/order-processor")["data"]
    for mount in deployment["volumeMounts"]:
        if mount["name"] == "application":
            place = tmp_path / "project" / Path(mount["mountPath"]).relative_to(project)
            place.parent.mkdir(parents=True, exist_ok=True)
            text = application[mount["subPath"]]
            bucket = "s3://kafka-backups/streams/order-processor"
            place.write_text(text.replace(bucket, str(tmp_path / "warehouse")), "utf-8")
    arguments = deployment["dagsterApiGrpcArgs"]
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert options["--working-directory"] == str(project)
    script = (
        f"from {options['--module-name']} import defs\n"
        "found = defs() if callable(defs) else defs\n"
        "print('\\n'.join(sorted(k.to_user_string() for k in"
        " found.resolve_asset_graph().get_all_asset_keys())))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path / "project",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "order-processor/backup/orders" in done.stdout.splitlines()
    assert "order-processor/restore/group_offsets" in done.stdout.splitlines()


def test_what_it_mounts_and_reads_is_there(deployment: dict[str, Any]) -> None:
    made = {m["metadata"]["name"] for m in everything() if m["kind"] == "ConfigMap"}
    volumes = {volume["name"]: volume for volume in deployment["volumes"]}
    assert {mount["name"] for mount in deployment["volumeMounts"]} == volumes.keys()
    named = {v["configMap"]["name"] for v in volumes.values() if "configMap" in v}
    named |= {source["name"] for source in deployment["envConfigMaps"]}
    assert named <= made
    secrets = [volume["secret"] for volume in volumes.values() if "secret" in volume]
    assert all(secret["optional"] for secret in secrets)


def test_it_runs_as_the_other_pods_do(deployment: dict[str, Any]) -> None:
    pod = one("Deployment/kstreams-follower")["spec"]["template"]["spec"]
    assert deployment["podSecurityContext"] == pod["securityContext"]
    assert deployment["securityContext"] == pod["containers"][0]["securityContext"]
    repository, _, tag = pod["containers"][0]["image"].rpartition(":")
    assert (deployment["image"]["repository"], deployment["image"]["tag"]) == (repository, tag)


def test_the_instance_is_set_as_the_one_that_init_writes(values: dict[str, Any]) -> None:
    wanted = yaml.safe_load(DAGSTER_YAML)
    daemon, concurrency = values["dagsterDaemon"], values["concurrency"]
    assert concurrency["enabled"]
    assert concurrency["pools"]["defaultLimit"] == wanted["concurrency"]["pools"]["default_limit"]
    assert concurrency["pools"]["granularity"] == wanted["concurrency"]["pools"]["granularity"]
    runs = wanted["concurrency"]["runs"]["max_concurrent_runs"]
    assert concurrency["runs"]["maxConcurrentRuns"] == runs
    assert daemon["sensors"] == {
        "useThreads": wanted["sensors"]["use_threads"],
        "numWorkers": wanted["sensors"]["num_workers"],
    }
    assert daemon["runRetries"] == {
        "enabled": True,
        "maxRetries": wanted["run_retries"]["max_retries"],
        "retryOnAssetOrOpFailure": wanted["run_retries"]["retry_on_asset_or_op_failure"],
    }
    seconds = wanted["run_monitoring"]["start_timeout_seconds"]
    assert daemon["runMonitoring"]["startTimeoutSeconds"] == seconds
