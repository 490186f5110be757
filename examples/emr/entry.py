"""What EMR runs in the driver: a command of `kstreams-assets`, reported to Dagster.

Standard output carries the messages to Dagster, so that the output of the command becomes metadata.
"""

import json
import subprocess
import sys

from dagster_pipes import open_dagster_pipes


def main() -> None:
    """Run the command in the arguments; its exit code becomes that of the job."""
    command = [sys.executable, "-m", "kstreams_assets.cli.main", *sys.argv[1:]]
    with open_dagster_pipes() as pipes:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode == 0:
            found = {"type": "json", "raw_value": json.loads(done.stdout)}
            pipes.report_asset_materialization(metadata={"report": found})
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
