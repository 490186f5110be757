"""Back up, time-travel and restore Kafka Streams applications as Dagster assets."""

import os

# deltalake's allocator keeps what was freed for ten seconds. The log of half a million files takes
# 400 MB to read, and what is read after it would come on top. Only what is set before counts.
os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:10,muzzy_decay_ms:0")
