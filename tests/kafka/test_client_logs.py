import logging

import pytest

from kstreams_assets.kafka.clients import tame_client_logs


@pytest.mark.parametrize(
    "name", ["kafka.cluster", "kafka.net.connection", "kafka.net.inet", "kafka.net.manager"]
)
def test_attempts_that_failed_are_no_errors_of_the_program(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    tame_client_logs()

    logging.getLogger(name).error("Connection failed")

    assert caplog.records == []


def test_attempts_that_failed_can_be_seen_when_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    tame_client_logs()
    caplog.set_level(logging.DEBUG, "kafka.net")

    logging.getLogger("kafka.net.connection").error("Connection failed")

    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("DEBUG", "Connection failed")
    ]


def test_bytes_on_the_wire_stay_unseen(caplog: pytest.LogCaptureFixture) -> None:
    tame_client_logs()
    caplog.set_level(logging.DEBUG, "kafka.net")

    logging.getLogger("kafka.net.connection").debug("password")

    assert caplog.records == []


def test_other_errors_of_the_clients_stay(caplog: pytest.LogCaptureFixture) -> None:
    tame_client_logs()

    logging.getLogger("kafka.coordinator.base").error("Heartbeat failed")

    assert len(caplog.records) == 1
