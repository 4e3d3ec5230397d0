"""The built-in emulator as a target: what answers where nothing is configured and --emulator-if-empty is given."""

from contextlib import AsyncExitStack
from typing import Final

from backends.catalog import DIALECTS
from backends.emulator.app import Emulator
from kimi_gateway.server import Listener, bind
from kimi_gateway.settings import Target

EMULATOR_NAME: Final = "emulator"


async def start_emulator(stack: AsyncExitStack) -> Target:
    """The built-in emulator on a port of the system's choice, as a target."""
    listener = Listener(Emulator(), bind("127.0.0.1", 0))
    stack.push_async_callback(listener.close)
    await listener.start()
    host, port = listener.address
    return emulator_at(f"http://{host}:{port}/v1")


def emulator_at(base_url: str) -> Target:
    """A built-in emulator as a target."""
    return Target(
        name=EMULATOR_NAME,
        dialect="moonshot",
        base_url=base_url,
        account=EMULATOR_NAME,
        models=DIALECTS["moonshot"].models,
    )
