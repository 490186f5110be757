"""restore/run.py where it must not begin; what it does is tried in the kill tests and with
applications."""

from dataclasses import replace
from pathlib import Path

import pytest

from kstreams_assets.errors import RestoreRefusedError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.restore.plan import Refusal, RestorePlan
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.restore.run import RestoreRun
from kstreams_assets.settings import RestoreSettings
from kstreams_assets.warehouse.judge import Restores
from kstreams_assets.warehouse.layout import Warehouse
from tests.streams.workbench import NoSpark

_PLAN = RestorePlan(
    restore_id="",
    application_id="shop",
    group="shop",
    target_cluster_id="target",
    target_bootstrap_servers="127.0.0.1:1",
    request=RestoreRequest(),
    point=None,
    gives=Restores.NOTHING,
    topics=(),
)


@pytest.mark.parametrize(
    "refusals",
    [(), (Refusal("Topic orders", "holds 4 records.", "Delete it."), Refusal("Group", "x", "y"))],
)
def test_what_is_refused_is_not_begun(refusals: tuple[Refusal, ...], tmp_path: Path) -> None:
    run = RestoreRun(
        warehouse=Warehouse(tmp_path / "warehouse"),
        settings=RestoreSettings(),
        target=KafkaConnection(bootstrap_servers="127.0.0.1:1"),  # nobody there to be asked
        spark=NoSpark(),
        run_id="run",
        again=lambda plan: plan,
    )

    with pytest.raises(RestoreRefusedError) as raised:
        run.execute(replace(_PLAN, refusals=refusals))

    assert raised.value.refusals == tuple(str(refusal) for refusal in refusals)
    assert not (tmp_path / "warehouse").exists()
