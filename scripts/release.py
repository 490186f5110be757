"""Steps of a release: `python -m scripts.release --help`.

`prepare` writes the version. The other steps run in `.github/workflows/release.yml`, in the order
of their definition here.
"""

import hashlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from spark_resources.companion import build_companion

CHECKOUT: Final = Path(__file__).resolve().parents[1]
IMAGE: Final = "kstreams-assets"
VERSIONED: Final[Mapping[str, str]] = {
    "pyproject.toml": r'(?m)^version = "(.+)"$',
    "deploy/dagster/values.yaml": r"(?m)^        tag: (.+)$",
    "deploy/helm/kstreams-assets/Chart.yaml": r'(?m)^(?:version: |appVersion: ")([^"\n]+)"?$',
    "deploy/image/Dockerfile": rf"/{IMAGE}:(\S+)",
    "deploy/kubernetes/base/kustomization.yaml": r"(?m)^    newTag: (.+)$",
    "deploy/kubernetes/drill/kustomization.yaml": rf"newName: \S+/{IMAGE}\n    newTag: (.+)\n",
    "deploy/kubernetes/restore/kustomization.yaml": r"(?m)^    newTag: (.+)$",
    "docs/how-to/run-on-kubernetes.md": rf"registry\.example\.com/{IMAGE}:(\S+)",
}
"""Files that name the version, with a pattern whose group matches it."""

_VERSION: Final = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
_BASE: Final = re.compile(r"[^@\s]+@sha256:[0-9a-f]{64}")
_HEADING: Final = re.compile(r"(?m)^## (.+)$")
_UNRELEASED: Final = "Unreleased"


@click.group()
def main() -> None:
    """Prepare and build a release."""


@main.command()
@click.argument("version")
def prepare(version: str) -> None:
    """Write a version into all files that name it, and its heading into CHANGELOG.md."""
    if _VERSION.fullmatch(version) is None:
        raise click.ClickException(f"{version!r} is no version. Use three numbers, as in 0.2.0.")
    changelog = CHECKOUT / "CHANGELOG.md"
    text = changelog.read_text("utf-8")
    if not _section(text, _UNRELEASED):
        raise click.ClickException("CHANGELOG.md has no entry below the heading Unreleased.")
    for name, pattern in VERSIONED.items():
        file = CHECKOUT / name
        file.write_text(_with_version(file.read_text("utf-8"), pattern, version), "utf-8")
    today = datetime.now(tz=UTC).date().isoformat()
    headings = f"## {_UNRELEASED}\n\n## {version} ({today})"
    changelog.write_text(text.replace(f"## {_UNRELEASED}", headings, 1), "utf-8")
    click.echo(f"Commit this, then tag the commit v{version} and push both.")


@main.command()
@click.option("--tag", required=True, help="Tag of the release, such as v0.2.0.")
def check(tag: str) -> None:
    """Check that tag, files and changelog name one version, and that the checkout is clean."""
    wrong = [
        f"{name} names version {found}, not {tag.removeprefix('v')}."
        for name, pattern in VERSIONED.items()
        for found in re.findall(pattern, (CHECKOUT / name).read_text("utf-8"))
        if f"v{found}" != tag
    ]
    if not _section((CHECKOUT / "CHANGELOG.md").read_text("utf-8"), tag.removeprefix("v")):
        wrong.append(f"CHANGELOG.md has no section {tag.removeprefix('v')}.")
    if changed := _output("git", "status", "--porcelain"):
        wrong.append(f"The checkout has uncommitted changes:\n{changed}")
    if wrong:
        raise click.ClickException("\n".join(wrong))


@main.command()
@click.option("--tag", required=True, help="Tag of the release, such as v0.2.0.")
def notes(tag: str) -> None:
    """Print the section of CHANGELOG.md."""
    click.echo(_section((CHECKOUT / "CHANGELOG.md").read_text("utf-8"), tag.removeprefix("v")))


