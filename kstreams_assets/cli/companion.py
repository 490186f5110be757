"""`kstreams-assets companion`: locate the jar that journals an application's commits."""

import click

from kstreams_assets.cli.help import Command, Group
from spark_resources.companion import companion_jar


@click.group(cls=Group, epilog="kstreams-assets companion path")
def companion() -> None:
    """Find the optional jar for at-least-once apps

    The companion is a jar for the class path of a Kafka Streams application that runs with
    `processing.guarantee=at_least_once`. It writes each commit of the application to a journal
    topic. Two properties of the application switch it on.
    """


@companion.command(cls=Command, epilog="kstreams-assets companion path")
def path() -> None:
    """Print the path of the companion jar

    Add this jar to the class path of an application with `processing.guarantee=at_least_once`. Two
    properties of the application then make it write each of its commits to a journal topic.
    """
    click.echo(companion_jar())
