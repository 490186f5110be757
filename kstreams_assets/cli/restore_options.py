"""Options of the commands that restore, and what they become."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import click

from kstreams_assets.drill.report import DrillsTable
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.restore.config import AS_CONFIGURED, RESTORED, HeadersConfig, RestoreConfig
from kstreams_assets.restore.target import local_name_of
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.restores import RestoresTable, RestoreState, StoredRestore

_HEADERS = ("offset", "timestamp", "partition")

_OPTIONS = (
    click.option("--target", help="host:port[,...] of the target, or local; replaces the YAML's."),
    click.option(
        "--as-of", help="The newest point complete at this time, as 2026-11-21T14:30:00Z."
    ),
    click.option("--point", "point_id", help="This recovery point."),
    click.option(
        "--mode",
        type=click.Choice(["state", "rebuild", "inputs_until"]),
        default="state",
        show_default=True,
        help="What is restored.",
    ),
    click.option(
        "--inputs",
        type=click.Choice(["full", "tail"]),
        default="full",
        show_default=True,
        help="Inputs whole, or from the committed offsets on.",
    ),
    click.option(
        "--changelog-source",
        type=click.Choice(["raw", "snapshot"]),
        default="raw",
        show_default=True,
        help="Changelogs record by record, or from the KTable snapshots.",
    ),
    click.option("--target-application-id", help="Another application.id on the target."),
    click.option("--prefix", default="", help="Before the names of all topics not internal."),
    click.option(
        "--topic-name", "names", multiple=True, metavar="SOURCE=TARGET", help="Target name; repeat."
    ),
    click.option("--exclude", multiple=True, help="Glob of topics not to restore; repeat."),
    click.option(
        "--inputs-are-at",
        type=click.Choice(["mapped", "latest"]),
        help="Where the group goes on in excluded inputs: at the same records, or at the end.",
    ),
    click.option(
        "--accept",
        type=click.Choice(["exact", "at_least_once", "unproven"]),
        default="exact",
        show_default=True,
        help="The least that the point has to give.",
    ),
    click.option(
        "--verify",
        type=click.Choice(["full", "sample", "counts"]),
        help="How much is read back; replaces the YAML's.",
    ),
    click.option(
        "--original-headers",
        "headers",
        multiple=True,
        type=click.Choice(_HEADERS),
        help="Add this original header; repeat.",
    ),
    click.option(
        "--accept-replaced-timestamps",
        is_flag=True,
        help="Timestamps of 0 and below become the time of the restore.",
    ),
    click.option("--replication-factor", type=click.IntRange(min=1), help="Of created topics."),
    click.option(
        "--skip-completeness",
        is_flag=True,
        help="Commit the group offsets without evaluating completeness rules on the target.",
    ),
)


def request_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of a restore, handed on as `config` (RestoreConfig)."""

    @functools.wraps(command)
    def with_config(
        target: str | None,
        as_of: str | None,
        point_id: str | None,
        mode: Any,  # noqa: ANN401 - click has checked the choices
        inputs: Any,  # noqa: ANN401
        changelog_source: Any,  # noqa: ANN401
        target_application_id: str | None,
        prefix: str,
        names: tuple[str, ...],
        exclude: tuple[str, ...],
        inputs_are_at: Any,  # noqa: ANN401
        accept: Any,  # noqa: ANN401
        verify: Any,  # noqa: ANN401
        headers: tuple[str, ...],
        accept_replaced_timestamps: bool,
        replication_factor: int | None,
        skip_completeness: bool,
        **rest: Any,  # noqa: ANN401 - whatever options the command has of its own
    ) -> None:
        config = RestoreConfig(
            dry_run=False,
            as_of=as_of,
            point_id=point_id,
            mode=mode,
            inputs=inputs,
            changelog_source=changelog_source,
            target=target,
            application_id=target_application_id,
            prefix=prefix,
            topics=_topic_names(names),
            exclude=list(exclude),
            inputs_are_at=inputs_are_at or RESTORED,
            replication_factor=replication_factor,
            original_headers=HeadersConfig(**{name: name in headers for name in _HEADERS}),
            accept=accept,
            accept_replaced_timestamps=accept_replaced_timestamps,
            verify=verify or AS_CONFIGURED,
            skip_completeness=skip_completeness,
        )
        command(config=config, **rest)

    decorated: Callable[..., None] = with_config
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


def _topic_names(pairs: Iterable[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for pair in pairs:
        source, equals, target = pair.partition("=")
        if not (source and equals and target) or source in names:
            raise ConfigurationError(
                f"--topic-name {pair!r} is no SOURCE=TARGET"
                f"{' of a new source' if source in names else ''}.",
                remedy="Give each source topic once, as --topic-name orders=orders-restored.",
            )
        names[source] = target
    return names


def restore_option(command: Callable[..., None]) -> Callable[..., None]:
    """--restore, handed on as `restore_id`; see `chosen_restore`."""
    text = "Its id; not needed while there is only one that is not finished."
    return click.option("--restore", "restore_id", help=text)(command)


def target_option(command: Callable[..., None]) -> Callable[..., None]:
    """--target, for a cluster that has other addresses now; handed on as `target`."""
    text = "host:port[,...] of the target, if it is another than when it was restored."
    return click.option("--target", help=text)(command)


def drilled(settings: ApplicationSettings) -> Callable[[StoredRestore], bool]:
    """Which restores are those of drills."""
    runs = {drill.run_id for drill in DrillsTable(settings.warehouse).of(settings.application_id)}
    return lambda restore: restore.run_id in runs


def live_restores(
    settings: ApplicationSettings, restores: Iterable[StoredRestore]
) -> list[StoredRestore]:
    """Of each group on each cluster the newest restore that is committed; drills do not count."""
    is_drill = drilled(settings)
    newest: dict[tuple[str, str], StoredRestore] = {}
    for restore in restores:  # the one that was begun last comes first
        if restore.state is RestoreState.COMMITTED and not is_drill(restore):
            newest.setdefault((restore.target_cluster_id, restore.group), restore)
    found = list(newest.values())
    return [r for r in found if local_name_of(settings, r) is None] or found


def chosen_restore(
    settings: ApplicationSettings, restore_id: str | None, *, live: bool = False
) -> StoredRestore:
    """The restore of this id; without one, the only one there is or the only unfinished one.

    With `live` the one that an application goes on from: the newest that is committed to its group,
    no drill, and not in a throwaway cluster if another one is.

    Raises:
        ConfigurationError: There is none, or it is not clear which is meant.
    """
    restores = RestoresTable(settings.warehouse).all(settings.application_id)
    if live and restore_id is None:
        restores = live_restores(settings, restores) or restores
    if restore_id is not None:
        found = [restore for restore in restores if restore.restore_id == restore_id]
    else:
        is_drill = drilled(settings)
        found = [r for r in restores if not r.is_finished and not is_drill(r)] or restores
    if len(found) == 1:
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
