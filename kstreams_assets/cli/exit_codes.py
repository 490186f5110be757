"""Exit codes of the command line; 0 means success, every check passed."""

from typing import Final

CHECK_FAILED: Final = 1
ERROR: Final = 2
"""An expected or unexpected error."""
INTERRUPTED: Final = 130
"""Ctrl-C; shells use the same code."""
