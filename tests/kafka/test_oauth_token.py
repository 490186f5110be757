"""Tokens for kafka-python."""

import time
import traceback

import pytest
from pydantic import SecretStr

from kstreams_assets.errors import AuthenticationFailedError
from kstreams_assets.kafka.connection import OAuthBearerSasl
from kstreams_assets.kafka.wire import ClientCredentialsTokenProvider
from tests.kafka.oidc import TokenEndpoint

SECRET = 's3cret:"\\'


def _provider(url: str, secret: str = SECRET, *, timeout_s: float = 60.0):
    sasl = OAuthBearerSasl.model_validate(
        {
            "mechanism": "OAUTHBEARER",
            "client_id": "client",
            "client_secret": SecretStr(secret),
            "token_endpoint_url": url,
            "scope": "kafka read",
        }
    )
    return ClientCredentialsTokenProvider(sasl, bootstrap_servers="a:1", timeout_s=timeout_s)


def test_token_is_fetched_once_and_again_before_it_expires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with TokenEndpoint("client", SECRET) as endpoint:
        provider = _provider(endpoint.url)
        assert provider.token().count(".") == 2
        provider.token()
        assert endpoint.requests == [{"grant_type": "client_credentials", "scope": "kafka read"}]
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + 0.81 * endpoint.lifetime_s)
        provider.token()
        assert len(endpoint.requests) == 2


def test_refused_secret() -> None:
    with TokenEndpoint("client", SECRET) as endpoint:
        wrong = "wr0ng"
        with pytest.raises(AuthenticationFailedError) as caught:
            _provider(endpoint.url, wrong).token()
        assert "401" in caught.value.reason
        assert wrong not in "".join(traceback.format_exception(caught.value))


def test_slow_endpoint() -> None:
    with (
        TokenEndpoint("client", SECRET, is_silent=True) as endpoint,
        pytest.raises(AuthenticationFailedError, match="timed out"),
    ):
        _provider(endpoint.url, timeout_s=0.2).token()


def test_absent_endpoint() -> None:
    with TokenEndpoint("client", SECRET) as endpoint:
        url = endpoint.url
    with pytest.raises(AuthenticationFailedError, match="refused"):
        _provider(url).token()


def test_something_else_than_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with TokenEndpoint("client", SECRET) as endpoint:
        monkeypatch.setattr(endpoint, "token", lambda: "")
        with pytest.raises(AuthenticationFailedError, match="no access_token"):
            _provider(endpoint.url).token()
