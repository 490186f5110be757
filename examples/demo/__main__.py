"""`python -m examples.demo`: an application loses its cluster, and goes on on another one.

Orders flow into a real application on a real broker; a follower takes recovery points and backs up
what came before them; in the middle of the load the cluster is killed and its data deleted. The
application is restored to its newest exact point on a new cluster, the shop sends again what came
after it, and the totals are held against a run that nothing interrupted.
"""

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import dagster as dg

from examples.demo.control import totals, uninterrupted
from examples.demo.live import RATE, DemoError, await_drained, await_windows, followed, start_engine
from examples.demo.place import APPLICATION_ID, CONFIG, DEFS, Place
from examples.demo.report import DemoReport, Finding, backup_findings, print_windows, rule_findings
from examples.demo.restoring import Restored, loaded_definitions, restore
from examples.demo.shop import Shop
from examples.order_processor.application import OrderProcessor, create_topics
from examples.order_processor.load import produce_orders
from examples.order_processor.orders import CustomerTotal, OrderGenerator
from kstreams_assets.app_file.read import load_settings
from kstreams_assets.backup.recorded import recorded_backups
from kstreams_assets.backup.verdicts import evaluate
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.spans import Window
from kstreams_assets.orchestration.reports import Reporter
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore.finish import finish
from kstreams_assets.settings import ApplicationSettings

_CUSTOMERS = 1_000
_AFTERWARDS_S = 10
"""The shop would have gone on for so long had the cluster not been lost."""


def run(place: Place) -> int:
    """Run the demo in a folder that it empties first; 0 when everything was as it must be."""
    place.clear()
    try:
        report = _Story(place).report()
    except (KStreamsAssetsError, DemoError) as error:
        print(f"The demo failed: {error}", file=sys.stderr)
        return 1
    report.print_tables()
    report.write(place.report)
    print(f"\nThe same as JSON: {place.report}\nThe tables: {place.warehouse}")
    print("The Dagster UI with lineage, runs and plots, on the new cluster: make dev")
    return 0 if report.holds else 1


