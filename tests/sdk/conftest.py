"""One set of servers for each test process; the gateway is started for the first test that asks for it."""

from collections.abc import Iterator, Mapping

import pytest

from support.sdk_places import BEHIND, Place, emulated_places, gateway_before


@pytest.fixture(scope="session")
def emulated() -> Iterator[Mapping[str, Place]]:
    """An emulator of each dialect."""
    with emulated_places() as made:
        yield made


@pytest.fixture(scope="session")
def gateway_place(emulated: Mapping[str, Place]) -> Iterator[Place]:
    """The gateway, before an emulator of its own."""
    with gateway_before(emulated[BEHIND]) as made:
        yield made


@pytest.fixture
def place(request: pytest.FixtureRequest, emulated: Mapping[str, Place]) -> Place:
    """The server that the parameter names, as if nothing had happened there."""
    named: str = request.param
    found: Place = request.getfixturevalue("gateway_place") if named == "gateway" else emulated[named]
    found.reset()
    return found
