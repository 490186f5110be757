"""Sessions of AWS's SDK (boto3), and its failures in one line."""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from boto3.session import Session

_LOGGERS_WITH_SECRETS: Final = ("botocore.auth", "botocore.endpoint", "botocore.parsers")
"""At level DEBUG they write signed requests with session tokens, and whole answers."""

LOCATIONS: Final = (
    *("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CA_BUNDLE"),
    *("AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME", "AWS_WEB_IDENTITY_TOKEN_FILE"),
    *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_STS_REGIONAL_ENDPOINTS", "AWS_ENDPOINT_URL_STS"),
    *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    *("AWS_EC2_METADATA_DISABLED", "AWS_EC2_METADATA_SERVICE_ENDPOINT"),
)
"""Variables that tell AWS's default chain where to find credentials; none of them is secret."""

_NETWORK: Final = "Check region, endpoint and network, then run the same again."
_CREDENTIALS: Final = (
    "Set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run where AWS provides a"
    " role."
)
_TRANSIENT_CODES: Final = frozenset(
    {"InternalServiceError", "InternalFailure", "ServiceUnavailable", "ThrottlingException"}
)


@dataclass(frozen=True, slots=True)
class AwsFailure:
    """A failure of a request: the reason, the remedy, and whether a retry may succeed."""

    reason: str
    remedy: str
    is_transient: bool = False
    code: str = ""


def aws_session(
    profile: str | None = None,
    region: str | None = None,
    keys: "tuple[str | None, str | None, str | None]" = (None, None, None),
) -> "Session":
    """A boto3 session; without `keys` (id, secret, token) it uses AWS's default chain.

    Raises:
        BotoCoreError: The profile does not exist, or the configuration cannot be read.
    """
    from boto3.session import Session

    for name in _LOGGERS_WITH_SECRETS:
        logging.getLogger(name).addFilter(_above_debug)  # adding it twice changes nothing
    return Session(
        aws_access_key_id=keys[0],
        aws_secret_access_key=keys[1],
        aws_session_token=keys[2],
        profile_name=profile,
        region_name=region,
    )


def _above_debug(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG


def aws_failure(error: Exception) -> AwsFailure:
    """The meaning of a BotoCoreError or ClientError; the text contains no secret."""
    from botocore import exceptions

    text = " ".join(str(error).split()).rstrip(".")
    if isinstance(error, exceptions.ClientError):
        answer = error.response.get("Error", {})
        code = answer.get("Code", "")
        message = (answer.get("Message") or "").strip().rstrip(".")
        return AwsFailure(
            f"{code}: {message}" if message else code or text,
            _remedy(code),
            is_transient=code in _TRANSIENT_CODES,
            code=code,
        )
    if isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
        return AwsFailure("there are no AWS credentials", _CREDENTIALS)
    if isinstance(error, exceptions.NoRegionError):
        return AwsFailure("its region is unknown", "Set `region`, or AWS_REGION.")
    if isinstance(error, exceptions.ConnectionError | exceptions.HTTPClientError):
        return AwsFailure(text, _NETWORK, is_transient=True)
    return AwsFailure(text, "Check the AWS configuration and AWS_PROFILE.")


def _remedy(code: str) -> str:
    if "Token" in code or "Signature" in code:
        return "Check the AWS credentials of this process, and its clock."
    return _NETWORK
