"""The connection to a schema registry: what is refused, what is never shown, what errors say."""

import logging
import pickle
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from pydantic import ValidationError

from kstreams_assets.errors import (
    ConfigurationError,
    KStreamsAssetsError,
    SchemaNotFoundError,
    SecretNotFoundError,
)
from kstreams_assets.kafka.registry import Reference, RegistryClient, RegistryConnection
from kstreams_assets.secret import Secret
from tests.kafka.tls import Authority
from tests.ktables.registry_double import RegistryDouble


@pytest.fixture
def double() -> Iterator[RegistryDouble]:
    with RegistryDouble() as double:
        yield double


def client(url: str, **settings: object) -> RegistryClient:
    return RegistryClient(RegistryConnection.model_validate({"url": url, **settings}))


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("host:8081", "is not an http or https address"),
        ("ftp://host", "is not an http or https address"),
        ("http://", "is not an http or https address"),
        ("http://host:nan", "is not an address"),
        ("http://me:hunter2@host", "contains credentials"),
        ("http://host?token=hunter2", "has a query or a fragment"),
    ],
)
def test_an_address_that_cannot_be_is_refused_without_showing_it(url: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as caught:
        RegistryConnection(url=url)
    assert "hunter2" not in str(caught.value)


def test_what_contradicts_itself_is_refused() -> None:
    secret = Secret(env="REGISTRY_USER")
    with pytest.raises(ConfigurationError, match="must be set together"):
        RegistryConnection(url="http://h", username=secret)
    with pytest.raises(ConfigurationError, match="request_timeout_seconds is 0"):
        RegistryConnection(url="http://h", request_timeout_seconds=0)
    with pytest.raises(ConfigurationError, match="plain str") as caught:
        RegistryConnection.model_validate({"url": "http://h", "password": "hunter2"})
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ValidationError) as unknown:
        RegistryConnection.model_validate({"url": "http://h", "pasword": "hunter2"})
    assert "hunter2" not in str(unknown.value)


def test_secrets_are_named_and_sent_but_never_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "password").write_text("hunter2\n")
    settings = {"username": {"env": "REGISTRY_USER"}, "password": {"file": tmp_path / "password"}}
    settings["password"] = {"file": str(tmp_path / "password")}
    monkeypatch.setenv("REGISTRY_USER", "reader")
    with RegistryDouble(user=("reader", "hunter2")) as double:
        double.add(1, '"string"')
        connection = RegistryConnection.model_validate({"url": double.url, **settings})
        with RegistryClient(connection) as reading:
            assert [entry.id for entry in reading.entries()] == [1]
        double.user = ("reader", "another")
        double.says = b'{"error_code": 401, "message": "not hunter2 of reader"}'
        with RegistryClient(connection) as reading, pytest.raises(KStreamsAssetsError) as caught:
            reading.entry(1)
    assert "refused schema 1: HTTP 401" in str(caught.value)
    assert str(caught.value).startswith(
        f"The schema registry at {double.url} refused schema 1: HTTP"
    )
    for shown in (str(caught.value), repr(connection), str(pickle.dumps(connection))):
        assert "hunter2" not in shown
    monkeypatch.delenv("REGISTRY_USER")
    with pytest.raises(SecretNotFoundError, match=r"schema_registry\.username"):
        RegistryClient(connection)


def test_pages_are_put_together_and_other_contexts_left_out(double: RegistryDouble) -> None:
    for number in (1, 2, 3):
        double.add(number, '"string"', version=number)
    double.add(9, "{}", subject="j", schemaType="JSON")
    double.add(1, '"long"', subject=":.other:s")
    double.add(4, "x", subject="p", schemaType="PROTOBUF", references=[
        {"name": "a.proto", "subject": "a", "version": 2}
    ])  # fmt: skip
    with client(f"{double.url}/") as reading:
        entries = list(reading.entries())
    assert [(entry.id, entry.kind, entry.text) for entry in entries] == [
        *[(number, "AVRO", '"string"') for number in (1, 2, 3)],
        (9, "JSON", "{}"),
        (4, "PROTOBUF", "x"),
    ]
    assert entries[-1].references == (Reference("a.proto", "a", 2),)


