"""A code location with the asset; application, role and files come from the environment."""

import boto3
import dagster as dg
from dagster_aws.pipes import PipesCloudWatchMessageReader, PipesEMRServerlessClient

from examples.emr.assets import EmrJob, backup_on_emr


@dg.definitions
def defs() -> dg.Definitions:
    """The asset with its clients of AWS, which need AWS_REGION."""
    return dg.Definitions(
        assets=[backup_on_emr],
        resources={
            "emr": PipesEMRServerlessClient(
                client=boto3.client("emr-serverless"),
                message_reader=PipesCloudWatchMessageReader(client=boto3.client("logs")),
            ),
            "job": EmrJob(
                application_id=dg.EnvVar("EMR_APPLICATION_ID"),
                execution_role_arn=dg.EnvVar("EMR_EXECUTION_ROLE_ARN"),
                files=dg.EnvVar("EMR_FILES"),
            ),
        },
    )
