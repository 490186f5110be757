"""The declarations of the examples, as they are shipped: complete, and true on one broker."""

from dataclasses import replace
from pathlib import Path

import pytest

import examples
from kstreams_assets.app_file.read import load_settings
from kstreams_assets.governance.evaluation import evaluate
from kstreams_assets.governance.run import declared_of
from tests.governance.samples import healthy, with_topic

EXAMPLES = sorted((Path(examples.__file__).parent / "defs").glob("*/defs.yaml"))
FROM_TOPOLOGY = (
    "internal_topics_as_declared",
    "stores_as_declared",
    "topology_as_declared",
    "changelogs_replicated",
    "cleanup_policies_fit",
    "retention_covers_windows",
    "inputs_kept_for_rebuild",
)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_everything_is_declared_and_holds(path: Path, tmp_path: Path) -> None:
    said = declared_of(load_settings(path, warehouse=str(tmp_path)))
    facts = replace(healthy(said), brokers=1)
    for name in facts.topics:
        single = {"min.insync.replicas": "1"}
        facts = with_topic(facts, name, replication_factor=1, in_sync=1, configs=single)
    verdicts = {verdict.check: verdict for verdict in evaluate(facts, said)}
    assert [v.explanation for v in verdicts.values() if v.findings] == []
    assert [t for check in FROM_TOPOLOGY for t in verdicts[check].not_judged] == []


def test_there_are_seven() -> None:
    assert len(EXAMPLES) == 7
