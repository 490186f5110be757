"""How errors of this project end a step of a Dagster run."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from kstreams_assets.errors import KStreamsAssetsError


@contextmanager
def told_as_failure() -> Iterator[None]:
    """An error of ours is a failure in its own words, and not tried again."""
    try:
        yield
    except KStreamsAssetsError as error:
        raise dg.Failure(description=str(error), allow_retries=False) from error
