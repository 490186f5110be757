"""KTables as Dagster assets, with the run itself replaced: what Dagster is told of each window."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from kstreams_assets.app.model import AppTopic, Store, TopicRole, TopicRoles
from kstreams_assets.app.store_format import Encoding, Format, StoreFormat
from kstreams_assets.errors import ConfigurationError, KStreamsAssetsError
from kstreams_assets.ktables.checks import EVERY_ROW_DECODES, SNAPSHOT_IS_PROVED
from kstreams_assets.model.snapshot import RowProblem, Snapshot
from kstreams_assets.model.spans import Window
from kstreams_assets.orchestration import ktables as assets
from kstreams_assets.orchestration.backup import build_backup_assets
from kstreams_assets.orchestration.restore import build_restore_assets
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings
from spark_resources.resource import SparkSessionResource
from tests.backup.samples import point
from tests.ktables.samples import KEYS, settings, snapshot, write_window
from tests.orchestration.project import run_windows

BAD = RowProblem(2, 77, "value: 3 bytes where a long has 8")


@dataclass
class _Run:
    """Stands in for `make_snapshots`: of window 01:00 a row of `totals` does not decode."""

    stores: Sequence[str] = ()
    error: Exception | None = None
    weak: tuple[str, ...] = ()

    def __call__(
        self,
        settings: ApplicationSettings,
        windows: Sequence[Window],
        *,
        stores: Sequence[str],
        spark: SparkSessionResource,
        run_id: str,
        log: Callable[[str], None],
    ) -> list[Snapshot]:
        self.stores = stores
        if self.error is not None:
            raise self.error
        return [self._snapshot(window, store) for window in windows for store in stores]

    def _snapshot(self, window: Window, store: str) -> Snapshot:
        bad = [BAD] if (window.key, store) == (KEYS[1], "totals") else []
        made = snapshot(window.key, store, problems=bad, rows=100)
        if window.key in self.weak:
            return replace(made, proved=False, reason="Compaction came first.")
        return made


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> _Run:
    """The run that the asset makes."""
    made = _Run()
    monkeypatch.setattr(assets, "make_snapshots", made)
    return made


def _specs(definition: dg.AssetsDefinition) -> dict[str, dg.AssetSpec]:
    return {spec.key.to_user_string(): spec for spec in definition.specs}


def _upstream(spec: dg.AssetSpec) -> set[str]:
    return {dep.asset_key.to_user_string() for dep in spec.deps}


def _materialise(
    root: Path, first: str, last: str, *stores: str
) -> tuple[dg.ExecuteInProcessResult, dict[tuple[str, str], dict[str, Any]]]:
    (definition,) = assets.build_ktable_assets(settings(root))
    keys = [dg.AssetKey(["shop", "ktable", store]) for store in stores or ("totals", "sessions")]
    done = run_windows(definition, keys, first, last)
    return done, {
        (event.asset_key.path[-1], event.partition or ""): {
            name: value.value for name, value in event.materialization.metadata.items()
        }
        for event in done.all_events
        if event.is_step_materialization and event.asset_key is not None
    }


def _evaluated(
    done: dg.ExecuteInProcessResult, check: str
) -> dict[tuple[str, str], dg.AssetCheckEvaluation]:
    return {
        (evaluation.asset_key.path[-1], evaluation.partition or ""): evaluation
        for evaluation in done.get_asset_check_evaluations()
        if evaluation.check_name == check
    }


def test_keys_edges_group_kinds(tmp_path: Path) -> None:
    (definition,) = assets.build_ktable_assets(settings(tmp_path))
    specs = _specs(definition)
    assert specs.keys() == {"shop/ktable/totals", "shop/ktable/sessions"}
    spec = specs["shop/ktable/totals"]
    assert _upstream(spec) == {"shop/backup/shop-totals-changelog", "shop/recovery_points"}
    assert spec.group_name == "shop/ktables"
    assert spec.kinds == {"deltalake", "table", "spark"}
    path = str(tmp_path / "ktables" / "shop" / "totals")
    assert path in (spec.description or "")
    assert spec.metadata["dagster/uri"] == path
    names = [column.name for column in spec.metadata["dagster/column_schema"].columns]
    assert "decoded_value.last.id" in names
    assert "decoded_value.last.id" in spec.metadata["dagster/column_lineage"].deps_by_column
    assert definition.node_def.pools == {"kstreams_shop"}
    policy = definition.backfill_policy
    assert policy is not None
    assert policy.max_partitions_per_run is None


def test_another_format_is_another_code_version(tmp_path: Path) -> None:
    def versions(**formats: StoreFormat) -> dict[str, str | None]:
        (definition,) = assets.build_ktable_assets(settings(tmp_path, formats=formats))
        return {key: spec.code_version for key, spec in _specs(definition).items()}

    before = versions(totals=StoreFormat(key=Format(Encoding.STRING)))
    after = versions(totals=StoreFormat(key=Format(Encoding.LONG)))
    changed = {key for key, version in after.items() if version != before[key]}
    assert None not in before.values()
    assert changed == {"shop/ktable/totals"}


def test_no_store_no_asset(tmp_path: Path) -> None:
    assert assets.build_ktable_assets(settings(tmp_path, stores=())) == []
    without = settings(tmp_path, without_ktable=frozenset({"totals", "sessions"}))
    assert assets.build_ktable_assets(without) == []


def test_stores_that_dagster_cannot_tell_apart(tmp_path: Path) -> None:
    topic = AppTopic("log", TopicRoles({TopicRole.CHANGELOG}))
    two = settings(tmp_path, topics=[topic], stores=[Store("a-b", "log"), Store("a.b", "log")])
    with pytest.raises(ConfigurationError, match="ktable: false"):
        assets.build_ktable_assets(two)


def test_what_lies_below_and_above(tmp_path: Path) -> None:
    configured = settings(tmp_path)
    restores, _ = build_restore_assets(configured)
    restored = _specs(restores)
    assert "shop/ktable/totals" in _upstream(restored["shop/restore/shop-totals-changelog"])
    assert "shop/ktable/totals" not in _upstream(restored["shop/restore/orders.eu"])
    backups = _specs(build_backup_assets(configured))
    columns = backups["shop/backup/orders.eu"].metadata["dagster/column_schema"].columns
    assert [(c.name, c.description) for c in columns][-1] == (
        "value.id",
        "Declared: totals.count, totals.last.id is computed from it; not decoded here",
    )


def test_each_window_of_a_range_has_its_numbers(tmp_path: Path, run: _Run) -> None:
    done, found = _materialise(tmp_path, KEYS[0], KEYS[2])
    assert done.success
    assert found.keys() == {(s, key) for s in ("totals", "sessions") for key in KEYS[:3]}
    values = found["totals", KEYS[1]]
    assert values["dagster/partition_row_count"] == 100
    assert (values["rows"], values["bytes"], values["records_read"]) == (100, 900, 40)
    assert values["recovery_point"] == f"point-{KEYS[1]}"
    assert values["proved"] is True
    assert values["delta_version"] == 3
    assert values["base_window"] == "none: from the start of the log"
    (row,) = values["problems"].records
    assert row.data == {
        "topic": "shop-totals-changelog",
        "partition": 2,
        "offset": 77,
        "problem": BAD.problem,
    }
    assert "problems" not in found["totals", KEYS[0]]


def test_each_window_of_a_range_has_its_evaluations(tmp_path: Path, run: _Run) -> None:
    done, _ = _materialise(tmp_path, KEYS[0], KEYS[2])
    found = _evaluated(done, EVERY_ROW_DECODES)
    assert {pair for pair, evaluation in found.items() if not evaluation.passed} == {
        ("totals", KEYS[1]),
        ("totals", ""),
    }
    red = found["totals", KEYS[1]]
    assert red.severity is dg.AssetCheckSeverity.ERROR
    assert f"shop-totals-changelog-2 offset 77: {BAD.problem}" in (red.description or "")
    assert all(e.passed for e in _evaluated(done, SNAPSHOT_IS_PROVED).values())


def test_a_warning_where_the_point_is_not_exact_red_where_it_is(tmp_path: Path, run: _Run) -> None:
    weak = point(1, point_id=f"point-{KEYS[0]}")  # taken as at_least_once
    Repository(settings(tmp_path).warehouse, weak.application_id).points.append(weak)
    run.weak = (KEYS[0], KEYS[1])
    done, found = _materialise(tmp_path, KEYS[0], KEYS[2], "sessions")
    checked = _evaluated(done, SNAPSHOT_IS_PROVED)
    assert {key: (e.passed, e.severity) for (_, key), e in checked.items() if key} == {
        KEYS[0]: (False, dg.AssetCheckSeverity.WARN),
        KEYS[1]: (False, dg.AssetCheckSeverity.ERROR),
        KEYS[2]: (True, dg.AssetCheckSeverity.ERROR),
    }
    assert found["sessions", KEYS[0]]["reason"] == "Compaction came first."


def test_a_single_window_of_one_store(tmp_path: Path, run: _Run) -> None:
    done, found = _materialise(tmp_path, KEYS[1], KEYS[1], "totals")
    assert run.stores == ["totals"]
    assert found.keys() == {("totals", KEYS[1])}
    evaluations = done.get_asset_check_evaluations()
    assert [(e.check_name, e.passed) for e in evaluations] == [
        (EVERY_ROW_DECODES, False),
        (SNAPSHOT_IS_PROVED, True),
    ]


def test_the_columns_are_those_of_the_table_once_it_is_there(tmp_path: Path, run: _Run) -> None:
    value = pa.struct([("a", pa.int64())])
    write_window(settings(tmp_path), "totals", KEYS[0], [{"offset": 1}], value=value)
    _, found = _materialise(tmp_path, KEYS[0], KEYS[0])
    columns = {
        store: [c.name for c in found[store, KEYS[0]]["dagster/column_schema"].columns]
        for store in ("totals", "sessions")
    }
    assert "decoded_value.a" in columns["totals"]
    assert "decoded_value.count" not in columns["totals"]
    assert "session_end_ms" in columns["sessions"]


def test_an_error_of_ours_is_a_failure_in_its_own_words(tmp_path: Path, run: _Run) -> None:
    run.error = KStreamsAssetsError("No backup.", remedy="Make one.")
    done, _ = _materialise(tmp_path, KEYS[0], KEYS[0])
    (failure,) = done.get_step_failure_events()
    data = failure.step_failure_data
    assert data.user_failure_data is not None
    assert data.user_failure_data.description == str(run.error)
