"""Launches the driver's JVM, and hands on what it says on standard error but for idle talk."""

import contextlib
import os
import threading
from collections.abc import Collection, Mapping
from typing import Final

import psutil
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

_IDLE: Final = (b"WARNING: Using incubator modules: jdk.incubator.vector",)
"""Spark's launcher adds this module itself, and no option of the JVM hides that it does."""
_STANDARD_ERROR: Final = 2
_SHELL: Final = "pyspark-shell"
"""An argument of the script that starts the driver's JVM, and of that JVM."""


def launch_jvm(settings: Mapping[str, str]) -> None:
    """Start the JVM of this process's Spark driver, unless there is one.

    Without this, pyspark starts it with the process's own standard error: a line of the JVM for
    every run, which cron mails. Raises PySparkRuntimeError when the JVM ends at once.
    """
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:  # noqa: SLF001
        return
    conf = SparkConf(loadDefaults=False)
    for key, value in settings.items():
        conf.set(key, str(value))
    before = {child.pid for child in psutil.Process().children()}
    reading, writing = os.pipe()
    threading.Thread(target=_hand_on, args=(reading,), name="jvm-stderr", daemon=True).start()
    try:
        gateway = launch_gateway(conf, popen_kwargs={"stderr": writing})
    except BaseException:
        # At Ctrl-C pyspark forgets the JVM that it waits for, which then lives on for ever: it
        # cannot say its port to anyone.
        _kill_launched(before)
        raise
    finally:
        os.close(writing)
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001


def _kill_launched(before: Collection[int]) -> None:
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if child.pid not in before and _SHELL in child.cmdline():
                child.kill()


def _hand_on(reading: int) -> None:
    """Copy lines to standard error, as they come, until the JVM has ended."""
    with os.fdopen(reading, "rb", buffering=0) as file:
        begun = b""
        while chunk := file.read(65_536):
            *lines, begun = (begun + chunk).split(b"\n")
            for line in lines:
                if line.rstrip() not in _IDLE:
                    os.write(_STANDARD_ERROR, line + b"\n")
        if begun:
            os.write(_STANDARD_ERROR, begun)
