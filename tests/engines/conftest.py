"""Tests against real engines, by hand only: every test here has the mark `engines`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.vllm_engine import VllmEngine, vllm_engine

_HERE = Path(__file__).parent
_TIMEOUT_S = 900


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "engines: real engines that make test-engines installs; by hand only")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.engines)
            item.add_marker(pytest.mark.timeout(_TIMEOUT_S))


@pytest.fixture(scope="session")
def engine() -> Iterator[VllmEngine]:
    """One vLLM for all tests that leave it alive."""
    with vllm_engine() as started:
        yield started
