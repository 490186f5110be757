"""An application's metrics for dashboards, for Prometheus."""
