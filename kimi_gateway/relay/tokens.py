"""POST /v1/tokenizers/estimate-token-count in Moonshot's shape, with what the count is worth beside it."""

from backends.json import encode
from kimi_gateway.errors import GatewayError
from kimi_gateway.relay.client import Client, ClientGone, ClientStalled, Receive, Scope, Send
from kimi_gateway.relay.context import Context
from pricing.tokens import TokenCount


class TokenEndpoint:
    """Answers token counts. Nothing goes upstream and nothing is booked."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = self._ctx.settings.server
        client = Client(scope, receive, send, stall_timeout_s=server.client_stall_timeout_s)
        try:
            await self._answer(client, scope, server.max_body_bytes)
        except GatewayError as error:
            self._ctx.metrics.refused()
            await client.refuse(error, {})
        except (ClientGone, ClientStalled):
            return

    async def _answer(self, client: Client, scope: Scope, max_bytes: int) -> None:
        self._ctx.authenticate(scope)
        client.check_media()
        body = await client.read_body(max_bytes=max_bytes, budget=self._ctx.buffers)
        try:
            found = await self._ctx.counting.count(body)
        finally:
            self._ctx.buffers.give_back(len(body))
        await client.respond(200, {}, encode({"data": _shown(found)}))


def _shown(found: TokenCount) -> dict[str, object]:
    """`total_tokens` as the vendor has it; the rest says how good the number is."""
    return {
        "total_tokens": found.tokens,
        "low": found.low,
        "high": found.high,
        "method": found.method,
        "exact": found.exact,
        "note": found.error,
    }
