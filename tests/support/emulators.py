"""Several emulators in one thread, on the server that the command `emulate` uses: it can break connections."""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager

import uvloop

from backends.emulator.app import Emulator
from backends.emulator.config import EmulatorConfig
from kimi_gateway.server import Listener, bind

_START_S = 10.0


@contextmanager
def emulators(configs: Mapping[str, EmulatorConfig]) -> Iterator[dict[str, str]]:
    """The addresses (without /v1) of one emulator for each name. Raises `RuntimeError` where none comes up."""
    addresses: dict[str, str] = {}
    ready = threading.Event()
    loop, ended = uvloop.new_event_loop(), asyncio.Event()

    async def run() -> None:
        async with AsyncExitStack() as stack:
            for name, config in configs.items():
                listener = Listener(Emulator(config), bind("127.0.0.1", 0), gives_holds=True)
                stack.push_async_callback(listener.close)
                await listener.start()
                addresses[name] = f"http://127.0.0.1:{listener.address[1]}"
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),), name="emulators", daemon=True)
    thread.start()
    if not ready.wait(_START_S):
        raise RuntimeError("the emulators did not start")
    try:
        yield addresses
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(_START_S)
        loop.close()
