"""An asset that runs `kstreams-assets backup` on EMR Serverless. Never run on AWS."""

from typing import Any

import dagster as dg
from dagster_aws.pipes import PipesEMRServerlessClient

from kstreams_assets.orchestration.keys import pool

# The archive contains a virtual environment (venv-pack) and the jars of Spark in the folder `jars`.
_ENVIRONMENT = "./environment"
_DRIVER = {
    "PYSPARK_DRIVER_PYTHON": f"{_ENVIRONMENT}/bin/python",
    "PYSPARK_PYTHON": f"{_ENVIRONMENT}/bin/python",
    "KSTREAMS_ASSETS_JARS": f"{_ENVIRONMENT}/jars",
}


class EmrJob(dg.ConfigurableResource):
    """Where the job runs and where its files are.

    `files` is a folder in S3 with entry.py, environment.tar.gz, defs.yaml and topology.txt.
    """

    application_id: str
    execution_role_arn: str
    files: str
    log_group: str = "/kstreams-assets/emr"
    timeout_minutes: int = 60

    def request(self, *command: str) -> dict[str, Any]:
        """The request of StartJobRun that runs a command of `kstreams-assets`."""
        settings = {
            "spark.archives": f"{self.files}/environment.tar.gz#environment",
            # The work is done in the driver: one small executor is the least that EMR starts.
            "spark.dynamicAllocation.enabled": "false",
            "spark.executor.instances": "1",
            "spark.executor.cores": "1",
            "spark.executor.memory": "1g",
            "spark.driver.cores": "4",
            "spark.driver.memory": "4g",
            **{f"spark.emr-serverless.driverEnv.{key}": text for key, text in _DRIVER.items()},
        }
        parameters = [f"--files {self.files}/defs.yaml,{self.files}/topology.txt"]
        parameters += [f"--conf {key}={text}" for key, text in settings.items()]
        return {
            "applicationId": self.application_id,
            "executionRoleArn": self.execution_role_arn,
            "executionTimeoutMinutes": self.timeout_minutes,
            "name": f"kstreams-assets {command[0]}",
            "jobDriver": {
                "sparkSubmit": {
                    "entryPoint": f"{self.files}/entry.py",
                    "entryPointArguments": list(command),
                    "sparkSubmitParameters": " ".join(parameters),
                }
            },
            "configurationOverrides": {
                "monitoringConfiguration": {
                    "cloudWatchLoggingConfiguration": {
                        "enabled": True,
                        "logGroupName": self.log_group,
                        "logTypes": {"SPARK_DRIVER": ["STDOUT", "STDERR"]},
                    }
                }
            },
        }


@dg.asset(
    key=["order-processor", "backup_on_emr"],
    kinds={"emr", "kafka"},
    pool=pool("order-processor"),  # one process writes the tables of an application at a time
    retry_policy=dg.RetryPolicy(max_retries=2, delay=60),
)
def backup_on_emr(
    context: dg.AssetExecutionContext, emr: PipesEMRServerlessClient, job: EmrJob
) -> dg.MaterializeResult:
    """Back up all due windows of the application."""
    request = job.request("backup", "--app", "defs.yaml", "--json")
    done = emr.run(context=context, start_job_run_params=request)  # pyright: ignore[reportArgumentType]
    return done.get_materialize_result()
