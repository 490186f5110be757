"""`kstreams-assets restore map` and `group-offsets`: offsets of the source on the target."""

from pathlib import Path

import click

from kstreams_assets.cli.help import Command, option
from kstreams_assets.cli.options import app_options
from kstreams_assets.cli.output import print_json, print_table
from kstreams_assets.cli.restore_options import chosen_restore, restore_option, target_option
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.offsets import OffsetMap, TopicPartitionId
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore.group_offsets import (
    MAPPED_GROUP,
    MAPPED_OFFSET,
    commit_other_group,
    map_group,
    offsets_from_file,
    offsets_of_point,
    offsets_on_source,
)
from kstreams_assets.restore.steps import Step, require
from kstreams_assets.restore.target import open_stored_target
from kstreams_assets.settings import ApplicationSettings


@click.command(
    "map", cls=Command, epilog="kstreams-assets restore map --app defs.yaml orders 3 48211"
)
@app_options
@restore_option
@option(
    "--reverse", section="Selection", is_flag=True, help="Map target offsets to source offsets."
)
@click.argument("topic")
@click.argument("partition", type=click.IntRange(min=0))
@click.argument("offsets", type=click.IntRange(min=0), nargs=-1)
def map_offsets(
    settings: ApplicationSettings,
    as_json: bool,
    restore_id: str | None,
    reverse: bool,
    topic: str,
    partition: int,
    offsets: tuple[int, ...],
) -> None:
    """Print the target offset of a source offset

    TOPIC and PARTITION are those of the source. For an offset without a restored record, such as a
    transaction marker, the command prints the offset of the next restored record. Without OFFSETS
    it prints the whole map: one row for each range of consecutive offsets. The command reads the
    warehouse only.
    """
    found = chosen_restore(settings, restore_id)
    require(found, Step.MAP)
    source = TopicPartitionId(topic, partition)
    table = Repository.open(settings).offset_maps
    stored = table.load(found.restore_id, topics=[topic]).get(source)
    if stored is None:
        known = ", ".join(topic.source for topic in found.topics)
        raise ConfigurationError(
            f"The restore {found.restore_id} has no offset map of {source}.",
            remedy=f"Give a source topic and partition of it; topics: {known or 'none yet'}.",
        )
    rows = _lookups(stored.map, offsets, reverse=reverse) if offsets else _runs(stored.map)
    if as_json:
        print_json(
            {
                "restore_id": found.restore_id,
                "source": {"topic": topic, "partition": partition},
                "target": {"topic": stored.target.topic, "partition": stored.target.partition},
                "target_end": stored.map.end,
                "offsets": rows,
            }
        )
        return
    print_table(
        f"{source} -> {stored.target} (end {stored.map.end}), restore {found.restore_id}",
        ["source", "target", "records"],
        [[row["source"], row["target"], row["records"]] for row in rows],
    )


def _lookups(
    offset_map: OffsetMap, offsets: tuple[int, ...], *, reverse: bool
) -> list[dict[str, int | None]]:
    """Return one row per offset; `records` is the number of restored records below it."""
    rows: list[dict[str, int | None]] = []
    for offset in offsets:
        source = offset_map.source_of(offset) if reverse else offset
        rows.append(
            {
                "source": source,
                "target": offset if reverse else offset_map.map(offset),
                "records": None if source is None else offset_map.records_below(source),
            }
        )
    return rows


def _runs(offset_map: OffsetMap) -> list[dict[str, int | None]]:
    return [
        {"source": run.source_start, "target": run.target_start, "records": run.length}
        for run in offset_map.runs
    ]


@click.command(
    "group-offsets",
    cls=Command,
    epilog="kstreams-assets restore group-offsets --app defs.yaml billing --commit",
)
@app_options
@restore_option
@target_option
@option(
    "--from-file",
    section="Selection",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Read offsets from a CSV export of kafka-consumer-groups.sh.",
)
@option(
    "--from-point",
    section="Selection",
    is_flag=True,
    help="Read offsets from the recovery point (recovery_points.other_groups).",
)
@option(
    "--target-group",
    section="Target",
    metavar="GROUP",
    help="Name of the group on the target (default: same as on the source).",
)
@option(
    "--commit",
    section="Target",
    is_flag=True,
    help="Commit the mapped offsets (default: only print them).",
)
@click.argument("group")
def group_offsets(
    settings: ApplicationSettings,
    as_json: bool,
    restore_id: str | None,
    target: str | None,
    from_file: Path | None,
    from_point: bool,
    target_group: str | None,
    commit: bool,
    group: str,
) -> None:
    """Map or commit offsets of another group

    The other group is a consumer of the restored topics. The command reads the committed offsets of
    this group from the source cluster, a file or the recovery point. It computes the offsets of the
    same records on the target and prints both.

    Only with --commit, the command also commits the offsets on the target. It skips partitions that
    were not restored.
    """
    restore = chosen_restore(settings, restore_id)
    require(restore, Step.GROUP_OFFSETS)
    if from_file is not None and from_point:
        raise ConfigurationError(
            "--from-file and --from-point cannot be combined.", remedy="Give one of them."
        )
    if from_file is not None:
        source = offsets_from_file(from_file, group)
    elif from_point:
        source = offsets_of_point(settings, restore, group)
    else:
        source = offsets_on_source(settings, group)
    name = target_group or group
    if commit:
        with (
            open_stored_target(settings, restore, target) as connection,
            KafkaCluster(connection) as cluster,
        ):
            mapped = commit_other_group(settings, restore, cluster, group=source, target_group=name)
    else:
        mapped = map_group(settings, restore, source)
    if as_json:
        print_json(
            {
                "restore_id": restore.restore_id,
                "group": name,
                "committed": commit,
                **MAPPED_GROUP.document(mapped),
            }
        )
        return
    what = "committed and read back" if commit else "not committed (add --commit to commit)"
    print_table(
        f"Group {name} on {restore.target_bootstrap_servers}: {what}",
        *MAPPED_OFFSET.table(
            mapped.offsets, "of", "source_offset", "at", "offset", "unread", "note"
        ),
    )
    if mapped.not_restored:
        click.echo(
            f"No offset, because not restored: {', '.join(map(str, mapped.not_restored))}.",
            err=True,
        )
