"""What a dashboard needs to know of an application, for Prometheus."""
