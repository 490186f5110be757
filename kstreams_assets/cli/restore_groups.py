"""`kstreams-assets restore group-offsets`: offsets of other groups, such as readers of outputs."""

from pathlib import Path
from typing import Any

import click

from kstreams_assets.cli.options import app_options
from kstreams_assets.cli.output import print_json, print_table
from kstreams_assets.cli.restore_options import chosen_restore, restore_option, target_option
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.restore.group_offsets import (
    MappedGroup,
    commit_other_group,
    map_group,
    offsets_from_file,
    offsets_on_source,
)
from kstreams_assets.restore.steps import Step, require
from kstreams_assets.restore.target import open_stored_target
from kstreams_assets.settings import ApplicationSettings


@click.command("group-offsets")
@app_options
@restore_option
@target_option
@click.option(
    "--from-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="CSV of topic,partition,offset[,metadata] (kafka-consumer-groups.sh --export), for when"
    " the source cluster is gone.",
)
@click.option("--target-group", help="Its name on the target; without it, the same.")
@click.option("--commit", is_flag=True, help="Commit them; without it, they are only shown.")
@click.argument("group")
def group_offsets(
    settings: ApplicationSettings,
    as_json: bool,
    restore_id: str | None,
    target: str | None,
    from_file: Path | None,
    target_group: str | None,
    commit: bool,
    group: str,
) -> None:
    """Map another group's offsets to the restored topics, and with --commit commit them there.

    They are read from the source cluster, or from a file. Partitions that were not restored get no
    offset.

    \f
    Raises RestoreError, GroupOffsetsFileError, RestoreNotVerifiedError, GroupNotEmptyError.
    """
    restore = chosen_restore(settings, restore_id)
    require(restore, Step.GROUP_OFFSETS)
    offsets = offsets_from_file(from_file) if from_file else offsets_on_source(settings, group)
    if commit:
        with (
            open_stored_target(settings, restore, target) as connection,
            KafkaCluster(connection) as cluster,
        ):
            mapped = commit_other_group(
                settings, restore, cluster, group=target_group or group, offsets=offsets
            )
    else:
        mapped = map_group(settings, restore, offsets)
    if as_json:
        print_json(
            {
                "restore_id": restore.restore_id,
                "group": target_group or group,
                "committed": commit,
                **_document(mapped),
            }
        )
        return
    what = "committed and read back" if commit else "would be committed (--commit does it)"
    print_table(
        f"Group {target_group or group} on {restore.target_bootstrap_servers}: {what}",
        ["source", "offset", "target", "mapped", "not read yet", "note"],
        [
            [
                str(one.source),
                one.source_offset,
                str(one.target),
                one.committed.offset,
                one.unread,
                "had read beyond what was restored" if one.is_beyond else "",
            ]
            for one in mapped.offsets
        ],
    )
    if mapped.not_restored:
        click.echo(
            f"Not restored, no offset: {', '.join(map(str, mapped.not_restored))}.", err=True
        )


def _document(mapped: MappedGroup) -> dict[str, Any]:
    return {
        "offsets": [
            {
                "source": {"topic": one.source.topic, "partition": one.source.partition},
                "source_offset": one.source_offset,
                "target": {"topic": one.target.topic, "partition": one.target.partition},
                "offset": one.committed.offset,
                "unread": one.unread,
                "first_unread": one.first_unread,
                "is_beyond": one.is_beyond,
            }
            for one in mapped.offsets
        ],
        "not_restored": [
            {"topic": id_.topic, "partition": id_.partition} for id_ in mapped.not_restored
        ],
    }
