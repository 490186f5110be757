"""Files below a folder or below a URL of an object store: one set of operations for both.

A folder is a `Path`. Below `s3://bucket/prefix` an `ObjectPath` offers what is used of a `Path`;
what a `Path` cannot do for both (create if absent, replace as a whole) are functions of this
module. An object store has no folders: one is there as long as something lies below it.
"""

import errno
import fnmatch
import hashlib
import math
import os
import re
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.home import NoHomeError, expanded, home

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs
    from obstore.store import ClientConfig, S3Store

_VARIABLE: Final = "KSTREAMS_ASSETS_S3_"
_SCHEMES: Final = ("s3://", "s3a://")
_CONNECT_S: Final = 5
_REQUEST_S: Final = 30
_SILENCE_S: Final = 7.5
"""So long a store may send nothing while it answers a request that carries no data."""
_RETRIES: Final = 4
_RETRY_S: Final = 20
RENEWALS: Final = 4
"""How often a lease is renewed in its time; a request for it takes no longer than one part."""
_LEAST_REQUEST_S: Final = 1.0
_CREDENTIALS_S: Final = 300.0
"""How long credentials of a role are used before they are asked for again."""
_PIECE: Final = 8 * 1024**2
_THREADS: Final = 8


class ObjectStoreSettings(BaseModel):
    """How a store of the S3 kind is reached; credentials are those of AWS's default chain."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoint: str | None = Field(
        default=None,
        description="URL of a store that is not AWS's (AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL).",
    )
    region: str | None = Field(
        default=None, description="Region of the bucket (AWS_REGION, AWS_DEFAULT_REGION)."
    )
    path_style: bool | None = Field(
        default=None,
        description="Whether the bucket is part of the path rather than of the host; null: where an"
        " endpoint is given.",
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
    lease_s: float = Field(
        default=30.0,
        gt=0,
        description="How long a writer that is gone keeps others waiting. A writer that cannot"
        " renew its lease for so long stops.",
    )

    @classmethod
    def from_environment(cls, given: "ObjectStoreSettings | None" = None) -> Self:
        """What is given; for the rest the environment: `KSTREAMS_ASSETS_S3_ENDPOINT` and so on."""
        told: dict[str, Any] = {
            name: value
            for name in cls.model_fields
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
                told.setdefault(name, values[0])
        return cls(**told) if given is None else cls(**{**told, **given.named()})

    def named(self) -> dict[str, Any]:
        """The settings that were given."""
        return self.model_dump(include=self.model_fields_set, exclude_none=True)

    @classmethod
    def of_resource(cls, resource: Any) -> "ObjectStoreSettings":  # noqa: ANN401 (dagster_aws)
        """As a `dagster_aws.s3.S3Resource` says; its keys become those of this process."""
        keys = {
            "AWS_ACCESS_KEY_ID": resource.aws_access_key_id,
            "AWS_SECRET_ACCESS_KEY": resource.aws_secret_access_key,
            "AWS_SESSION_TOKEN": resource.aws_session_token,
        }
        os.environ.update({name: value for name, value in keys.items() if value})
        told = {
            "endpoint": resource.endpoint_url,
            "region": resource.region_name,
            "profile": resource.profile_name,
        }
        return cls(**{name: value for name, value in told.items() if value})


@dataclass(frozen=True, slots=True)
class Credentials:
    """Keys of the S3 protocol, until they change."""

    key: str
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """How a bucket is reached, and by whom; `credentials` only where they were carried here."""

    settings: ObjectStoreSettings
    credentials: Credentials | None = field(default=None, compare=False, repr=False)
    is_prompt: bool = False
    """Whether a request must end soon, as those for leases: they carry little."""

    @property
    def request_s(self) -> float:
        """The longest time for one request, and for the tries after it."""
        if not self.is_prompt:
            return _REQUEST_S
        return min(_REQUEST_S, max(_LEAST_REQUEST_S, self.settings.lease_s / RENEWALS))

    def carried(self) -> "StoreAccess":
        """With its credentials, for tasks in other processes."""
        return replace(self, credentials=self.keys())

    def keys(self) -> Credentials:
        """The credentials.

        Raises:
            ConfigurationError: There are none.
        """
        return self.credentials or _credentials(self.settings.profile)

    @property
    def region(self) -> str:
        """Of the bucket."""
        return self.settings.region or _configured_region(self.settings.profile) or "us-east-1"

    @property
    def is_path_style(self) -> bool:
        """Whether the bucket is part of the path."""
        told = self.settings.path_style
        return self.settings.endpoint is not None if told is None else told


class _Known:
    """Credentials that were looked up, by profile."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.found: dict[str | None, tuple[float, Credentials]] = {}


