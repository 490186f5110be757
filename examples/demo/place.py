"""Where demo and UI keep their things, and the environment that points the example at them."""

import os
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

CHECKOUT: Final = Path(__file__).resolve().parents[2]
DEFS: Final = CHECKOUT / "examples" / "defs" / "order_processor" / "defs.yaml"
APPLICATION_ID: Final = "order-processor"
WAREHOUSE_VARIABLE: Final = "DEMO_WAREHOUSE"
"""Where the tables go, if not into the checkout: `s3://bucket/prefix`."""
CONFIG = {"topic.min.compaction.lag.ms": "3600000"}
"""Streams properties: the changelog is left alone for longer than a window and its backup."""


@dataclass(frozen=True, slots=True)
class Place:
    """The folder `.demo` of a checkout."""

    root: Path = CHECKOUT / ".demo"

    @property
    def kafka(self) -> Path:
        """Data of the local broker that gets lost."""
        return self.root / "kafka"

    @property
    def state(self) -> Path:
        """State folder of the order processor on it."""
        return self.root / "state"

    @property
    def new_kafka(self) -> Path:
        """Data of the local broker that is restored into."""
        return self.root / "new-kafka"

    @property
    def new_state(self) -> Path:
        """State folder of the order processor there."""
        return self.root / "new-state"

    @property
    def control(self) -> Path:
        """Broker and state of the run that nothing interrupts."""
        return self.root / "control"

    @property
    def report(self) -> Path:
        """What the demo measured and found, as JSON."""
        return self.root / "demo-report.json"

    @property
    def follower_log(self) -> Path:
        """What the follower printed."""
        return self.root / "follow.log"

    @property
    def engine_log(self) -> Path:
        """What the start of the warm Spark printed."""
        return self.root / "engine.log"

    @property
    def warehouse(self) -> str:
        """The Delta tables: a folder, or below the place in an object store that was given."""
        if self._warehouse_file.is_file():
            return self._warehouse_file.read_text("utf-8")
        return str(self.root / "warehouse")

    @property
    def _warehouse_file(self) -> Path:
        return self.root / "warehouse_url"

    @property
    def dagster_home(self) -> Path:
        """Runs and events of Dagster."""
        return self.root / "dagster_home"

    @property
    def first_window_file(self) -> Path:
        """Holds the key of the first window, so that the UI shows the same partitions."""
        return self.root / "first_window"

    def clear(self) -> None:
        """Start again."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        given = os.environ.get(WAREHOUSE_VARIABLE)
        if given:
            # A place of its own: nothing that lies there is ever deleted.
            name = datetime.now(tz=UTC).strftime("demo-%Y%m%dT%H%M%S")
            self._warehouse_file.write_text(f"{given.rstrip('/')}/{name}", encoding="utf-8")

    def prepare(self, *, bootstrap_servers: str, first_window: str | None = None) -> None:
        """Set up DAGSTER_HOME and the environment variables that `defs.yaml` reads."""
        self.dagster_home.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / "dagster.yaml", self.dagster_home / "dagster.yaml")
        if first_window is not None:
            self.first_window_file.write_text(first_window, encoding="utf-8")
        os.environ["DAGSTER_HOME"] = str(self.dagster_home)
        os.environ["KSTREAMS_BOOTSTRAP_SERVERS"] = bootstrap_servers
        os.environ["KSTREAMS_WAREHOUSE"] = self.warehouse
        if self.first_window_file.is_file():
            os.environ["KSTREAMS_WINDOWS_START"] = self.first_window_file.read_text("utf-8")
