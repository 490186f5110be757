"""As much of a Kubernetes API server as `kubectl scale` asks of it, with one deployment."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

NAMESPACE, NAME = "shop", "order-processor"
_DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{NAME}"
_VERBS = {"GET": "get", "PATCH": "patch", "PUT": "update"}


@dataclass
class Deployment:
    """What was asked of the deployment; `scaled` is called with each new number of replicas."""

    replicas: int = 3
    scaled: Callable[[int], None] = lambda replicas: None
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Verb and resource of each request, as a Role has them."""

    def answer(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """The answer to a request; None where the server has nothing of this kind."""
        if path in _DISCOVERY:
            return _DISCOVERY[path]
        verb = _VERBS[method]
        if path == _DEPLOYMENT:
            self.asked.append((verb, "deployments"))
            return self._deployment()
        if path == f"{_DEPLOYMENT}/scale":
            self.asked.append((verb, "deployments/scale"))
            if method != "GET":
                self.replicas = body["spec"]["replicas"]
                self.scaled(self.replicas)
            return {
                "apiVersion": "autoscaling/v1",
                "kind": "Scale",
                "metadata": _METADATA,
                "spec": {"replicas": self.replicas},
                "status": {"replicas": self.replicas},
            }
        return None

    def _deployment(self) -> dict[str, Any]:
        labels = {"app": NAME}
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": _METADATA,
            "spec": {
                "replicas": self.replicas,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": []}},
            },
        }


_METADATA = {"name": NAME, "namespace": NAMESPACE, "resourceVersion": "1"}
_RESOURCES = [
    {
        "name": name,
        "singularName": "",
        "namespaced": True,
        "kind": kind,
        "verbs": [*_VERBS.values()],
    }
    for name, kind in (("deployments", "Deployment"), ("deployments/scale", "Scale"))
]
_VERSION = {"groupVersion": "apps/v1", "version": "v1"}
_DISCOVERY: dict[str, dict[str, Any]] = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": []},
    "/apis": {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [{"name": "apps", "versions": [_VERSION], "preferredVersion": _VERSION}],
    },
    "/apis/apps/v1": {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": "apps/v1",
        "resources": _RESOURCES,
    },
}


@contextmanager
def serve(deployment: Deployment, folder: Path) -> Iterator[Path]:
    """Serve it, and give a file for KUBECONFIG."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else {}
            found = deployment.answer(self.command, urlsplit(self.path).path, body)
            text = json.dumps(found or {"kind": "Status", "apiVersion": "v1", "code": 404}).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_PATCH = do_PUT = _answer

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    config = folder / "kubeconfig"
    config.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "test",
                "clusters": [
                    {
                        "name": "test",
                        "cluster": {"server": f"http://127.0.0.1:{server.server_port}"},
                    }
                ],
                "users": [{"name": "test", "user": {}}],
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            }
        )
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield config
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