_known = _Known()


def _credentials(profile: str | None) -> Credentials:
    """By AWS's default chain, in which the environment comes first."""
    told = [os.environ.get(f"AWS_{name}") for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")]
    if told[0] and told[1] and profile is None:
        return Credentials(told[0], told[1], os.environ.get("AWS_SESSION_TOKEN") or None)
    with _known.lock:
        at, found = _known.found.get(profile, (0.0, None))
        if found is None or time.monotonic() - at > _CREDENTIALS_S:
            found = _looked_up(profile)
            _known.found[profile] = (time.monotonic(), found)
        return found


def _looked_up(profile: str | None) -> Credentials:
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session

    try:
        keys = Session(profile=profile).get_credentials()
        frozen = None if keys is None else keys.get_frozen_credentials()
    except BotoCoreError as error:
        raise ConfigurationError(
            f"The credentials of the object store cannot be read: {str(error).splitlines()[0]}",
            remedy="Look at the AWS configuration and AWS_PROFILE.",
        ) from None
    if frozen is None or not frozen.access_key or not frozen.secret_key:
        raise ConfigurationError(
            "There are no credentials for the object store.",
            remedy="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run where"
            " AWS gives a role.",
        )
    return Credentials(frozen.access_key, frozen.secret_key, frozen.token)


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


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """What a store says of an object; `changed_ns` by the store's clock (epoch nanoseconds)."""

    st_size: int
    st_mtime_ns: int
    e_tag: str

    @property
    def st_mtime(self) -> float:
        """Epoch seconds."""
        return self.st_mtime_ns / 1e9


class ConditionError(Exception):
    """An object is there already, or is another one than the one that was to be replaced."""


@dataclass(frozen=True, order=True)
class ObjectPath:
    """An object, or all that lies below a prefix; with the names that a `Path` has for it."""

    bucket: str
    key: str
    access: StoreAccess = field(compare=False, repr=False)

    @classmethod
    def at(cls, url: str, settings: ObjectStoreSettings | None = None) -> Self:
        """The place of a URL `s3://bucket/prefix`.

        Raises:
            ConfigurationError: It is not one.
        """
        parts = urlsplit(url)
        key = "/".join(part for part in parts.path.split("/") if part)
        if not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc:
            raise ConfigurationError(
                f"{url.split('@')[-1]!r} is no place in an object store.",
                remedy="Write s3://bucket/prefix; credentials do not belong in it.",
            )
        access = StoreAccess(ObjectStoreSettings.from_environment(settings))
        return cls(parts.netloc, key, access)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.bucket, self.key, self.access.carried())

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}".rstrip("/")

    def __repr__(self) -> str:
        return f"ObjectPath({str(self)!r})"

    def __truediv__(self, other: str | PurePosixPath) -> Self:
        return replace(self, key=str(PurePosixPath(self.key) / str(other)).lstrip("/"))

    @property
    def _pure(self) -> PurePosixPath:
        return PurePosixPath(self.key)

    @property
    def name(self) -> str:
        """Its last part."""
        return self._pure.name or self.bucket

    @property
    def stem(self) -> str:
        """Its last part without the ending."""
        return self._pure.stem

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of its path, the bucket first."""
        return (self.bucket, *self._pure.parts)

    @property
    def parent(self) -> Self:
        """What it lies in."""
        return replace(
            self, key="" if self._pure.parent == PurePosixPath() else str(self._pure.parent)
        )

    def with_suffix(self, suffix: str) -> Self:
        """With another ending."""
        return replace(self, key=str(self._pure.with_suffix(suffix)))

    def prompt(self) -> Self:
        """The same place for small objects that are asked for again and again.

        A store that comes back may have taken a request that it never answers.
        """
        return replace(self, access=replace(self.access, is_prompt=True))

    def relative_to(self, other: Self) -> PurePosixPath:
        """The path from another place to this one."""
        return self._pure.relative_to(other.key)

    def is_relative_to(self, other: object) -> bool:
        """Whether it lies below another place."""
        return (
            isinstance(other, ObjectPath)
            and other.bucket == self.bucket
            and self._pure.is_relative_to(other.key)
        )

    @property
    def _store(self) -> "S3Store":
        return _client(self.bucket, self.access, self.access.keys())

    @property
    def _reader(self) -> "S3Store":
        """For requests that carry no data; those that do are silent while it is sent."""
        return _client(self.bucket, self.access, self.access.keys(), silence_s=_SILENCE_S)

    def stat(self) -> ObjectStat:
        """What the store says of the object. Raises OSError, as all that asks the store."""
        import obstore

        with self._asked():
            return _stat_of(obstore.head(self._reader, self.key))

    def exists(self) -> bool:
        """Whether it is an object, or something lies below it."""
        try:
            self.stat()
        except FileNotFoundError:
            return self.is_dir()
        return True

    def is_file(self) -> bool:
        """Whether it is an object."""
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        """Whether something lies below it."""
        return next(self.below(), None) is not None

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """There is nothing to make."""

    def rmdir(self) -> None:
        """There is nothing to remove."""

    def below(self) -> Iterator[tuple[Self, ObjectStat]]:
        """Every object below it, in order of names."""
        import obstore

        prefix = f"{self.key}/" if self.key else None
        with self._asked():
            for lot in obstore.list(self._reader, prefix, chunk_size=1000):
                for one in lot:
                    yield replace(self, key=one["path"]), _stat_of(one)

    def iterdir(self) -> Iterator[Self]:
        """What lies directly in it."""
        import obstore

        prefix = f"{self.key}/" if self.key else None
        with self._asked():
            found = obstore.list_with_delimiter(self._reader, prefix)
        names = [*found["common_prefixes"], *(one["path"] for one in found["objects"])]
        yield from (replace(self, key=name.rstrip("/")) for name in sorted(names))

    def glob(self, pattern: str) -> Iterator[Self]:
        """Objects below it whose names match; `*` matches within a part."""
        wanted = pattern.split("/")
        for path, _ in list(self.below()):
            parts = path.relative_to(self).parts
            if len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted)):
                yield path

    def rglob(self, pattern: str) -> Iterator[Self]:
        """Objects at any depth whose last part matches."""
        for path, _ in self.below():
            if fnmatch.fnmatchcase(path.name, pattern):
                yield path

    def read_bytes(self) -> bytes:
        """All of the object."""
        return self.read()[0]

    def read(self) -> tuple[bytes, str]:
        """All of the object, and the mark (ETag) of this version of it."""
        import obstore

        with self._asked():
            found = obstore.get(self._reader, self.key)
            return found.bytes().to_bytes(), found.meta["e_tag"] or ""

    def read_text(self, encoding: str = "utf-8") -> str:
        """All of the object as text."""
        return self.read_bytes().decode(encoding)

    def pieces(self) -> Iterator[bytes]:
        """The object piece by piece."""
        import obstore

        with self._asked():
            for piece in obstore.get(self._reader, self.key).stream(min_chunk_size=_PIECE):
                yield bytes(piece)

    def write_bytes(self, data: bytes) -> str:
        """Put an object in place of what is there; the mark of this version of it."""
        return self._put(data, None)

    def write_text(self, text: str, encoding: str = "utf-8") -> str:
        """As `write_bytes`."""
        return self.write_bytes(text.encode(encoding))

    def create(self, data: bytes) -> str:
        """Put an object where there is none. Raises ConditionError where there is one."""
        return self._put(data, "create")

    def replace_version(self, data: bytes, e_tag: str) -> str:
        """Put an object in place of one version. Raises ConditionError if it is another one."""
        return self._put(data, {"e_tag": e_tag})

    def _put(self, data: bytes, mode: Any) -> str:  # noqa: ANN401 (obstore's)
        import obstore
        from obstore.exceptions import AlreadyExistsError, NotFoundError, PreconditionError

        with self._asked():
            try:
                done = obstore.put(self._store, self.key, data, mode=mode, use_multipart=False)
            except (AlreadyExistsError, PreconditionError) as error:
                raise ConditionError(str(self)) from error
            except NotFoundError as error:
                if isinstance(mode, dict) and "NoSuchBucket" not in str(error):
                    raise ConditionError(str(self)) from error
                raise
            return done["e_tag"] or ""

    def copy(self, new: Self) -> None:
        """Let the store make a copy in the same bucket."""
        import obstore

        with self._asked():
            obstore.copy(self._store, self.key, new.key)

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Delete the object. A store does not say whether there was one."""
        import obstore

        with self._asked():
            obstore.delete(self._reader, self.key)

    def touch(self) -> None:
        """Make it if it is not there, and note the time."""
        try:
            self.write_bytes(self.read_bytes())
        except FileNotFoundError:
            self.write_bytes(b"")

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """What the store refuses, as the OSError that a disk would raise."""
        from obstore import exceptions

        try:
            yield
        except exceptions.NotFoundError as error:
            raise _as_os_error(errno.ENOENT, error, self) from None
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise _as_os_error(errno.EACCES, error, self) from None
        except exceptions.BaseError as error:
            raise _as_os_error(errno.EIO, error, self) from None


