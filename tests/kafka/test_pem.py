"""What is accepted as certificate and key."""

from pathlib import Path

import pytest

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.kafka.connection import (
    check_private_key,
    decrypt_private_key,
    read_certificates,
    refuse_store,
)
from tests.kafka.tls import Authority

ISSUED = Authority().issue("client")
SEC1 = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEE\n-----END EC PRIVATE KEY-----\n"


def test_pkcs8_is_accepted() -> None:
    check_private_key("key", ISSUED.pkcs8, has_password=False)
    check_private_key("key", ISSUED.encrypted("pw"), has_password=True)


@pytest.mark.parametrize(
    ("text", "kind"), [(ISSUED.pkcs1, "PKCS#1"), (SEC1, "SEC1"), ("rubbish", "no PEM key")]
)
def test_other_keys_are_refused_with_the_command(text: str, kind: str) -> None:
    with pytest.raises(ConfigurationError, match="openssl pkcs8 -topk8") as caught:
        check_private_key("ssl.private_key", text, has_password=False)
    assert kind in str(caught.value)
    assert text.splitlines()[-1] not in str(caught.value) or text == "rubbish"


def test_key_and_password_must_fit() -> None:
    with pytest.raises(ConfigurationError, match="no key password"):
        check_private_key("key", ISSUED.encrypted("pw"), has_password=False)
    with pytest.raises(ConfigurationError, match="not encrypted"):
        check_private_key("key", ISSUED.pkcs8, has_password=True)


def test_decryption() -> None:
    assert decrypt_private_key("key", ISSUED.encrypted("pw"), "pw") == ISSUED.pkcs8
    with pytest.raises(ConfigurationError, match="cannot be decrypted") as caught:
        decrypt_private_key("key", ISSUED.encrypted("pw"), "wr0ng")
    assert "wr0ng" not in str(caught.value)


@pytest.mark.parametrize("name", ["trust.jks", "TRUST.JKS", "a/key.p12", "x.pfx", "y.truststore"])
def test_java_stores_are_refused_with_the_command(name: str) -> None:
    with pytest.raises(ConfigurationError, match="keytool -importkeystore"):
        refuse_store("ssl.ca", name)


def test_certificates_inline_and_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text(ISSUED.chain)
    assert read_certificates("ssl.ca", ISSUED.chain) == ISSUED.chain
    assert read_certificates("ssl.ca", str(file)) == ISSUED.chain


def test_unusable_certificate_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_certificates("ssl.ca", str(tmp_path / "absent.pem"))
    binary = tmp_path / "ca.der"
    binary.write_bytes(b"\x30\x82\xff\xfe")
    with pytest.raises(ConfigurationError, match="openssl x509 -inform der"):
        read_certificates("ssl.ca", str(binary))
    key = tmp_path / "key.pem"
    key.write_text(ISSUED.pkcs8)
    with pytest.raises(ConfigurationError, match="no PEM certificate"):
        read_certificates("ssl.ca", str(key))
