"""One lab for each test process: the gateway is started once, its upstreams are scripted by each test."""

from collections.abc import Iterator

import pytest

from support.lab import Lab, lab


@pytest.fixture(scope="session")
def shared_lab() -> Iterator[Lab]:
    """The gateway with default settings (usage_grace_s 0.5) and one scripted upstream for each dialect."""
    with lab() as made:
        yield made
