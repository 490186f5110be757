"""An OpenID Connect provider small enough for a test: a token endpoint and its public keys."""

import base64
import json
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

ISSUER = "test-issuer"
AUDIENCE = "test-kafka"
_KEY_ID = "test-key"


class TokenEndpoint:
    """Gives signed tokens to one client (`client_id`, `secret`), on a free port of 127.0.0.1."""

    def __init__(self, client_id: str, secret: str, *, is_silent: bool = False) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.requests: list[dict[str, str]] = []
        self.lifetime_s = 300
        self.is_silent = is_silent
        self._is_over = threading.Event()
        self.client_id = client_id
        pair = f"{client_id}:{secret}".encode()
        self.authorization = f"Basic {base64.b64encode(pair).decode()}"
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Address of the token endpoint."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/token"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._server.shutdown()
        self._server.server_close()

    def write_keys(self, path: Path) -> str:
        """Write the public keys (JWKS) and return their file: URL."""
        numbers = self.key.public_key().public_numbers()
        key = {"kty": "RSA", "kid": _KEY_ID, "alg": "RS256", "use": "sig"}
        key["n"] = _encode(numbers.n.to_bytes(256, "big"))
        key["e"] = _encode(numbers.e.to_bytes(3, "big"))
        path.write_text(json.dumps({"keys": [key]}))
        return path.as_uri()

    def token(self) -> str:
        """A token that names the client as its subject."""
        now = int(time.time())
        claims = {
            "sub": self.client_id,
            "iss": ISSUER,
            "aud": AUDIENCE,
            "iat": now,
            "exp": now + self.lifetime_s,
            "scope": "kafka",
        }
        head = {"alg": "RS256", "typ": "JWT", "kid": _KEY_ID}
        signed = ".".join(_encode(json.dumps(part).encode()) for part in (head, claims))
        signature = self.key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_encode(signature)}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                if endpoint.is_silent:
                    endpoint._is_over.wait()
                    return
                length = int(self.headers["Content-Length"])
                form = dict(urllib.parse.parse_qsl(self.rfile.read(length).decode()))
                endpoint.requests.append(form)
                if self.headers["Authorization"] != endpoint.authorization:
                    self._answer(401, {"error": "invalid_client"})
                    return
                lifetime = endpoint.lifetime_s
                self._answer(200, {"access_token": endpoint.token(), "expires_in": lifetime})

            def _answer(self, status: int, body: dict[str, object]) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
