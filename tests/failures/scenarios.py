"""The failures that have a drill, with the expected behaviour and the remedy."""

from dataclasses import dataclass
from typing import Final

_RUNBOOK: Final = "runbook.md"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row of the matrix.

    `expected` is the known behaviour of Kafka Streams, with its conditions. `do` is for the
    operator; its links are relative to docs/operations.
    """

    id: str
    title: str
    expected: str
    do: str


SCENARIOS: Final = (
    Scenario(
        "instance-crash",
        "An instance crashes (SIGKILL under load)",
        "Its tasks move to another instance. Changelog and offsets must be valid.",
        "nothing; restart the instance",
    ),
    Scenario(
        "broker-briefly-away",
        "The broker is down for some seconds",
        "The clients try again. Alert if it lasts.",
        "nothing; if it lasts, `recovery_point_is_recent` turns red",
    ),
    Scenario(
        "state-directory-lost",
        "The state directory is lost",
        "The state is restored from the changelog, which must fit the time objective.",
        "nothing; a drill measures how long it takes",
    ),
    Scenario(
        "bad-schema",
        "A record that cannot be deserialised kills the application",
        "The application fails, and again at each start.",
        "write a valid record of the same key, set a deserialization exception handler, or"
        " restore a point from before the record",
    ),
    Scenario(
        "poison-record",
        "Invalid orders, put aside by the application",
        "A strategy for errors: each record is processed or put aside, none is lost.",
        "look at the topic of rejected records",
    ),
    Scenario(
        "output-topic-unavailable",
        "An output topic is deleted",
        "Processing stalls or fails. Needed: a policy for exceptions, and an alert.",
        "create the topic and start the application; restore an earlier point to get its records"
        " back",
    ),
    Scenario(
        "rebalance-during-deployment",
        "A deployment replaces instances one by one, under load",
        "Tasks pause and move. Shut instances down cleanly.",
        "nothing",
    ),
    Scenario(
        "hot-key",
        "One key gets nearly all records",
        "One task is overloaded while others are idle.",
        "choose another key, or split the hot key",
    ),
    Scenario(
        "internal-topic-acl-missing",
        "The right to write an internal topic is missing",
        "The application fails at run time.",
        "grant the application rights on its internal topics (prefix: application id)",
    ),
    Scenario(
        "incompatible-topology",
        "A store is renamed under the same application id",
        "The state is lost or the output changes. Deploy it as a new version, or reset.",
        "return to the previous topology and restore an earlier point; deploy the new topology"
        " under another application id",
    ),
    Scenario(
        "state-store-corrupted",
        "The files of a state store are damaged",
        "The application fails, or starts again from the changelog.",
        "delete the state directory of the instance",
    ),
    Scenario(
        "changelog-corrupted",
        "A wrong record is in the changelog",
        "No error: the state is rebuilt from it and stays wrong.",
        "restore the newest point whose rules pass",
    ),
    Scenario(
        "lag-behind-retention",
        "The application is stopped until its input is deleted",
        "It continues at the start of the log, and deleted records are never counted.",
        "restore the point of the backup into a cluster with enough retention",
    ),
    Scenario(
        "tombstone-flood",
        "Most records of a changelog are deletions",
        "Compaction lags behind, and restores of the state take longer.",
        "lower `min.cleanable.dirty.ratio` or `delete.retention.ms`; restore from KTable snapshots",
    ),
    Scenario(
        "dual-write",
        "A record is written to the old topic and not to the new one",
        "Both topics have the same records.",
        "write the missing records to the new topic; the backup of the old topic has them",
    ),
)
