"""The folder that holds every table of the backups: paths, layout version, locks."""
