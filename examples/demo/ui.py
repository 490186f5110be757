"""`make dev`: the Dagster UI with the example loaded, on a live broker and application.

Goes on with the cluster that the last `make demo` restored into, if there is any. Ctrl-C stops
everything.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

import click

from examples.demo.place import APPLICATION_ID, CHECKOUT, CONFIG, Place
from examples.order_processor.application import OrderProcessor, create_topics
from examples.order_processor.load import LoadError, produce_orders
from examples.order_processor.orders import OrderGenerator
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.local.cluster import LocalCluster

_START_TIMEOUT_S: Final = 180.0
"""Of the application: where it was killed before, the group first waits for its lost members."""
_STOP_TIMEOUT_S: Final = 30.0


@click.command()
@click.option("--port", default=3000, show_default=True)
@click.option("--rate", default=50.0, show_default=True, help="Orders per second.")
def main(port: int, rate: float) -> None:
    """Start broker, application, a trickle of orders and the Dagster UI with its daemon."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    place = Place()
    place.root.mkdir(exist_ok=True)
    try:
        with LocalCluster(place.new_kafka if place.new_kafka.is_dir() else place.kafka) as cluster:
            place.prepare(
                bootstrap_servers=cluster.bootstrap_servers,
                first_window=None
                if place.first_window_file.is_file()
                else time.strftime("%Y-%m-%d-%H:%M", time.gmtime()),
            )
            create_topics(cluster.bootstrap_servers)
            application = OrderProcessor(
                cluster.bootstrap_servers,
                state_dir=place.new_state if place.new_kafka.is_dir() else place.state,
                application_id=APPLICATION_ID,
                config=CONFIG,
            )
            print("The order processor starts ...", flush=True)
            application.start(timeout_s=_START_TIMEOUT_S)
            with application:
                _serve(cluster.bootstrap_servers, port=port, rate=rate)
    except KStreamsAssetsError as error:
        sys.exit(f"Error: {error}")


def _serve(bootstrap_servers: str, *, port: int, rate: float) -> None:
    stop = threading.Event()
    orders = threading.Thread(
        target=_trickle, args=(bootstrap_servers, rate, stop), daemon=True, name="orders"
    )
    orders.start()
    # Beside the interpreter: the environment need not be activated.
    dg = str(Path(sys.executable).with_name("dg"))
    command = [dg, "dev", "--host", "127.0.0.1", "--port", str(port)]
    # Only those of the order processor; the other examples have no topics on this broker.
    os.environ["KSTREAMS_SENSORS"] = "running"
    print(f"Broker {bootstrap_servers}; the UI comes up on http://127.0.0.1:{port}", flush=True)
    process = subprocess.Popen(command, cwd=CHECKOUT, env=os.environ)
    # The terminal sends Ctrl-C to both. Who is asked to end alone has to pass it on: otherwise UI
    # and daemon outlive this process, and go on to work.
    signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGINT))
    try:
        process.wait()
    except KeyboardInterrupt:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_STOP_TIMEOUT_S)
    finally:
        stop.set()
        process.terminate()
        orders.join(timeout=_STOP_TIMEOUT_S)


def _trickle(bootstrap_servers: str, rate: float, stop: threading.Event) -> None:
    generator = OrderGenerator(seed=time.time_ns() // 1_000_000_000)
    with contextlib.suppress(LoadError):  # the broker goes first at Ctrl-C
        produce_orders(bootstrap_servers, generator, rate=rate, stop=stop)


if __name__ == "__main__":
    main()
