"""Rules by which the business knows that nothing is lost, evaluated on backups and restores."""
