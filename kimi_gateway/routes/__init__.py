"""The small routes: models, health, metrics, and the errors of paths that are none."""