StorePath = Path | ObjectPath
"""A folder or file of a disk, or a place in an object store."""


def place_at(text: str, settings: ObjectStoreSettings | None = None) -> StorePath:
    """The place that a text names: a path, a `file:` URI, or `s3://bucket/prefix`.

    Raises:
        ConfigurationError: It is of another kind of store, or has characters that not every
            library reads alike.
    """
    if text.startswith(_SCHEMES):
        _require_plain(text)
        return ObjectPath.at(text, settings)
    if text.startswith("file:"):
        text = "/" + text.removeprefix("file:").lstrip("/")
    if "://" in text or text.startswith(("s3:", "s3a:", "gs:", "abfs:", "abfss:")):
        raise ConfigurationError(
            f"The warehouse {text!r} is not on a local or mounted disk, nor in an object store of"
            " the S3 kind.",
            remedy="Give a folder, or s3://bucket/prefix.",
        )
    path = expanded(text).absolute()
    _require_plain(str(path))
    _require_plain(os.path.realpath(path))  # libraries follow links before they decode
    return path


_AMBIGUOUS: Final = re.compile(r"%[0-9A-Fa-f]{2}|\\|[\0-\x1f\x7f]")


def _require_plain(place: str) -> None:
    """Refuse a path of which Delta's libraries look into another folder than was written to."""
    found = _AMBIGUOUS.search(place)
    if found is not None:
        raise ConfigurationError(
            f"The path {place!r} contains {found[0]!r}. Delta's libraries do not agree on the"
            " folder that it names: some decode these characters, others do not or refuse them.",
            remedy="Choose a path without backslashes, control characters, and percent signs"
            " before two hexadecimal digits. Rename the folder, or write the decoded character"
            " (a blank instead of %20).",
        )


