"""A warehouse that an earlier release wrote is read, browsed and restored by this one.

`earlier/` was written on 2026-11-23 by commit fdd913c, before the tables were read and committed
in today's way: 900 orders of `OrderGenerator(seed=11, customers=60, invalid_share=0.02)` to a
running order processor, six exact recovery points, two windows with records, a KTable, and one
restore of the newest point.
"""

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from examples.order_processor.orders import CustomerTotal, OrderGenerator, customer_totals
from kstreams_assets.app_file.read import load_settings
from kstreams_assets.repository.ledger import Ledger
from tests.restore.control import read
from tests.streams.cluster import passing_cluster

EARLIER: Final = Path(__file__).parent / "earlier"
ORDERS: Final = list(OrderGenerator(seed=11, customers=60, invalid_share=0.02).orders(range(900)))
POINT: Final = "20261123T084557.666Z-6e34c6"
RESTORE: Final = f"{POINT}-46c5013d"
WINDOWS: Final = {"2026-11-23-08:42": 818, "2026-11-23-08:43": 435, "2026-11-23-08:44": 0}

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.e2e]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The earlier warehouse, and the application's YAML beside it."""
    shutil.unpack_archive(EARLIER / "warehouse.tar.gz", tmp_path)
    (tmp_path / "topology.txt").write_bytes((EARLIER / "topology.txt").read_bytes())
    text = (EARLIER / "defs.yaml").read_text("utf-8")
    (tmp_path / "defs.yaml").write_text(text.replace("WAREHOUSE", str(tmp_path / "warehouse")))
    return tmp_path


def asked(folder: Path, *arguments: str) -> Any:
    """What a command prints as JSON."""
    command = [sys.executable, "-m", "kstreams_assets.cli.main", *arguments]
    command += ["--app", str(folder / "defs.yaml"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_is_browsed(folder: Path) -> None:
    # the windows closed since then are listed as due; the backed up ones are in the ledger
    assert asked(folder, "windows", "--last", "1")["due"] > 0
    ledger = Ledger(load_settings(folder / "defs.yaml").warehouse, "orders")
    records: Counter[str] = Counter()
    for entry in ledger.entries():
        records[entry.result.plan.window.key] += entry.result.content.records
    assert records == WINDOWS
    assert not list(ledger.damaged(windows=set(WINDOWS)))
    points = asked(folder, "recovery-points", "list")["recovery_points"]
    assert [(p["guarantee"], p["covered"]) for p in points] == [("exact", True)] * 6
    (restore,) = asked(folder, "restore", "list")["restores"]
    assert (restore["restore_id"], restore["state"]) == (RESTORE, "committed")


def test_it_is_restored(folder: Path) -> None:
    with passing_cluster(folder / "target") as target:
        app_file = folder / "defs.yaml"
        servers = target.bootstrap_servers
        app_file.write_text(app_file.read_text("utf-8").replace("127.0.0.1:2", servers), "utf-8")
        done = asked(folder, "restore", "run")
        again = asked(folder, "restore", "run")
        changelog = "orders-order-totals-changelog"
        found = read(servers, ["orders", "orders-rejected", changelog])
    assert done["compared_records"] == 1253
    assert done["differences"] == []
    assert again["restore_id"] == done["restore_id"]
    assert len(found["orders"]) == len(ORDERS)
    rejected = sum(order.rejection is not None for order in ORDERS)
    assert len(found["orders-rejected"]) == rejected
    newest = {record.key: record.value for record in found[changelog]}
    totals = {
        key.decode(): CustomerTotal(value["count"], value["total_cents"])
        for key, value in ((k, json.loads(v)) for k, v in newest.items() if k and v)
    }
    assert totals == customer_totals(ORDERS)
