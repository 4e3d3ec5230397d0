"""Puts the repository and the tests' folder on the path, so that `support` can be imported from any test.

The repository comes first: `tests/pricing` and its like must not stand before the packages they test.
"""

import sys
from pathlib import Path

_TESTS = Path(__file__).parent
sys.path[:0] = [str(_TESTS.parent), str(_TESTS)]
