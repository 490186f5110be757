"""Schemas of a real registry go into the warehouse, and tables are read when it is gone."""

import json
import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyspark.sql import functions as F

from kstreams_assets.app.model import StreamsApplication
from kstreams_assets.app.store_format import Encoding
from kstreams_assets.backup.run import BackupJob
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.registry import RegistryConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.schemas import ReferencedSchema, RegisteredSchema
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings, WindowSchedule
from spark_resources.confluent_framing import SchemasOfRows, framed
from spark_resources.protobuf_values import compile_schema
from spark_resources.resource import SparkSessionResource
from tests.ktables.registry_double import RegistryDouble
from tests.ktables.registry_server import RegistryServer
from tests.streams.workbench import NoSpark, Workbench

APP = "orders"
# Their constructors are typed as those of a base class without parameters.
Avro: Any = AvroSerializer
Protobuf: Any = ProtobufSerializer
FIELDS = [{"name": "id", "type": "string"}, {"name": "cents", "type": "int"}]
STATUS = {"type": "enum", "name": "Status", "symbols": ["NEW", "PAID"]}
MORE = [
    {"name": "note", "type": ["null", "string"], "default": None},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
    {"name": "status", "type": STATUS, "default": "NEW"},
    {"name": "inner", "type": ["null", {"type": "record", "name": "In", "fields": FIELDS}]},
]
MORE[-1]["default"] = None
PROTO = """syntax = "proto3";
package shop;
message Other { string x = 1; }
message Order { string id = 1; int64 cents = 2; %s }
"""


def _save(settings: ApplicationSettings, ids: Collection[int] = ()) -> tuple[int, ...]:
    return Repository.open(settings).schemas.save(settings.registry, ids=ids)


def settings_of(warehouse: Path, url: str | None, **more: Any) -> ApplicationSettings:
    return ApplicationSettings(
        application=StreamsApplication(APP, ()),
        topics=(),
        connection=KafkaConnection(bootstrap_servers="source:1"),
        warehouse=Warehouse(warehouse),
        windows=WindowSchedule.every("hour", start="2026-10-20"),
        registry=None if url is None else RegistryConnection(url=url, request_timeout_seconds=20),
        **more,
    )


def avro_text(fields: Sequence[object]) -> str:
    return json.dumps({"type": "record", "name": "shop.Order", "fields": fields})


