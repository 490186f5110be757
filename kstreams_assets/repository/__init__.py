"""The tables of the backups in a warehouse: paths, layout version, locks."""
