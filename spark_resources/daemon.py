"""The parent of Spark's Python workers, which has loaded what our tasks need before it forks them.

A worker that waits for a task for a minute ends, and to load all that again takes the next one half
a second [measured]. Spark starts this in place of `pyspark.daemon` (`spark.python.daemon.module`).
"""

import gc
from importlib import import_module
from typing import Final

from pyspark.daemon import manager

from kstreams_assets.private import keep_private

_LOADED: Final = (
    "pyspark.worker",
    "spark_resources.kafka_writer",
    "spark_resources.read_back",
    "spark_resources.span_tasks",
)

for _name in _LOADED:
    import_module(_name)

# An executor of a cluster has the mask of whoever started its worker.
keep_private()
# Else the first look for cycles in each worker would copy the memory that it shares.
gc.freeze()

if __name__ == "__main__":
    manager()
