"""Paths that are announced and not built yet."""

from typing import Final

NOT_BUILT: Final = ("/v1/responses", "/v1/messages", "/v1/files", "/v1/batches", "/dashboard")
"""They and everything below them. An entry goes when its path comes."""


def unbuilt_path(path: str) -> str:
    """The announced path that a request is for; "" where it is for none."""
    return next((name for name in NOT_BUILT if path == name or path.startswith(f"{name}/")), "")
