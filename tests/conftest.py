"""Puts the repository and the tests' folder on the path, so that `support` can be imported from any test.

The repository comes first: `tests/pricing` and its like must not stand before the packages they test.
"""

import sys
from pathlib import Path

from hypothesis import settings

_TESTS = Path(__file__).parent
sys.path[:0] = [str(_TESTS.parent), str(_TESTS)]

# How long an example takes says more about the machine than about the code; timings are benchmarks.
settings.register_profile("kimi", deadline=None)
settings.load_profile("kimi")
