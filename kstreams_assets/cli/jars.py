"""`kstreams-assets jars`: download jars that Python packages do not contain."""

import click

from kstreams_assets.cli.help import Group
from spark_resources.fetch_jars import main


@click.group(cls=Group, epilog="kstreams-assets jars fetch")
def jars() -> None:
    """Download jars of Spark and of a local Kafka

    Spark needs them for backups and restores. Drills need a local Kafka broker.
    """


jars.add_command(main, "fetch")
