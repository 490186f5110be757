"""The command line: the same YAML as in Dagster, for cron jobs and scripts."""