def proto_class(text: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    compiled = compile_schema(RegisteredSchema(0, Encoding.PROTOBUF, text))
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


@pytest.fixture
def double() -> Iterator[RegistryDouble]:
    with RegistryDouble() as double:
        yield double


def test_what_is_new_is_stored_once_and_json_left_out(
    double: RegistryDouble, tmp_path: Path
) -> None:
    settings = settings_of(tmp_path, double.url)
    double.add(1, '"string"')
    double.add(2, "{}", schemaType="JSON")
    double.by_id[5] = {"schema": '"long"'}
    assert _save(settings, ids=(5, 6)) == (1, 5)  # 6 is nowhere, which its rows will say
    double.add(3, PROTO, subject="p", schemaType="PROTOBUF")
    assert _save(settings) == (3,)
    assert _save(settings) == ()
    assert Repository(settings.warehouse, APP).schemas.all() == {
        1: RegisteredSchema(1, Encoding.AVRO, '"string"'),
        3: RegisteredSchema(3, Encoding.PROTOBUF, PROTO),
        5: RegisteredSchema(5, Encoding.AVRO, '"long"'),
    }
    assert Repository(settings.warehouse, "another").schemas.all() == {}


def test_references_come_with_a_schema_deepest_first(
    double: RegistryDouble, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refers(name: str, version: int = 1) -> list[dict[str, object]]:
        return [{"name": name, "subject": name, "version": version}]

    double.add(1, "deep", subject="deep", schemaType="PROTOBUF")
    double.add(2, "middle", subject="mid", schemaType="PROTOBUF", references=refers("deep"))
    double.add(3, "top", subject="top", schemaType="PROTOBUF", references=refers("mid"))
    double.add(4, "lost", subject="lost", schemaType="PROTOBUF", references=refers("mid", 9))
    settings = settings_of(tmp_path, double.url)
    with caplog.at_level(logging.WARNING):
        assert _save(settings) == (1, 2, 3)
    assert "Schema 4 is not stored" in caplog.text
    assert Repository(settings.warehouse, APP).schemas.all()[3].references == (
        ReferencedSchema("deep", "deep"),
        ReferencedSchema("mid", "middle"),
    )


def test_a_replaced_registry_is_noticed_and_changes_nothing(
    double: RegistryDouble, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_of(tmp_path, double.url)
    double.add(1, '"string"')
    _save(settings)
    double.listed[0]["schema"] = '"long"'
    with caplog.at_level(logging.WARNING):
        assert _save(settings) == ()
    assert "text of stored schema 1 differs" in caplog.text
    assert Repository(settings.warehouse, APP).schemas.all()[1].text == '"string"'


def test_what_was_read_before_an_error_is_stored(double: RegistryDouble, tmp_path: Path) -> None:
    settings = settings_of(tmp_path, double.url)
    for number in (1, 2):
        double.add(number, '"string"', version=number)
    double.by_id[7] = {"no": "schema"}
    with pytest.raises(KStreamsAssetsError, match="did not return schema 7"):
        _save(settings, ids=[7])
    assert set(Repository(settings.warehouse, APP).schemas.all()) == {1, 2}


def test_without_a_registry_nothing_happens(tmp_path: Path) -> None:
    assert _save(settings_of(tmp_path, None)) == ()
    assert Repository.open(settings_of(tmp_path, None)).schemas.try_to_save(None)
    assert not (tmp_path / "schemas").exists()


@pytest.mark.spark
def test_records_of_real_serializers_are_read_with_the_registry_and_without_it(
    spark: SparkSessionResource, tmp_path: Path
) -> None:
    with RegistryServer(tmp_path) as server:
        rows = [("avro", value) for value in written_as_avro(server.url)]
        rows += [("protobuf", value) for value in written_as_protobuf(server.url)]
        settings = settings_of(tmp_path / "w", server.url)
        saved = _save(settings)
        assert _save(settings) == ()
        assert len(saved) == 6  # orders in two versions each, and the two with a reference
        late = Avro(SchemaRegistryClient({"url": server.url}), '"string"')
        unknown = late("x", SerializationContext("late", MessageField.VALUE))
        assert unknown is not None
        rows.append(("avro", unknown))
        server.stop()
        with pytest.raises(KStreamsAssetsError, match="Check that it runs"):
            _save(settings)

    schemas = Repository(settings.warehouse, APP).schemas.all()
    assert set(schemas) == set(saved)
    written = spark.spark_session.createDataFrame(
        [(number, kind, bytearray(value)) for number, (kind, value) in enumerate(rows)],
        "offset INT, kind STRING, value BINARY",
    )
    for encoding, expected in ((Encoding.AVRO, AVRO_READ), (Encoding.PROTOBUF, PROTOBUF_READ)):
        mine = written.where(F.col("kind") == str(encoding))
        value, error = framed(F.col("value"), encoding, SchemasOfRows(mine, schemas))
        found = mine.select("offset", value.alias("v"), error.alias("e")).orderBy("offset")
        read = [(row["v"] and row["v"].asDict(recursive=True), row["e"]) for row in found.collect()]
        if encoding is Encoding.AVRO:
            lost = int.from_bytes(unknown[1:5], "big")
            assert read.pop() == (None, f"schema {lost} is not stored, and no registry has it")
        assert read == [(row, None) for row in expected]


EPOCH = datetime.fromtimestamp(0)
AVRO_READ = [
    {"id": "a", "cents": 1, "note": None, "at": EPOCH, "status": "NEW", "inner": None},
    {
        "id": "b",
        "cents": 2,
        "note": "x",
        "at": EPOCH + timedelta(milliseconds=5),
        "status": "PAID",
        "inner": {"id": "i", "cents": 3},
    },
]
PROTOBUF_READ = [{"id": "a", "cents": 1, "note": ""}, {"id": "b", "cents": 2, "note": "x"}]


def written_as_avro(url: str) -> list[bytes]:
    client = SchemaRegistryClient({"url": url})
    order = client.register_schema("in", Schema('{"type": "record", "name": "R", "fields": []}'))
    assert order > 0
    client.register_schema(
        "refers",
        Schema(
            '{"type": "record", "name": "S", "fields": [{"name": "r", "type": "R"}]}',
            references=[SchemaReference("R", "in", 1)],
        ),
    )
    context = SerializationContext("orders", MessageField.VALUE)
    versions = [avro_text(FIELDS), avro_text([*FIELDS, *MORE])]
    values = [{"id": "a", "cents": 1}, AVRO_READ[1] | {"at": 5}]
    written = []
    for text, value in zip(versions, values, strict=True):
        written.append(Avro(client, text)(value, context))
    return written


def written_as_protobuf(url: str) -> list[bytes]:
    client = SchemaRegistryClient({"url": url})
    context = SerializationContext("orders-p", MessageField.VALUE)
    written = []
    for text, value in (
        (PROTO % "", PROTOBUF_READ[0]),
        (PROTO % "string note = 3;", PROTOBUF_READ[1]),
    ):
        order = proto_class(text)
        fields = {name: part for name, part in value.items() if part != ""}
        serializer = Protobuf(order, client, {"use.deprecated.format": False})
        written.append(serializer(order(**fields), context))
    return written


@pytest.mark.kafka
def test_a_registry_that_is_down_does_not_fail_a_backup(
    workbench: Workbench, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with RegistryDouble() as double:
        double.add(1, '"string"')
        settings = replace(
            workbench.application_settings,
            windows=WindowSchedule.every("hour", start="2026-10-20"),
            registry=RegistryConnection(url=double.url, request_timeout_seconds=5),
        )

        def run() -> None:
            topics = workbench.application.topics
            BackupJob(settings, NoSpark(), "r", topics).run([])

        run()
        assert set(Repository.open(settings).schemas.all()) == {1}
        assert "Schemas of" not in caplog.text
    run()
    assert f"Schemas of {settings.application_id} are not all stored" in caplog.text
    assert double.url in caplog.text
