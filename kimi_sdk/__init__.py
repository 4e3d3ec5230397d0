"""The typed client for Kimi."""