@main.command()
@click.option("--to", "folder", type=click.Path(path_type=Path), required=True)
def wheel(folder: Path) -> None:
    """Build the wheel, with a file SHA256SUMS beside it.

    Timestamps in the wheel are those of the commit, so that the same commit gives the same bytes.
    The wheel contains the jar of the companion.
    """
    build_companion()
    epoch = _output("git", "log", "-1", "--format=%ct")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    _run(*command, "--wheel-dir", str(folder), str(CHECKOUT), SOURCE_DATE_EPOCH=epoch)
    sums = [
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n"
        for file in sorted(folder.glob("*.whl"))
    ]
    (folder / "SHA256SUMS").write_text("".join(sums), "utf-8")


@main.command()
@click.option("--base", required=True, help="Base image with its digest: NAME@sha256:DIGEST.")
@click.option("--repository", required=True, help="Repository of the image, with its registry.")
@click.option("--push", is_flag=True, help="Push the image.")
def image(base: str, repository: str, push: bool) -> None:
    """Build the image on a base that is named by its digest."""
    if _BASE.fullmatch(base) is None:
        raise click.ClickException(
            f"The base image {base!r} has no digest. A tag can point to another image tomorrow."
            " Use NAME@sha256:DIGEST, with the digest that `docker buildx imagetools inspect NAME`"
            " prints."
        )
    pattern = VERSIONED["pyproject.toml"]
    (version,) = re.findall(pattern, (CHECKOUT / "pyproject.toml").read_text("utf-8"))
    name = f"{repository}:{version}"
    labels = {
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.revision": _output("git", "rev-parse", "HEAD"),
        "org.opencontainers.image.base.digest": base.rpartition("@")[2],
    }
    options = [f"--label={key}={value}" for key, value in labels.items()]
    dockerfile = "deploy/image/Dockerfile"
    _run("docker", "build", f"--build-arg=BASE={base}", *options, "-f", dockerfile, "-t", name, ".")
    if push:
        _run("docker", "push", name)
    click.echo(name)


@main.command()
def lock() -> None:
    """Write the hashes of all packages of the image to deploy/image/requirements.txt."""
    folder = CHECKOUT / "deploy/image"
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))
    build = "\n".join(["setuptools", "wheel", *project["build-system"]["requires"]])
    common = ["pip", "compile", "--quiet", "--generate-hashes", "--no-annotate", "--no-header"]
    common += ["--constraints=constraints.txt", "--python-version=3.12", "--universal"]
    for name, options, text in (
        ("requirements.txt", ["pyproject.toml", "--extra=kubernetes"], ""),
        ("build-requirements.txt", ["-"], build),
    ):
        target = folder / name
        _run("uv", *common, f"--output-file={target}", *options, text=text)


def _section(changelog: str, version: str) -> str:
    """Return what stands below the heading of a version; empty without one."""
    for heading in _HEADING.finditer(changelog):
        if heading[1].split(" ")[0] == version:
            following = _HEADING.search(changelog, heading.end())
            return changelog[heading.end() : following.start() if following else None].strip()
    return ""


def _with_version(text: str, pattern: str, version: str) -> str:
    def replaced(match: re.Match[str]) -> str:
        start, end = (position - match.start() for position in match.span(1))
        return match[0][:start] + version + match[0][end:]

    changed, count = re.subn(pattern, replaced, text)
    if not count:
        raise click.ClickException(f"No version was found by {pattern}.")
    return changed


def _run(*command: str, text: str = "", **environment: str) -> None:
    done = subprocess.run(
        command,
        cwd=CHECKOUT,
        env={**os.environ, **environment},
        input=text,
        text=True,
        timeout=3600,
        check=False,
    )
    if done.returncode:
        raise click.ClickException(f"{command[0]} failed with exit code {done.returncode}.")


def _output(*command: str) -> str:
    done = subprocess.run(
        command, cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


if __name__ == "__main__":
    main()
