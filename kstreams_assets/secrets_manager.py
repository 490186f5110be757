"""Secrets in AWS Secrets Manager."""

import json
import logging
import threading
import time
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from kstreams_assets.aws import AwsFailure, aws_failure, aws_session

_KEPT_S: Final = 300.0
"""A value is read again after this time, so that a long process notices a rotated secret."""
_CONNECT_S: Final = 5
_READ_S: Final = 10
_ATTEMPTS: Final = 3
_ARN: Final = "arn:"
_REMEDIES: Final = {
    "ResourceNotFoundException": "Create the secret, or correct `name` and `region`.",
    "AccessDeniedException": "Allow secretsmanager:GetSecretValue on it, and kms:Decrypt on its"
    " key, to the AWS identity of this process.",
    "DecryptionFailure": "Allow kms:Decrypt on the secret's key to the AWS identity of this"
    " process.",
    "InvalidRequestException": "Restore the secret if it is scheduled for deletion.",
}

_log = logging.getLogger(__name__)
_one_at_a_time = threading.Lock()
_values: "dict[AwsSecret, tuple[float, str]]" = {}
"""Values by secret (without `key`), and when they were read."""


class AwsSecretError(Exception):
    """A secret could not be read. Neither text contains the value."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


class AwsSecret(BaseModel):
    """A secret in AWS Secrets Manager, read with AWS's default credential chain."""

    # Without constraints, as the connections that contain it (`kafka/connection.py`).
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: str = Field(description="Name or ARN of the secret.")
    key: str | None = Field(
        default=None, description="Key of the value, if the secret is a JSON object."
    )
    region: str | None = Field(
        default=None, description="Region; null: that of the ARN, of the profile or of AWS_REGION."
    )
    endpoint: str | None = Field(
        default=None, description="URL of the service (AWS_ENDPOINT_URL_SECRETS_MANAGER)."
    )
    profile: str | None = Field(
        default=None, description="Profile of the AWS configuration (AWS_PROFILE)."
    )

    def __str__(self) -> str:
        place = f" in {self._region}" if self._region else ""
        return f"AWS secret {self.name}{f', key {self.key}' if self.key else ''}{place}"

    @property
    def _region(self) -> str | None:
        parts = self.name.split(":")
        of_arn = parts[3] if self.name.startswith(_ARN) and len(parts) > 3 else None
        return self.region or of_arn

    @property
    def _whole(self) -> "AwsSecret":
        return self.model_copy(update={"key": None})

    def read(self) -> str:
        """Return the value; a process reads it from AWS at most every 5 minutes.

        While AWS does not answer, the last value is used.

        Raises:
            AwsSecretError: The secret cannot be read, or the key is missing.
        """
        whole = self._whole
        with _one_at_a_time:
            at, text = _values.get(whole, (float("-inf"), ""))
            if time.monotonic() - at > _KEPT_S:
                text = whole._fetched(text)  # noqa: SLF001 (its own class)
                _values[whole] = (time.monotonic(), text)
        return self._part_of(text)

    def last_read(self) -> str | None:
        """The last value that this process has read; sends no request."""
        with _one_at_a_time:
            known = _values.get(self._whole)
        try:
            return None if known is None else self._part_of(known[1])
        except AwsSecretError:
            return None

    def _fetched(self, last: str) -> str:
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError

        config = Config(
            connect_timeout=_CONNECT_S,
            read_timeout=_READ_S,
            retries={"total_max_attempts": _ATTEMPTS, "mode": "standard"},
        )
        try:
            client = aws_session(self.profile, self._region).client(
                "secretsmanager", endpoint_url=self.endpoint, config=config
            )
            answer = client.get_secret_value(SecretId=self.name)
        except (BotoCoreError, ClientError, ValueError) as error:  # ValueError: of an endpoint
            failure = _failure(error)
            if last and failure.is_transient:
                _log.warning(
                    "%s cannot be read (%s); its last value is used.", self, failure.reason
                )
                return last
            raise AwsSecretError(failure.reason, failure.remedy) from None
        text = answer.get("SecretString")
        try:
            return answer["SecretBinary"].decode() if text is None else text
        except UnicodeDecodeError:
            raise AwsSecretError("its binary value is not UTF-8", "Store it as text.") from None

    def _part_of(self, text: str) -> str:
        if self.key is None:
            return text
        try:
            found = json.loads(text)
        except json.JSONDecodeError:
            found = None
        if not isinstance(found, dict):
            raise AwsSecretError("it is not a JSON object", "Remove `key`, or store JSON.")
        value = found.get(self.key)
        if not isinstance(value, str | int) or isinstance(value, bool):
            problem = "is not text" if self.key in found else "is missing in its JSON"
            raise AwsSecretError(f"key {self.key} {problem}", "Correct `key`, or the secret.")
        return str(value)


def _failure(error: Exception) -> AwsFailure:
    if isinstance(error, ValueError):
        return AwsFailure(str(error), "Write `endpoint` as a URL.")
    failure = aws_failure(error)
    remedy = _REMEDIES.get(failure.code, failure.remedy)
    return AwsFailure(failure.reason, remedy, failure.is_transient, failure.code)
