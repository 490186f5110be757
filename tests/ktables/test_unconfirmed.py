"""Of a store that depends on a guess of `discover` no table is made, and none is read."""

from pathlib import Path

import pytest

from kstreams_assets.app_file.read import load_model
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.ktables.run import make_snapshots
from kstreams_assets.ktables.stores import require_store, table_stores
from kstreams_assets.settings import ApplicationSettings

YAML = """type: x.KafkaStreamsAppComponent
attributes:
  application_id: app
  connection: {bootstrap_servers: "nowhere:1"}
  warehouse: WAREHOUSE
  windows: {every: hour, start: "2026-11-01"}
  topics:
    in: {roles: [input]}
    app-sure-changelog: {roles: [changelog]}
    app-eu-changelog: {roles: [changelog], unconfirmed: [It fits application app-eu too.]}
  stores:
    guessed: {source_topic: in, key: string, unconfirmed: [There is no log of its own.]}
"""


def settings(folder: Path, text: str = YAML) -> ApplicationSettings:
    file = folder / "defs.yaml"
    file.write_text(text.replace("WAREHOUSE", str(folder / "warehouse")))
    return load_model(file).settings(folder)


@pytest.mark.parametrize("store", ["guessed", "eu"])
def test_no_table_of_a_guess(tmp_path: Path, store: str) -> None:
    configured = settings(tmp_path)
    assert [one.store for one in table_stores(configured)] == ["sure"]
    with pytest.raises(KStreamsAssetsError, match=r"unconfirmed.*unconfirmed to confirm it"):
        require_store(configured, store)
    with pytest.raises(KStreamsAssetsError, match="is unconfirmed"):
        make_snapshots(configured, [], stores=[store], spark=None, run_id="x")  # pyright: ignore[reportArgumentType]
    require_store(configured, "sure")


def test_all_is_backed_up_and_a_confirmed_store_has_its_table(tmp_path: Path) -> None:
    guessed = settings(tmp_path)
    text = YAML.replace(", unconfirmed: [There is no log of its own.]", "").replace(
        ", unconfirmed: [It fits application app-eu too.]", ""
    )
    confirmed = settings(tmp_path, text)
    assert guessed.topics == confirmed.topics
    assert {one.store for one in table_stores(confirmed)} == {"eu", "guessed", "sure"}
    assert confirmed.application.guesses == ()
    assert [guess.setting for guess in guessed.application.guesses] == [
        "stores.guessed",
        "topics.app-eu-changelog",
    ]
