"""deploy/helm: what the chart renders to is what kustomize renders, with names of the release."""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

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
    pods,
    render,
    title,
)
from tests.deploy.test_manifests import VERSIONS
from tests.docs.documents import parse_command

CHART = DEPLOY / "helm/kstreams-assets"
HELM = next(CHECKOUT.glob(".helm/*/helm"), None)
_EVERYTHING = ("restore.enabled=true", "drill.enabled=true", "monitoring.enabled=true")
_DIGEST = f"sha256:{'0' * 64}"
_INSTANCE = "app.kubernetes.io/instance"

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(HELM is None, reason="helm is not built: make helm (needs Go)"),
]


@cache
def rendered(
    *values: str, release: str = "kstreams", namespace: str = "kafka-backup"
) -> tuple[Manifest, ...]:
    """The manifests of a release of the application in deploy/kubernetes/base."""
    done = _helm("template", release, str(CHART), f"--namespace={namespace}", *_sets(values))
    assert done.returncode == 0, done.stderr
    return tuple(each for each in yaml.safe_load_all(done.stdout) if each)


def _sets(values: Sequence[str]) -> list[str]:
    base = KUBERNETES / "base"
    files = [f"application.defs={base}/defs.yaml", f"application.topology={base}/topology.txt"]
    return [*(f"--set-file={each}" for each in files), *(f"--set={each}" for each in values)]