def storage_reason(text: str) -> str | None:
    """What a store's long error says, in one line; None where it is no error of a store."""
    for mark, reason in _REASONS:
        if mark in text:
            return reason
    return None


_DENIED: Final = "the store denies these credentials the right to do this"
_REASONS: Final = (
    ("SignatureDoesNotMatch", "the store does not accept the secret key"),
    ("InvalidAccessKeyId", "the store does not know the access key"),
    ("ExpiredToken", "the credentials have expired"),
    ("NoSuchBucket", "there is no such bucket"),
    ("AccessDenied", _DENIED),
    ("403 Forbidden", _DENIED),
    ("dns error", "its endpoint is not known (DNS)"),
    ("operation timed out", "its endpoint does not answer in time"),
    ("TimedOut", "its endpoint does not answer in time"),
    ("error sending request", "its endpoint does not answer"),
)


def _as_os_error(number: int, error: Exception, path: ObjectPath) -> OSError:
    """One line; messages of the store's client are long, and none of them holds a key."""
    text = str(error)
    denied = _DENIED if number == errno.EACCES else None
    reason = storage_reason(text) or denied or text.strip().splitlines()[0][:300]
    if number == errno.ENOENT and "NoSuchBucket" not in text:
        reason = os.strerror(errno.ENOENT)
    return OSError(number, reason, str(path))


