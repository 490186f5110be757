"""The blocks of the YAML of an application: frozen pydantic models that reject invalid values."""

from typing import Annotated, Final

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    ValidatorFunctionWrapHandler,
)
from pydantic import WrapValidator as _WrapValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from kstreams_assets.cron import is_cron
from kstreams_assets.errors import ConfigurationError

REFUSED: Final = "refused"
"""Type of pydantic's error for a value that `refused` describes."""
CONTRADICTS: Final = "contradicts"
"""Type of pydantic's error for a ConfigurationError of a block (`LOCATED`)."""


class Block(BaseModel):
    """A block of the YAML. Unknown keys are errors; the errors do not show the value."""

    # Validators are built at first use: a process that reads no YAML needs few of the blocks.
    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True
    )


def keys_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The keys of a block in the YAML, without former names, and their fields."""
    return {_key_of(name, one): one for name, one in model.model_fields.items()}


def _key_of(name: str, field: FieldInfo) -> str:
    alias = field.validation_alias
    return str((alias.choices[0] if isinstance(alias, AliasChoices) else alias) or name)


def refused(problem: str, remedy: str) -> PydanticCustomError:
    """Return the error that a validator of a block raises.

    Args:
        problem: Continues the name of the key: ` is 'x'.`, or of a block: `.every is set, but ...`.
        remedy: What to write instead.
    """
    return PydanticCustomError(
        REFUSED, "{problem} {remedy}", {"problem": problem, "remedy": remedy}
    )


def _as_error_of_block(given: object, handler: ValidatorFunctionWrapHandler) -> object:
    try:
        return handler(given)
    except ConfigurationError as error:
        raise PydanticCustomError(
            CONTRADICTS,
            "{problem} {remedy}",
            {"problem": error.problem, "remedy": error.remedy},
        ) from error


LOCATED: Final = _WrapValidator(_as_error_of_block)
"""For blocks that Python code also creates and that raise ConfigurationError: adds the key."""


def _require_cron(text: str) -> str:
    if not is_cron(text):
        raise refused(f" is {text!r}.", "Give a cron schedule of five fields, such as '0 4 * * *'.")
    return text


CronText = Annotated[str, AfterValidator(_require_cron)]
"""A cron schedule of five fields."""
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""A duration above 0."""
