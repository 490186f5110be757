"""What drills leave behind whose process was killed."""

from pathlib import Path

import pytest

from kstreams_assets.drill.run import drill_place
from kstreams_assets.errors import JarsMissingError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.local import target as local_target_module
from kstreams_assets.local.target import local_targets
from tests.restore.after_commit import settings_of


def test_only_what_nobody_kept_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of("shop", KafkaConnection(bootstrap_servers="h:1"), tmp_path)
    for name in ("drill-killed", "kept-drill-a", "newest"):
        folder = tmp_path / "local_clusters" / "shop" / name
        (folder / "application" / "state").mkdir(parents=True)
        (folder / "cluster.id").write_text("K")

    def no_jars(*_: object, **__: object) -> None:
        raise JarsMissingError(directory=tmp_path, missing=["a.jar"], command="make jars")

    monkeypatch.setattr(local_target_module, "LocalCluster", no_jars)
    with pytest.raises(JarsMissingError), drill_place(settings, "new", keep=False):
        pytest.fail("there is no cluster")
    assert [found.name for found in local_targets(settings)] == ["kept-drill-a", "newest"]