def _stat_of(meta: Any) -> ObjectStat:  # noqa: ANN401 (obstore's)
    changed_ns = int(meta["last_modified"].timestamp() * 1e9)
    return ObjectStat(meta["size"], changed_ns, meta["e_tag"] or "")


@lru_cache(maxsize=64)
def _client(
    bucket: str, access: StoreAccess, keys: Credentials, silence_s: float | None = None
) -> "S3Store":
    from datetime import timedelta

    from obstore.store import S3Store

    settings = access.settings
    endpoint = settings.endpoint
    told: dict[str, Any] = {
        "access_key_id": keys.key,
        "secret_access_key": keys.secret,
        "region": access.region,
        "virtual_hosted_style_request": not access.is_path_style,
    }
    if keys.token:
        told["session_token"] = keys.token
    if endpoint:
        told["endpoint"] = endpoint
    told |= {f"aws_{name}": value for name, value in _encryption(settings).items()}
    client_options: ClientConfig = {
        "allow_http": bool(endpoint and endpoint.startswith("http://")),
        "connect_timeout": timedelta(seconds=min(_CONNECT_S, access.request_s)),
        "timeout": timedelta(seconds=access.request_s),
    }
    if silence_s is not None:
        client_options["read_timeout"] = timedelta(seconds=silence_s)
    return S3Store(
        bucket,
        client_options=client_options,
        retry_config={
            "max_retries": _RETRIES,
            "retry_timeout": timedelta(seconds=min(_RETRY_S, access.request_s)),
        },
        **told,
    )


def _encryption(settings: ObjectStoreSettings) -> dict[str, str]:
    """As obstore and deltalake call it."""
    if settings.encryption is None:
        return {}
    told = {"server_side_encryption": settings.encryption}
    return told | ({"sse_kms_key_id": settings.kms_key_id} if settings.kms_key_id else {})


def storage_options(path: StorePath) -> dict[str, str] | None:
    """What deltalake needs to reach a table; None on a disk."""
    if isinstance(path, Path):
        return None
    access, settings = path.access, path.access.settings
    keys = access.keys()
    told = {
        "aws_access_key_id": keys.key,
        "aws_secret_access_key": keys.secret,
        "aws_region": access.region,
        "aws_virtual_hosted_style_request": str(not access.is_path_style).lower(),
        "aws_conditional_put": "etag",
        "connect_timeout": f"{_CONNECT_S} seconds",
        "timeout": f"{_REQUEST_S} seconds",
        "max_retries": str(_RETRIES),
        "retry_timeout": f"{_RETRY_S} seconds",
    }
    if keys.token:
        told["aws_session_token"] = keys.token
    if settings.endpoint:
        told["aws_endpoint"] = settings.endpoint
        told["allow_http"] = str(settings.endpoint.startswith("http://")).lower()
    return told | {f"aws_{name}": value for name, value in _encryption(settings).items()}


def arrow_place(path: StorePath) -> "tuple[pafs.FileSystem, str]":
    """A file system of pyarrow, and the path in it."""
    import pyarrow.fs as pafs

    if isinstance(path, Path):
        return pafs.LocalFileSystem(), str(path)
    return _arrow_store(path.access, path.access.keys()), f"{path.bucket}/{path.key}"


@lru_cache(maxsize=64)
def _arrow_store(access: StoreAccess, keys: Credentials) -> "pafs.FileSystem":
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
        request_timeout=_SILENCE_S,
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=_RETRIES),
    )


