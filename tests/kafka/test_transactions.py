"""Transactional ids of applications."""

import uuid
from collections.abc import Callable
from typing import Any, cast

import pytest
from kafka.protocol.admin.transactions import ListTransactionsResponse

from kstreams_assets.errors import ClusterUnavailableError, KafkaRequestError
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.raw_log import RawLogReader
from kstreams_assets.kafka.transactions import TransactionalId, TransactionRequests
from kstreams_assets.kafka.wire import WireClient
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from tests.kafka.transacting import DEADLINE_S, TIMEOUT_S, settled_end, transactional_producer
from tests.streams.cluster import unique_name

NAME = "orders-00000000-0000-0000-0000-000000000000-1"


class FakeWire:
    """Two brokers that list transactions: error codes first, then the ids each coordinates."""

    timeout_s = 0.5

    def __init__(self, ids: dict[int, list[str]], *codes: int) -> None:
        self._ids = ids
        self._codes = list(codes)
        self.dead: set[int] = set()

    def broker_ids(self, *, operation: str) -> list[int]:
        """The living ones; the dead are known until somebody has asked them."""
        known = sorted(self._ids)
        self._ids = {n: ids for n, ids in self._ids.items() if n not in self.dead}
        return known

    def request(
        self,
        make: Callable[[], Any],
        *,
        operation: str,
        node: int,
        retry: bool,
        timeout_s: float | None = None,
    ) -> Any:
        """The answer of one broker."""
        if node in self.dead:
            raise self.unavailable(operation, 1.0, "the broker is dead")
        if self._codes:
            return ListTransactionsResponse(error_code=self._codes.pop(0), transaction_states=[])
        state = ListTransactionsResponse.TransactionState
        return ListTransactionsResponse(
            error_code=0,
            transaction_states=[
                state(transactional_id=name, producer_id=7, transaction_state="Empty")
                for name in self._ids[node]
            ],
        )

    def unavailable(self, operation: str, timeout_s: float, reason: str) -> ClusterUnavailableError:
        """As WireClient."""
        return ClusterUnavailableError(
            bootstrap_servers="fake", operation=operation, timeout_s=timeout_s, reason=reason
        )


def _ids(wire: FakeWire) -> tuple[TransactionalId, ...]:
    return TransactionRequests(cast(WireClient, wire)).transactional_ids("orders")


@pytest.mark.usefixtures("clock")
class TestBrokersInMemory:
    """Several brokers, and ones that are not ready."""

    def test_ids_of_all_brokers_by_name(self) -> None:
        task, other = "orders-0_1", NAME.replace("orders", "orders-eu")
        wire = FakeWire({1: [NAME], 2: [task, other]})
        assert _ids(wire) == (TransactionalId(NAME, 7, "Empty"), TransactionalId(task, 7, "Empty"))

    @pytest.mark.parametrize("code", [14, 15, 16])
    def test_coordinator_that_gets_ready(self, code: int) -> None:
        assert len(_ids(FakeWire({1: [NAME]}, code, code))) == 1

    def test_coordinator_that_does_not_get_ready(self) -> None:
        with pytest.raises(ClusterUnavailableError, match="CoordinatorLoadInProgress"):
            _ids(FakeWire({1: [NAME]}, *[14] * 100))

    def test_broker_that_died(self) -> None:
        wire = FakeWire({1: [NAME], 2: []})
        wire.dead = {2}
        assert len(_ids(wire)) == 1

    def test_refusal(self) -> None:
        with pytest.raises(KafkaRequestError, match="ClusterAuthorizationFailed"):
            _ids(FakeWire({1: [NAME]}, 31))


@pytest.mark.kafka
def test_ids_of_one_application(kafka_cluster: LocalCluster) -> None:
    connection = KafkaConnection(
        bootstrap_servers=kafka_cluster.bootstrap_servers, request_timeout_seconds=10
    )
    application, topic = unique_name("app"), unique_name("out")
    names = sorted(f"{application}-{uuid.uuid4()}-{thread}" for thread in (1, 2))
    with KafkaCluster(connection) as cluster, RawLogReader(connection) as reader:
        cluster.create_topics([TopicSpec(topic, 2)])
        assert cluster.transactional_ids(application) == ()
        first, second = (
            transactional_producer(connection.bootstrap_servers, name) for name in names
        )
        transactional_producer(connection.bootstrap_servers, f"{application}-eu-{uuid.uuid4()}-1")
        for partition, producer in enumerate((first, second)):
            producer.begin_transaction()
            producer.produce(topic, b"v", partition=partition)
            assert producer.flush(20) == 0
        first.commit_transaction(TIMEOUT_S)
        settled_end(cluster, TopicPartitionId(topic, 0))
        found = cluster.transactional_ids(application)
        ongoing = cluster.ongoing_producers([*names, f"{application}-unknown"])
        partitions = [TopicPartitionId(topic, number) for number in range(2)]
        ranges = {partition: OffsetRange(0, 1) for partition in partitions}
        written = reader.read(ranges, deadline_s=DEADLINE_S)
        second.abort_transaction(TIMEOUT_S)
        assert cluster.ongoing_producers(names) == frozenset()
    assert [known.name for known in found] == names
    assert found[0].state in ("PrepareCommit", "CompleteCommit")  # a moment after its markers
    assert found[1].state == "Ongoing"
    headers = [written[partition][0].header for partition in partitions]
    assert [known.producer_id for known in found] == [header.producer_id for header in headers]
    assert ongoing == {(headers[1].producer_id, headers[1].producer_epoch)}
