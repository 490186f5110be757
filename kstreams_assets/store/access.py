"""Access to a bucket: settings, AWS's default chain, clients."""

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from kstreams_assets.aws import aws_failure, aws_session
from kstreams_assets.block import refused
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.home import NoHomeError, home
from kstreams_assets.secret import Secret

if TYPE_CHECKING:
    import pyarrow.fs as pafs
    from boto3.session import Session
    from obstore.store import ClientConfig, S3Credential, S3Store

_VARIABLE: Final = "KSTREAMS_ASSETS_S3_"
_KEYS: Final = ("access_key_id", "secret_access_key", "session_token")


class ObjectStoreSettings(BaseModel):
    """Connection settings of an S3 store; without keys, AWS's default credential chain is used."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    endpoint: str | None = Field(
        default=None,
        description="URL of a store that is not AWS's (AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL).",
    )
    region: str | None = Field(
        default=None, description="Region of the bucket (AWS_REGION, AWS_DEFAULT_REGION)."
    )
    path_style: bool | None = Field(
        default=None,
        description="Whether the bucket is part of the path instead of the host; null: if an"
        " endpoint is set.",
    )
    encryption: Literal["AES256", "aws:kms"] | None = Field(
        default=None, description="Encryption at rest: AES256 (SSE-S3) or aws:kms (SSE-KMS)."
    )
    kms_key_id: str | None = Field(
        default=None, description="Key for aws:kms; null: the account's default key."
    )
    profile: str | None = Field(
        default=None, description="Profile of the AWS configuration (AWS_PROFILE)."
    )
    access_key_id: Secret | None = Field(
        default=None,
        description="Access key, as {env: NAME}; null: AWS's default chain, a profile or a role.",
    )
    secret_access_key: Secret | None = Field(
        default=None, description="Secret key of `access_key_id`, as {env: NAME}."
    )
    session_token: Secret | None = Field(
        default=None, description="Session token of `access_key_id`, as {env: NAME}."
    )
    lease_s: float = Field(
        default=30.0,
        gt=0,
        description="How long a stopped writer blocks others. A writer that cannot renew its lease"
        " for this time stops.",
    )

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise refused(
                ".access_key_id and .secret_access_key must be set together; one is missing.",
                "Set both, or neither.",
            )
        if self.session_token is not None and self.access_key_id is None:
            raise refused(
                ".session_token is set without .access_key_id.", "Set the keys, too, or remove it."
            )
        for name, secret in self._secrets():
            if not (secret.is_value or secret.env):
                raise refused(
                    f".{name} is not {{env: NAME}}.",
                    "Name an environment variable. For keys in a file, set `profile` and"
                    " AWS_SHARED_CREDENTIALS_FILE.",
                )
        return self

    def _secrets(self) -> Iterator[tuple[str, Secret]]:
        for name in _KEYS:
            if (secret := getattr(self, name)) is not None:
                yield name, secret

    @classmethod
    def from_environment(cls, given: "ObjectStoreSettings | None" = None) -> Self:
        """The given settings, completed from the environment: `KSTREAMS_ASSETS_S3_ENDPOINT` etc."""
        found: dict[str, Any] = {
            name: value
            for name in cls.model_fields.keys() - {*_KEYS}
            if (value := os.environ.get(_VARIABLE + name.upper()))
        }
        fallbacks = {
            "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
            "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
            "profile": ("AWS_PROFILE",),
        }
        for name, variables in fallbacks.items():
            values = [value for variable in variables if (value := os.environ.get(variable))]
            if values:
                found.setdefault(name, values[0])
        return cls(**found) if given is None else cls(**{**found, **given.named()})

    def named(self) -> dict[str, Any]:
        """The settings that are set."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return {name: value for name, value in given.items() if value is not None}

    @classmethod
    def of_resource(cls, resource: Any) -> Self:  # noqa: ANN401 (dagster_aws)
        """The settings of a `dagster_aws.s3.S3Resource`, with its keys.

        Raises:
            ConfigurationError: It requires requests without signature or without verified TLS.
        """
        unsupported = {
            "use_unsigned_session": resource.use_unsigned_session,
            "verify: false": resource.verify is False,
            "use_ssl: false": not (resource.use_ssl or resource.endpoint_url),
        }
        for setting, is_set in unsupported.items():
            if is_set:
                raise ConfigurationError(
                    f"The S3Resource of a warehouse has {setting}.",
                    remedy="Remove it: requests of a warehouse are signed and their TLS is"
                    " verified. For a server without TLS set endpoint_url to http://...",
                )
        found: dict[str, Any] = {
            "endpoint": resource.endpoint_url,
            "region": resource.region_name,
            "profile": resource.profile_name,
            **{name: _secret_of(getattr(resource, f"aws_{name}")) for name in _KEYS},
        }
        return cls(**{name: value for name, value in found.items() if value})

    def sendable(self) -> Self:
        """A copy for another process, without keys that only this process has."""
        if not any(secret.is_value for _, secret in self._secrets()):
            return self
        return self.model_copy(update=dict.fromkeys(_KEYS))

    @property
    def identity(self) -> tuple[object, ...]:
        """The settings that determine the keys."""
        return (self.profile, *(getattr(self, name) for name in _KEYS))

    def session(self) -> "Session":
        """The boto3 session whose credentials sign the store's requests.

        Raises:
            BotoCoreError: The profile does not exist.
            SecretNotFoundError: The variable of a key is absent.
        """
        keys = {name: secret.resolve(f"object_store.{name}") for name, secret in self._secrets()}
        key, secret, token = (keys.get(name) for name in _KEYS)
        return aws_session(self.profile if key is None else None, self.region, (key, secret, token))


