"""What is accepted as certificate and key: PEM, keys as PKCS#8, for all three clients alike."""

from pathlib import Path

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from kstreams_assets.errors import ConfigurationError

_BEGIN = "-----BEGIN "
_PLAIN_KEY = "-----BEGIN PRIVATE KEY-----"
_ENCRYPTED_KEY = "-----BEGIN ENCRYPTED PRIVATE KEY-----"
_STORE_SUFFIXES = {".jks", ".p12", ".pfx", ".pkcs12", ".keystore", ".truststore", ".bcfks"}


def is_inline_pem(text: str) -> bool:
    """Whether a setting holds PEM text itself rather than a path."""
    return _BEGIN in text


def refuse_store(setting: str, value: str) -> None:
    """Raise ConfigurationError for a path to a JKS or PKCS#12 store: only Java reads those."""
    if not is_inline_pem(value) and Path(value).suffix.lower() in _STORE_SUFFIXES:
        raise ConfigurationError(
            f"{setting} is a Java or PKCS#12 store ({value}); only PEM is accepted, because every"
            " client here must be able to read it.",
            remedy=f"Convert it, a JKS first with: keytool -importkeystore -srckeystore {value}"
            " -destkeystore store.p12 -deststoretype PKCS12; then: openssl pkcs12 -in store.p12"
            " -nodes -out store.pem",
        )


def read_certificates(setting: str, value: str) -> str:
    """The PEM text of one or more certificates, given inline or as a path.

    Raises ConfigurationError when the file cannot be read or holds no certificate.
    """
    refuse_store(setting, value)
    text = value if is_inline_pem(value) else _read(setting, value)
    if "-----BEGIN CERTIFICATE-----" not in text:
        raise ConfigurationError(
            f"{setting} holds no PEM certificate.",
            remedy="Give PEM text with BEGIN CERTIFICATE lines, or the path of such a file.",
        )
    return text


def _read(setting: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except UnicodeDecodeError:
        raise ConfigurationError(
            f"{setting}: the file {path} is not PEM text.",
            remedy=f"Convert it with: openssl x509 -inform der -in {path} -out cert.pem (DER), or"
            f" openssl pkcs12 -in {path} -nodes -out store.pem (PKCS#12).",
        ) from None
    except OSError as error:
        raise ConfigurationError(
            f"{setting}: the file {path} cannot be read ({error.strerror}).",
            remedy="Check the path, and the rights of the user this process runs as.",
        ) from None


def check_private_key(setting: str, text: str, *, has_password: bool) -> None:
    """Raise ConfigurationError unless this is a PKCS#8 key that fits the presence of a password.

    Java reads no other form. The text never appears in the error.
    """
    if _ENCRYPTED_KEY in text:
        if not has_password:
            raise ConfigurationError(
                f"{setting} is encrypted, and no key password is given.",
                remedy="Give ssl.key_password.",
            )
        return
    if _PLAIN_KEY in text:
        if has_password:
            raise ConfigurationError(
                f"{setting} is not encrypted, and yet a key password is given.",
                remedy="Remove ssl.key_password, or encrypt the key with: openssl pkcs8 -topk8"
                " -in key.pem -out key.pkcs8.pem",
            )
        return
    kind = next(
        (
            name
            for begin, name in (("RSA ", "PKCS#1"), ("EC ", "SEC1"), ("DSA ", "DSA"))
            if f"{_BEGIN}{begin}PRIVATE KEY-----" in text
        ),
        None,
    )
    found = f"a {kind} key" if kind else "no PEM key of the form PKCS#8"
    raise ConfigurationError(
        f"{setting} is {found}; Java reads PKCS#8 only (BEGIN PRIVATE KEY or BEGIN ENCRYPTED"
        " PRIVATE KEY).",
        remedy="Convert it with: openssl pkcs8 -topk8 -nocrypt -in key.pem -out key.pkcs8.pem",
    )


def decrypt_private_key(setting: str, text: str, password: str) -> str:
    """The same key as unencrypted PKCS#8; ConfigurationError when the password does not fit."""
    try:
        key = load_pem_private_key(text.encode(), password.encode())
    except ValueError:
        raise ConfigurationError(
            f"{setting} does not open with ssl.key_password.",
            remedy="Check that key and password belong together.",
        ) from None
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
