"""A request's body on its way in, as something a shutdown can end."""

import asyncio

from kimi_gateway.errors import ShuttingDown
from kimi_gateway.relay.client import Client
from kimi_gateway.relay.context import Context


class Upload:
    """Reads one body. `interrupt` ends the reading with `ShuttingDown`."""

    def __init__(self, ctx: Context, client: Client) -> None:
        self._ctx = ctx
        self._client = client
        self._task = asyncio.current_task()
        self._interrupted = False

    def interrupt(self) -> None:
        """The process is ending: what is not here yet will not be waited for."""
        self._interrupted = True
        if self._task is not None:
            self._task.cancel()

    async def read(self) -> bytes:
        """The whole body. Raises what `Client.read_body` raises, and `ShuttingDown`."""
        self._ctx.lifecycle.track(self)
        try:
            return await self._client.read_body(
                max_bytes=self._ctx.settings.server.max_body_bytes, budget=self._ctx.buffers
            )
        except asyncio.CancelledError:
            if not self._interrupted or self._task is None:
                raise
            self._task.uncancel()
            raise ShuttingDown from None
        finally:
            self._ctx.lifecycle.untrack(self)
