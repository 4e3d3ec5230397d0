"""The gateway's own HTTP server around any ASGI application, and clients that speak raw bytes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeAlias

from kimi_gateway.server import AsgiApp, Listener, bind

Reader: TypeAlias = asyncio.StreamReader
Writer: TypeAlias = asyncio.StreamWriter


class Served:
    """A listener and clients for it."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.port = listener.address[1]

    async def connect(self) -> tuple[Reader, Writer]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, raw: bytes) -> tuple[int, dict[str, str], bytes]:
        """One request on a connection of its own."""
        reader, writer = await self.connect()
        try:
            writer.write(raw)
            return await answer(reader)
        finally:
            writer.close()


@asynccontextmanager
async def served(app: AsgiApp, *, head_timeout_s: float = 30) -> AsyncIterator[Served]:
    listener = Listener(app, bind("127.0.0.1", 0), head_timeout_s=head_timeout_s)
    await listener.start()
    try:
        yield Served(listener)
    finally:
        await listener.close()


async def answer(reader: Reader) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the next answer."""
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
    body = await asyncio.wait_for(reader.readexactly(int(headers.get("content-length", "0"))), 10)
    return int(head[0].split(" ")[1]), headers, body
