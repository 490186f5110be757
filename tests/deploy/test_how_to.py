"""docs/how-to/run-on-kubernetes.md quotes deploy/ as it is, and names what is there."""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from kstreams_assets.cli.main import cli
from tests.deploy.rendered import (
    CHECKOUT,
    DEPLOY,
    KUBERNETES,
    Manifest,
    everything,
    one,
    pod,
    pods,
    render,
)
from tests.docs.documents import blocks, parse_command

PAGE = CHECKOUT / "docs/how-to/run-on-kubernetes.md"
_OF_OTHERS = ("kind: KafkaBackup", "kind: KafkaRestore")
_OF_A_USER = re.compile(r"# (mine[\w-]*)/kustomization\.yaml\n")
_VALUES = "# deploy/dagster/values.yaml\n"
_OPERATION = "# one more operation of the patch\n"


def _quoted() -> list[str]:
    return [
        block.text
        for block in blocks("text")
        if block.file == PAGE
        and not block.text.startswith((*_OF_OTHERS, _VALUES, _OPERATION))
        and not _OF_A_USER.match(block.text)
    ]


def _overlays() -> dict[str, str]:
    """The overlays of a user, by folder."""
    texts = [block.text for block in blocks("text") if block.file == PAGE]
    return {match[1]: text for text in texts if (match := _OF_A_USER.match(text))}


@pytest.fixture(scope="module")
def overlaid(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[Manifest]]:
    """The manifests of each overlay, written as the page says."""
    folder = tmp_path_factory.mktemp("user")
    shutil.copytree(DEPLOY, folder / "deploy")
    for name, text in _overlays().items():
        (folder / name).mkdir()
        (folder / name / "kustomization.yaml").write_text(text, "utf-8")
    for name in ("defs.yaml", "topology.txt"):
        (folder / "mine" / name).write_text(f"my own {name}", "utf-8")
    return {name: list(render(folder / name)) for name in _overlays()}


def test_every_quotation_is_in_a_file() -> None:
    files = [file.read_text("utf-8") for file in sorted(KUBERNETES.rglob("*.yaml"))]
    assert len(_quoted()) == 4
    assert [text for text in _quoted() if not any(text in whole for whole in files)] == []


def test_the_overlay_is_rendered_with_the_users_own(
    overlaid: Mapping[str, list[Manifest]],
) -> None:
    found = overlaid["mine"]
    application = one("ConfigMap/order-processor", found)
    assert application["data"]["defs.yaml"] == "my own defs.yaml"
    assert application["metadata"]["namespace"] == "kafka-backup"
    settings = one("ConfigMap/kstreams-assets", found)["data"]
    assert settings["AWS_REGION"] == "eu-central-1"
    assert settings.keys() == one("ConfigMap/kstreams-assets")["data"].keys()


@pytest.mark.parametrize("name", _overlays())
def test_an_overlay_is_valid_and_has_the_users_images(
    name: str, overlaid: Mapping[str, list[Manifest]]
) -> None:
    for manifest in overlaid[name]:
        if not manifest["apiVersion"].startswith("monitoring.coreos.com/"):
            kubernetes_validate.validate(manifest, "1.37.0", strict=True)
    for each in pods(overlaid[name]):
        parse_command(cli, each.command[1:])
        images = [container["image"] for container in each.containers]
        assert all(image.startswith("registry.mycompany.example/") for image in images)


def test_the_overlay_of_a_restore_scales_the_deployment_that_its_role_permits(
    overlaid: Mapping[str, list[Manifest]],
) -> None:
    found = overlaid["mine-restore"]
    command = pod("Job/restore-order-processor", found).command
    assert len(command) == len(pod("Job/restore-order-processor").command)
    options = dict(word.split("=", 1) for word in command if word.startswith("--"))
    assert options["--target"] == "dr"
    for name in ("before", "after"):
        assert " deployment/payments --namespace=finance " in options[f"--{name}-command"]
    role = one("Role/scale-order-processor", found)
    assert {rule["resourceNames"][0] for rule in role["rules"]} == {"payments"}
    binding = one("RoleBinding/scale-order-processor", found)
    assert {one["metadata"]["namespace"] for one in (role, binding)} == {"finance"}
    account = one("ServiceAccount/kstreams-restore", found)
    backup = one("ServiceAccount/kstreams-assets", overlaid["mine"])
    assert account["metadata"]["annotations"] == backup["metadata"]["annotations"]


def test_an_option_is_added_to_the_restore(tmp_path: Path) -> None:
    (operation,) = [b.text for b in blocks("text") if b.text.startswith(_OPERATION)]
    option = operation.removeprefix(_OPERATION)
    before = "  - target: {kind: Role,"
    text = _overlays()["mine-restore"].replace(before, option + before, 1)
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    (tmp_path / "mine-restore").mkdir()
    (tmp_path / "mine-restore/kustomization.yaml").write_text(text, "utf-8")
    command = pod("Job/restore-order-processor", render(tmp_path / "mine-restore")).command
    assert command[-1] == yaml.safe_load(option)[0]["value"]
    parse_command(cli, command[1:])


def test_the_jar_of_the_overlay_is_where_a_drill_looks_for_it(
    overlaid: Mapping[str, list[Manifest]],
) -> None:
    (copies,) = pod("Job/drill-order-processor", overlaid["mine-drill"]).spec["initContainers"]
    assert copies["command"][1] == "/app/payments.jar"
    assert f"`{copies['command'][2]}`" in PAGE.read_text("utf-8")


def test_mounts_of_a_further_application_in_dagster_are_like_those_of_the_first() -> None:
    (text,) = [b.text for b in blocks("text") if b.text.startswith(_VALUES)]
    further = yaml.safe_load(text)
    values = yaml.safe_load((DEPLOY / "dagster/values.yaml").read_text("utf-8"))
    (first,) = values["dagster-user-deployments"]["deployments"]
    mounts = yaml.safe_dump(further["volumeMounts"]).replace("payments", "order-processor")
    there = [m for m in first["volumeMounts"] if m["name"] == "application"]
    assert yaml.safe_load(mounts.replace("name: order-processor", "name: application")) == there
    assert further["volumes"] == [{"name": "payments", "configMap": {"name": "payments"}}]


@pytest.mark.parametrize("kind", ["deployment", "deploy", "job"])
def test_what_kubectl_is_asked_for_exists(
    kind: str, overlaid: Mapping[str, list[Manifest]]
) -> None:
    kinds = {"deployment": "Deployment", "deploy": "Deployment", "job": "Job"}
    there = {
        (m["kind"], m["metadata"]["name"], m["metadata"].get("namespace"))
        for m in (*everything(), *overlaid["mine-command"])
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