def _secret_of(value: str | None) -> Secret | None:
    """A key of a resource; a Dagster `EnvVar` stays a reference."""
    if value is None:
        return None
    name = getattr(value, "env_var_name", None)
    return Secret.of(SecretStr(value)) if name is None else Secret(env=name)


REQUEST_S: Final = 30
RENEWALS: Final = 4
"""A lease is renewed this many times in its duration; a request takes at most one part."""
_LEAST_REQUEST_S: Final = 1.0
_LOOKED_UP_S: Final = 300.0
"""How long keys of AWS's default chain are used before they are looked up again."""
_IN_VAIN_S: Final = 60.0
"""How long a task waits before it looks for keys again after finding none."""
_LEFT_S: Final = 600.0
"""Keys with less remaining validity are looked up again."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Keys of the S3 protocol; `until` (epoch seconds) is None if their validity is unknown."""

    key: str
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    until: float | None = None

    @property
    def is_ending(self) -> bool:
        """Whether they are valid for a few minutes at most."""
        return self.until is not None and self.until - time.time() < _LEFT_S


class _Known:
    """Cached credentials, by `ObjectStoreSettings.identity`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.found: dict[tuple[object, ...], tuple[float, Credentials]] = {}
        self.in_vain: dict[tuple[object, ...], float] = {}


_known = _Known()


@dataclass(frozen=True, slots=True)
class CredentialProvider:
    """Provide the keys of a bucket for each request, from the session of its settings.

    A task gets the keys of the process that created it, because its own process may have none, or
    those of another user. Shortly before they expire, the task uses a session where it runs.
    """

    settings: ObjectStoreSettings = field(default_factory=ObjectStoreSettings)
    carried: Credentials | None = field(default=None, repr=False)

    def keys(self) -> Credentials:
        """The current credentials.

        Raises:
            ConfigurationError: There are no credentials.
        """
        if self.carried is None:
            return _credentials(self.settings)
        if not self.carried.is_ending:
            return self.carried
        identity = self.settings.identity
        if time.monotonic() - _known.in_vain.get(identity, -_IN_VAIN_S) < _IN_VAIN_S:
            return self.carried
        try:
            return _credentials(self.settings)
        except ConfigurationError:
            _known.in_vain[identity] = time.monotonic()
            return self.carried  # After their end, the store reports it.

    def __call__(self) -> "S3Credential":
        """The credentials in obstore's form."""
        keys = self.keys()
        until = None if keys.until is None else datetime.fromtimestamp(keys.until, UTC)
        return {
            "access_key_id": keys.key,
            "secret_access_key": keys.secret,
            "token": keys.token,
            "expires_at": until,
        }


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """Settings and credentials of a bucket; `credentials` were sent by another process."""

    settings: ObjectStoreSettings
    credentials: Credentials | None = field(default=None, compare=False, repr=False)
    is_prompt: bool = False
    """Whether requests must end soon, such as those for leases, which are small."""

    @property
    def request_s(self) -> float:
        """Time limit of one request, and of its retries."""
        if not self.is_prompt:
            return REQUEST_S
        return min(REQUEST_S, max(_LEAST_REQUEST_S, self.settings.lease_s / RENEWALS))

    def carried(self) -> "StoreAccess":
        """A copy with its credentials, for tasks in other processes."""
        return replace(self, settings=self.settings.sendable(), credentials=self.keys())

    def keys(self) -> Credentials:
        """The current credentials. Raises ConfigurationError if there are none."""
        return self.provider.keys()

    @property
    def provider(self) -> CredentialProvider:
        """The source of the credentials."""
        return CredentialProvider(self.settings, self.credentials)

    @property
    def region(self) -> str:
        """The region of the bucket."""
        return self.settings.region or _configured_region(self.settings.profile) or "us-east-1"

    @property
    def is_path_style(self) -> bool:
        """Whether the bucket is part of the path."""
        setting = self.settings.path_style
        return self.settings.endpoint is not None if setting is None else setting


