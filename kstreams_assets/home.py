"""The home folder of this user; in a container HOME and the entry in passwd may be missing."""

import errno
import os
import pwd
from pathlib import Path
from typing import Final

from kstreams_assets.errors import ConfigurationError

_CACHE: Final = ".cache"
_UNKNOWN: Final = "Could not determine home directory"
"""The message of pathlib, which has no class of its own for this error."""
_UNUSABLE: Final = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR}
_REMEDY: Final = (
    "Set HOME to a folder that this user can write, or name the folders themselves:"
    " KSTREAMS_ASSETS_ENGINES (engines of Spark) and KSTREAMS_ASSETS_JARS (jars)."
)


class NoHomeError(ConfigurationError):
    """This user has no home folder, or cannot write to it."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem, remedy=_REMEDY)


def home() -> Path:
    """The home folder; raises NoHomeError."""
    try:
        return Path.home()
    except RuntimeError:
        raise _none() from None


def user_cache(name: str) -> Path:
    """A folder of the user's cache, which may not exist yet; raises NoHomeError."""
    return home() / _CACHE / "kstreams-assets" / name


def expanded(text: str | os.PathLike[str]) -> Path:
    """Expand a leading `~` to the home folder.

    Raises:
        NoHomeError: It begins with `~`, and this user has no home folder.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        if _UNKNOWN in str(error):
            raise NoHomeError(
                f"The path {str(text)!r} names the home folder. {_problem()}"
            ) from None
        raise


def home_failure(error: BaseException) -> NoHomeError | None:
    """Convert an error that is caused by a missing or foreign home folder.

    Return None for any other error.
    """
    if isinstance(error, RuntimeError) and _UNKNOWN in str(error):
        return _none()
    if isinstance(error, OSError) and error.errno in _UNUSABLE and error.filename is not None:
        path = Path(os.fsdecode(error.filename))
        if _CACHE in path.parts:
            return NoHomeError(
                f"{path} cannot be used by this user (uid {os.getuid()}), whose HOME is"
                f" {os.environ.get('HOME', 'not set')}: {error.strerror}."
            )
    return None


def require_passwd_entry() -> None:
    """Raise ConfigurationError for a user without a passwd entry, whom Spark's Hadoop rejects."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        raise ConfigurationError(
            f"This user (uid {os.getuid()}) has no entry in passwd: Spark does not start for it"
            " (Hadoop refuses users without a name).",
            remedy="Add one when the container starts, such as echo"
            ' "app:x:$(id -u):$(id -g)::/tmp:/bin/sh" >> /etc/passwd, or run as a user that the'
            " image knows (runAsUser), or use another Spark Connect server (`remote`,"
            " KSTREAMS_ASSETS_SPARK_REMOTE).",
        ) from None


def _none() -> NoHomeError:
    return NoHomeError(_problem())


def _problem() -> str:
    return (
        f"This user (uid {os.getuid()}) has no home folder: HOME is not set, and passwd has no"
        " entry for it."
    )
