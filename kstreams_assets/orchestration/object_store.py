"""The object store of a warehouse as a Dagster resource, which assets of users share."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Final

import dagster as dg

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.secret import Secret
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store import store_at

if TYPE_CHECKING:
    from dagster_aws.s3 import S3Resource

_CONFLICT: Final = "different resources with same key"
"""What Dagster says when it merges definitions."""


def store_resources(settings: ApplicationSettings) -> "dict[str, S3Resource]":
    """The resource of the application's warehouse by its key; none for a warehouse on a disk.

    Applications whose stores are reached alike get the same object, which Dagster needs to merge
    their definitions.

    Raises:
        ConfigurationError: The keys of the store are values of this process.
    """
    access = store_at(settings.warehouse.root).access
    if access is None:
        return {}
    given = access.settings
    return {
        settings.object_store_resource: _resource(
            given.endpoint,
            access.region,
            None if given.access_key_id else given.profile,
            given.access_key_id,
            given.secret_access_key,
            given.session_token,
        )
    }


@cache
def _resource(
    endpoint: str | None,
    region: str,
    profile: str | None,
    access_key_id: Secret | None,
    secret_access_key: Secret | None,
    session_token: Secret | None,
) -> "S3Resource":
    from dagster_aws.s3 import S3Resource  # slow, and of use for a store alone

    return S3Resource(
        endpoint_url=endpoint,
        region_name=region,
        profile_name=profile,
        use_ssl=not (endpoint or "").startswith("http://"),
        aws_access_key_id=_variable(access_key_id),
        aws_secret_access_key=_variable(secret_access_key),
        aws_session_token=_variable(session_token),
    )


def _variable(secret: Secret | None) -> dg.EnvVar | None:
    """A name: Dagster shows the configuration of resources."""
    if secret is None:
        return None
    if secret.env is None:
        raise ConfigurationError(
            "The keys of the object store are values, which Dagster would show.",
            remedy='Give them to the S3Resource as EnvVar("NAME").',
        )
    return dg.EnvVar(secret.env)


@contextmanager
def one_store_for_each_key() -> Iterator[None]:
    """Explain why Dagster cannot merge the definitions of two applications.

    Raises:
        ConfigurationError: Two stores have one key.
    """
    try:
        yield
    except Exception as error:
        text = next((str(e) for e in _causes(error) if _CONFLICT in str(e)), None)
        if text is None:
            raise
        key = text.rpartition("same key ")[2]
        raise ConfigurationError(
            f"Two applications of this code location have different resources with the key {key}.",
            remedy="If their warehouses are in different object stores, set object_store_resource"
            " in the YAML of one of them.",
        ) from error


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