def _helm(*words: str) -> "subprocess.CompletedProcess[str]":
    """Run helm. Built from its module, it assumes an old cluster where no version is given."""
    assert HELM is not None
    command = [HELM, *words, f"--kube-version={VERSIONS[-1]}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def _comparable(manifests: Sequence[Manifest]) -> dict[str, Any]:
    """By kind and name, without what only one of the two tools has."""
    return {title(each): _stripped(each) for each in manifests if each["kind"] != "Namespace"}


def _stripped(value: Any) -> Any:
    """Without the label of the release, and without annotations: all of them are Helm's."""
    if isinstance(value, Mapping):
        return {
            key: _stripped(inner)
            for key, inner in value.items()
            if key not in (_INSTANCE, "annotations") or "summary" in inner
        }
    return [_stripped(each) for each in value] if isinstance(value, list) else value


def test_a_release_with_everything_is_what_kustomize_renders() -> None:
    ours, theirs = _comparable(rendered(*_EVERYTHING)), _comparable(everything())
    assert ours.keys() == theirs.keys()
    for name, manifest in theirs.items():
        assert ours[name] == manifest, name


def test_a_release_with_a_volume_is_what_the_component_makes(tmp_path: Path) -> None:
    (tmp_path / "deploy").symlink_to(DEPLOY)
    mine = tmp_path / "mine"
    mine.mkdir()
    names = ", ".join(f"../deploy/kubernetes/{name}" for name in ("base", "restore", "drill"))
    component = "components: [../deploy/kubernetes/pvc]"
    (mine / "kustomization.yaml").write_text(f"resources: [{names}]\n{component}\n", "utf-8")
    values = ("restore.enabled=true", "drill.enabled=true", "persistentVolume.enabled=true")
    assert _comparable(rendered(*values)) == _comparable(render(mine))


def test_by_default_it_neither_restores_nor_needs_an_operator() -> None:
    kinds = {(each["kind"], each["apiVersion"].partition("/")[0]) for each in rendered()}
    assert not {kind for kind, _ in kinds} & {"Job", "Role", "Namespace", "Secret"}
    assert "monitoring.coreos.com" not in {group for _, group in kinds}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_is_as_the_schemas_of_kubernetes_want_it(version: str) -> None:
    values = (*_EVERYTHING, "persistentVolume.enabled=true", "persistentVolume.storageClassName=x")
    values += (f"image.digest={_DIGEST}", "image.pullPolicy=Always", "image.pullSecrets[0].name=s")
    for manifest in rendered(*values, r"serviceAccount.annotations.eks\.amazonaws\.com/role-arn=r"):
        if not manifest["apiVersion"].startswith("monitoring.coreos.com/"):
            kubernetes_validate.validate(manifest, version, strict=True)


def test_two_releases_in_one_namespace_have_nothing_in_common() -> None:
    one_, other = (
        rendered("monitoring.enabled=true", f"application.name={name}-app", release=name)
        for name in ("orders", "billing")
    )
    assert not _comparable(one_).keys() & _comparable(other).keys()
    selectors = [*_selectors(one_)]
    assert len(selectors) >= 5
    assert all(selector[_INSTANCE] == "orders" for selector in selectors)
    labels = {"orders": [*pods(one_)], "billing": [*pods(other)]}
    assert all(pod.labels[_INSTANCE] == name for name in labels for pod in labels[name])
    named = yaml.safe_dump_all(one_)
    assert "orders-follower" in named
    assert "kstreams-follower" not in named
    assert 'namespace="kafka-backup"' in named


def test_the_rules_ask_for_the_namespace_of_the_release() -> None:
    rules = one("PrometheusRule/kstreams-assets", rendered(*_EVERYTHING, namespace="elsewhere"))
    first = rules["spec"]["groups"][0]["rules"][0]
    assert first["expr"] == 'absent(up{namespace="elsewhere", service="kstreams-follower"} == 1)'


def _selectors(manifests: Sequence[Manifest]) -> Iterator[Mapping[str, str]]:
    for each in manifests:
        spec = each.get("spec") or {}
        selector = spec.get("selector") or spec.get("podSelector")
        if selector is not None:
            yield selector.get("matchLabels", selector)


def test_options_and_numbers_arrive_in_the_commands() -> None:
    values = (*_EVERYTHING, "follower.everySeconds=10", "restore.deadlineSeconds=20000")
    values += ("restore.arguments[0]=--as-of=2026-11-21T14:30:00Z", "restore.deployment.replicas=5")
    commands = {each.owner: each.command for each in pods(rendered(*values))}
    for command in commands.values():
        parse_command(cli, command[1:])
    assert commands["Deployment/kstreams-follower"][5] == "10"
    restore = commands["Job/restore-order-processor"]
    assert restore[-1] == "--as-of=2026-11-21T14:30:00Z"
    assert "--deadline=20000" in restore
    assert any(word.endswith("--replicas=5") for word in restore)
    job = one("Job/restore-order-processor", rendered(*values))
    assert job["spec"]["activeDeadlineSeconds"] == 20000 + 3 * 300 + 2700


def test_an_image_is_named_by_its_digest_where_there_is_one() -> None:
    for each in pods(rendered(f"image.digest={_DIGEST}")):
        (container,) = each.spec["containers"]
        assert container["image"] == f"registry.example.com/kstreams-assets@{_DIGEST}"


def test_a_release_without_an_application_is_refused() -> None:
    done = _helm("template", "kstreams", str(CHART))
    assert done.returncode == 1
    assert "Set application.defs: --set-file application.defs=defs.yaml" in done.stderr


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("folower.enabled=false", "additional properties 'folower' not allowed"),
        ("restore.deployment.replica=3", "additional properties 'replica' not allowed"),
        ("follower.resources.limit.memory=5Gi", "additional properties 'limit' not allowed"),
        ("restore.enabled=yes", "got string, want boolean"),
        ("follower.everySeconds=0", "exclusiveMinimum"),
        ("image.digest=latest", "does not match pattern"),
        ("application.name=Order_Processor", "does not match pattern"),
    ],
)
def test_a_misspelled_key_or_a_wrong_value_is_refused(value: str, problem: str) -> None:
    for command in (("template", "kstreams", str(CHART)), ("lint", str(CHART))):
        done = _helm(*command, *_sets([value]))
        assert done.returncode == 1
        assert problem in done.stdout + done.stderr


def test_the_schema_knows_every_value_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    declared = {path for path in _declared(schema) if path[0] != "global"}
    assert declared == {*_given(values, declared)}


def _declared(schema: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, inner in schema.get("properties", {}).items():
        yield (*path, name)
        yield from _declared(inner, (*path, name))


def _given(
    values: Mapping[str, Any], declared: set[tuple[str, ...]], path: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """Without what is below a value that may have any key."""
    for name, inner in values.items():
        yield (here := (*path, name))
        if isinstance(inner, Mapping) and any(d[: len(here)] == here != d for d in declared):
            yield from _given(inner, declared, here)


def test_another_configuration_starts_another_pod_of_the_follower() -> None:
    def checksum(*values: str) -> str:
        spec = one("Deployment/kstreams-follower", rendered(*values))["spec"]
        return spec["template"]["metadata"]["annotations"]["checksum/application"]

    assert checksum() == checksum("follower.everySeconds=10")
    assert checksum() != checksum("settings.AWS_REGION=eu-west-1")


def test_helm_finds_nothing_to_criticize() -> None:
    done = _helm("lint", "--strict", str(CHART), *_sets(_EVERYTHING))
    assert done.returncode == 0, done.stdout
    assert re.search(r"1 chart\(s\) linted, 0 chart\(s\) failed", done.stdout)
