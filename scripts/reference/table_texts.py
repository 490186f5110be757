"""What each column of the tables means; the names and types come from the code."""

COMMON = {
    "application_id": "The application.",
    "window": "Key of the window, as in Dagster.",
    "window_start_ms": "Begin of the window, epoch milliseconds.",
    "window_end_ms": "Exclusive end of the window, epoch milliseconds.",
    "topic": "Topic.",
    "partition": "Partition of the topic.",
    "topic_id": "Id that Kafka gave the topic; a recreated topic has another one. If the log of"
    " the partition was truncated, with `~` and the leader epoch in which that was seen.",
}
RECORDS = {
    "window": COMMON["window"],
    "topic": COMMON["topic"],
    "partition": COMMON["partition"],
    "offset": "Offset in Kafka.",
    "timestamp_ms": "Epoch milliseconds exactly as Kafka stored it; 0 and -1 are kept.",
    "timestamp_type": "0 CreateTime, 1 LogAppendTime.",
    "headers": "In order; duplicate keys and null values are kept.",
    "key": "Raw bytes; null and empty are told apart.",
    "value": "Raw bytes; null is a tombstone.",
}
RECOVERY_POINTS = {
    "application_id": COMMON["application_id"],
    "id": "Sorts by the time the point was taken.",
    "cluster_id": "Id of the Kafka cluster.",
    "taken_at_ms": "When it was taken, epoch milliseconds.",
    "closes_window_end_ms": "Set on a point taken late, for a window that closed without one:"
    " exclusive end of that window.",
    "method": "How it was taken.",
    "guarantee": "What it was taken with: see [concepts](../concepts.md#recovery-point).",
    "sealed": "Whether its changelogs are safe from compaction.",
    "reason": "Why it has this guarantee and no better one.",
    "took_ms": "How long it took.",
    "attempts": "Number of cuts that were tried.",
    "in_flight": "Records of repartition topics that belong to it and were not yet processed.",
    "unsealed_because": "Why it is not sealed; empty when it is.",
    "absent_topics": "Declared topics that were not on the cluster, or not visible.",
    "saved_version": "Version of the table `recovery_point_records` with what was saved of the"
    " point in it; an older table is refused. Null: nothing was saved, or not known.",
    "undeclared_topics": "Topics of the application (by their names, or with offsets of its group)"
    " that nobody had declared; null: not known.",
    "cut_guarantee": "Guarantee of what the point has, whatever topics it lacks; null: as"
    " `guarantee`.",
    "partitions": "Of each partition: log start offset and exclusive `end`; ranges `excluded` from"
    " it; `saved_from`: its records from there on are in `recovery_point_records`, under this id or"
    " earlier ones; `leader_epoch` of the leader that reported `end`.",
    "group_offsets": "Committed offsets of the group, with metadata unchanged.",
    "sequence": "Number of the point among those of the application: orders them, whatever the"
    " clocks said; null: taken by an earlier release.",
    "ledger_version": "Version of the table `windows` before the cut: what it held was read before"
    " the cut; null: not known.",
    "digest": "SHA-256 of the rest of the row as JSON (keys in order, without nulls); compared"
    " whenever the row is read. Null in rows of earlier releases.",
}
SAVED_RECORDS = {
    "application_id": COMMON["application_id"],
    "recovery_point_id": "The point that saved the record; later ones refer to it by offset.",
    "topic": RECORDS["topic"],
    "topic_id": COMMON["topic_id"],
    **{name: RECORDS[name] for name in ("partition", "offset", "timestamp_ms", "timestamp_type")},
    **{name: RECORDS[name] for name in ("headers", "key", "value")},
    "digest": "BLAKE2b (16 bytes) of the record with its topic and partition; compared when it is"
    " read. Null in rows of earlier releases.",
}
WINDOWS = {
    **COMMON,
    "partition": "Partition; -1 in the one row of a topic that no recovery point knew yet.",
    "start": "First offset of the span.",
    "end": "Exclusive end of the span.",
    "read_start": "First offset that was read; what lies before it is told in `gaps`.",
    "continues": "Whether the span begins where the window before it ends.",
    "log_start": "Log start offset when the span was planned.",
    "records": "Records stored.",
    "bytes": "Uncompressed keys, values and headers in Parquet's plain encoding.",
    "stored_bytes": "Size of the span's files.",
    "files": "Number of the span's files.",
    "tombstones": "Records with a null value.",
    "null_keys": "Records with a null key.",
    "odd_timestamps": "Records with a timestamp of 0 or below.",
    "first_offset": "Smallest offset stored; null without records.",
    "last_offset": "Largest offset stored; null without records.",
    "min_timestamp_ms": "Smallest timestamp stored.",
    "max_timestamp_ms": "Largest timestamp stored.",
    "gaps": "Offsets without a record: cause, range, number (see [checks](checks.md)).",
    "first_hole": "Changelogs: lowest offset that the log did not hold any more after the span was"
    " read (compaction, retention); null: contiguous.",
    "contiguity_known": "Whether that was looked at: changelogs only.",
    "recovery_point_id": "The recovery point that ends the window.",
    "delta_version": "Version of the records table that holds the span.",
    "run_id": "Dagster run, or `cli-...`.",
    "recorded_at_ms": "When the row was written, epoch milliseconds.",
    "ledger_version": "Version of this table when the span had been read; null: not known.",
    "written": "The data files as they were right after the backup: path below the records table,"
    " bytes, records and SHA-256 of each. Restores compare them; null in rows of earlier"
    " releases.",
}
TOPICS = {
    **{name: COMMON[name] for name in ("application_id", "window", "window_end_ms", "topic")},
    "topic_id": COMMON["topic_id"],
    "role": "Roles, joined with `+`.",
    "partitions": "Number of partitions.",
    "replication_factor": "Smallest number of replicas of a partition.",
    "configs": "Settings made on the topic itself, not the broker's defaults.",
}
RESTORES = {
    "application_id": COMMON["application_id"],
    "restore_id": "The same for the same point, mode, names and target.",
    "change": "Number of the change; the highest one is how the restore stands.",
    "state": "`planned`, `produced`, `verified`, `failed_verification`, `committed`,"
    " `rolled_back`, `finished`.",
    "changed_at_ms": "When it came into this state, epoch milliseconds.",
    "created_at_ms": "When it was begun, epoch milliseconds.",
    "run_id": "Dagster run, or `cli-...`.",
    "point_id": "The recovery point.",
    "group": "Consumer group on the target, its application id.",
    "target_cluster_id": "Id of the target cluster.",
    "target_bootstrap_servers": "Where it was.",
    "mode": "`state`, `rebuild` or `inputs_until`.",
    "request": "What was asked for, as JSON.",
    "topics": "Names, id on the target, ends there before the first restored record, number of"
    " records, configs that `finish` puts back.",
    "former_offsets": "What the group had committed on the target before; null before the commit.",
    "committed": "What was committed, in the target's offsets; null before the commit.",
    "to_commit": "What is to be committed once the restore is verified, in the target's offsets.",
    "verified_records": "Records that were read back and compared.",
    "problem": "What went wrong, empty when nothing did.",
    "placed": "Excluded topics in which the group goes on: where, how that is known, and its"
    " `offsets` there, which are among those `to_commit`; null in rows of earlier releases.",
}
OFFSET_MAPS = {
    "application_id": COMMON["application_id"],
    "restore_id": "The restore.",
    "topic": "Source topic.",
    "partition": "Source partition.",
    "target_topic": "Topic on the target.",
    "target_partition": "Partition on the target.",
    "source_start": "First source offset of the run; null in the row that tells the end.",
    "target_start": "Its target offset; in the row that tells the end, the target's end.",
    "length": "Records with consecutive offsets on both sides; 0 in the row that tells the end.",
    "digest": "In the row that tells the end: SHA-256 of the partition's map; compared when it is"
    " read. Null in rows of earlier releases.",
}
KTABLE_SNAPSHOTS = {
    **{name: COMMON[name] for name in ("application_id", "window", "topic")},
    **{name: COMMON[name] for name in ("window_start_ms", "window_end_ms")},
    "store": "State store.",
    "point_id": "The recovery point whose state it is.",
    "taken_at_ms": "When that point was taken, epoch milliseconds.",
    "proved": "Whether it is exactly the store's content at the point.",
    "reason": "Why it is, or why that cannot be proved.",
    "base_window": "Window of the earlier snapshot that it builds on; null: made from the begin of"
    " the log.",
    "fingerprint": "The same for formats that give the same rows.",
    "partitions": "Of each partition: where in the log it stands, rows, bytes, the time on which"
    " retention is counted.",
    "records": "Records read to make it.",
    "problem_rows": "Rows that could not be decoded.",
    "problems": "The first of them.",
    "delta_version": "Version of the table that holds it.",
    "took_ms": "How long it took.",
    "run_id": "Dagster run, or `cli-...`.",
    "recorded_at_ms": "When the row was written; the newest one of a store and window counts.",
    "written": "The data files as they were right after they were written: path below the store's"
    " table, bytes, rows and SHA-256 of each; compared before a restore or the next snapshot uses"
    " them. Null in rows of earlier releases.",
}
SCHEMAS = {
    "application_id": COMMON["application_id"],
    "id": "Id in the registry, as it stands in the records.",
    "kind": "`avro` or `protobuf`.",
    "text": "The schema.",
    "references": "Schemas that it refers to, by name.",
    "saved_at_ms": "When it was copied, epoch milliseconds.",
}
