"""deploy/image: what it copies is there, what it runs can be run; Docker itself is not asked."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kstreams_assets.cli.main import cli
from spark_resources.engine import ENGINES_VARIABLE
from spark_resources.jars import JARS_VARIABLE
from tests.deploy.rendered import CHECKOUT, DEPLOY, pods
from tests.docs.documents import parse_command

FILE = DEPLOY / "image/Dockerfile"
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))


def _instructions() -> list[tuple[str, str]]:
    """Word and text of each, lines joined, comments left out."""
    lines = [li for li in FILE.read_text("utf-8").splitlines() if not li.startswith("#")]
    text = "\n".join(lines).replace("\\\n", " ")
    return [
        (word, rest.strip())
        for line in text.splitlines()
        if line.strip()
        for word, _, rest in [line.partition(" ")]
    ]


def _all(word: str) -> list[str]:
    return [text for found, text in _instructions() if found == word]


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, FILE], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_is_copied_is_there_and_not_ignored() -> None:
    ignored = (FILE.parent / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    let_in = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    sources = {
        source for text in _all("COPY") if "--from" not in text for source in text.split()[:-1]
    }
    assert sources == let_in
    assert all((CHECKOUT / source).exists() for source in sources)


def test_all_that_a_wheel_needs_is_copied() -> None:
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], *wheel["force-include"], PROJECT["project"]["readme"]}
    needed |= {*PROJECT["project"]["license-files"], "pyproject.toml"}
    copied = {source for text in _all("COPY") for source in text.split()[:-1]}
    assert needed <= copied


def test_our_commands_in_it_parse() -> None:
    commands = [
        shlex.split(part)
        for text in _all("RUN")
        for part in text.split("&&")
        if part.strip().startswith("kstreams-assets")
    ]
    assert len(commands) == 2
    for command in commands:
        parse_command(cli, command[1:])


def test_the_jars_of_drills_are_in_it() -> None:
    (fetched,) = [text for text in _all("RUN") if "jars fetch" in text]
    assert fetched.endswith("kstreams-assets jars fetch spark kafka")


def test_it_is_no_root_user_and_the_one_of_the_pods() -> None:
    (user,) = _all("USER")
    (made,) = [text for text in _all("RUN") if "useradd" in text]
    for each in pods():
        number = each.spec["securityContext"]["runAsUser"]
        assert user == f"{number}:{number}"
        assert f"--uid {number} " in made


def test_it_writes_to_tmp_alone_which_every_pod_mounts() -> None:
    words = dict(pair.split("=", 1) for text in _all("ENV") for pair in text.split())
    assert words[JARS_VARIABLE].startswith("/opt/kstreams-assets/")
    writes = {words[name] for name in ("HOME", "TMPDIR", ENGINES_VARIABLE)}
    assert all(place.startswith("/tmp") for place in writes)
    for each in pods():
        (container,) = each.spec["containers"]
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        assert not mounts["/tmp"].get("readOnly")


def test_an_entry_point_passes_signals_on_and_names_no_program() -> None:
    # Dagster's chart and run launcher give `dagster api ...` as arguments.
    assert _all("ENTRYPOINT") == ['["tini", "--"]']


def test_packages_are_installed_by_their_hashes_and_nothing_else_is() -> None:
    installs = [part for text in _all("RUN") for part in text.split("&&") if "pip install" in part]
    *by_hash, ours = installs
    for install, name in zip(by_hash, ("build-requirements", "requirements"), strict=True):
        assert "--require-hashes" in install
        assert install.split()[-1] == f"{name}.txt"
    assert "--no-deps" in ours
    assert ours.split()[-1] == "."
    assert "pip check" in "".join(_all("RUN"))
    locked = (FILE.parent / "requirements.txt").read_text("utf-8").splitlines()
    for text in PROJECT["project"]["optional-dependencies"]["kubernetes"]:
        assert f"{text} \\" in locked


def test_python_and_java_are_ones_that_are_tested() -> None:
    (base,) = _all("ARG")
    version = re.search(r"python:(\d+\.\d+)-", base)
    assert version is not None
    classifiers = PROJECT["project"]["classifiers"]
    assert f"Programming Language :: Python :: {version[1]}" in classifiers
    assert "openjdk-17-jre-headless" in FILE.read_text("utf-8")


@pytest.mark.parametrize("program", ["kubectl"])
def test_programs_that_commands_around_a_restore_start_are_in_it(program: str) -> None:
    extra = PROJECT["project"]["optional-dependencies"]["kubernetes"]
    assert any(text.startswith(f"{program}-cli-bin==") for text in extra)
