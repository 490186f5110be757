"""`kstreams-assets restore map`: where offsets of the source are on the target."""

import click

from kstreams_assets.cli.options import app_options
from kstreams_assets.cli.output import print_json, print_table
from kstreams_assets.cli.restore_options import chosen_restore, restore_option
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.offsets import OffsetMap, TopicPartitionId
from kstreams_assets.restore.steps import Step, require
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.restores import OffsetMapsTable


@click.command("map")
@app_options
@restore_option
@click.option("--reverse", is_flag=True, help="The offsets are the target's.")
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
    """Where offsets of a source topic's partition are on the target. Needs no broker.

    An offset without a restored record is mapped to that of the next one. Without offsets, all runs
    of consecutive offsets are shown.

    \f
    Raises RestoreStateError, ConfigurationError when the restore has no map of the partition.
    """
    found = chosen_restore(settings, restore_id)
    require(found, Step.MAP)
    source = TopicPartitionId(topic, partition)
    table = OffsetMapsTable(settings.warehouse)
    stored = table.load(found.application_id, found.restore_id, topics=[topic]).get(source)
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
    """One row for each offset; `records` is how many restored records lie below it."""
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
