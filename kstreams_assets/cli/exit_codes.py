"""What the command line's exit code says; 0 is: done, every check passed."""

from typing import Final

CHECK_FAILED: Final = 1
ERROR: Final = 2
"""An error, also an unforeseen one."""
INTERRUPTED: Final = 130
"""Ctrl-C, as shells have it."""
