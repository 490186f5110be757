"""Secrets that the configuration names and that are read only when a client is built."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidatorFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from kstreams_assets.errors import ConfigurationError, SecretNotFoundError
from kstreams_assets.secrets_manager import AwsSecret, AwsSecretError

MASK = "**********"
_read: set[str] = set()
"""Secrets that this process has read, to mask them in messages of libraries."""
SECRET_FORMS = "{env: NAME}, {file: PATH} or {aws: {name: NAME}}"  # noqa: S105 (names)
_REMEDY = f"Write {SECRET_FORMS}; a configuration must not contain a secret in clear text."
_PLACES = ("env", "file", "aws")


def mask_secrets(text: str) -> str:
    """Mask every secret in the text that this process has read so far."""
    for secret in sorted(_read, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


class Secret(BaseModel):
    """A password, key or token, by the name of the place where it is stored.

    In YAML `{env: NAME}`, `{file: PATH}` or `{aws: {name: NAME}}` (AWS Secrets Manager); in Python
    also a `pydantic.SecretStr`. Only `resolve` reads its text. No repr, dump, JSON or pickle
    contains it; a secret made of a `SecretStr` cannot be pickled at all. Raises ConfigurationError
    (never with the offending value).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    env: str | None = Field(default=None, description="Environment variable that holds the secret.")
    file: str | None = Field(default=None, description="File that holds the secret.")
    aws: AwsSecret | None = Field(default=None, description="Secret in AWS Secrets Manager.")

    _value: SecretStr | None = PrivateAttr(default=None)

    @model_validator(mode="wrap")
    @classmethod
    def _from_any(cls, data: Any, handler: ValidatorFunctionWrapHandler) -> "Secret":  # noqa: ANN401
        if isinstance(data, Secret):
            return data
        if isinstance(data, SecretStr):
            return cls.of(data)
        if not isinstance(data, Mapping):
            raise ConfigurationError(
                f"A secret is given as a plain {type(data).__name__}.", remedy=_REMEDY
            )
        unknown = sorted(str(key) for key in data if key not in _PLACES)
        places = [key for key in _PLACES if data.get(key) not in (None, "")]
        if unknown or len(places) != 1:
            found = f"unknown key {', '.join(unknown)}" if unknown else f"{len(places)} places"
            raise ConfigurationError(
                f"A secret has exactly one place, not {found}.", remedy=_REMEDY
            )
        return handler(data)

    @classmethod
    def of(cls, value: SecretStr) -> "Secret":
        """A secret whose text the caller already has; it stays in this process."""
        secret = cls.model_construct(env=None, file=None, aws=None)
        secret._value = value  # noqa: SLF001 (its own class)
        return secret

    @property
    def is_value(self) -> bool:
        """Whether its text was given in Python and therefore stays in this process."""
        return self._value is not None

    @property
    def source(self) -> str:
        """The source of the text, in words that are safe to show."""
        if self.env is not None:
            return f"environment variable {self.env}"
        if self.file is not None:
            return f"file {self.file}"
        if self.aws is not None:
            return str(self.aws)
        return "value given in Python"

    def resolve(self, setting: str) -> str:
        """The text, without the newline at the end of a file.

        Raises SecretNotFoundError, which names `setting`, if the source is absent or empty.
        """
        text = self.peek() if self.aws is None else self._read_from_aws(self.aws, setting)
        if not text:
            raise SecretNotFoundError(setting=setting, source=self.source)
        _read.add(text)
        return text

    def peek(self) -> str | None:
        """The text if its source can be read now, else None; for AWS, the last value that was
        read."""
        if self._value is not None:
            return self._value.get_secret_value()
        if self.env is not None:
            return os.environ.get(self.env)
        if self.aws is not None:
            return self.aws.last_read()
        if self.file is None:
            return None
        try:
            return Path(self.file).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError):
            return None

    def _read_from_aws(self, place: AwsSecret, setting: str) -> str:
        try:
            return place.read()
        except AwsSecretError as error:
            raise SecretNotFoundError(
                setting=setting, source=self.source, reason=error.reason, remedy=error.remedy
            ) from None

    @model_serializer(mode="plain")
    def _dump(self) -> dict[str, Any] | str:
        if self.env is not None:
            return {"env": self.env}
        if self.file is not None:
            return {"file": self.file}
        if self.aws is not None:
            return {"aws": self.aws.model_dump(exclude_none=True)}
        return MASK

    def __repr__(self) -> str:
        return f"Secret({self._dump()})"

    def __str__(self) -> str:
        return repr(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[object, ...]:
        return (self.env, self.file, self.aws, self._value)

    def __reduce__(self) -> tuple[Callable[..., "Secret"], tuple[dict[str, Any]]]:
        if self._value is not None:
            self._refuse_pickle()
        dumped = self._dump()
        assert isinstance(dumped, dict)  # noqa: S101 (only a value in Python dumps as the mask)
        return Secret.model_validate, (dumped,)

    @staticmethod
    def _refuse_pickle() -> NoReturn:
        raise ConfigurationError(
            "A secret given as a value in Python cannot be sent to another process.",
            remedy=f"Give it as {SECRET_FORMS}, readable in that process.",
        )
