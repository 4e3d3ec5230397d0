"""One PostgreSQL for each test process: making a cluster takes a second."""

from collections.abc import Iterator

import pytest

from support.postgres import Postgres, postgres


@pytest.fixture(scope="session")
def server() -> Iterator[Postgres]:
    """One server for all tests, each with databases of its own; who stops it starts it again."""
    with postgres() as running:
        yield running
