"""The control plane of one Kafka cluster, as the rest of this project uses it."""

from kstreams_assets.closing import Closing
from kstreams_assets.kafka.admin import AdminRequests
from kstreams_assets.kafka.admin_calls import AdminCalls
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.groups import GroupRequests
from kstreams_assets.kafka.leader_epochs import EpochRequests
from kstreams_assets.kafka.leaders import LogRequests
from kstreams_assets.kafka.raw_log import RawLogReader
from kstreams_assets.kafka.transactions import TransactionRequests
from kstreams_assets.kafka.wire import WireClient


class KafkaCluster(
    AdminRequests, LogRequests, EpochRequests, GroupRequests, TransactionRequests, Closing
):
    """Requests to one cluster; each is answered or fails within the connection's request timeout.

    Connects at the first call and keeps its connections; usable from one thread at a time. Every
    call raises ClusterUnavailableError if no broker answers in time, AuthenticationFailedError for
    wrong credentials or a failed TLS handshake, AuthorizationFailedError if an ACL is missing,
    TopicNotFoundError for missing topics, SecretNotFoundError and ConfigurationError for an invalid
    connection.
    """

    def __init__(self, connection: KafkaConnection, *, timeout_s: float | None = None) -> None:
        self.connection = connection
        limit_s = connection.request_timeout_seconds if timeout_s is None else timeout_s
        super().__init__(WireClient(connection, timeout_s=limit_s))
        self._admin = AdminCalls(connection, self._wire)

    def close(self) -> None:
        """Close all connections."""
        self._admin.close()
        self._wire.close()

    def raw_log(self) -> RawLogReader:
        """A reader of raw logs on this object's connections. Needs READ on what it reads."""
        return RawLogReader(self.connection, shared=(self._wire, self._leaders))
