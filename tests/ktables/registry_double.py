"""Answers of a schema registry, as a test says them: for what a real one cannot be made to do."""

import base64
import json
import ssl
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit

NOT_FOUND: Mapping[str, tuple[int, str]] = {
    "schemas": (40403, "Schema not found"),
    "subjects": (40401, "Subject not found."),
}


class RegistryDouble:
    """Lists schemas by pages as Confluent's registry does, on a free port of 127.0.0.1.

    `listed` are the items of GET /schemas, `by_id` further ones that only their id gives.
    `refuses` has it answer everything with a status; `says` is the text of any answer. With
    `user` it wants basic authentication, with `moved_to` it says that it is at another address. By
    `tls` it serves HTTPS.
    """

    def __init__(
        self, *, user: tuple[str, str] | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.listed: list[dict[str, Any]] = []
        self.by_id: dict[int, dict[str, Any]] = {}
        self.refuses: int | None = None
        self.says: bytes | None = None
        self.user = user
        self.moved_to: str | None = None
        self.lists_schemas = True
        self.requests: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._scheme = "http" if tls is None else "https"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Its base address."""
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add(self, schema_id: int, text: str, *, subject: str = "s", version: int = 1, **more: Any):
        """Register a schema."""
        self.listed.append(
            {"subject": subject, "version": version, "id": schema_id, "schema": text, **more}
        )

    def answer(self, path: str, authorization: str | None) -> tuple[int, Any]:
        """Status and body."""
        if self.user is not None:
            pair = base64.b64encode(":".join(self.user).encode()).decode()
            if authorization != f"Basic {pair}":
                return 401, {"error_code": 401, "message": f"Unauthorized {authorization}"}
        if self.refuses is not None:
            return self.refuses, {"error_code": 50001, "message": "the store failed"}
        parts = urlsplit(path)
        query = dict(parse_qsl(parts.query))
        match [unquote(part) for part in parts.path.strip("/").split("/")]:
            case ["schemas"] if self.lists_schemas:
                begin = int(query.get("offset", 0))
                return 200, self.listed[begin : begin + min(int(query["limit"]), 2)]
            case ["schemas", "ids", number]:
                found = [item for item in self.listed if item["id"] == int(number)]
                if found or int(number) in self.by_id:
                    return 200, found[0] if found else self.by_id[int(number)]
            case ["subjects"]:
                return 200, sorted({item["subject"] for item in self.listed})
            case ["subjects", subject, "versions"]:
                return 200, [i["version"] for i in self.listed if i["subject"] == subject]
            case ["subjects", subject, "versions", number]:
                for item in self.listed:
                    if (item["subject"], str(item["version"])) == (subject, number):
                        return 200, item
        code, message = NOT_FOUND[parts.path.split("/")[1]]
        return 404, {"error_code": code, "message": message}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        double = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                double.requests.append(self.path)
                status, body = double.answer(self.path, self.headers["Authorization"])
                text = json.dumps(body).encode() if double.says is None else double.says
                if double.moved_to is not None:
                    status, text = 308, b""
                self.send_response(status)
                if double.moved_to is not None:
                    self.send_header("Location", double.moved_to + self.path)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: object) -> None: ...

        return Handler
