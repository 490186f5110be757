"""A Dagster project with applications in YAML, in a folder of its own."""

import importlib
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from kstreams_assets.orchestration.topics import share_topics
from spark_resources.resource import SparkSessionResource

TYPE = "kstreams_assets.components.KafkaStreamsAppComponent"


def attributes(application_id: str = "shop", **more: Any) -> dict[str, Any]:
    """A small application: `in` -> changelog of store `s` -> `out`, nothing else."""
    return {
        "application_id": application_id,
        "connection": {"bootstrap_servers": "localhost:1"},
        "warehouse": "/nowhere/warehouse",
        "windows": {"every": "hour", "start": "2026-11-01"},
        "topics": {
            "in": {"roles": ["input"]},
            f"{application_id}-s-changelog": {"roles": ["changelog"]},
            "out": {"roles": ["output"]},
        },
    } | more


@dataclass(frozen=True, slots=True)
class Project:
    """Where YAML files go, and what Dagster makes of them."""

    root: Path
    module: str

    def write(self, folder: str, *documents: Mapping[str, Any]) -> Path:
        """Write the attributes of applications into the `defs.yaml` of a folder."""
        path = self.root / self.module / "defs" / folder / "defs.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = [{"type": TYPE, "attributes": dict(document)} for document in documents]
        path.write_text(yaml.safe_dump_all(whole))
        return path

    def load(self) -> dg.Definitions:
        """All definitions, as the code location binds them."""
        importlib.invalidate_caches()
        loaded = dg.load_from_defs_folder(path_within_project=self.root / self.module)
        return share_topics(loaded)

    def graph(self) -> dict[str, dg.AssetSpec]:
        """Every asset by its key in user's notation; loads the whole repository."""
        return specs_of(self.load())


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """An empty project."""
    module = f"project_{uuid.uuid4().hex[:8]}"
    (tmp_path / module / "defs").mkdir(parents=True)
    for package in (tmp_path / module, tmp_path / module / "defs"):
        (package / "__init__.py").touch()
    (tmp_path / "pyproject.toml").write_text(
        f'[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "{module}"\n'
        'registry_modules = ["kstreams_assets.components"]\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Project(tmp_path, module)
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        del sys.modules[name]


def messages_of(error: BaseException | None) -> str:
    """Everything that an error says, with its causes: Dagster wraps errors in its own."""
    texts: list[str] = []
    while error is not None:
        texts.append(str(error))
        error = error.__cause__ or error.__context__
    return "\n".join(texts)


def specs_of(definitions: dg.Definitions) -> dict[str, dg.AssetSpec]:
    """Every asset by its key in user's notation; loads the whole repository."""
    resources = {"spark": dg.ResourceDefinition.none_resource()}
    merged = dg.Definitions.merge(definitions, dg.Definitions(resources=resources))
    dg.Definitions.validate_loadable(merged)
    return {spec.key.to_user_string(): spec for spec in merged.resolve_all_asset_specs()}


def edges(specs: Mapping[str, dg.AssetSpec]) -> set[tuple[str, str]]:
    """(upstream, downstream)."""
    return {
        (dep.asset_key.to_user_string(), key) for key, spec in specs.items() for dep in spec.deps
    }


def run_windows(
    asset: dg.AssetsDefinition,
    keys: Sequence[dg.AssetKey],
    first: str,
    last: str,
    *,
    instance: dg.DagsterInstance | None = None,
) -> dg.ExecuteInProcessResult:
    """Materialise assets of a definition in the windows from one to another, as a backfill does."""
    tags = {
        "dagster/asset_partition_range_start": first,
        "dagster/asset_partition_range_end": last,
    }
    return dg.materialize(
        [asset],
        selection=keys,
        instance=instance,
        resources={"spark": SparkSessionResource()},
        partition_key=first if first == last else None,
        tags={} if first == last else tags,
        raise_on_error=False,
    )
