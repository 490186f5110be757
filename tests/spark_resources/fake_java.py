"""A program that answers like `java`, for tests of what looks for Java and runs Ivy."""

from pathlib import Path


def fake_java(home: Path, *, version: str = "17", run: str = "exit 1", javac: bool = True) -> Path:
    """Make a Java home whose `java` tells this version; for anything else it does `run` (sh)."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = -XshowSettings:properties ]; then\n'
        f"  echo '    java.home = {home}' >&2\n"
        f"  echo '    java.specification.version = {version}' >&2\n"
        "  exit 0\n"
        "fi\n"
        f"{run}\n"
    )
    program.chmod(0o755)
    if javac:
        (program.parent / "javac").touch()
    return program