def _credentials(settings: ObjectStoreSettings) -> Credentials:
    """Credentials of the session; those in the environment take precedence and need no session."""
    if settings.profile is None and settings.access_key_id is None:
        key, secret = (os.environ.get(f"AWS_{name.upper()}") for name in _KEYS[:2])
        if key and secret:
            return Credentials(key, secret, os.environ.get("AWS_SESSION_TOKEN") or None)
    with _known.lock:
        at, found = _known.found.get(settings.identity, (0.0, None))
        if found is None or found.is_ending or time.monotonic() - at > _LOOKED_UP_S:
            found = _looked_up(settings)
            _known.found[settings.identity] = (time.monotonic(), found)
        return found


def forget_keys(settings: ObjectStoreSettings | None = None) -> None:
    """Look keys up again for the next request, because a store has refused the current ones.

    Without `settings`, the keys of all stores.
    """
    with _known.lock:
        if settings is None:
            _known.found.clear()
        else:
            _known.found.pop(settings.identity, None)


def _looked_up(settings: ObjectStoreSettings) -> Credentials:
    from botocore.exceptions import BotoCoreError

    try:
        keys = settings.session().get_credentials()
        frozen = None if keys is None else keys.get_frozen_credentials()
    except BotoCoreError as error:
        failure = aws_failure(error)
        raise ConfigurationError(
            f"The credentials of the object store cannot be read: {failure.reason}.",
            remedy=failure.remedy,
        ) from None
    if frozen is None or not frozen.access_key or not frozen.secret_key:
        raise ConfigurationError(
            "There are no credentials for the object store.",
            remedy="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run where"
            " AWS provides a role.",
        )
    # Its only sign of how long keys are valid; None for keys that it does not renew.
    until = getattr(keys, "_expiry_time", None)
    return Credentials(
        frozen.access_key, frozen.secret_key, frozen.token, until and until.timestamp()
    )


def _has_aws_folder() -> bool:
    try:
        return (home() / ".aws").exists()
    except (NoHomeError, PermissionError):
        return False


