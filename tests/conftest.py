"""Puts the repository and the tests' folder on the path, so that `support` can be imported from any test.

The repository comes first: `tests/pricing` and its like must not stand before the packages they test.
"""

import gc
import sys
from pathlib import Path

import pytest
from hypothesis import settings

_TESTS = Path(__file__).parent
sys.path[:0] = [str(_TESTS.parent), str(_TESTS)]

# How long an example takes says more about the machine than about the code; timings are benchmarks.
settings.register_profile("kimi", deadline=None)
settings.load_profile("kimi")


_LONG = {"wire", "docs", "test_process", "test_wheel"}
"""Folders and files whose tests take long."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts them first: no test process shall have a long file left when the others are done."""
    items.sort(key=lambda item: not {item.path.parent.name, item.path.stem} & _LONG)


def pytest_collection_finish() -> None:
    """What collecting has made stays to the end: no later garbage collection looks through it."""
    gc.collect()
    gc.freeze()
