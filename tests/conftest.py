"""Puts the tests' folder on the path, so that `support` can be imported from any test."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
