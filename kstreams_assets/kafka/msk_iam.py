"""Tokens for Amazon MSK with IAM: signed URLs with which this process may connect for 15
minutes."""

import base64
import threading
import time
from typing import Final

from kstreams_assets.aws import aws_failure, aws_session
from kstreams_assets.errors import AuthenticationFailedError
from kstreams_assets.kafka.connection import MskIamSasl

LIFETIME_S: Final = 900
"""The longest validity that MSK accepts."""

_REFRESH_AT: Final = 0.8
_SERVICE: Final = "kafka-cluster"
_ACTION: Final = "kafka-cluster:Connect"
_USER_AGENT: Final = "kstreams-assets"


class MskIamTokens:
    """Sign tokens with the AWS credentials of this process; a token is used for 12 minutes.

    Raises AuthenticationFailedError without credentials.
    """

    def __init__(self, sasl: MskIamSasl, *, bootstrap_servers: str) -> None:
        self._sasl = sasl
        self._bootstrap_servers = bootstrap_servers
        self._lock = threading.Lock()
        self._token = ""
        self._signed_at = float("-inf")
        self._ends_at = 0.0

    def token(self) -> str:
        """A valid token."""
        return self.token_and_end()[0]

    def token_and_end(self) -> tuple[str, float]:
        """A valid token, and its expiry in epoch seconds."""
        with self._lock:
            if time.monotonic() >= self._signed_at + _REFRESH_AT * LIFETIME_S:
                self._ends_at = time.time() + LIFETIME_S
                self._token = self._signed()
                self._signed_at = time.monotonic()
            return self._token, self._ends_at

    def _signed(self) -> str:
        from botocore.auth import SigV4QueryAuth
        from botocore.awsrequest import AWSRequest
        from botocore.exceptions import BotoCoreError

        region = self._sasl.region
        try:
            keys = aws_session(self._sasl.profile, region).get_credentials()
            if keys is None:
                raise self._failed(
                    "there are no AWS credentials: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and"
                    " AWS_SECRET_ACCESS_KEY, or run where AWS provides a role"
                )
            request = AWSRequest(
                method="GET",
                url=f"https://kafka.{region}.amazonaws.com/",
                params={"Action": _ACTION},
            )
            SigV4QueryAuth(
                keys.get_frozen_credentials(), _SERVICE, region, expires=LIFETIME_S
            ).add_auth(request)
        except BotoCoreError as error:
            raise self._failed(aws_failure(error).reason) from None
        # Not part of the signed data.
        signed = f"{request.prepare().url}&User-Agent={_USER_AGENT}"
        return base64.urlsafe_b64encode(signed.encode()).rstrip(b"=").decode()

    def _failed(self, reason: str) -> AuthenticationFailedError:
        return AuthenticationFailedError(
            bootstrap_servers=self._bootstrap_servers,
            mechanism=self._sasl.mechanism,
            reason=f"no token was signed: {reason}",
        )
