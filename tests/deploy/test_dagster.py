"""deploy/dagster: values for Dagster's own chart fit our image and what `init` makes."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import dagster as dg
import pytest
import yaml
from dagster._cli import create_dagster_cli

from kstreams_assets.cli.init import DAGSTER_YAML
from kstreams_assets.cli.main import cli as our_cli
from tests.deploy.rendered import CHECKOUT, DEPLOY, everything, one
from tests.docs.documents import parse_command
from tests.store.seaweed import BUCKET, seaweed, store

__all__ = ["seaweed", "store"]

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
    parse_command(cli, [*words, *deployment["dagsterApiGrpcArgs"]])
    with pytest.raises(click.NoSuchOption):
        parse_command(cli, [*words, *deployment["dagsterApiGrpcArgs"], "--not-an-option"])


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


def compute_logs(values: dict[str, Any]) -> dict[str, Any]:
    """`compute_logs` of the dagster.yaml that the chart writes: its names in snake case."""
    manager = values["computeLogManager"]
    assert manager["type"] == "S3ComputeLogManager"
    given = manager["config"]["s3ComputeLogManager"]
    return {
        "module": "dagster_aws.s3.compute_log_manager",
        "class": "S3ComputeLogManager",
        "config": {re.sub("[A-Z]", lambda m: f"_{m[0].lower()}", k): v for k, v in given.items()},
    }


def test_logs_of_runs_lie_outside_the_warehouse(
    values: dict[str, Any], deployment: dict[str, Any]
) -> None:
    config = compute_logs(values)["config"]
    attributes = yaml.safe_load(one("ConfigMap/order-processor")["data"]["defs.yaml"])["attributes"]
    logs = f"s3://{config['bucket']}/{config['prefix']}/"
    assert not logs.startswith(f"{attributes['warehouse']}/")
    assert not attributes["warehouse"].startswith(logs)
    mounts = {mount["mountPath"] for mount in deployment["volumeMounts"]}
    assert config["local_dir"] in mounts  # the root file system is read-only
    region = dict(
        line.split("=") for line in (DEPLOY / "kubernetes/base/settings.env").read_text().split()
    )["AWS_REGION"]
    assert config["region"] == region


_RUN = """
import pathlib, subprocess, sys
import dagster as dg

@dg.asset
def speaking() -> None:
    subprocess.run(["sh", "-c", "echo backed up; echo and a warning >&2"], check=True)

with dg.DagsterInstance.from_config(sys.argv[1]) as instance:
    done = dg.materialize([speaking], instance=instance)
    captured = dg.DagsterEventType.LOGS_CAPTURED
    (data,) = [e.logs_captured_data for e in done.all_events if e.event_type is captured]
    pathlib.Path(sys.argv[2]).write_text(f"{done.run_id} compute_logs {data.file_key}")
"""


@pytest.mark.store
def test_the_log_of_a_run_is_read_back_from_the_bucket(
    values: dict[str, Any], store: object, tmp_path: Path
) -> None:
    """By an instance with the configuration of the chart, on another machine than the run."""
    for name in ("of_the_run", "of_the_webserver"):
        document = {"telemetry": {"enabled": False}, "compute_logs": compute_logs(values)}
        document["compute_logs"]["config"] |= {"bucket": BUCKET, "local_dir": str(tmp_path / name)}
        (tmp_path / name).mkdir()
        (tmp_path / name / "dagster.yaml").write_text(yaml.safe_dump(document), "utf-8")

    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(tmp_path / "of_the_run"), str(tmp_path / "key")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    key = (tmp_path / "key").read_text("utf-8").split()
    with dg.DagsterInstance.from_config(str(tmp_path / "of_the_webserver")) as instance:
        found = instance.compute_log_manager.get_log_data(key)
    assert found.stdout is not None
    assert found.stderr is not None
    assert b"backed up" in found.stdout
    assert b"and a warning" in found.stderr
