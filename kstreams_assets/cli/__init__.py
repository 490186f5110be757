"""The command line, for cron jobs and scripts; it reads the same YAML as Dagster."""
