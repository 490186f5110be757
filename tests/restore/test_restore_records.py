"""restore/run.py where it must not begin; what it does is tried in the kill tests and with
applications."""

from dataclasses import replace
from pathlib import Path

import pytest

from kstreams_assets.checks import Finding
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.restore.context import RunContext
from kstreams_assets.restore.plan import RestorePlan
from kstreams_assets.restore.records import restore_records
from kstreams_assets.restore.request import RestoreRequest
from tests.restore import outcomes
from tests.streams.workbench import NoSpark

NOBODY = KafkaConnection(bootstrap_servers="127.0.0.1:1")
PLAN = outcomes.plan(RestoreRequest())


@pytest.mark.parametrize(
    "plan",
    [
        replace(PLAN, point=None),
        replace(PLAN, blockers=(Finding("Topic orders", "holds 4 records.", action="Delete it."),)),
    ],
)
def test_what_is_refused_is_not_begun(plan: RestorePlan, tmp_path: Path) -> None:
    settings = outcomes.settings(tmp_path / "warehouse")
    with pytest.raises(KStreamsAssetsError, match=r"is refused\. No record was written") as raised:
        restore_records(RunContext(settings, NOBODY, NoSpark(), "run"), plan)
    told = "\n".join(f"- {blocker}" for blocker in plan.blockers)
    assert raised.value.problem.endswith(f":\n{told}\n")
    assert not (tmp_path / "warehouse").exists()
