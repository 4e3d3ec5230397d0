"""The one door of the gateway to `httpx2`: a JSON body to an address, a few times over, off the hot path."""

import asyncio
from collections.abc import Mapping
from typing import Final

import httpx2

from kimi_gateway.core.secret import Secret

_ATTEMPTS: Final = 4
_TIMEOUT_S: Final = 10.0
_PAUSE_S: Final = 1.0


class Webhook:
    """One address. It may hold a secret, so no message names it.

    A 2xx answer is success. No answer, 408, 429 and 5xx are tried again, `attempts` times in all, with pauses
    that double from `pause_s`. Redirects are not followed.
    """

    def __init__(
        self,
        address: Secret,
        *,
        attempts: int = _ATTEMPTS,
        timeout_s: float = _TIMEOUT_S,
        pause_s: float = _PAUSE_S,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._address = address
        self._attempts = attempts
        self._timeout_s = timeout_s
        self._pause_s = pause_s
        self._transport = transport

    async def post(self, body: Mapping[str, object]) -> str:
        """Sends it; "" where it arrived, else why it did not. Never raises."""
        problem = ""
        async with httpx2.AsyncClient(
            timeout=self._timeout_s, transport=self._transport, headers={"user-agent": "kimi-gateway"}
        ) as client:
            for attempt in range(self._attempts):
                if attempt:
                    await asyncio.sleep(self._pause_s * 2 ** (attempt - 1))
                problem, may_help = await self._try(client, body)
                if not problem or not may_help:
                    return problem
        return f"{problem}, {self._attempts} times over"

    async def _try(self, client: httpx2.AsyncClient, body: Mapping[str, object]) -> tuple[str, bool]:
        """What went wrong ("" for nothing), and whether trying again may help."""
        try:
            response = await client.post(self._address.reveal(), json=body)
        except (httpx2.UnsupportedProtocol, httpx2.InvalidURL, ValueError):
            return "its address is not a URL", False
        except httpx2.TransportError as err:
            return f"it does not answer ({type(err).__name__})", True
        status = response.status_code
        if 200 <= status < 300:
            return "", False
        return f"it answers with status {status}", status in (408, 429) or status >= 500
