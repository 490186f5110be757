"""Back up, time-travel and restore Kafka Streams applications as Dagster assets."""

import os

# deltalake's allocator keeps freed memory for ten seconds. Reading the log of half a million files
# takes 400 MB, and later reads would need memory on top of that. The variable must be set before
# the import.
os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:10,muzzy_decay_ms:0")
