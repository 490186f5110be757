"""Tokens from an OpenID Connect provider for kafka-python, which has no such client of its own."""

import base64
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

from kafka.net.sasl.oauth import AbstractTokenProvider

from kstreams_assets.errors import AuthenticationFailedError
from kstreams_assets.kafka.connection import OAuthBearerSasl

_REFRESH_AT = 0.8  # of a token's lifetime, as Kafka's own clients do
_DEFAULT_LIFETIME_S = 300.0


class ClientCredentialsTokenProvider(AbstractTokenProvider):
    """Fetches a token by the client credentials grant and keeps it for 80 % of its lifetime.

    Raises AuthenticationFailedError when the endpoint refuses, does not answer in time or answers
    something else than a token; SecretNotFoundError.
    """

    def __init__(self, sasl: OAuthBearerSasl, *, bootstrap_servers: str, timeout_s: float) -> None:
        super().__init__()
        self._sasl = sasl
        self._bootstrap_servers = bootstrap_servers
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._token = ""
        self._refresh_at = 0.0

    def token(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A token that is valid now."""
        with self._lock:
            if time.monotonic() >= self._refresh_at:
                self._token, lifetime_s = self._fetch()
                self._refresh_at = time.monotonic() + lifetime_s * _REFRESH_AT
            return self._token

    def _fetch(self) -> tuple[str, float]:
        try:
            with urllib.request.urlopen(self._request(), timeout=self._timeout_s) as response:  # noqa: S310 (http and https only, see OAuthBearerSasl)
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            raise self._failed(f"it answered {error.code} {error.reason}") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise self._failed(str(reason)) from None
        token = answer.get("access_token") if isinstance(answer, dict) else None
        if not isinstance(token, str) or not token:
            raise self._failed("its answer holds no access_token")
        lifetime = answer.get("expires_in")
        return token, float(lifetime) if isinstance(lifetime, int | float) else _DEFAULT_LIFETIME_S

    def _request(self) -> urllib.request.Request:
        secret = self._sasl.client_secret.resolve("sasl.client_secret")
        pair = f"{self._sasl.client_id}:{secret}".encode()
        form = {"grant_type": "client_credentials"}
        if self._sasl.scope is not None:
            form["scope"] = self._sasl.scope
        return urllib.request.Request(  # noqa: S310 (http and https only, see OAuthBearerSasl)
            self._sasl.token_endpoint_url,
            data=urllib.parse.urlencode(form).encode(),
            headers={
                "Authorization": f"Basic {base64.b64encode(pair).decode()}",
                "Accept": "application/json",
                "Content-Type": "application/x-www-form-urlencoded",
            },
        )

    def _failed(self, reason: str) -> AuthenticationFailedError:
        return AuthenticationFailedError(
            bootstrap_servers=self._bootstrap_servers,
            mechanism="OAUTHBEARER",
            reason=f"no token from {self._sasl.token_endpoint_url}: {reason}",
        )
