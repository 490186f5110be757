"""Folders of predictable names that must be this user's alone, such as those below /tmp."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kstreams_assets.errors import ConfigurationError

_OF_OTHERS: Final = 0o077
"""Whoever may read a file can lock it, and keep its owner waiting."""


def private_folder(candidates: Iterable[Path], *, purpose: str) -> Path:
    """Make and return the first of these folders that is, or can be made, this user's alone.

    A folder that another user has made first is never used: not owned by this user, open to others,
    or a symbolic link.

    Raises:
        ConfigurationError: None of them can be used; the message says why, and what to do.
    """
    problems: list[str] = []
    for folder in candidates:
        problem = _made(folder) or why_not_private(folder)
        if problem is None:
            return folder
        problems.append(f"{folder} {problem}")
    raise ConfigurationError(
        f"There is no safe folder for {purpose}: {'; '.join(problems)}.",
        remedy="Have the folder removed by its owner or by root, or set TMPDIR to a folder that"
        " belongs to this user alone.",
    )


def why_not_private(folder: Path) -> str | None:
    """Why a folder is not this user's alone, as a predicate; None where it is."""
    try:
        found = folder.lstat()
    except OSError as error:
        return f"cannot be looked at ({error.strerror})"
    if stat.S_ISLNK(found.st_mode):
        return "is a symbolic link"
    if not stat.S_ISDIR(found.st_mode):
        return "is no folder"
    if found.st_uid != os.getuid():
        return f"belongs to another user (uid {found.st_uid})"
    if found.st_mode & _OF_OTHERS:
        return f"is open to other users (mode {stat.S_IMODE(found.st_mode):04o})"
    return None


def _made(folder: Path) -> str | None:
    """Make it, with folders above it; why that was not possible."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return None
    except OSError as error:
        return f"cannot be made ({error.strerror})"
    return None


def keep_private() -> None:
    """From now on only the owner may read what this process writes.

    A warehouse holds production records. Folders are made with mode 0700, files with 0600; what is
    there already is not changed.
    """
    os.umask(0o077)
