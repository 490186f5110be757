"""How errors of this project end a step of a Dagster run."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.home import home_failure
from spark_resources.failures import spark_failures


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
