"""A backup that was damaged after it was made: no restore of it begins, or gives a record of it."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from kstreams_assets.app.model import Store, TopicRole
from kstreams_assets.errors import KStreamsAssetsError, StoredDataError
from kstreams_assets.ktables.run import make_snapshots
from kstreams_assets.model.restores import RestoreState
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.restore.planner import plan_restore
from kstreams_assets.restore.request import ChangelogSource, RestoreRequest
from kstreams_assets.settings import ApplicationSettings
from tests.backup.reading import newest_files
from tests.restore.trial import own_names, restored
from tests.store.place import edited, warehouse_at
from tests.streams.cluster import unique_name
from tests.streams.workbench import Workbench

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.on_store]

COUNT = 200


class _Records:
    """The records table of a copy of the warehouse."""

    def __init__(self, path: Path, orders: str, totals: str) -> None:
        self.path = path
        self.orders, self.totals = self._file(orders), self._file(totals)

    def _file(self, topic: str) -> Path:
        """That of the newer window."""
        return newest_files(self.path, topic)[0]


def _last_commit(records: _Records) -> None:
    """As in a copy that was made while a backup ran."""
    log = records.path / "_delta_log"
    last = max(log.glob("*.json"))
    for file in (last, last.with_suffix(".crc"), log / f".{last.name}.crc"):
        file.unlink(missing_ok=True)


def _no_table(records: _Records) -> None:
    shutil.rmtree(records.path)


def _no_file(records: _Records) -> None:
    records.orders.unlink()


def _cut_off(records: _Records) -> None:
    records.totals.write_bytes(records.totals.read_bytes()[:-5])


def _flipped(records: _Records) -> None:
    content = bytearray(records.orders.read_bytes())
    content[len(content) // 3] ^= 1
    records.orders.write_bytes(bytes(content))


def _swapped(records: _Records) -> None:
    """They have the same number of records and the same offsets."""
    orders, totals = records.orders.read_bytes(), records.totals.read_bytes()
    records.orders.write_bytes(totals)
    records.totals.write_bytes(orders)


def _neighbour(records: _Records) -> None:
    rows = pq.ParquetFile(records.orders).read()
    values = rows["value"].to_pylist()
    values[7] = values[8]
    index = rows.schema.get_field_index("value")
    column = pa.array(values, rows.schema.field(index).type)
    pq.write_table(rows.set_column(index, rows.schema.field(index), column), records.orders)


def _rewrite(file: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    """Write a file with other values, of the same size if it can be: then only digests differ."""
    rows = pq.ParquetFile(file).read()
    index = rows.schema.get_field_index("value")
    column = pa.array(change(rows["value"].to_pylist()), rows.schema.field(index).type)
    changed = rows.set_column(index, rows.schema.field(index), column)
    size = file.stat().st_size
    for padding in range(500):
        padded = changed.replace_schema_metadata({"padding": "x" * padding})
        pq.write_table(padded, file, compression="zstd", store_schema=False)
        if file.stat().st_size >= size:
            return


FAULTS: dict[str, Callable[[_Records], None]] = {
    "last commit": _last_commit,
    "records/ gone": _no_table,
    "file gone": _no_file,
    "cut off": _cut_off,
    "flipped": _flipped,
    "swapped": _swapped,
    "neighbour": _neighbour,
}


@pytest.fixture
def settings(workbench: Workbench) -> ApplicationSettings:
    """A stopped application with an input and a changelog of as many records, in two windows."""
    orders = workbench.topic("orders")
    totals = workbench.topic(
        f"{workbench.application_id}-totals-changelog", role=TopicRole.CHANGELOG
    )
    producer = Producer({"bootstrap.servers": workbench.bootstrap_servers})
    for begin in range(0, COUNT, COUNT // 2):
        end = begin + COUNT // 2
        for number in range(begin, end):
            producer.produce(orders, b"order %03d" % number, b"key %03d" % number)
            producer.produce(totals, b"total %03d" % number, b"key %03d" % number)
        assert producer.flush(20) == 0
        workbench.cluster.commit_group_offsets(
            workbench.application_id, {TopicPartitionId(orders, 0): CommittedOffset(end, "AgAB")}
        )
        workbench.back_up(workbench.close_window())
    return workbench.application_settings


@pytest.mark.usefixtures("closed_in_order")
def test_every_damage_is_noticed(
    workbench: Workbench, settings: ApplicationSettings, tmp_path: Path
) -> None:
    point = workbench.points()[-1]
    request = own_names("copy", point)
    plan = plan_restore(settings, request, settings.connection)
    assert [str(blocker) for blocker in plan.blockers] == []
    targets = {topic.target for topic in plan.topics}
    orders, totals = (
        next(t.name for t in settings.topics if role in t.roles)
        for role in (TopicRole.INPUT, TopicRole.CHANGELOG)
    )
    said: dict[str, str] = {}
    for name, damage in FAULTS.items():
        copy = warehouse_at(tmp_path / name.replace("/", "").replace(" ", "-"))
        with edited(settings.warehouse.root) as source, edited(copy.root) as target:
            shutil.copytree(source, target, dirs_exist_ok=True)
        with edited(copy.records(settings.application_id)) as records:
            damage(_Records(records, orders, totals))
        try:
            state = _restore(workbench, replace(settings, warehouse=copy), request)
            said[name] = f"{state}, without an error"
        except KStreamsAssetsError as error:
            said[name] = str(error)
        assert not workbench.cluster.group_offsets(plan.group), name
        left = targets & set(workbench.cluster.topics())
        if left:
            workbench.cluster.delete_topics(sorted(left))
    wrong = {
        name: text
        for name, text in said.items()
        if "copy" not in text or (f"{orders}-0" not in text and f"{totals}-0" not in text)
    }
    assert wrong == {}
    assert _restore(workbench, settings, request) is RestoreState.VERIFIED


@pytest.mark.usefixtures("closed_in_order")
def test_a_changed_snapshot_is_not_restored(
    workbench: Workbench, settings: ApplicationSettings
) -> None:
    totals = next(t.name for t in settings.topics if TopicRole.CHANGELOG in t.roles)
    application = replace(settings.application, stores=(Store("totals", totals),))
    settings = replace(settings, application=application)

    def make() -> None:
        make_snapshots(
            settings, workbench.windows[-1:], spark=workbench.spark, run_id=unique_name("ktables")
        )

    make()
    closing = workbench.ledger.entries()[-1].recovery_point_id
    (point,) = (point for point in workbench.points() if point.id == closing)
    request = own_names("copy", point, changelog_source=ChangelogSource.SNAPSHOT)
    plan = plan_restore(settings, request, settings.connection)
    assert [str(blocker) for blocker in plan.blockers] == []
    assert len(plan.from_snapshots) == 1
    table = settings.warehouse.ktable(settings.application_id, "totals")
    files: dict[Path, bytes] = {}
    with edited(table) as folder:
        for file in folder.rglob("*.parquet"):
            if "_delta_log" not in file.parts:
                files[file.relative_to(folder)] = file.read_bytes()
                _rewrite(file, lambda values: [value[::-1] for value in values])
    assert files
    with pytest.raises(KStreamsAssetsError, match=r"store totals(.|\n)*window w0001"):
        _restore(workbench, settings, request)
    assert not workbench.cluster.group_offsets(plan.group)
    left = {topic.target for topic in plan.topics} & set(workbench.cluster.topics())
    for topic in left:
        ends = workbench.cluster.high_watermarks([TopicPartitionId(topic, 0)])
        assert set(ends.values()) == {0}
    with edited(table) as folder:
        for name, content in files.items():
            (folder / name).write_bytes(content)
    if left:
        workbench.cluster.delete_topics(sorted(left))
    assert _restore(workbench, settings, request) is RestoreState.VERIFIED

    # Nor is a snapshot made of a record that was changed.
    with edited(settings.warehouse.records(settings.application_id)) as records:
        record_file = newest_files(records, totals)[0]
        _rewrite(record_file, lambda values: [value[::-1] for value in values])
    with pytest.raises(StoredDataError, match=rf"The backup of {totals}.*{record_file.name}"):
        make()


def _restore(
    workbench: Workbench, settings: ApplicationSettings, request: RestoreRequest
) -> RestoreState:
    plan = plan_restore(settings, request, settings.connection)
    return restored(settings, plan, workbench.spark)
