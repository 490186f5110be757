"""`python -m bench [commands|windows|backup|points|ledger|cuts|restore|ktables|drill]`.

All of them without an argument.
"""

import sys

from bench import backup, commands, cuts, drill, ktables, ledger, points, restore, windows

_BENCHMARKS = {
    "commands": commands.main,
    "windows": windows.main,
    "backup": backup.main,
    "points": points.main,
    "ledger": ledger.main,
    "cuts": cuts.main,
    "restore": restore.main,
    "ktables": ktables.main,
    "drill": drill.main,
}


def main() -> int:
    """Run the benchmarks that are named, or all."""
    names = sys.argv[1:] or list(_BENCHMARKS)
    unknown = [name for name in names if name not in _BENCHMARKS]
    if unknown:
        print(f"Unknown: {', '.join(unknown)}. There are: {', '.join(_BENCHMARKS)}.")
        return 2
    for name in names:
        print(f"== {name}", flush=True)
        _BENCHMARKS[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
