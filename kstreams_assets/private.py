"""Folders with predictable names that must belong to this user alone, such as those in /tmp."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kstreams_assets.errors import ConfigurationError

_OF_OTHERS: Final = 0o077
"""Any user who can read a file can lock it and block its owner."""


def private_folder(candidates: Iterable[Path], *, purpose: str) -> Path:
    """Make and return the first of these folders that belongs, or can belong, to this user alone.

    A folder that another user made first is never used: one with another owner, one that is open to
    others, or a symbolic link.

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
    """The reason why a folder is not this user's alone, as a predicate; None if it is."""
    try:
        found = folder.lstat()
    except OSError as error:
        return f"cannot be inspected ({error.strerror})"
    if stat.S_ISLNK(found.st_mode):
        return "is a symbolic link"
    if not stat.S_ISDIR(found.st_mode):
        return "is not a folder"
    if found.st_uid != os.getuid():
        return f"belongs to another user (uid {found.st_uid})"
    if found.st_mode & _OF_OTHERS:
        return f"is open to other users (mode {stat.S_IMODE(found.st_mode):04o})"
    return None


def _made(folder: Path) -> str | None:
    """Make the folder and its parents; return the reason if that fails."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return None
    except OSError as error:
        return f"cannot be created ({error.strerror})"
    return None


def keep_private() -> None:
    """From now on only the owner can read the files that this process writes.

    A warehouse contains production records. New folders get mode 0700, new files 0600; existing
    ones are not changed.
    """
    os.umask(0o077)
