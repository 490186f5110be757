"""A certificate authority for tests: one root, an intermediate, and what they sign."""

import datetime
import ipaddress
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Issued:
    """A certificate with its chain (leaf first, without the root) and its key."""

    chain: str
    key: rsa.RSAPrivateKey

    @property
    def pkcs8(self) -> str:
        """The key as Kafka's clients want it."""
        return self._pem(serialization.PrivateFormat.PKCS8, serialization.NoEncryption())

    @property
    def pkcs1(self) -> str:
        """The key as OpenSSL used to write it, which Java cannot read."""
        return self._pem(
            serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )

    def encrypted(self, password: str) -> str:
        """The key as PKCS#8 under a password."""
        encryption = serialization.BestAvailableEncryption(password.encode())
        return self._pem(serialization.PrivateFormat.PKCS8, encryption)

    def _pem(
        self,
        form: serialization.PrivateFormat,
        encryption: serialization.KeySerializationEncryption,
    ) -> str:
        return self.key.private_bytes(serialization.Encoding.PEM, form, encryption).decode()


class Authority:
    """A root that signs an intermediate that signs everything else."""

    def __init__(self, name: str = "test") -> None:
        self._root_key = _new_key()
        root = _sign(f"{name} root", self._root_key, f"{name} root", self._root_key, ca=True)
        self.root = _text(root)
        self._key = _new_key()
        self._name = f"{name} intermediate"
        self._intermediate = _text(
            _sign(self._name, self._key, f"{name} root", self._root_key, ca=True)
        )

    def issue(self, name: str, *, address: str = "127.0.0.1") -> Issued:
        """A certificate for client or broker, valid for one address."""
        key = _new_key()
        leaf = _sign(name, key, self._name, self._key, ca=False, address=address)
        return Issued(_text(leaf) + self._intermediate, key)


def _new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _sign(
    subject: str,
    key: rsa.RSAPrivateKey,
    issuer: str,
    issuer_key: rsa.RSAPrivateKey,
    *,
    ca: bool,
    address: str | None = None,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    )
    if address is not None:
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _text(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