def readable(path: StorePath) -> "Path | pa.NativeFile":
    """What pyarrow's readers take: a path, or an open file of the store."""
    if isinstance(path, Path):
        return path
    files, name = arrow_place(path)
    return files.open_input_file(name)


@contextmanager
def fetched(path: StorePath) -> Iterator[Path]:
    """A file of a disk while it is read from begin to end: the file itself, or a copy of it."""
    if isinstance(path, Path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="kstreams-assets-") as folder:
        copy = Path(folder) / disk_name(path.name)
        with copy.open("wb") as file:
            for piece in path.pieces():
                file.write(piece)
        yield copy


def duplicate(path: StorePath, new: StorePath) -> None:
    """Another file of the same bytes: a second name where the disk has such, else a copy.

    An object store copies by itself; what is too large for that goes through this process.
    """
    if isinstance(path, Path) and isinstance(new, Path):
        try:
            os.link(path, new)
        except OSError:
            shutil.copyfile(path, new)
        return
    if isinstance(path, ObjectPath) and isinstance(new, ObjectPath) and path.bucket == new.bucket:
        with suppress(OSError):
            path.copy(new)
            return
    with fetched(path) as local, local.open("rb") as file:
        copied = NewObject(new)
        while piece := file.read(_PIECE):
            copied.write(piece)
        copied.finish()


def file_digest(path: StorePath) -> str:
    """SHA-256 of a file, in hex."""
    if isinstance(path, Path):
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    digest = hashlib.sha256()
    for piece in path.pieces():
        digest.update(piece)
    return digest.hexdigest()


FileIdentity = tuple[int, int, int, int, int]
"""Device, inode, size, and times of the last change of content and of anything (nanoseconds)."""

_SETTLED_S: Final = 1.0


def file_identity(path: StorePath) -> FileIdentity | None:
    """What is another once somebody writes to a file, or puts another in its place.

    The last of the times is the kernel's own: no program sets it back. None of a file that was
    changed a moment ago, since the next change may get the same time, of one that is not there, and
    of objects.
    """
    if not isinstance(path, Path):
        return None
    try:
        stat = path.stat()
    except OSError:
        return None
    if time.time() - stat.st_ctime < _SETTLED_S:
        return None
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


class NewObject:
    """A file that is written from begin to end, for pyarrow's writers.

    It is there once it was closed; what was written to an object store before that goes when it is
    abandoned.
    """

    def __init__(self, path: StorePath) -> None:
        import obstore

        self.size, self._digest = 0, hashlib.sha256()
        self._file: Any = (
            path.open("wb")
            if isinstance(path, Path)
            else obstore.open_writer(path._store, path.key, buffer_size=_PIECE)  # noqa: SLF001
        )
        self._path, self.closed = path, False

    def write(self, data: Any) -> int:  # noqa: ANN401 (a buffer)
        """Append bytes."""
        view = memoryview(data)
        self._digest.update(view)
        with self._asked():
            self._file.write(view)
        self.size += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        """Nothing is there before the end."""

    def tell(self) -> int:
        """How many bytes were written."""
        return self.size

    def close(self) -> None:
        """Nothing: pyarrow closes what it has written to, also after a failure."""

    def readable(self) -> bool:
        """It is not."""
        return False

    def writable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is not."""
        return False

    def finish(self, *, durable: bool = False) -> str:
        """End the file; its SHA-256 in hex. With `durable` a disk has its content then."""
        with self._asked():
            self._file.close()
        if durable:
            sync_content(self._path)
        self.closed = True
        return self._digest.hexdigest()

    def _asked(self) -> Any:  # noqa: ANN401 (a context)
        return self._path._asked() if isinstance(self._path, ObjectPath) else nullcontext()  # noqa: SLF001


def write_parquet(rows: "pa.Table", path: StorePath, **options: Any) -> None:  # noqa: ANN401
    """Write a small file; options as of pyarrow's `write_table`."""
    import pyarrow.parquet as pq

    file = NewObject(path)
    pq.write_table(rows, file, **options)
    file.finish()


