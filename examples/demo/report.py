"""What the demo found in the tables, held against what was produced."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from examples.demo.backfill import Backfill
from examples.order_processor.load import LoadResult
from examples.order_processor.orders import CustomerTotal, OrderGenerator, customer_totals
from kstreams_assets.backup.ledger import Ledger, LedgerEntry
from kstreams_assets.backup.windows import Window
from kstreams_assets.cli.output import print_table
from kstreams_assets.settings import ApplicationSettings

TOTALS_SQL = """
SELECT records.key, records.value
FROM records
JOIN (
    SELECT partition, max("offset") AS "offset"
    FROM records WHERE topic = '{changelog}' GROUP BY partition, key
) AS newest ON records.partition = newest.partition AND records."offset" = newest."offset"
WHERE records.topic = '{changelog}' AND records.value IS NOT NULL
"""
"""The store at the last window: the newest record of each key, tombstones left out."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing the demo checks."""

    what: str
    expected: object
    found: object

    @property
    def holds(self) -> bool:
        """Whether it is as it must be."""
        return self.expected == self.found


def print_windows(
    settings: ApplicationSettings, windows: Sequence[Window], backfill: Backfill
) -> None:
    """The table window x topic x records x bytes x gaps x checks."""
    grouped: dict[tuple[str, str], list[LedgerEntry]] = {}
    ledger = Ledger(settings.warehouse, settings.application_id)
    for entry in ledger.entries(windows={window.key for window in windows}):
        place = (entry.result.plan.window.key, entry.result.partition.topic)
        grouped.setdefault(place, []).append(entry)
    print_table(
        "Backed up",
        ["window", "topic", "records", "bytes", "gaps", "checks"],
        [
            [
                *place,
                sum(entry.result.content.records for entry in entries),
                sum(entry.result.content.bytes for entry in entries),
                _gaps(entries),
                _checks(backfill, place),
            ]
            for place, entries in grouped.items()
        ],
    )


def findings(
    settings: ApplicationSettings, generator: OrderGenerator, load: LoadResult, backfill: Backfill
) -> list[Finding]:
    """The backup held against the orders that were produced."""
    orders = list(generator.orders(load.indices))
    expected = customer_totals(orders)
    ledger = Ledger(settings.warehouse, settings.application_id)
    records: dict[str, int] = {}
    for entry in ledger.entries():
        topic = entry.result.partition.topic
        records[topic] = records.get(topic, 0) + entry.result.content.records
    red = [
        f"{window} {topic} {check}"
        for (window, topic), checks in backfill.checks.items()
        for check, passed in checks
        if not passed
    ]
    totals = _totals(settings)
    return [
        Finding("the run succeeded", True, backfill.success),
        Finding("red checks", [], red),
        Finding("orders in the backup", len(orders), records.get("orders", 0)),
        Finding(
            "rejected orders in the backup",
            sum(order.rejection is not None for order in orders),
            records.get("orders-rejected", 0),
        ),
        Finding("customers in order-totals", len(expected), len(totals)),
        Finding("totals that differ", 0, sum(totals.get(c) != t for c, t in expected.items())),
    ]


def totals_sql(settings: ApplicationSettings) -> str:
    """The query behind the totals, as a user would write it."""
    return TOTALS_SQL.format(changelog=f"{settings.application_id}-order-totals-changelog").strip()


def _totals(settings: ApplicationSettings) -> dict[str, CustomerTotal]:
    table = DeltaTable(settings.warehouse.records(settings.application_id))
    reader = QueryBuilder().register("records", table).execute(totals_sql(settings))
    totals: dict[str, CustomerTotal] = {}
    for row in pa.table(reader.read_all()).to_pylist():
        value = json.loads(row["value"])
        totals[row["key"].decode()] = CustomerTotal(value["count"], value["total_cents"])
    return totals


def _gaps(entries: Sequence[LedgerEntry]) -> str:
    offsets: dict[str, int] = {}
    for gap in (gap for entry in entries for gap in entry.result.gaps):
        offsets[gap.cause] = offsets.get(gap.cause, 0) + (gap.offsets or 0)
    return ", ".join(f"{count:,} {cause}" for cause, count in sorted(offsets.items()))


def _checks(backfill: Backfill, place: tuple[str, str]) -> str:
    checks = backfill.checks.get(place, [])
    red = [name for name, passed in checks if not passed]
    return f"RED: {', '.join(red)}" if red else f"{len(checks)} passed"
