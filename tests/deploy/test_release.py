"""scripts/release.py and the workflow that calls it: versions, notes, wheel, image, hashes."""

import hashlib
import re
import shlex
import shutil
import subprocess
import tomllib
import zipfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner, Result
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts import release
from tests.deploy.rendered import CHECKOUT, DEPLOY
from tests.docs.documents import parse_command

WORKFLOW = CHECKOUT / ".github/workflows/release.yml"
DIGEST = "sha256:" + "0123456789abcdef" * 4
_IN_A_WHEEL_NO_HOST = re.compile(r"https?://[^\s\"'}]+")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the files that a release reads and writes."""
    root = tmp_path / "checkout"
    for name in (*release.VERSIONED, "CHANGELOG.md"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / name, root / name)
    changelog = "# Changelog\n\n## Unreleased\n\n- A thing.\n\n## 0.1.0\n\n- The first.\n"
    (root / "CHANGELOG.md").write_text(changelog, "utf-8")
    _git(root, "init", "--quiet")
    _commit(root)
    monkeypatch.setattr(release, "CHECKOUT", root)
    return root


def _git(root: Path, *words: str) -> None:
    named = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
    subprocess.run(["git", *named, *words], cwd=root, check=True, timeout=60)


def _commit(root: Path) -> None:
    _git(root, "add", "--all")
    _git(root, "commit", "--quiet", "--message", "All of it")


def _run(*words: str) -> Result:
    return CliRunner().invoke(release.main, words)


def test_a_prepared_version_is_everywhere_and_passes_the_check(checkout: Path) -> None:
    assert _run("prepare", "9.8.7").exit_code == 0
    for name in release.VERSIONED:
        text = (checkout / name).read_text("utf-8")
        assert "9.8.7" in text
        assert "0.1.0" not in re.sub(r"(?m)^## .*$", "", text), name
    changelog = (checkout / "CHANGELOG.md").read_text("utf-8")
    assert re.search(r"## Unreleased\n\n## 9\.8\.7 \(20\d\d-\d\d-\d\d\)\n\n- A thing\.", changelog)
    assert "uncommitted changes" in _run("check", "--tag", "v9.8.7").output
    _commit(checkout)
    assert _run("check", "--tag", "v9.8.7").exit_code == 0
    assert _run("notes", "--tag", "v9.8.7").output == "- A thing.\n"


def test_every_file_of_deploy_that_names_the_version_is_known() -> None:
    (version,) = re.findall(
        release.VERSIONED["pyproject.toml"], (CHECKOUT / "pyproject.toml").read_text("utf-8")
    )
    naming = {
        str(file.relative_to(CHECKOUT))
        for folder in (DEPLOY, CHECKOUT / "docs/how-to")
        for file in folder.rglob("*")
        if file.is_file()
        and "requirements" not in file.name
        and re.search(rf"(?<![\d.]){re.escape(version)}(?![\d.])", file.read_text("utf-8"))
    }
    assert naming == release.VERSIONED.keys() - {"pyproject.toml"}


def test_a_tag_of_another_version_is_refused(checkout: Path) -> None:
    del checkout
    found = _run("check", "--tag", "v9.8.7")
    assert found.exit_code == 1
    assert "pyproject.toml names version 0.1.0, not 9.8.7." in found.output
    assert "CHANGELOG.md has no section 9.8.7." in found.output


def test_a_release_without_changes_or_number_is_refused(checkout: Path) -> None:
    assert "is no version" in _run("prepare", "next").output
    text = (checkout / "CHANGELOG.md").read_text("utf-8").replace("- A thing.\n", "")
    (checkout / "CHANGELOG.md").write_text(text, "utf-8")
    assert "no entry below the heading Unreleased" in _run("prepare", "9.8.7").output


@pytest.mark.parametrize(
    "base", ["python:3.12-slim-bookworm", "python@sha256:1234", f"a b@{DIGEST}", f"@{DIGEST}", ""]
)
def test_a_base_without_digest_is_refused_before_docker_is_called(base: str, docker: Path) -> None:
    found = _run("image", "--base", base, "--repository", "registry.example.com/kstreams-assets")
    assert found.exit_code == 1
    assert "has no digest" in found.output
    assert not docker.exists()


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of this name that writes its arguments into a file; the file."""
    asked = tmp_path / "asked"
    program = tmp_path / "bin/docker"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {asked}\n', "utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    return asked