_LONGEST_NAME: Final = 220
"""Bytes; disks take 255, and endings and names of unfinished files come on top."""


def disk_name(name: str) -> str:
    """A name for a file after a topic, a group or an application; these may be 249 long.

    One that is too long is cut, and told apart by a digest of the whole.
    """
    data = name.encode()
    if len(data) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(data).hexdigest()[:16]
    return f"{data[: _LONGEST_NAME - len(digest) - 1].decode(errors='ignore')}-{digest}"


def relative(path: StorePath, folder: StorePath) -> PurePosixPath:
    """The path from a folder to something in it."""
    return PurePosixPath(str(path)).relative_to(PurePosixPath(str(folder)))


def subfolders(path: StorePath) -> list[StorePath]:
    """What lies directly in a folder; nothing where it is not there."""
    return list(path.iterdir()) if path.is_dir() else []


def newest_change(folder: StorePath) -> float | None:
    """When something in a folder changed last (epoch seconds); None where there is nothing."""
    if isinstance(folder, ObjectPath):
        return max((stat.st_mtime for _, stat in folder.below()), default=None)
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return None


def store_time(folder: StorePath) -> float:
    """Now (epoch seconds) by the clock that dates what is written to a folder.

    An object store has a clock of its own. What is deleted by its age must not depend on the clock
    of the machine that deletes.

    Raises:
        OSError: Nothing can be written there.
    """
    if isinstance(folder, Path):
        return time.time()
    probe = folder / ".clock" / uuid.uuid4().hex
    probe.write_bytes(b"")
    try:
        return probe.stat().st_mtime
    finally:
        with suppress(OSError):
            probe.unlink()


_HOUR_S: Final = 3600.0
_NO_SKEW_H: Final = 0.05
"""Stores date with whole seconds."""


def local_hours(folder: StorePath, hours: int) -> int:
    """How old (whole hours) what is older than `hours` looks by the clock of this machine.

    For libraries that compare times of a store with that clock.
    """
    ahead_h = (time.time() - store_time(folder)) / _HOUR_S
    return hours if abs(ahead_h) < _NO_SKEW_H else max(0, math.ceil(hours + ahead_h))


def put_text(path: StorePath, text: str, *, durable: bool = True) -> None:
    """Put a small file in place of what is there: nobody reads half of it.

    What may be lost with the power, such as a status, need not be `durable`.
    """
    if isinstance(path, ObjectPath):
        path.write_text(text)
        return
    written = path.with_name(f".{disk_name(path.name)}.{uuid.uuid4().hex[:8]}")
    _put_by_way_of(written, path, text.encode(), durable=durable)


def put_file(path: StorePath, content: bytes) -> None:
    """Put a new file there, below folders that are made if need be: nobody reads half of it."""
    if isinstance(path, ObjectPath):
        if len(content) <= _PIECE:
            path.write_bytes(content)
        else:
            file = NewObject(path)
            file.write(content)
            file.finish()
        return
    _put_by_way_of(path.with_name(f"{disk_name(path.name)}.tmp"), path, content, durable=True)


