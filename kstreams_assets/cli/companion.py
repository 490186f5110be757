"""`kstreams-assets companion`: locate the jar that journals an application's commits."""

import click

from kstreams_assets.cli.help import Command, Group
from spark_resources.companion import companion_jar


@click.group(cls=Group, epilog="kstreams-assets companion path")
def companion() -> None:
    """Locate the jar that logs an app's commits

    The companion is a jar for the class path of a Kafka Streams application that runs with
    `processing.guarantee=at_least_once`. Two properties of the application switch it on.
    """


@companion.command(cls=Command, epilog="kstreams-assets companion path")
def path() -> None:
    """Print the path of the companion jar"""
    click.echo(companion_jar())
