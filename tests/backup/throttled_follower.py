"""The command line as a Kafka client of its own, which quotas of a test can throttle."""

from kstreams_assets.cli.main import run
from kstreams_assets.kafka import channel, wire

CLIENT = "throttled-follower"


if __name__ == "__main__":
    wire.CLIENT_ID = channel.CLIENT_ID = CLIENT
    run()
