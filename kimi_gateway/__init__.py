"""One OpenAI-compatible base_url in front of every way to run Kimi K3.1 Pro."""

__version__ = "0.1.0"