def test_the_image_is_built_on_the_digest_and_pushed(docker: Path) -> None:
    base, repository = f"python:3.12-slim-bookworm@{DIGEST}", "registry.example.com/our/image"
    found = _run("image", "--base", base, "--repository", repository, "--push")
    assert found.exit_code == 0, found.output
    build, push = docker.read_text("utf-8").splitlines()
    assert f"--build-arg=BASE={base} " in build
    assert f"--label=org.opencontainers.image.base.digest={DIGEST} " in build
    assert build.endswith(f"-f deploy/image/Dockerfile -t {repository}:0.1.0 .")
    assert push == f"push {repository}:0.1.0"
    assert found.output == f"{repository}:0.1.0\n"


def test_the_same_commit_gives_the_same_wheel(tmp_path: Path) -> None:
    builds = [tmp_path / "one", tmp_path / "other"]
    for folder in builds:
        assert _run("wheel", "--to", str(folder)).exit_code == 0
    one, other = [(folder / "SHA256SUMS").read_text("utf-8") for folder in builds]
    assert one == other
    digest, name = one.split()
    file = builds[0] / name
    assert hashlib.sha256(file.read_bytes()).hexdigest() == digest
    with zipfile.ZipFile(file) as wheel:
        names = wheel.namelist()
    assert "spark_resources/jar_lists/jars.lock" in names
    assert "spark_resources/kstreams-assets-companion.jar" in names


def _locked(name: str) -> dict[str, tuple[str, int]]:
    """Version and number of hashes of each package that a file names for the image's platform."""
    text = (DEPLOY / "image" / name).read_text("utf-8").replace("\\\n", " ")
    found: dict[str, tuple[str, int]] = {}
    for line in text.splitlines():
        pin, *hashes = line.split("--hash=")
        one = Requirement(pin.strip())
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each.strip()) for each in hashes)
        if one.marker is None or one.marker.evaluate():
            version = str(one.specifier).removeprefix("==")
            found[canonicalize_name(one.name)] = (version, len(hashes))
    return found


def test_every_package_of_the_image_is_pinned_by_its_hash() -> None:
    """After a change of dependencies: `make lock`."""
    lines = (CHECKOUT / "constraints.txt").read_text("utf-8").splitlines()
    pins = [line.partition("==") for line in lines if not line.startswith("#")]
    pinned = {str(canonicalize_name(name)): version for name, _, version in pins}
    locked = _locked("requirements.txt")
    versions = {name: version for name, (version, _) in locked.items()}
    assert versions == {name: pinned.get(name) for name in versions}
    for name, (version, hashes) in {**locked, **_locked("build-requirements.txt")}.items():
        assert version
        assert hashes, name
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["project"]
    assert _needed(project["dependencies"]) <= locked.keys()


def _needed(requirements: Sequence[str]) -> set[str]:
    """The distributions that these requirements name, with all that they need at run time."""
    found: set[str] = set()
    environment = {**default_environment(), "extra": ""}
    todo = [*requirements]
    while todo:
        one = Requirement(todo.pop())
        name = canonicalize_name(one.name)
        if name not in found and (one.marker is None or one.marker.evaluate(environment)):
            found.add(name)
            todo += metadata.requires(name) or ()
    return found


def _steps() -> list[str]:
    jobs = yaml.safe_load(WORKFLOW.read_text("utf-8"))["jobs"]
    return [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]


def test_the_workflow_calls_commands_that_exist() -> None:
    ours, targets = [], []
    for line in "\n".join(_steps()).splitlines():
        words = shlex.split(line.partition(" > ")[0])
        if "scripts.release" in words:
            ours.append(words[words.index("scripts.release") + 1 :])
        elif words[0] == "make":
            targets += words[1:]
    assert [words[0] for words in ours] == ["check", "wheel", "image", "image", "notes"]
    for words in ours:
        parse_command(release.main, words)
    with pytest.raises(click.NoSuchOption):
        parse_command(release.main, [*ours[0], "--not-an-option"])
    makefile = (CHECKOUT / "Makefile").read_text("utf-8")
    assert {"setup", "check", "test"} == set(targets)
    assert all(re.search(rf"(?m)^{target}:", makefile) for target in targets)


def test_addresses_and_secrets_are_variables_of_the_repository() -> None:
    text = WORKFLOW.read_text("utf-8")
    environment = yaml.safe_load(text)["jobs"]["release"]["env"]
    for name in ("WHEEL_REGISTRY", "IMAGE_REGISTRY", "IMAGE_REPOSITORY", "BASE_IMAGE"):
        assert environment[name] == f"${{{{ vars.{name} }}}}"
        assert any(f'"${name}"' in step for step in _steps())
    assert _IN_A_WHEEL_NO_HOST.search(text) is None
    assert re.findall(r"uses: (\S+)", text) == [
        found for found in re.findall(r"uses: (\S+)", text) if re.search(r"@[0-9a-f]{40}$", found)
    ]
