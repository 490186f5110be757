"""An object of an S3 store, or everything below a prefix."""

import errno
import fnmatch
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.store.access import (
    ObjectStoreSettings,
    StoreAccess,
    forget_keys,
    obstore_client,
)

if TYPE_CHECKING:
    from obstore.store import S3Store

PIECE: Final = 8 * 1024**2


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """A store's metadata of an object; `changed_ns` by the store's clock (epoch nanoseconds)."""

    st_size: int
    st_mtime_ns: int
    e_tag: str

    @property
    def st_mtime(self) -> float:
        """Epoch seconds."""
        return self.st_mtime_ns / 1e9


class ConditionError(Exception):
    """An object exists already, or differs from the version that was to be replaced."""


@dataclass(frozen=True, order=True)
class ObjectPath:
    """An object, or everything below a prefix, with the method names of `Path`."""

    bucket: str
    key: str
    access: StoreAccess = field(compare=False, repr=False)

    @classmethod
    def at(cls, url: str, settings: ObjectStoreSettings | None = None) -> Self:
        """The place of a URL `s3://bucket/prefix`.

        Raises:
            ConfigurationError: The URL is invalid.
        """
        parts = urlsplit(url)
        key = "/".join(part for part in parts.path.split("/") if part)
        if not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc:
            raise ConfigurationError(
                f"{url.split('@')[-1]!r} is not a place in an object store.",
                remedy="Write s3://bucket/prefix without credentials.",
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
        """The place that contains it."""
        return replace(
            self, key="" if self._pure.parent == PurePosixPath() else str(self._pure.parent)
        )

    def with_suffix(self, suffix: str) -> Self:
        """With another ending."""
        return replace(self, key=str(self._pure.with_suffix(suffix)))

    def prompt(self) -> Self:
        """The same place for small objects that are requested repeatedly.

        A store that is starting may accept a request but never answer it.
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
    def client(self) -> "S3Store":
        """For requests with data."""
        return obstore_client(self.bucket, self.access, self.access.keys(), carries_data=True)

    @property
    def writer(self) -> "S3Store":
        """For a file of many requests, during which keys may expire."""
        keys = self.access.keys()
        provider = keys if keys.until is None else self.access.provider
        return obstore_client(self.bucket, self.access, provider, carries_data=True)

    @property
    def reader(self) -> "S3Store":
        """For requests without data."""
        return obstore_client(self.bucket, self.access, self.access.keys(), carries_data=False)

    def stat(self) -> ObjectStat:
        """The store's metadata of the object. Raises OSError, like all requests to the store."""
        import obstore

        with self.asked():
            return _stat_of(obstore.head(self.reader, self.key))

    def exists(self) -> bool:
        """Whether it is an object, or there is an object below it."""
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
        """Whether there is an object below it."""
        return next(self.below(), None) is not None

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Does nothing: stores have no folders."""

    def rmdir(self) -> None:
        """Does nothing: stores have no folders."""

    def below(self) -> Iterator[tuple[Self, ObjectStat]]:
        """Every object below it, in order of names."""
        import obstore

        prefix = f"{self.key}/" if self.key else None
        with self.asked():
            for lot in obstore.list(self.reader, prefix, chunk_size=1000):
                for one in lot:
                    yield replace(self, key=one["path"]), _stat_of(one)

    def iterdir(self) -> Iterator[Self]:
        """Its direct children."""
        import obstore

        prefix = f"{self.key}/" if self.key else None
        with self.asked():
            found = obstore.list_with_delimiter(self.reader, prefix)
        names = [*found["common_prefixes"], *(one["path"] for one in found["objects"])]
        yield from (replace(self, key=name.rstrip("/")) for name in sorted(names))

    def glob(self, pattern: str) -> Iterator[Self]:
        """Objects below it with matching names; `*` matches within a part."""
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
        """The whole object."""
        return self.read()[0]

    def read(self) -> tuple[bytes, str]:
        """The whole object, and the mark (ETag) of this version."""
        import obstore

        with self.asked():
            found = obstore.get(self.reader, self.key)
            return found.bytes().to_bytes(), found.meta["e_tag"] or ""

    def read_text(self, encoding: str = "utf-8") -> str:
        """The whole object as text."""
        return self.read_bytes().decode(encoding)

    def pieces(self) -> Iterator[bytes]:
        """The object in pieces."""
        import obstore

        with self.asked():
            for piece in obstore.get(self.reader, self.key).stream(min_chunk_size=PIECE):
                yield bytes(piece)

    def write_bytes(self, data: bytes) -> str:
        """Write an object, replacing an existing one; return the mark of this version."""
        return self._put(data, None)

    def write_text(self, text: str, encoding: str = "utf-8") -> str:
        """Like `write_bytes`."""
        return self.write_bytes(text.encode(encoding))

    def create(self, data: bytes) -> str:
        """Write a new object. Raises ConditionError if it exists."""
        return self._put(data, "create")

    def replace_version(self, data: bytes, e_tag: str) -> str:
        """Replace one version of an object. Raises ConditionError if it has changed."""
        return self._put(data, {"e_tag": e_tag})

    def _put(self, data: bytes, mode: Any) -> str:  # noqa: ANN401 (obstore's)
        import obstore
        from obstore.exceptions import AlreadyExistsError, NotFoundError, PreconditionError

        with self.asked():
            try:
                done = obstore.put(self.client, self.key, data, mode=mode, use_multipart=False)
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

        with self.asked():
            obstore.copy(self.client, self.key, new.key)

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Delete the object; the store does not report whether it existed."""
        import obstore

        with self.asked():
            obstore.delete(self.reader, self.key)

    def touch(self) -> None:
        """Create it if it does not exist, and record the time."""
        try:
            self.write_bytes(self.read_bytes())
        except FileNotFoundError:
            self.write_bytes(b"")

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Convert refusals of the store to the OSError that a disk would raise."""
        from obstore import exceptions

        try:
            yield
        except exceptions.NotFoundError as error:
            raise _as_os_error(errno.ENOENT, error, self) from None
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise _as_os_error(errno.EACCES, error, self) from None
        except exceptions.BaseError as error:
            raise _as_os_error(errno.EIO, error, self) from None


def storage_reason(text: str) -> str | None:
    """Summarise a store's long error in one line; None for other errors."""
    for mark, reason in _REASONS:
        if mark in text:
            return reason
    return None


def is_unanswered(text: str) -> bool:
    """Whether an error's text, with its `storage_reason`, reports a store that does not answer."""
    return any(reason in text for reason in (_UNKNOWN_HOST, _NO_ANSWER))


def ended_keys_reason(text: str) -> str | None:
    """Why a store refuses keys that it accepted before; None for any other error."""
    found = (reason for mark, reason in _ENDED_KEYS if mark in text or reason in text)
    return next(found, None)


_DENIED: Final = "the store denies this operation for these credentials"
_ENDED_KEYS: Final = (
    ("InvalidAccessKeyId", "the store does not know the access key"),
    ("ExpiredToken", "the credentials have expired"),
    ("InvalidToken", "the store does not know the session token"),
)
"""Messages about keys that have expired or were replaced."""
_UNKNOWN_HOST: Final = "its endpoint is not known (DNS)"
_NO_ANSWER: Final = "its endpoint does not answer"
_REASONS: Final = (
    *_ENDED_KEYS,
    ("SignatureDoesNotMatch", "the store does not accept the secret key"),
    ("NoSuchBucket", "there is no such bucket"),
    ("AccessDenied", _DENIED),
    ("403 Forbidden", _DENIED),
    ("dns error", _UNKNOWN_HOST),
    ("operation timed out", f"{_NO_ANSWER} in time"),
    ("TimedOut", f"{_NO_ANSWER} in time"),
    ("error sending request", _NO_ANSWER),
)


def _as_os_error(number: int, error: Exception, path: ObjectPath) -> OSError:
    """One line; messages of the store's client are long, but contain no keys."""
    text = str(error)
    if ended_keys_reason(text) is not None:
        forget_keys(path.access.settings)
    denied = _DENIED if number == errno.EACCES else None
    reason = storage_reason(text) or denied or text.strip().splitlines()[0][:300]
    if number == errno.ENOENT and "NoSuchBucket" not in text:
        reason = os.strerror(errno.ENOENT)
    return OSError(number, reason, str(path))


def _stat_of(meta: Any) -> ObjectStat:  # noqa: ANN401 (obstore's)
    changed_ns = int(meta["last_modified"].timestamp() * 1e9)
    return ObjectStat(meta["size"], changed_ns, meta["e_tag"] or "")
