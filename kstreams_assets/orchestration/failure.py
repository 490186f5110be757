"""How errors of this project end a step of a Dagster run."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.home import home_failure
from spark_resources.failures import spark_failures
from spark_resources.outages import is_outage


@contextmanager
def told_as_failure() -> Iterator[None]:
    """An error of ours, or of Spark, is a failure in our words, and not tried again.

    A fault of the code that ran on Spark stays as it is, with its stack trace.
    """
    try:
        with spark_failures():
            yield
    except KStreamsAssetsError as error:
        if not error.remedy:
            raise
        raise dg.Failure(description=str(error), allow_retries=False) from error
    except (RuntimeError, OSError) as error:
        homeless = home_failure(error)
        if homeless is None:
            raise
        raise dg.Failure(description=str(homeless), allow_retries=False) from error


@contextmanager
def repeated_after_outage(
    context: dg.AssetExecutionContext, policy: dg.RetryPolicy | None
) -> Iterator[None]:
    """Convert errors as `told_as_failure`, and repeat the step after an outage.

    The policy is applied here, not given to the asset: Dagster would also repeat a fault of the
    code, and a run that a user cancels.

    Raises:
        dg.RetryRequested: After an outage, while the policy has repetitions left.
        dg.Failure: After the last one, with the number of tries; at once after another failure.
    """
    try:
        with told_as_failure():
            yield
    except (dg.Failure, OSError) as error:
        if policy is None or policy.max_retries < 1 or not is_outage(error):
            raise
        text = (error.description if isinstance(error, dg.Failure) else None) or str(error)
        tried, most = context.retry_number + 1, policy.max_retries + 1
        if tried >= most:
            described = f"{text} Tried {tried} times."
            raise dg.Failure(description=described, allow_retries=False) from error
        pause_s = policy.calculate_delay(tried)
        context.log.warning(
            f"{text} Try {tried} of {most} failed; the next starts in {pause_s:g} s."
        )
        raise dg.RetryRequested(policy.max_retries, pause_s) from error
