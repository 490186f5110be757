"""What only the application's own JMX tells, by MBean and attribute (Kafka Streams 4.4)."""

_STREAMS = "kafka.streams:type="
_CONSUMER = "kafka.consumer:type="

JMX = (
    (
        "State of the application: RUNNING, REBALANCING ... (as text; `client-state` is the same as"
        " a number, 2 is RUNNING)",
        f"{_STREAMS}stream-metrics,client-id=*",
        "state",
    ),
    (
        "The same as a number",
        f"{_STREAMS}stream-metrics,process-id=*,application-id=*,client-id=*",
        "client-state",
    ),
    ("Threads that live", f"{_STREAMS}stream-metrics,client-id=*", "alive-stream-threads"),
    ("Threads that died", f"{_STREAMS}stream-metrics,client-id=*", "failed-stream-threads"),
    (
        "State of each thread, as a number",
        f"{_STREAMS}stream-thread-metrics,process-id=*,thread-id=*",
        "thread-state",
    ),
    (
        "Processing latency, ms",
        f"{_STREAMS}stream-thread-metrics,thread-id=*",
        "process-latency-avg",
    ),
    (
        "The worst of it, ms",
        f"{_STREAMS}stream-thread-metrics,thread-id=*",
        "process-latency-max",
    ),
    ("Records processed", f"{_STREAMS}stream-thread-metrics,thread-id=*", "process-total"),
    ("Commit latency, ms", f"{_STREAMS}stream-thread-metrics,thread-id=*", "commit-latency-avg"),
    (
        "The worst of it, ms",
        f"{_STREAMS}stream-thread-metrics,thread-id=*",
        "commit-latency-max",
    ),
    (
        "From a record's timestamp to its end in the topology, ms",
        f"{_STREAMS}stream-processor-node-metrics,thread-id=*,task-id=*,processor-node-id=*",
        "record-e2e-latency-avg",
    ),
    (
        "Records dropped (late, null key, not deserialised)",
        f"{_STREAMS}stream-task-metrics,thread-id=*,task-id=*",
        "dropped-records-total",
    ),
    (
        "Records read, by source node and topic",
        f"{_STREAMS}stream-topic-metrics,thread-id=*,task-id=*,processor-node-id=*,topic=*",
        "records-consumed-total",
    ),
    (
        "Records written, by sink node and topic",
        f"{_STREAMS}stream-topic-metrics,thread-id=*,task-id=*,processor-node-id=*,topic=*",
        "records-produced-total",
    ),
    (
        "Restoration of stores: tasks that restore",
        f"{_STREAMS}stream-state-updater-metrics,thread-id=*",
        "active-restoring-tasks",
    ),
    (
        "Restoration: records per second",
        f"{_STREAMS}stream-state-updater-metrics,thread-id=*",
        "restore-records-rate",
    ),
    (
        "Restoration: records to go",
        f"{_STREAMS}stream-task-metrics,thread-id=*,task-id=*",
        "restore-remaining-records-total",
    ),
    (
        "Size of a RocksDB store on disk, bytes",
        f"{_STREAMS}stream-state-metrics,thread-id=*,task-id=*,rocksdb-state-id=*",
        "total-sst-files-size",
    ),
    (
        "Keys in it, as RocksDB estimates",
        f"{_STREAMS}stream-state-metrics,thread-id=*,task-id=*,rocksdb-state-id=*",
        "estimate-num-keys",
    ),
    (
        "Rebalances",
        f"{_CONSUMER}consumer-coordinator-metrics,client-id=*",
        "rebalance-total",
    ),
    (
        "Rebalances that failed",
        f"{_CONSUMER}consumer-coordinator-metrics,client-id=*",
        "failed-rebalance-total",
    ),
    (
        "How long they took, ms",
        f"{_CONSUMER}consumer-coordinator-metrics,client-id=*",
        "rebalance-latency-avg",
    ),
    (
        "Time since the last one, s",
        f"{_CONSUMER}consumer-coordinator-metrics,client-id=*",
        "last-rebalance-seconds-ago",
    ),
    (
        "Errors of the producer",
        "kafka.producer:type=producer-topic-metrics,client-id=*,topic=*",
        "record-error-total",
    ),
)
"""What, MBean (`*` for what differs), attribute. All are recorded at Kafka's default level."""
