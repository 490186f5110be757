"""Becomes an example application: `python -m examples.streams.run NAME --bootstrap host:port`.

Options are those of Launcher.java (--application-id, --state-dir ...). What Kafka Streams says of
its start and of the restoration of its stores is written to standard output.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from examples.browser_actions import application as browser_actions
from examples.fraud_detector import application as fraud_detector
from examples.order_processor import application as order_processor
from examples.orders_count import application as orders_count
from examples.orders_risk_scoring import application as orders_risk_scoring
from examples.parcel_tracker import application as parcel_tracker
from examples.streams.application import Example
from kstreams_assets.errors import KStreamsAssetsError
from spark_resources.java import JavaProgram

_EXAMPLES: Final[Mapping[str, Example]] = {
    "browser-actions": browser_actions.EXAMPLE,
    "fraud-detector": fraud_detector.EXAMPLE,
    "orders-count": orders_count.EXAMPLE,
    "orders-count-v2": orders_count.EXAMPLE_V2,
    "orders-risk-scoring": orders_risk_scoring.EXAMPLE,
    "parcel-tracker": parcel_tracker.EXAMPLE,
}
_PROGRAMS: Final[Mapping[str, JavaProgram]] = {
    "order-processor": order_processor.PROGRAM,
    **{name: example.program for name, example in _EXAMPLES.items()},
}
_HEAP_MB: Final = 512
_LOG: Final = (
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.streams=info",
    "-Dorg.slf4j.simpleLogger.logFile=System.out",
)
_USAGE_ERROR: Final = 2


def command(name: str, arguments: Sequence[str]) -> list[str]:
    """The command that runs an example; KeyError for one that there is not.

    Raises ProcessError, JarsMissingError, JavaNotFoundError.
    """
    java, *rest = _PROGRAMS[name].command(heap_mb=_HEAP_MB)
    example = _EXAMPLES.get(name)
    own = [] if example is None else [f"{key}={value}" for key, value in example.config.items()]
    configs = [argument for setting in own for argument in ("--config", setting)]
    # The last of several equal options of a JVM counts, so these go behind the program's own.
    *options, main_class = rest
    return [java, *options, *_LOG, main_class, *configs, *arguments]


def main() -> None:
    """Replace this process by the application."""
    name, *arguments = sys.argv[1:] or [""]
    if name not in _PROGRAMS:
        print(f"Give one of {', '.join(sorted(_PROGRAMS))}, then its options.", file=sys.stderr)
        sys.exit(_USAGE_ERROR)
    try:
        found = command(name, arguments)
    except KStreamsAssetsError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(_USAGE_ERROR)
    os.execv(found[0], found)  # noqa: S606 (no shell is wanted)


if __name__ == "__main__":
    main()
