"""docs/how-to/run-on-kubernetes.md quotes deploy/ as it is, and names what is there."""

import re
import shutil
from pathlib import Path

import pytest

from tests.deploy.rendered import CHECKOUT, DEPLOY, KUBERNETES, everything, one, render
from tests.docs.documents import blocks

PAGE = CHECKOUT / "docs/how-to/run-on-kubernetes.md"
_OF_OTHERS = ("kind: KafkaBackup", "kind: KafkaRestore")
_OVERLAY = "# mine/kustomization.yaml\n"


def _quoted() -> list[str]:
    return [
        block.text
        for block in blocks("text")
        if block.file == PAGE and not block.text.startswith((*_OF_OTHERS, _OVERLAY))
    ]


def test_every_quotation_is_in_a_file() -> None:
    files = [file.read_text("utf-8") for file in sorted(KUBERNETES.rglob("*.yaml"))]
    assert len(_quoted()) == 4
    assert [text for text in _quoted() if not any(text in whole for whole in files)] == []


def test_the_overlay_is_rendered_with_the_users_own(tmp_path: Path) -> None:
    (text,) = [b.text for b in blocks("text") if b.text.startswith(_OVERLAY)]
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "kustomization.yaml").write_text(text, "utf-8")
    for name in ("defs.yaml", "topology.txt"):
        (mine / name).write_text(f"my own {name}", "utf-8")
    found = list(render(mine))
    application = one("ConfigMap/order-processor", found)
    assert application["data"]["defs.yaml"] == "my own defs.yaml"
    assert application["metadata"]["namespace"] == "kafka-backup"
    follower = one("Deployment/kstreams-follower", found)
    image = follower["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image == "registry.mycompany.example/kstreams-assets:0.1.0"


@pytest.mark.parametrize("kind", ["deployment", "deploy", "job"])
def test_what_kubectl_is_asked_for_exists(kind: str) -> None:
    kinds = {"deployment": "Deployment", "deploy": "Deployment", "job": "Job"}
    there = {
        (m["kind"], m["metadata"]["name"], m["metadata"].get("namespace")) for m in everything()
    }
    lines = [line for b in blocks("sh") if b.file == PAGE for line in b.text.splitlines()]
    named = [
        (kinds[kind], name, "kafka-backup")
        for line in lines
        if "-n kafka-backup" in line
        for name in re.findall(rf"\b{kind}/([\w-]+)", line)
    ]
    assert named
    assert set(named) <= there


def test_folders_that_it_names_exist() -> None:
    named = set(re.findall(r"(?<![\w/])deploy/[\w/-]+(?:\.\w+)?", PAGE.read_text("utf-8")))
    named -= {name for name in named if name.startswith("deploy/kstreams")}  # of kubectl exec
    assert {f"deploy/kubernetes/{folder.name}" for folder in KUBERNETES.iterdir()} <= named
    assert [name for name in named if not (CHECKOUT / name).exists()] == []
