"""The columns of a backup, as Dagster shows them."""

from collections.abc import Mapping, Sequence

import dagster as dg

_COLUMNS = (
    dg.TableColumn("window", "string", "Time partition, key of the Dagster partition"),
    dg.TableColumn("topic", "string"),
    dg.TableColumn("partition", "int"),
    dg.TableColumn("offset", "bigint"),
    dg.TableColumn("timestamp_ms", "bigint", "Epoch milliseconds, exactly as Kafka stored it"),
    dg.TableColumn("timestamp_type", "int", "0 CreateTime, 1 LogAppendTime"),
    dg.TableColumn(
        "headers",
        "array<struct<key: string, value: binary>>",
        "In order, duplicates and null values kept",
    ),
    dg.TableColumn("key", "binary", "null and empty are told apart"),
    dg.TableColumn("value", "binary", "null is a tombstone"),
)


def record_columns(fields: Mapping[str, Sequence[str]]) -> dg.TableSchema:
    """The columns of a topic's backup.

    `fields` are fields of the values that stores are declared to be computed from, with the columns
    of these stores. They are no columns of the table, but what column lineage leads to.
    """
    return dg.TableSchema(
        [
            *_COLUMNS,
            *(
                dg.TableColumn(
                    f"value.{field}",
                    "in value",
                    f"Declared: {', '.join(columns)} is computed from it; not decoded here",
                )
                for field, columns in sorted(fields.items())
            ),
        ]
    )
