"""`kstreams-assets jars`: the jars that no Python package brings along."""

import click

from spark_resources.fetch_jars import main


@click.group()
def jars() -> None:
    """Fetch the jars of Spark (backups, restores) and of a local Kafka (drills)."""


jars.add_command(main, "fetch")
