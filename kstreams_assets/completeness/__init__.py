"""Business rules that detect lost records, evaluated on backups and restores."""
