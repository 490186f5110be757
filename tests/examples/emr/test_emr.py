"""examples/emr: the request to AWS, and what runs in the driver. Never run on AWS."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import boto3
import dagster as dg
import pytest
import yaml
from botocore.stub import Stubber
from dagster_aws.pipes import PipesEMRServerlessClient

from examples.emr.assets import EmrJob, backup_on_emr
from kstreams_assets.cli.main import cli
from tests.docs.documents import CHECKOUT, parse_command

GOLDEN = Path(__file__).with_name("request.json")
JOB = EmrJob(
    application_id="00fm4oe0607u5a1d",
    execution_role_arn="arn:aws:iam::111122223333:role/kstreams-backup",
    files="s3://kafka-backups/emr",
)
_RUN = {"applicationId": JOB.application_id, "jobRunId": "00abc", "arn": f"arn:aws:{'x' * 60}"}


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Stubber:
    """A client of EMR Serverless that sends nothing: requests are validated by the model of AWS."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")
    return Stubber(boto3.client("emr-serverless", region_name="eu-central-1"))


def _materialize(aws: Stubber, *states: str) -> tuple[dg.ExecuteInProcessResult, dict[str, Any]]:
    """Materialize the asset while the job passes these states; the request, too."""
    sent: dict[str, Any] = {}
    aws.client.meta.events.register(
        "provide-client-params.emr-serverless.StartJobRun",
        lambda params, **_: sent.update(json.loads(json.dumps(params))),
    )
    aws.add_response("start_job_run", _RUN)
    job = {"applicationId": JOB.application_id, "jobRunId": "00abc"}
    for state in states:
        aws.add_response("get_job_run", {"jobRun": _job_run(state)}, job)
        if state in ("RUNNING", "FAILED"):
            aws.add_response("get_dashboard_for_job_run", {"url": "https://dashboard"}, job)
    if states[-1] == "SUCCESS":
        application = {
            "applicationId": JOB.application_id,
            "arn": _RUN["arn"],
            "releaseLabel": "emr-7.10.0",
            "type": "Spark",
            "state": "STARTED",
            "createdAt": 0,
            "updatedAt": 0,
        }
        aws.add_response("get_application", {"application": application})
    with aws:
        resources = {"emr": _client(aws), "job": JOB}
        done = dg.materialize([backup_on_emr], resources=resources, raise_on_error=False)
    aws.assert_no_pending_responses()
    return done, sent


def _client(aws: Stubber) -> PipesEMRServerlessClient:
    """Messages of the job would come from CloudWatch; here is none."""
    messages = dg.PipesTempFileMessageReader()
    return PipesEMRServerlessClient(client=aws.client, message_reader=messages, poll_interval=0.01)


def _job_run(state: str) -> dict[str, Any]:
    return {
        **_RUN,
        "createdBy": "arn:aws:iam::111122223333:user/dagster",
        "createdAt": 0,
        "updatedAt": 0,
        "executionRole": JOB.execution_role_arn,
        "state": state,
        "stateDetails": "why",
        "releaseLabel": "emr-7.10.0",
        "jobDriver": {"sparkSubmit": {"entryPoint": "s3://x/entry.py"}},
    }


def test_the_request_is_the_one_in_the_golden_file(aws: Stubber) -> None:
    done, sent = _materialize(aws, "SUBMITTED", "RUNNING", "SUCCESS")
    assert done.success
    submitted = sent["jobDriver"]["sparkSubmit"]
    variables = re.findall(
        r"driverEnv\.(DAGSTER_PIPES_\w+)=(\S+)", submitted["sparkSubmitParameters"]
    )
    assert {name for name, _ in variables} == {"DAGSTER_PIPES_CONTEXT", "DAGSTER_PIPES_MESSAGES"}
    submitted["sparkSubmitParameters"] = re.sub(
        r" --conf \S+DAGSTER_PIPES_\w+=\S+", "", submitted["sparkSubmitParameters"]
    )
    sent.pop("clientToken", None)
    tags = sent.pop("tags")
    assert tags["dagster/run-id"] == done.run_id
    assert sent == json.loads(GOLDEN.read_text("utf-8"))


def test_a_job_that_fails_fails_the_step_and_is_tried_again(aws: Stubber) -> None:
    policy = backup_on_emr.op.retry_policy
    assert policy is not None
    assert (policy.max_retries, policy.delay) == (2, 60)

    @dg.asset
    def once(context: dg.AssetExecutionContext, emr: PipesEMRServerlessClient) -> None:
        emr.run(context=context, start_job_run_params=JOB.request("backup"))  # pyright: ignore[reportArgumentType]

    aws.add_response("start_job_run", _RUN)
    aws.add_response("get_job_run", {"jobRun": _job_run("FAILED")})
    aws.add_response("get_dashboard_for_job_run", {"url": "https://dashboard"})
    with aws:
        done = dg.materialize([once], resources={"emr": _client(aws)}, raise_on_error=False)
    aws.assert_no_pending_responses()
    assert not done.success


def test_the_command_is_one_of_ours() -> None:
    arguments = json.loads(GOLDEN.read_text("utf-8"))["jobDriver"]["sparkSubmit"]
    parse_command(cli, arguments["entryPointArguments"])


@pytest.mark.e2e
class TestEntry:
    """What runs in the driver, as a process of this machine."""

    def _materialize(self, folder: Path, *command: str) -> dg.ExecuteInProcessResult:
        entry = CHECKOUT / "examples/emr/entry.py"

        @dg.asset
        def in_driver(
            context: dg.AssetExecutionContext, pipes: dg.PipesSubprocessClient
        ) -> dg.MaterializeResult:
            done = pipes.run(context=context, command=[sys.executable, str(entry), *command])
            return done.get_materialize_result()

        client = dg.PipesSubprocessClient(cwd=str(folder))
        return dg.materialize([in_driver], resources={"pipes": client}, raise_on_error=False)

    def test_the_report_becomes_metadata(self, tmp_path: Path) -> None:
        defs = yaml.safe_load((CHECKOUT / "examples/spring_boot/defs.yaml").read_text("utf-8"))
        defs["attributes"]["warehouse"] = str(tmp_path / "warehouse")
        (tmp_path / "defs.yaml").write_text(yaml.safe_dump(defs), "utf-8")
        topology = (CHECKOUT / "examples/spring_boot/topology.txt").read_text("utf-8")
        (tmp_path / "topology.txt").write_text(topology, "utf-8")
        done = self._materialize(tmp_path, "restore", "list", "--app", "defs.yaml", "--json")
        assert done.success
        (event,) = done.asset_materializations_for_node("in_driver")
        assert "report" in event.metadata

    def test_an_error_of_the_command_fails_the_job(self, tmp_path: Path) -> None:
        done = self._materialize(tmp_path, "backup", "--app", "missing.yaml", "--json")
        assert not done.success
        assert done.asset_materializations_for_node("in_driver") == []
