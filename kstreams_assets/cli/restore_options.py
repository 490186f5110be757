"""Options of restore commands."""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from enum import StrEnum
from typing import Any, Final

import click
from click.core import ParameterSource
from pydantic.fields import FieldInfo

from kstreams_assets.cli.help import option
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.model.restores import OriginalHeaders, RestoreState, StoredRestore
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore.command_sources import with_target
from kstreams_assets.restore.request import RestoreRequest, Spelling, choices_of, fields_of_request
from kstreams_assets.restore.target import local_name_of
from kstreams_assets.settings import ApplicationSettings

_ASKED: Final = "asked_"
"""Prefix of field names, because commands already have an argument application_id."""


def request_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option per field of a restore request; the command gets it as `request`.

    The command needs the options of `app_options` as well.
    """

    @functools.wraps(command)
    def with_request(settings: ApplicationSettings, **given: Any) -> None:  # noqa: ANN401
        asked = {name: given.pop(_ASKED + name) for name, _, _ in fields_of_request()}
        asked["topics"] = _topic_names(asked["topics"])
        asked["original_headers"] = dict.fromkeys(asked["original_headers"], True)
        if _is_default("command_timeout_s"):
            asked["command_timeout_s"] = None  # the YAML may set another value
        request = RestoreRequest.asked(with_target(asked, settings), verify=settings.restore.verify)
        command(settings=settings, request=request, **given)

    decorated: Callable[..., None] = with_request
    for name, field, spelling in reversed([*fields_of_request()]):
        decorated = _option(name, field, spelling)(decorated)
    return decorated


def _is_default(name: str) -> bool:
    source = click.get_current_context().get_parameter_source(_ASKED + name)
    return source is ParameterSource.DEFAULT


def _option(name: str, field: FieldInfo, spelling: Spelling) -> Callable[[Any], Any]:
    """Return the option of one field."""
    declared = (spelling.option or f"--{name.replace('_', '-')}", _ASKED + name)
    kind, choices = field.annotation, choices_of(field, spelling)
    if kind is bool:
        return option(*declared, section=spelling.section, is_flag=True, help=field.description)
    if kind is OriginalHeaders:
        choices = [header.name for header in fields(OriginalHeaders)]
    listed = kind is OriginalHeaders or field.annotation in (tuple[str, ...], Mapping[str, str])
    default = None if listed or spelling.unset else field.default
    default = default.value if isinstance(default, StrEnum) else default
    return option(
        *declared,
        section=spelling.section,
        multiple=listed,
        type=click.Choice(choices)
        if choices
        else click.IntRange(min=1)
        if kind == int | None and not spelling.name
        else None,
        default=default,
        show_default=bool(default),
        metavar=spelling.metavar or None,
        help=f"{field.description}{' Repeatable.' if listed else ''}",
    )


def _topic_names(pairs: Iterable[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for pair in pairs:
        source, equals, target = pair.partition("=")
        if not (source and equals and target) or source in names:
            raise ConfigurationError(
                f"--topic-name {pair!r} names {source} again."
                if source in names
                else f"--topic-name {pair!r} is not SOURCE=TARGET.",
                remedy="Give each source topic once, as --topic-name orders=orders-restored.",
            )
        names[source] = target
    return names


def restore_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add --restore; the command gets it as `restore_id`. See `chosen_restore`."""
    return _restore_option("the only unfinished one")(command)


def live_restore_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add --restore, for `chosen_restore` with `live`."""
    return _restore_option("the newest one with committed offsets")(command)


def _restore_option(default: str) -> Callable[..., Callable[..., None]]:
    return option(
        "--restore",
        "restore_id",
        section="Selection",
        metavar="ID",
        help=f"Restore to use (default: {default}).",
    )


def target_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add --target, for a cluster whose addresses changed; the command gets it as `target`."""
    return option(
        "--target",
        section="Target",
        metavar="HOST:PORT,...",
        help="Bootstrap servers of the target, if they changed since the restore.",
    )(command)


def live_restores(
    settings: ApplicationSettings, restores: Iterable[StoredRestore]
) -> list[StoredRestore]:
    """Return the newest committed restore per group and cluster, without drills.

    Restores into local clusters are returned only if all of them are local.
    """
    newest: dict[tuple[str, str], StoredRestore] = {}
    for restore in _without_drills(settings, restores):  # the one that started last comes first
        if restore.state is RestoreState.COMMITTED:
            newest.setdefault((restore.target_cluster_id, restore.group), restore)
    found = list(newest.values())
    return [r for r in found if local_name_of(settings, r) is None] or found


def chosen_restore(
    settings: ApplicationSettings, restore_id: str | None, *, live: bool = False
) -> StoredRestore:
    """Return the restore with this id.

    Without an id, return the only unfinished restore, or the only restore. With `live`, prefer the
    restore from which an application continues; see `live_restores`.

    Raises:
        ConfigurationError: No restore matches, or several do.
    """
    restores = Repository.open(settings).restores.all()
    if live and restore_id is None:
        restores = live_restores(settings, restores) or restores
    if restore_id is not None:
        found = [restore for restore in restores if restore.restore_id == restore_id]
    else:
        found = [r for r in _without_drills(settings, restores) if not r.is_finished] or restores
    if len(found) == 1:
        if live and restore_id is None:
            _note_newer(settings, found[0])
        return found[0]
    if found:
        ids = ", ".join(restore.restore_id for restore in found)
        raise ConfigurationError(
            f"{settings.application_id} has {len(found)} restores: {ids}.",
            remedy="Choose one with --restore.",
        )
    which = "" if restore_id is None else f" {restore_id!r}"
    raise ConfigurationError(
        f"{settings.application_id} has no restore{which} in {settings.warehouse.root}.",
        remedy="See kstreams-assets restore list.",
    )


def _note_newer(settings: ApplicationSettings, chosen: StoredRestore) -> None:
    """Report restores of the same group that started later and are not committed."""
    restores = Repository.open(settings).restores.all()
    for other in _without_drills(settings, restores):
        if (
            other.group == chosen.group
            and other.created_at_ms > chosen.created_at_ms
            and not other.is_finished
        ):
            click.echo(
                f"NOTE Restore {other.restore_id} started later and is {other.state}. This command"
                f" uses {chosen.restore_id}; choose another restore with --restore.",
                err=True,
            )


def _without_drills(
    settings: ApplicationSettings, restores: Iterable[StoredRestore]
) -> list[StoredRestore]:
    drills = Repository.open(settings).drills
    return drills.without_drills(restores)
