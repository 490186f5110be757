"""The parent of Spark's Python workers, which loads the modules of our tasks before it forks them.

A worker that is idle for a minute ends. Loading the modules again takes the next one half a second
[measured]. Spark starts this in place of `pyspark.daemon` (`spark.python.daemon.module`).
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

# An executor of a cluster has the umask of the process that started its worker.
keep_private()
# Otherwise the first garbage collection in each worker would copy the shared memory.
gc.freeze()

if __name__ == "__main__":
    manager()
