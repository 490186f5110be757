"""The command line as a Kafka client of its own, which quotas of a test can throttle."""

from kstreams_assets.kafka import throttle

CLIENT = "throttled-follower"


if __name__ == "__main__":
    throttle.CLIENT_ID = CLIENT  # pyright: ignore - before any client imports it
    from kstreams_assets.cli.main import run

    run()
