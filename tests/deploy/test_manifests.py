"""deploy/kubernetes: what it renders to is valid, fits together, and runs commands that exist."""

import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml

from kstreams_assets.app_file.read import load_settings
from kstreams_assets.cli.main import cli
from tests.deploy.api_server import Deployment, serve
from tests.deploy.rendered import (
    CHECKOUT,
    DEPLOY,
    FOLDERS,
    KUBECTL,
    KUBERNETES,
    Manifest,
    Pod,
    everything,
    one,
    pod,
    pods,
    render,
    title,
)
from tests.docs.documents import parse_command

VERSIONS = ("1.31.0", "1.34.0", "1.37.0")
_OF_THE_OPERATOR = "monitoring.coreos.com/"

OVERLAY = """\
resources: [{resources}]
components: [../deploy/kubernetes/pvc]
"""


def _validated(manifest: Manifest, version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_is_as_the_schemas_of_kubernetes_want_it(version: str) -> None:
    ours = [m for m in everything() if not m["apiVersion"].startswith(_OF_THE_OPERATOR)]
    assert len(ours) >= 10
    for manifest in ours:
        _validated(manifest, version)


def test_a_manifest_with_an_unknown_field_would_not_pass() -> None:
    wrong = yaml.safe_load(yaml.safe_dump(one("Deployment/kstreams-follower")))
    wrong["spec"]["template"]["spec"]["containers"][0]["readOnlyRoot"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        _validated(wrong, VERSIONS[-1])


def test_every_folder_is_rendered() -> None:
    folders = {file.parent.name for file in KUBERNETES.rglob("kustomization.yaml")}
    assert folders == {*FOLDERS, "pvc"}


def test_every_file_is_used(tmp_path: Path) -> None:
    for folder in KUBERNETES.iterdir():
        told = yaml.safe_load((folder / "kustomization.yaml").read_text("utf-8"))
        named = {*told.get("resources", ())}
        for made in told.get("configMapGenerator", ()):
            named |= {*made.get("files", ()), *made.get("envs", ())}
        assert {file.name for file in folder.iterdir()} == {*named, "kustomization.yaml"}


def test_names_are_there_once() -> None:
    names = [(title(m), m["metadata"].get("namespace")) for m in everything()]
    assert len(names) == len(set(names))


class TestPods:
    """Each runs without rights that it does not need."""

    @pytest.fixture(params=[each.owner for each in pods()])
    def each(self, request: pytest.FixtureRequest) -> Pod:
        return pod(request.param)

    def test_as_no_root_user_with_a_read_only_root(self, each: Pod) -> None:
        assert each.spec["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "runAsGroup": 10001,
            "fsGroup": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        for container in each.containers:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}
            assert "memory" in container["resources"]["limits"]

    def test_with_a_token_only_where_it_scales_the_application(self, each: Pod) -> None:
        account = one(f"ServiceAccount/{each.spec['serviceAccountName']}")
        has_token = account.get("automountServiceAccountToken", True)
        assert has_token is (each.owner == "Job/restore-order-processor")

    def test_every_image_is_one_that_a_user_sets(self, each: Pod) -> None:
        images = [container["image"] for container in each.containers]
        assert all(image.startswith("registry.example.com/") for image in images)

    def test_every_volume_is_there(self, each: Pod) -> None:
        volumes = {volume["name"]: volume for volume in each.spec["volumes"]}
        mounted = {m["name"] for c in each.containers for m in c["volumeMounts"]}
        assert mounted == volumes.keys()
        made = {m["metadata"]["name"] for m in everything() if m["kind"] == "ConfigMap"}
        named = {v["configMap"]["name"] for v in volumes.values() if "configMap" in v}
        for container in each.spec["containers"]:
            of_environment = container["envFrom"]
            named |= {s["configMapRef"]["name"] for s in of_environment if "configMapRef" in s}
            secrets = [s["secretRef"] for s in of_environment if "secretRef" in s]
            secrets += [v["secret"] for v in volumes.values() if "secret" in v]
            assert all(secret["optional"] for secret in secrets)  # made by the user, if at all
        assert named
        assert named <= made


def test_no_secret_stands_anywhere() -> None:
    assert [title(m) for m in everything() if m["kind"] == "Secret"] == []
    for each in pods():
        for container in each.containers:
            assert "env" not in container


class TestCommands:
    """Each command line is one of ours."""

    @pytest.fixture(params=[each.owner for each in pods()])
    def command(self, request: pytest.FixtureRequest) -> list[str]:
        return pod(request.param).command

    def test_it_parses(self, command: list[str], tmp_path: Path) -> None:
        assert command[0] == "kstreams-assets"
        parse_command(cli, command[1:])

    def test_what_it_reads_is_mounted(self, command: list[str]) -> None:
        application = one("ConfigMap/order-processor")["data"]
        text = " ".join(command).replace("=", " ")
        assert "--app /etc/kstreams-assets/defs.yaml" in text
        assert application.keys() == {"defs.yaml", "topology.txt"}

    def test_an_option_that_is_not_there_would_not_parse(self, command: list[str]) -> None:
        with pytest.raises(click.NoSuchOption):
            parse_command(cli, [*command[1:], "--not-an-option"])


def test_the_application_is_one_that_loads(tmp_path: Path) -> None:
    for name, text in one("ConfigMap/order-processor")["data"].items():
        (tmp_path / name).write_text(text, "utf-8")
    settings = load_settings(tmp_path / "defs.yaml", warehouse=str(tmp_path / "warehouse"))
    assert settings.application_id == "order-processor"
    assert settings.drill.command[:2] == ("java", "-jar")
    assert {topic.name for topic in settings.topics} > {"orders", "customer-totals"}
    told = yaml.safe_load((tmp_path / "defs.yaml").read_text("utf-8"))
    assert told["attributes"]["warehouse"].startswith("s3://")


def test_the_jar_of_a_drill_is_where_its_command_looks_for_it() -> None:
    drill = pod("Job/drill-order-processor")
    (copies,) = drill.spec["initContainers"]
    told = yaml.safe_load(one("ConfigMap/order-processor")["data"]["defs.yaml"])
    jar = told["attributes"]["drill"]["command"][2]
    assert copies["command"][-1] == jar
    mounts = [c["volumeMounts"] for c in drill.containers]
    places = [m["mountPath"] for of_one in mounts for m in of_one if m["name"] == "jar"]
    assert places == [str(Path(jar).parent)] * 2


def test_the_follower_is_one_process_and_is_not_restarted_because_it_is_behind() -> None:
    spec = one("Deployment/kstreams-follower")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    (container,) = spec["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/health"
    # Its port is open also when nothing goes on any more.
    assert container["livenessProbe"]["httpGet"]["path"] == "/live"
    port = container["ports"][0]["containerPort"]
    assert f"0.0.0.0:{port}" in container["args"]
    service = one("Service/kstreams-follower")["spec"]
    assert service["selector"].items() <= spec["template"]["metadata"]["labels"].items()
    assert service["ports"][0] == {"name": "metrics", "port": port, "targetPort": "metrics"}


def test_a_red_check_of_a_backup_is_not_tried_until_it_is_green() -> None:
    cron = one("CronJob/kstreams-backup")["spec"]
    assert cron["concurrencyPolicy"] == "Forbid"  # the schema takes any word
    job = cron["jobTemplate"]["spec"]
    first = job["podFailurePolicy"]["rules"][0]
    assert first["action"] == "FailJob"
    assert first["onExitCodes"]["values"] == [1]
    assert first["onExitCodes"]["containerName"] == "kstreams-assets"


def test_a_failed_restore_or_drill_is_not_tried_blindly() -> None:
    for name in ("restore", "drill"):
        spec = one(f"Job/{name}-order-processor")["spec"]
        assert spec["backoffLimit"] == 0
        assert spec["template"]["spec"]["restartPolicy"] == "Never"


class TestNetwork:
    """Who may connect to which pod, as the NetworkPolicies say."""

    @pytest.mark.parametrize("owner", [each.owner for each in pods()])
    def test_nobody_but_prometheus_may_connect_to_a_pod(self, owner: str) -> None:
        ours = pod(owner)
        of_follower = owner == "Deployment/kstreams-follower"
        monitoring = {"kubernetes.io/metadata.name": "monitoring"}
        port = one("Service/kstreams-follower")["spec"]["ports"][0]["port"]
        assert _may_connect(ours, monitoring, port) is of_follower
        for namespace in ("default", "kafka-backup", "shop"):
            assert not _may_connect(ours, {"kubernetes.io/metadata.name": namespace}, port)
        assert not _may_connect(ours, {}, port)
        assert not any(_may_connect(ours, monitoring, other) for other in (22, 4040, 15002))

    def test_the_port_is_the_one_that_the_follower_listens_on(self) -> None:
        follower = pod("Deployment/kstreams-follower")
        listened = follower.command[follower.command.index("--listen") + 1]
        (rule,) = one("NetworkPolicy/kstreams-follower")["spec"]["ingress"]
        (port,) = rule["ports"]
        assert listened.rpartition(":")[2] == str(port["port"])

    def test_a_namespace_with_dagster_in_it_is_not_cut_off(self) -> None:
        for policy in _policies():
            assert policy["metadata"]["namespace"] == "kafka-backup"
            assert policy["spec"]["podSelector"]["matchLabels"]  # none of others
            assert policy["spec"]["policyTypes"] == ["Ingress"]  # they reach Kafka and the bucket


def _policies() -> list[Manifest]:
    return [m for m in everything() if m["kind"] == "NetworkPolicy"]


def _may_connect(to: Pod, namespace: Mapping[str, str], port: int) -> bool:
    """Whether a pod in a namespace with these labels may, as Kubernetes adds policies up."""
    chosen = [
        policy["spec"]
        for policy in _policies()
        if policy["spec"]["podSelector"]["matchLabels"].items() <= to.labels.items()
    ]
    if not chosen:
        return True
    return any(
        peer["namespaceSelector"]["matchLabels"].items() <= namespace.items()
        for spec in chosen
        for rule in spec.get("ingress", ())
        if {"protocol": "TCP", "port": port} in rule["ports"]
        for peer in rule["from"]
    )


class TestCommandsAroundARestore:
    """What `kubectl` is asked to do, and may."""

    def test_the_restore_ends_itself_before_the_job_could_cut_off_a_command(self) -> None:
        command = pod("Job/restore-order-processor").command
        options = dict(word.split("=", 1) for word in command if word.startswith("--"))
        deadline_s, command_s = (int(options[f"--{n}"]) for n in ("deadline", "command-timeout"))
        spec = one("Job/restore-order-processor")["spec"]
        assert "activeDeadlineSeconds" not in spec["template"]["spec"]
        # Two commands, members that leave, the commit, and half an hour until the pod runs.
        assert spec["activeDeadlineSeconds"] >= deadline_s + 3 * command_s + 300 + 1800

    @pytest.fixture
    def asked(self) -> Mapping[str, str]:
        command = pod("Job/restore-order-processor").command
        options = dict(word.split("=", 1) for word in command if word.startswith("--"))
        return {name: options[f"--{name}-command"] for name in ("before", "after")}

    def test_they_scale_the_application_with_the_rights_they_have(
        self, asked: Mapping[str, str], tmp_path: Path
    ) -> None:
        deployment = Deployment(replicas=5)
        replicas = []
        with serve(deployment, tmp_path) as config:
            for name in ("before", "after"):
                program, *arguments = shlex.split(asked[name])
                assert program == "kubectl"
                done = subprocess.run(
                    [KUBECTL, *arguments],
                    env={"KUBECONFIG": str(config), "HOME": str(tmp_path)},
                    capture_output=True,
                    text=True,
                    timeout=120,
                    check=False,
                )
                assert done.returncode == 0, done.stderr
                replicas.append(deployment.replicas)
        assert replicas == [0, 3]
        needed = {*deployment.asked}
        assert {resource for _, resource in needed} >= {"deployments/scale"}
        role = one("Role/scale-order-processor")
        assert role["metadata"]["namespace"] == "shop"
        allowed = {
            (verb, resource)
            for rule in role["rules"]
            if rule["apiGroups"] == ["apps"] and rule["resourceNames"] == ["order-processor"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
        assert needed <= allowed

    def test_the_rights_are_those_of_the_restore(self) -> None:
        binding = one("RoleBinding/scale-order-processor")
        account = pod("Job/restore-order-processor").spec["serviceAccountName"]
        assert [s["name"] for s in binding["subjects"]] == [account]
        assert binding["roleRef"]["name"] == "scale-order-processor"
        assert binding["metadata"]["namespace"] == "shop"


class TestVolume:
    """The warehouse on a volume, as an overlay adds it."""

    @pytest.fixture
    def overlaid(self, tmp_path: Path) -> list[Manifest]:
        shutil.copytree(DEPLOY, tmp_path / "deploy")
        (tmp_path / "mine").mkdir()
        names = ", ".join(f"../deploy/kubernetes/{name}" for name in ("base", "restore", "drill"))
        told = tmp_path / "mine/kustomization.yaml"
        told.write_text(OVERLAY.format(resources=names), "utf-8")
        return list(render(tmp_path / "mine"))

    def test_every_command_writes_there(self, overlaid: list[Manifest]) -> None:
        for each in pods(overlaid):
            assert each.command[-1] == "--warehouse=/warehouse"
            parse_command(cli, each.command[1:])
            (container,) = each.spec["containers"]
            assert {"name": "warehouse", "mountPath": "/warehouse"} in container["volumeMounts"]
            claim = {"claimName": "kstreams-warehouse"}
            assert {"name": "warehouse", "persistentVolumeClaim": claim} in each.spec["volumes"]
        assert len(list(pods(overlaid))) == 4

    def test_it_is_valid_and_of_one_node(self, overlaid: list[Manifest]) -> None:
        for manifest in overlaid:
            _validated(manifest, VERSIONS[-1])
        claim = one("PersistentVolumeClaim/kstreams-warehouse", overlaid)
        assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]


def _leaves(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [leaf for each in value.values() for leaf in _leaves(each)]
    if isinstance(value, list):
        return [leaf for each in value for leaf in _leaves(each)]
    return [str(value)]


def test_the_version_of_the_image_is_that_of_the_package() -> None:
    text = (CHECKOUT / "pyproject.toml").read_text("utf-8")
    images = {
        leaf
        for manifest in everything()
        for leaf in _leaves(manifest)
        if leaf.startswith("registry.example.com/kstreams-assets:")
    }
    (image,) = images
    assert f'version = "{image.rpartition(":")[2]}"' in text
