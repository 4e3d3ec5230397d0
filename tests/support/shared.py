"""Where the shared material (transcripts, tiny model, vocabulary) is: beside the repository or `KIMI_SHARED`."""

import os
from pathlib import Path

import pytest

_BESIDE = Path(__file__).resolve().parents[2].parent / "shared"
SHARED = Path(os.environ.get("KIMI_SHARED") or _BESIDE)


def shared_path(relative: str) -> Path:
    """The path of one shared file. Skips the test, saying so, where it is absent."""
    path = SHARED / relative
    if not path.exists():
        pytest.skip(f"shared material absent: {relative} (set KIMI_SHARED)")
    return path
