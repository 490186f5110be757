"""Functions in a process of their own, where they may kill it.

The processes are forks of one that has imported what they need: an import takes a second.
"""

import multiprocessing
from collections.abc import Callable
from typing import Any

_TIMEOUT_S = 120.0
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["tests.upkeep.copy_process", "kstreams_assets.upkeep.expire"])


def exit_code_of(function: Callable[..., Any], *arguments: object) -> int:
    """Call the function in a process of its own; the negative number of a signal that ended it."""
    process = _forks.Process(target=function, args=arguments)
    process.start()
    process.join(_TIMEOUT_S)
    code = process.exitcode
    process.kill()
    assert code is not None, f"{function} did not end"
    return code
