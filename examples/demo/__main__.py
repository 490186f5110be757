"""`python -m examples.demo`: broker, application, orders, recovery points, windows, tables."""

import sys
import time
from collections.abc import Sequence

import dagster as dg

from examples.demo.backfill import backfill
from examples.demo.live import RATE, DemoError, run_load
from examples.demo.place import APPLICATION_ID, CONFIG, DEFS, Place
from examples.demo.report import Finding, findings, print_windows, totals_sql
from examples.order_processor.application import OrderProcessor, create_topics
from examples.order_processor.orders import OrderGenerator
from kstreams_assets.backup.due import window_statuses
from kstreams_assets.backup.partitions import WindowCalendar
from kstreams_assets.backup.windows import Window
from kstreams_assets.cli.app_file import load_settings
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.kafka.local_cluster import LocalCluster
from kstreams_assets.settings import ApplicationSettings

_MINUTE_S = 60
_LOAD_S = 120
_DRAIN_S = 8
"""Kept free before the third window closes, so that the last point still lies in it."""
_CUSTOMERS = 1_000


def main() -> int:
    """Run the demo; 0 when everything was as it must be."""
    place = Place()
    place.clear()
    began = time.monotonic()
    try:
        with LocalCluster(place.kafka) as cluster:
            print(f"Broker up at {cluster.bootstrap_servers} ({time.monotonic() - began:.1f} s).")
            place.prepare(
                bootstrap_servers=cluster.bootstrap_servers,
                first_window=time.strftime("%Y-%m-%d-%H:%M", time.gmtime()),
            )
            create_topics(cluster.bootstrap_servers)
            with OrderProcessor(
                cluster.bootstrap_servers,
                state_dir=place.state,
                application_id=APPLICATION_ID,
                config=CONFIG,
            ):
                return _demonstrate(place, load_settings(DEFS))
    except (KStreamsAssetsError, DemoError) as error:
        print(f"The demo failed: {error}", file=sys.stderr)
        return 1


def _demonstrate(place: Place, settings: ApplicationSettings) -> int:
    generator = OrderGenerator(seed=1, customers=_CUSTOMERS)
    duration_s = _load_seconds()
    print(f"The order processor runs; {RATE:,.0f} orders/s for {duration_s:.0f} s.")
    live = run_load(settings, generator, duration_s=duration_s)
    print(f"{live.load.count:,} orders processed, {live.points} recovery points taken.")
    windows = _await_windows(settings)
    print(f"Backing up {len(windows)} windows as one backfill ...")
    began = time.monotonic()
    with dg.DagsterInstance.get() as instance:
        done = backfill(settings, windows, instance)
    print(f"Run {done.run_id}: {time.monotonic() - began:.1f} s, the start of Spark included.\n")
    print_windows(settings, windows, done)
    return _conclude(place, settings, findings(settings, generator, live.load, done))


def _load_seconds() -> float:
    """About two minutes over three windows or more, ending before a window does."""
    into = time.time() % _MINUTE_S
    longest = 3 * _MINUTE_S - into - _DRAIN_S
    return min(_LOAD_S, longest) if longest >= _LOAD_S - _DRAIN_S else longest + _MINUTE_S


def _await_windows(settings: ApplicationSettings) -> list[Window]:
    """The windows with orders in them, once the last has closed."""
    calendar = WindowCalendar(settings.windows)
    last_ms = time.time_ns() // 1_000_000
    wait_s = _MINUTE_S - time.time() % _MINUTE_S
    print(f"Waiting {wait_s:.0f} s for the last window to close ...")
    while (newest := calendar.newest_closed()) is None or newest.end_ms <= last_ms:
        time.sleep(0.5)
    return [status.window for status in window_statuses(settings)]


def _conclude(place: Place, settings: ApplicationSettings, results: Sequence[Finding]) -> int:
    wrong = [finding for finding in results if not finding.holds]
    print("\nStore order-totals at the end of the last window, from SQL on the Delta table:\n")
    print(f"{totals_sql(settings)}\n")
    for finding in results:
        mark = "ok " if finding.holds else "BAD"
        print(f"  {mark} {finding.what}: {finding.found} (expected {finding.expected})")
    print(f"\nThe tables: {place.warehouse}")
    print("The same in the Dagster UI, with lineage, runs and plots: make dev")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