def test_what_is_not_there_is_told_with_the_registrys_words(double: RegistryDouble) -> None:
    with client(double.url) as reading:
        with pytest.raises(SchemaNotFoundError, match=r"has no schema 7: Schema not found \(error"):
            reading.entry(7)
        with pytest.raises(SchemaNotFoundError, match=r"version 2 of subject a/b"):
            reading.version("a/b", 2)
    assert double.requests[-1] == "/subjects/a%2Fb/versions/2?deleted=true"


def test_a_registry_in_trouble_or_something_else(double: RegistryDouble) -> None:
    with client(double.url) as reading:
        double.refuses = 503
        with pytest.raises(KStreamsAssetsError, match="HTTP 503, the store failed"):
            reading.entry(1)
        double.refuses = None
        double.add(1, "x")
        for text in (b"<html>", b"[]", b'{"no": "schema"}'):
            double.says = text
            with pytest.raises(KStreamsAssetsError, match="not that of a schema registry"):
                reading.entry(1)
            with pytest.raises(KStreamsAssetsError, match="not that of a schema registry"):
                list(reading.entries()) if text != b"[]" else reading.version("s", 1)


def test_nobody_there_or_nobody_answers(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with client(url) as reading, pytest.raises(KStreamsAssetsError, match="refused") as it:
            reading.entry(1)
        assert f"at {url} did not return schema 1" in str(it.value)
        assert "0x" not in str(it.value)
        silent.listen()
        quick = {"request_timeout_seconds": 0.2}
        with client(url, **quick) as reading, pytest.raises(KStreamsAssetsError, match="time"):
            reading.entry(1)
    missing = str(tmp_path / "ca.pem")
    with client("https://127.0.0.1:9", ssl_ca_location=missing) as reading:  # noqa: SIM117
        with pytest.raises(KStreamsAssetsError, match=r"ca\.pem"):
            reading.entry(1)


def test_schemas_are_listed_through_a_private_part_of_the_client(double: RegistryDouble) -> None:
    """It has no method for that; this fails when an upgrade changes the part."""
    client_of_it = SchemaRegistryClient({"url": double.url})
    assert client_of_it._rest_client.get("schemas", {"limit": 1}) == []
    assert client_of_it._rest_client.session.follow_redirects is False
    assert not hasattr(client_of_it, "get_schemas")
    client_of_it.close()


def test_a_registry_that_lists_no_schemas_is_asked_subject_by_subject(
    double: RegistryDouble,
) -> None:
    double.lists_schemas = False
    double.add(1, "a", subject="one")
    double.add(2, "b", subject="two/2", version=1)
    double.add(3, "c", subject="two/2", version=4)
    with client(double.url) as reading:
        assert [entry.id for entry in reading.entries()] == [1, 2, 3]
    assert len(double.requests) == 1 + 1 + 2 + 3


def test_a_registry_that_moved_is_followed(double: RegistryDouble) -> None:
    with RegistryDouble() as before, client(before.url) as reading:
        before.moved_to = double.url
        double.add(1, "x")
        assert reading.entry(1).text == "x"


def test_a_certificate_has_to_be_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, other = Authority(), Authority("other")
    issued = authority.issue("registry")
    (tmp_path / "server.pem").write_text(issued.pkcs8 + issued.chain)
    (tmp_path / "ca.pem").write_text(authority.root)
    (tmp_path / "other.pem").write_text(other.root)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    trusted = {"ssl_ca_location": str(tmp_path / "ca.pem")}
    with RegistryDouble(tls=context) as double:
        double.add(1, "x")
        with client(double.url, **trusted) as reading:
            assert reading.entry(1).text == "x"
        for settings in ({}, {"ssl_ca_location": str(tmp_path / "other.pem")}):
            with (
                client(double.url, **settings) as reading,
                pytest.raises(KStreamsAssetsError, match="certificate verify failed"),
            ):
                reading.entry(1)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", trusted["ssl_ca_location"])
        with client(double.url) as reading:
            assert reading.entry(1).text == "x"


def test_an_error_page_of_another_server(double: RegistryDouble) -> None:
    double.refuses, double.says = 502, b"<html>hunter2</html>"
    with client(double.url) as reading, pytest.raises(KStreamsAssetsError) as caught:
        reading.entry(1)
    assert "HTTP 502, Bad Gateway" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_requests_are_in_no_log_but_that_for_debugging(
    double: RegistryDouble, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    double.add(1, "x")
    with client(double.url) as reading:
        reading.entry(1)
    assert caplog.records == []