@cache
def _configured_region(profile: str | None) -> str | None:
    if "AWS_CONFIG_FILE" not in os.environ and not _has_aws_folder():
        return None
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session

    try:
        return Session(profile=profile).get_config_variable("region")
    except BotoCoreError:
        return None


_CONNECT_S: Final = 5
SILENCE_S: Final = 7.5
"""How long a store may stay silent while it answers a small request."""
_RETRIES: Final = 4
_RETRY_S: Final = 20


@lru_cache(maxsize=64)
def obstore_client(
    bucket: str, access: StoreAccess, keys: Credentials | CredentialProvider, *, carries_data: bool
) -> "S3Store":
    """A client of obstore, for requests with or without data.

    Requests with data are silent while it is sent; others fail after `SILENCE_S`. A provider
    instead of keys is asked whenever the keys expire: for a file that takes long.
    """
    from obstore.store import S3Store

    settings = access.settings
    endpoint = settings.endpoint
    options: dict[str, Any] = {
        "region": access.region,
        "virtual_hosted_style_request": not access.is_path_style,
    }
    if isinstance(keys, CredentialProvider):
        options["credential_provider"] = keys
    else:
        options |= {"access_key_id": keys.key, "secret_access_key": keys.secret}
        if keys.token:
            options["session_token"] = keys.token
    if endpoint:
        options["endpoint"] = endpoint
    options |= {f"aws_{name}": value for name, value in _encryption(settings).items()}
    client_options: ClientConfig = {
        "allow_http": bool(endpoint and endpoint.startswith("http://")),
        "connect_timeout": timedelta(seconds=min(_CONNECT_S, access.request_s)),
        "timeout": timedelta(seconds=access.request_s),
    }
    if not carries_data:
        client_options["read_timeout"] = timedelta(seconds=SILENCE_S)
    return S3Store(
        bucket,
        client_options=client_options,
        retry_config={
            "max_retries": _RETRIES,
            "retry_timeout": timedelta(seconds=min(_RETRY_S, access.request_s)),
        },
        **options,
    )


def _encryption(settings: ObjectStoreSettings) -> dict[str, str]:
    """The names of obstore and deltalake for these settings."""
    if settings.encryption is None:
        return {}
    options = {"server_side_encryption": settings.encryption}
    return options | ({"sse_kms_key_id": settings.kms_key_id} if settings.kms_key_id else {})


def delta_options(access: StoreAccess) -> dict[str, str]:
    """The options with which deltalake accesses a table."""
    settings, keys = access.settings, access.keys()
    options = {
        "aws_access_key_id": keys.key,
        "aws_secret_access_key": keys.secret,
        "aws_region": access.region,
        "aws_virtual_hosted_style_request": str(not access.is_path_style).lower(),
        "aws_conditional_put": "etag",
        "connect_timeout": f"{_CONNECT_S} seconds",
        "timeout": f"{REQUEST_S} seconds",
        "max_retries": str(_RETRIES),
        "retry_timeout": f"{_RETRY_S} seconds",
    }
    if keys.token:
        options["aws_session_token"] = keys.token
    if settings.endpoint:
        options["aws_endpoint"] = settings.endpoint
        options["allow_http"] = str(settings.endpoint.startswith("http://")).lower()
    return options | {f"aws_{name}": value for name, value in _encryption(settings).items()}


@lru_cache(maxsize=64)
def arrow_files(access: StoreAccess, keys: Credentials) -> "pafs.FileSystem":
    """A file system of pyarrow; its paths start with the bucket."""
    import pyarrow.fs as pafs

    settings = access.settings
    endpoint = urlsplit(settings.endpoint or "")
    return pafs.S3FileSystem(
        access_key=keys.key,
        secret_key=keys.secret,
        session_token=keys.token,
        region=access.region,
        endpoint_override=endpoint.netloc or None,
        scheme=endpoint.scheme or "https",
        force_virtual_addressing=bool(settings.endpoint) and not access.is_path_style,
        connect_timeout=_CONNECT_S,
        request_timeout=SILENCE_S,
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=_RETRIES),
    )