def _put_by_way_of(written: Path, path: Path, content: bytes, *, durable: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    written.write_bytes(content)
    if durable:
        sync_content(written)
    written.replace(path)
    if durable:
        sync_names([path])


def make_durable(paths: Iterable[StorePath]) -> None:
    """Wait until a loss of power cannot take files and folders away any more.

    Their content is on the disk then, their names in their folders, and the folders above. An
    object store has made durable what it has confirmed.
    """
    paths = list(paths)
    for path in paths:
        sync_content(path)
    sync_names(paths)


def sync_content(path: StorePath) -> None:
    """Wait until the content of a file (of a folder: its names) is on the disk."""
    if not isinstance(path, Path):
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some mounted file systems do not sync folders: they have no names to lose.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(handle)


def sync_names(paths: Iterable[StorePath]) -> None:
    """Wait until the names of files and folders, and those of the folders above, are on the disk.

    Folders above are synced once in a process: also a folder that is there may have been made by a
    process that was killed before it came to that.
    """
    for folder in {path.parent for path in paths if isinstance(path, Path)}:
        sync_content(folder)
        for one in (folder, *folder.parents):
            known = one, one.stat().st_ino
            if known in _named or one == one.parent:
                break
            try:
                sync_content(one.parent)
            except PermissionError:  # Who may not list a folder has not made this one in it.
                break
            if len(_named) >= _MOST_NAMED:
                _named.clear()
            _named.add(known)


_named: set[tuple[Path, int]] = set()
"""Folders (and their inodes) whose names this process has made durable."""
_MOST_NAMED: Final = 50_000


def remove_tree(path: StorePath) -> None:
    """Delete all that lies below a place, as far as it can be deleted."""
    if isinstance(path, Path):
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        for one, _ in list(path.below()):
            one.unlink()


def below(path: StorePath) -> Mapping[str, tuple[int, int]]:
    """Size and time of change (nanoseconds) of each file directly in a folder, by name.

    Raises FileNotFoundError where a disk has no such folder.
    """
    if isinstance(path, ObjectPath):
        return {one.name: (stat.st_size, stat.st_mtime_ns) for one, stat in path.below()}
    found: dict[str, tuple[int, int]] = {}
    for file in os.scandir(path):
        with suppress(FileNotFoundError):  # It went a moment ago, as unfinished commits do.
            stat = file.stat()
            found[file.name] = (stat.st_size, stat.st_mtime_ns)
    return found


_SINGLY: Final = 16
"""So many folders of a store are listed one by one; for more, all that lies below is listed."""


def sizes_in(root: StorePath, folders: Iterable[str]) -> dict[str, dict[str, int]]:
    """Size of each file directly in folders below a place, by folder (relative) and name.

    One listing takes the place of a question for each file. A folder that is not there, or cannot
    be listed, is left out.
    """
    if isinstance(root, Path):
        return {folder: found for folder in folders if (found := _sizes_of(root / folder))}
    wanted = list(folders)
    if len(wanted) <= _SINGLY:
        listed = {folder: {} for folder in wanted}
        for folder in wanted:
            with suppress(FileNotFoundError):
                for path, stat in (root / folder).below():
                    if path.parent == root / folder:
                        listed[folder][path.name] = stat.st_size
        return listed
    found = {folder: {} for folder in wanted}
    for path, stat in root.below():
        folder, _, name = str(relative(path, root)).rpartition("/")
        if folder in found:
            found[folder][name] = stat.st_size
    return found


def _sizes_of(folder: Path) -> dict[str, int] | None:
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        # Names below an open folder are found sooner than whole paths.
        return {name: os.stat(name, dir_fd=handle).st_size for name in os.listdir(handle)}
    except OSError:
        return None
    finally:
        os.close(handle)


def require_conditions(place: StorePath) -> None:
    """Refuse a store that ignores conditions: two writers would lose each other's commits.

    Raises:
        ConfigurationError: It does.
        OSError: It cannot be written.
    """
    if isinstance(place, Path) or place.parts in _honest:
        return
    probe = place / ".probe" / uuid.uuid4().hex
    e_tag = probe.create(b"1")
    try:
        ignored = []
        for what, mark in (("If-None-Match", None), ("If-Match", f'"{uuid.uuid4().hex}"')):
            with suppress(ConditionError):
                probe.create(b"2") if mark is None else probe.replace_version(b"2", mark)
                ignored.append(what)
        if not ignored:
            with suppress(ConditionError):
                probe.replace_version(b"3", e_tag)
                _honest.add(place.parts)
                return
            ignored.append("ETag")
        raise ConfigurationError(
            f"The store of {place} ignores conditions ({', '.join(ignored)}): two writers would"
            " lose each other's commits.",
            remedy="Use a store with conditional writes (AWS S3, SeaweedFS, MinIO, Ceph, R2), or a"
            " folder.",
        )
    finally:
        with suppress(OSError):
            probe.unlink()


_honest: set[tuple[str, ...]] = set()
"""Places whose store was found to keep conditions."""
