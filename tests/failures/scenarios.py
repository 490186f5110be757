"""The failures that have a drill: what is to be expected of them, and what to do."""

from dataclasses import dataclass
from typing import Final

_RUNBOOK: Final = "runbook.md"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row of the matrix.

    `expected` is what Kafka Streams is known to do, and what has to be true for that. `do` is for
    the operator, with links as they are written in docs/operations.
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
        "The broker is away for some seconds",
        "The clients try again. Alert when it lasts.",
        "nothing; if it lasts, `recovery_point_is_recent` turns red",
    ),
    Scenario(
        "state-directory-lost",
        "The state directory is lost",
        "The state is restored from the changelog, which must fit the time objective.",
        "nothing; mind how long it took: the drill measures it",
    ),
    Scenario(
        "bad-schema",
        "A record that cannot be deserialised kills the application",
        "The application fails, and fails again at each start.",
        "write a right record of the same key, or set a deserialization exception handler; or"
        " restore a point from before the record",
    ),
    Scenario(
        "poison-record",
        "Invalid orders, put aside by the application",
        "A strategy for errors: each record goes somewhere, none is lost.",
        "look at the topic of rejected records",
    ),
    Scenario(
        "output-topic-unavailable",
        "An output topic is deleted",
        "Processing stalls or fails. A clear policy for exceptions, and an alert.",
        "create the topic and start the application; restore the point before to have its"
        " content back",
    ),
    Scenario(
        "rebalance-during-deployment",
        "A deployment replaces instances one by one, under load",
        "Tasks pause and move. Close instances in an orderly way.",
        "nothing",
    ),
    Scenario(
        "hot-key",
        "One key gets nearly all records",
        "One task is overloaded while others are idle.",
        "choose another key, or split the hot one",
    ),
    Scenario(
        "internal-topic-acl-missing",
        "The right to write an internal topic is missing",
        "The application fails at run time.",
        "grant the application its internal topics (prefix: application id)",
    ),
    Scenario(
        "incompatible-topology",
        "A store is renamed under the same application id",
        "The state is lost or the output changes. Deploy it as a new version, or reset.",
        "go back to the topology before and restore the point before; deploy the new one under"
        " another application id",
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
        "Nobody notices: the state is rebuilt from it, and what is wrong stays.",
        "restore the newest point whose rules pass",
    ),
    Scenario(
        "lag-behind-retention",
        "The application is stopped until its input is deleted",
        "It goes on at the beginning of the log, and what was deleted is never counted.",
        "restore the point of the backup into a cluster with enough retention",
    ),
    Scenario(
        "tombstone-flood",
        "Most records of a changelog are deletions",
        "Compaction lags behind, restores of the state take longer.",
        "lower `min.cleanable.dirty.ratio` or `delete.retention.ms`; restore from KTable snapshots",
    ),
    Scenario(
        "dual-write",
        "A record is written to the old topic and not to the new one",
        "Both topics hold the same records.",
        "write the missing records to the new topic; the backup of the old one has it",
    ),
)
