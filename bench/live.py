"""What a loss costs: how old a follower's newest point is, and the demo from loss to RUNNING."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import Final

from bench.harness import Act, Case, Measured, Options
from bench.memory import watched
from bench.place import CUSTOMERS, Place, engines_in, order_processor, place
from examples.demo.live import RATE
from examples.demo.place import CHECKOUT, DEFS
from examples.demo.shop import Shop
from examples.order_processor.application import create_topics
from examples.order_processor.orders import OrderGenerator
from kstreams_assets.app_file.read import load_settings
from kstreams_assets.backup.follow import status_of
from kstreams_assets.model.point import Guarantee

_LASTS_S: Final = 600.0
_SETTLED_S: Final = 20.0
_END_S: Final = 120.0


@contextmanager
def follow(options: Options) -> Iterator[Case]:
    """A follower beside broker and application at 2,000 orders a second."""
    with place() as here:
        servers = here.bootstrap_servers
        create_topics(servers)
        shop = Shop(servers, OrderGenerator(seed=9, customers=CUSTOMERS), rate=RATE)

        def run() -> Measured:
            with order_processor(here):
                shop.start()
                try:
                    return _followed(here, shop, options.scaled(_LASTS_S, 10))
                finally:
                    shop.stop()

        yield Case(
            "A follower beside broker and application, 2,000 orders a second",
            [
                Act(
                    "follow",
                    run,
                    at_most={"age_p95_s": 10.0, "age_max_s": 20.0, "cores": 0.6},
                    once=True,
                )
            ],
            [
                "Each second: how old the newest covered recovery point is, which a loss at this"
                f" moment would go back to; the first {_SETTLED_S:g} s do not count. `cores` is the"
                " CPU time of the follower with all that it starts, over the time. Windows close"
                " each minute and are put together meanwhile. `not_exact` are seconds in which the"
                " newest covered point was not exact.",
            ],
        )


def _followed(here: Place, shop: Shop, lasts_s: float) -> Measured:
    root = here.folder / "warehouse"
    settings = load_settings(DEFS, bootstrap_servers=here.bootstrap_servers, warehouse=str(root))
    words = ["--app", str(DEFS), "--warehouse", str(root)]
    follower = here.start(
        "follow",
        *words,
        KSTREAMS_BOOTSTRAP_SERVERS=here.bootstrap_servers,
        KSTREAMS_WINDOWS_START=time.strftime("%Y-%m-%d-%H:%M", time.gmtime()),
    )
    ages: list[float] = []
    inexact = 0
    try:
        time.sleep(_SETTLED_S)
        began = time.monotonic()
        with watched(lambda: [follower.pid]) as usage:
            while (now := time.monotonic()) - began < lasts_s:
                status = status_of(settings.warehouse, settings.application_id)
                if status is None or status.covered_at_ms is None:
                    raise RuntimeError("the follower has covered nothing yet")
                ages.append(time.time() - status.covered_at_ms / 1000)
                if shop.failure:
                    raise RuntimeError(f"the orders stopped: {shop.failure}")
                inexact += status.guarantee != Guarantee.EXACT
                time.sleep(max(0.0, now + 1 - time.monotonic()))
            seconds = time.monotonic() - began
    finally:
        follower.terminate()
        out, err = follower.communicate(timeout=_END_S)
    if follower.returncode:
        raise RuntimeError(f"the follower ended with {follower.returncode}:\n{out}\n{err}")
    cuts = quantiles(ages, n=100, method="inclusive")
    figures = {
        "age_p50_s": cuts[49],
        "age_p95_s": cuts[94],
        "age_max_s": max(ages),
        "cores": usage.cpu_s / seconds,
        "not_exact": float(inexact),
    }
    return Measured(seconds, usage.cpu_s, usage.peak_mb, figures=figures)


@contextmanager
def recovery(options: Options) -> Iterator[Case]:
    """The demo: from the loss of the cluster to the application RUNNING with its state."""
    yield Case(
        "The demo: loss of the cluster to RUNNING, every record compared, all rules evaluated",
        [Act("demo", _demo, at_most={"rpo_s": 10.0, "rto_s": 20.0}, once=True)],
        [
            "`make demo`: `rpo_s` is the age of the restored point at the loss, `rto_s` the time"
            " from the loss to RUNNING with a new broker, restore, verification, six rules and the"
            " application's start in it; `seconds` is the whole demo.",
        ],
    )


def _demo() -> Measured:
    with (
        TemporaryDirectory(prefix="kstreams-bench-") as folder,
        engines_in(Path(folder) / "engines"),
    ):
        return _demo_with_its_own_engine()


def _demo_with_its_own_engine() -> Measured:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    if done.returncode:
        raise RuntimeError(f"the demo failed:\n{done.stdout}\n{done.stderr}")
    told = json.loads((CHECKOUT / ".demo/demo-report.json").read_text(encoding="utf-8"))
    figures = {
        "rpo_s": told["recovery_point_age_s"],
        "rto_s": told["recovery_s"],
        "records": float(told["records_restored"]),
        **{f"{name} (s)": seconds for name, seconds in told["phases_s"].items()},
    }
    return Measured(time.monotonic() - began, figures=figures)