@dataclass(slots=True)
class _Story:
    place: Place
    generator: OrderGenerator = field(
        default_factory=lambda: OrderGenerator(seed=1, customers=_CUSTOMERS)
    )
    phases_s: dict[str, float] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    definitions: dg.Definitions = field(default_factory=dg.Definitions)
    """As Dagster has them loaded while the application runs."""

    def report(self) -> DemoReport:
        """From the first order to the comparison with the uninterrupted run."""
        shop, windows, (lost_at, lost_ms) = self._until_the_loss()
        cluster = LocalCluster(self.place.new_kafka)
        with self._phase("a new broker"):
            cluster.start()
        with cluster:
            settings = self._settings(cluster)
            restored = self._restore(settings, cluster)
            point = _point(settings, restored)
            application = self._order_processor(cluster, self.place.new_state)
            with self._phase("the application's start"):
                application.start()
            with application, KafkaCluster(settings.connection) as asked:
                recovery_s = time.monotonic() - lost_at
                print(f"The application is RUNNING, {recovery_s:.1f} s after the loss.")
                shop.stop()  # it has given up by now
                orders = len(shop.places) + round(RATE * _AFTERWARDS_S)
                replayed = self._replay(shop, point, orders, cluster)
                await_drained(settings, asked)
                caught_up_s = time.monotonic() - lost_at
                finish(settings, restored.restore, asked)
                print("Caught up, topic configs are back. Now the same orders uninterrupted ...")
                found = totals(asked)
        self._report_windows(settings, windows)
        expected = uninterrupted(self.place.control, settings, self.generator, orders)
        self._compare(expected, found)
        return DemoReport(
            orders=orders,
            acknowledged_before_the_loss=len(shop.places),
            recovery_points=len(Repository.open(settings).points.instants()),
            restored_point=point.id,
            restored_point_guarantee=point.guarantee,
            recovery_point_age_s=(lost_ms - point.taken_at_ms) / 1000,
            recovery_s=recovery_s,
            caught_up_s=caught_up_s,
            phases_s=self.phases_s,
            records_restored=restored.records,
            records_verified=restored.restore.verified_records or 0,
            orders_replayed=replayed,
            customers=len(expected),
            customers_that_differ=sum(found.get(c) != t for c, t in expected.items()),
            lost_after_replay=_count(expected) - _count(found),
            findings=tuple(self.findings),
        )

    def _until_the_loss(self) -> tuple[Shop, list[Window], tuple[float, int]]:
        """Run everything until a window is backed up, then lose the cluster under full load.

        Returns the shop, the windows, and when the loss was: monotonic seconds, epoch milliseconds.
        """
        print("Starting this host's Spark and letting it warm up ...")
        start_engine(self.place.engine_log)
        began = time.monotonic()
        with LocalCluster(self.place.kafka) as cluster:
            print(f"Broker up at {cluster.bootstrap_servers} ({time.monotonic() - began:.1f} s).")
            first_window = time.strftime("%Y-%m-%d-%H:%M", time.gmtime())
            settings = self._settings(cluster, first_window=first_window)
            create_topics(cluster.bootstrap_servers)
            application = self._order_processor(cluster, self.place.state)
            application.start()
            self.definitions = loaded_definitions()
            print(f"The order processor runs; {RATE:,.0f} orders/s from now on.")
            shop = Shop(cluster.bootstrap_servers, self.generator, rate=RATE)
            shop.start()
            with followed(self.place.follower_log):
                windows = await_windows(settings, shop)
                print("Now the cluster is lost: broker and application are killed ...")
                lost = time.monotonic(), time.time_ns() // 1_000_000
                cluster.kill_node(0)
                application.kill()
        shutil.rmtree(self.place.kafka)
        shutil.rmtree(self.place.state)
        print(f"... and the data deleted. {len(shop.places):,} orders had been acknowledged.")
        return shop, windows, lost

    def _report_windows(self, settings: ApplicationSettings, windows: Sequence[Window]) -> None:
        """Report the backups of closed windows to Dagster, as the sensor does."""
        with dg.DagsterInstance.get() as instance:
            reported = Reporter(settings, instance).report(None).reported
        ledger = Repository.open(settings).ledger
        backups = recorded_backups(settings, ledger.of_windows({w.key for w in windows}))
        checks = [check for backup in backups for check in evaluate(backup, settings.application)]
        print_windows(backups, checks)
        self.findings += backup_findings(windows, reported, checks)

    def _restore(self, settings: ApplicationSettings, cluster: LocalCluster) -> Restored:
        print("Restoring to the newest exact point ...")
        with dg.DagsterInstance.get() as instance:
            restored = restore(settings, self.definitions, cluster.bootstrap_servers, instance)
        print(f"Run {restored.run_id}: {restored.records:,} records, {restored.seconds:.1f} s.")
        self.phases_s["the restore, verified record by record"] = (
            restored.seconds - restored.rules_s
        )
        self.phases_s[f"{len(restored.rules)} completeness rules on the new cluster"] = (
            restored.rules_s
        )
        self.findings += rule_findings(restored.rules)
        return restored

    def _order_processor(self, cluster: LocalCluster, state: Path) -> OrderProcessor:
        return OrderProcessor(
            cluster.bootstrap_servers,
            state_dir=state,
            application_id=APPLICATION_ID,
            config=CONFIG,
        )

    def _replay(self, shop: Shop, point: RecoveryPoint, orders: int, cluster: LocalCluster) -> int:
        """Send the records missing in the restored input, and those since then."""
        ends = {cut.partition: cut.end for cut in point.partitions if cut.topic == "orders"}
        missing = shop.not_in(ends, orders)
        print(f"The shop sends {len(missing):,} orders again that came after the point ...")
        produce_orders(cluster.bootstrap_servers, self.generator, indices=missing)
        return len(missing)

    def _compare(self, expected: dict[str, CustomerTotal], found: dict[str, CustomerTotal]) -> None:
        differ = sum(found.get(customer) != total for customer, total in expected.items())
        self.findings += [
            Finding("customers", len(expected), len(found)),
            Finding("customers whose total differs from the uninterrupted run", 0, differ),
        ]

    def _settings(
        self, cluster: LocalCluster, *, first_window: str | None = None
    ) -> ApplicationSettings:
        self.place.prepare(bootstrap_servers=cluster.bootstrap_servers, first_window=first_window)
        return load_settings(DEFS)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.phases_s[name] = time.monotonic() - began


def _point(settings: ApplicationSettings, restored: Restored) -> RecoveryPoint:
    table = Repository.open(settings).points
    (point,) = table.load([restored.restore.point_id])
    return point


def _count(totals_: dict[str, CustomerTotal]) -> int:
    return sum(total.count for total in totals_.values())


if __name__ == "__main__":
    sys.exit(run(Place()))
