"""What `kubectl kustomize` makes of deploy/kubernetes, and the containers in it."""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

CHECKOUT = Path(__file__).resolve().parents[2]
DEPLOY = CHECKOUT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
FOLDERS = ("base", "restore", "drill", "monitoring")
KUBECTL = Path(sys.executable).with_name("kubectl")

Manifest = dict[str, Any]


@cache
def render(folder: Path) -> tuple[Manifest, ...]:
    """The manifests of a folder with a kustomization."""
    done = subprocess.run(
        [KUBECTL, "kustomize", folder], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def everything() -> list[Manifest]:
    """All manifests of all folders."""
    return [manifest for name in FOLDERS for manifest in render(KUBERNETES / name)]


def title(manifest: Mapping[str, Any]) -> str:
    """Kind and name."""
    return f"{manifest['kind']}/{manifest['metadata']['name']}"


def one(name: str, manifests: Sequence[Manifest] | None = None) -> Manifest:
    """The manifest of this kind and name, such as `Job/restore`."""
    (found,) = [m for m in manifests or everything() if title(m) == name]
    return found


@dataclass(frozen=True, slots=True)
class Pod:
    """The pod that a manifest makes."""

    owner: str
    spec: Mapping[str, Any]
    labels: Mapping[str, str]

    @property
    def containers(self) -> list[Manifest]:
        """All of them, those that run first too."""
        return [*self.spec.get("initContainers", ()), *self.spec["containers"]]

    @property
    def command(self) -> list[str]:
        """The command line of our container, with its program."""
        (container,) = [c for c in self.spec["containers"] if c["name"] == "kstreams-assets"]
        assert "command" not in container  # it would replace tini
        return container["args"]


def pods(manifests: Sequence[Manifest] | None = None) -> Iterator[Pod]:
    """Every pod that is made."""
    for manifest in manifests or everything():
        spec = manifest.get("spec") or {}
        if manifest["kind"] == "CronJob":
            spec = spec["jobTemplate"]["spec"]
        if "template" in spec:
            template = spec["template"]
            yield Pod(title(manifest), template["spec"], template["metadata"]["labels"])


def pod(owner: str, manifests: Sequence[Manifest] | None = None) -> Pod:
    """The pod of one manifest."""
    (found,) = [each for each in pods(manifests) if each.owner == owner]
    return found
