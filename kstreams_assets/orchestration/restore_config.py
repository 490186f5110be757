"""The configuration of a run that restores: what the launchpad shows, and older keys.

Dagster sorts fields by name and shows those with plain defaults. These are the few that most
restores need; all other options lie below `options`. Names are those of the command line. Keys of
earlier releases are accepted and not shown.
"""

import difflib
from collections.abc import Mapping
from typing import Any, Final, Literal

import dagster as dg
from pydantic import Field, ValidationError, create_model
from pydantic.fields import FieldInfo

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.model.restores import OriginalHeaders, RestoreMode
from kstreams_assets.restore.command_sources import refuse_commands_of_run, with_target
from kstreams_assets.restore.request import RestoreRequest, Spelling, choices_of, fields_of_request
from kstreams_assets.settings import LOCAL, ApplicationSettings

_SHOWN: Final = frozenset({"as_of_ms", "mode", "point_id", "target"})
"""Fields of a request that the launchpad shows."""


def _option_name(name: str, spelling: Spelling) -> str:
    """The key of a field below `options`: its option on the command line."""
    return (spelling.option or name).removeprefix("--").replace("-", "_")


def _is_option(name: str, spelling: Spelling) -> bool:
    return name not in _SHOWN and not spelling.of_operator and not spelling.of_partition


def _option_type(field: FieldInfo) -> Any:  # noqa: ANN401
    kind = field.annotation
    if kind == Mapping[str, str]:
        return dict[str, str] | None
    if kind is OriginalHeaders or kind == tuple[str, ...]:
        return list[str] | None
    if kind is bool:
        return bool | None
    return int | None if kind == int | None else str | None


def _option_text(field: FieldInfo, spelling: Spelling) -> str:
    choices = choices_of(field, spelling)
    return f"{field.description or ''}{' One of: ' + ', '.join(choices) + '.' if choices else ''}"


# Without defaults, the launchpad's editor offers these and does not show them.
_options: Final[dict[str, Any]] = {
    _option_name(name, spelling): (
        _option_type(field),
        Field(default=None, description=_option_text(field, spelling)),
    )
    for name, field, spelling in fields_of_request()
    if _is_option(name, spelling)
}
RestoreOptions: Final = create_model("RestoreOptions", __base__=dg.Config, **_options)


class RestoreConfig(dg.PermissiveConfig):
    """One restore; by default a dry run of the last restorable point of the run's window."""

    as_of: str | None = Field(
        default="",
        description="The last point complete at this time: ISO 8601 with a time zone, as"
        " 2026-11-21T14:30:00Z. Empty: the end of the window.",
    )
    dry_run: bool = Field(
        default=True,
        description="Only show the plan: what would be restored, and all blockers. Nothing is"
        " written.",
    )
    mode: Literal[tuple(mode.value for mode in RestoreMode)] = Field(  # pyright: ignore[reportInvalidTypeForm]
        default=RestoreMode.STATE.value,
        description="state: continue at the point. rebuild and inputs_until: recompute from the"
        " inputs before the point. logs: only inputs and outputs.",
    )
    options: RestoreOptions = Field(  # pyright: ignore[reportInvalidTypeForm]
        default=RestoreOptions(), description="Everything else, by the names of the command line."
    )
    point: str | None = Field(
        default="", description="This recovery point of the window. Empty: the last restorable one."
    )
    target: str | None = Field(
        default="",
        description="Name of a target that the YAML declares, or local[:NAME] for a throwaway"
        " cluster on this machine. Empty: the default target.",
    )

    def request(self, settings: ApplicationSettings, window: str | None = None) -> RestoreRequest:
        """The request for a window.

        Raises:
            ConfigurationError: A key or value is not understood, or keys contradict each other.
        """
        given = self._given()
        refuse_commands_of_run(given)
        asked = {
            name: None if spelling.of_operator else given[name]
            for name, _, spelling in fields_of_request()
        }
        values = with_target({**asked, "window": window}, settings)
        try:
            return RestoreRequest.asked(values, verify=settings.restore.verify)
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            where = ".".join(map(str, wrong["loc"]))
            raise ConfigurationError(
                f"The configuration of this run is not understood: {where}: {wrong['msg']}.",
                remedy="Correct the value; the launchpad describes each key.",
            ) from error

    def _given(self) -> dict[str, Any]:
        """What is given, by field of the request; None where nothing is."""
        older = dict(self.model_extra or {})
        options = self.options.model_dump()
        shown = {"as_of_ms": self.as_of, "point_id": self.point, "target": self.target}
        found: dict[str, Any] = {"mode": self.mode}
        for name, field, spelling in fields_of_request():
            key = spelling.name or name
            given = (
                options.get(_option_name(name, spelling)) if _is_option(name, spelling) else None
            )
            old = older.pop(key, None) if key not in type(self).model_fields else None
            if name not in found:
                found[name] = shown.get(name) or given
            if found[name] is None and old != spelling.unset:
                found[name] = old
            found[name] = _checked(name, field, spelling, found[name])
        if older:
            known = {*type(self).model_fields, *_options}
            near = difflib.get_close_matches(min(older), known, n=3)
            raise ConfigurationError(
                f"The configuration of this run has an unknown key {min(older)!r}.",
                remedy=f"Near are {', '.join(near)}." if near else "Remove it.",
            )
        return found


def _checked(name: str, field: FieldInfo, spelling: Spelling, value: object) -> object:
    """A value that is one of the choices of its field, where these are listed."""
    if field.annotation is OriginalHeaders and isinstance(value, list):
        return dict.fromkeys(value, True)
    choices = choices_of(field, spelling)
    if choices and value is not None and value not in choices:
        raise ConfigurationError(
            f"{_option_name(name, spelling)} is {value!r} in the configuration of this run.",
            remedy=f"Give one of {', '.join(choices)}.",
        )
    return value or None if isinstance(value, str) else value


def restore_config(settings: ApplicationSettings) -> type[RestoreConfig]:
    """The configuration of an application's restores, which shows its default target."""
    shown = RestoreConfig.model_fields["target"].description or ""
    names = ", ".join(settings.declared_targets)
    text = f"{shown} Declared: {names}." if names else shown
    target: Any = (str | None, Field(default=settings.default_target or "", description=text))
    return create_model("RestoreConfig", __base__=RestoreConfig, target=target)


def require_declared(settings: ApplicationSettings, target: str | None, job: str) -> None:
    """Refuse a target that the YAML does not declare; raises ConfigurationError.

    A throwaway cluster on this machine needs no declaration.
    """
    name = target or settings.default_target or ""
    declared = settings.declared_targets
    if name in declared or name.partition(":")[0] == LOCAL:
        return
    raise ConfigurationError(
        f"Job {job} writes to declared targets only, and"
        f" {f'{name!r} is not declared' if name else 'none is declared as the default'}.",
        remedy=f"Choose one of {', '.join((*declared, LOCAL))}, or declare it under targets.",
    )


def require_one_window(
    settings: ApplicationSettings, request: RestoreRequest, target: str | None, windows: int
) -> None:
    """Refuse several windows for which a target has the same topics; raises ConfigurationError."""
    name = target or settings.default_target or ""
    declared = settings.declared_targets.get(name)
    is_per_window = (
        declared is not None
        and declared.is_per_window
        and request.window is not None
        and request.prefix == declared.prefix_of(request.window)
    )
    if windows > 1 and not is_per_window:
        raise ConfigurationError(
            f"{windows} windows cannot be restored onto the same topics of target {name!r}.",
            remedy="Select one window, or a target whose prefix contains {window}.",
        )
