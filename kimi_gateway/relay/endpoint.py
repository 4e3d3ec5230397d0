"""POST /v1/chat/completions as a plain ASGI endpoint: no middleware, no wrapped body."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from backends.json import JsonObject
from kimi_gateway.core.ids import request_id
from kimi_gateway.core.keys import KeyPolicy
from kimi_gateway.core.shaping import Shaper
from kimi_gateway.errors import GatewayError, ShuttingDown
from kimi_gateway.relay.account import Account
from kimi_gateway.relay.admission import admit
from kimi_gateway.relay.client import Client, ClientGone, ClientStalled, Receive, Scope, Send
from kimi_gateway.relay.context import Context
from kimi_gateway.relay.exchange import Exchange
from kimi_gateway.relay.prepare import prepare
from kimi_gateway.relay.request import Option, Prepared
from kimi_gateway.relay.sinks import FoldSink, StreamSink
from kimi_gateway.relay.thinking import UNAVAILABLE
from kimi_gateway.relay.upload import Upload
from pricing.ledger.row import LedgerRow

_ADJUSTED_SHOWN: Final = 20


class ChatEndpoint:
    """Serves chat completions. Refusals before planning are answers without a row; everything else has one."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ctx = self._ctx
        began, started_at = ctx.mono(), ctx.wall()
        own_id = request_id(int(started_at * 1000), ctx.random_bits(80))
        once = ctx.idempotency.once(scope, send)
        stall_timeout_s = ctx.settings.server.client_stall_timeout_s
        is_own = once.send is send
        client = Client(scope, receive, once.send, stall_timeout_s=stall_timeout_s, is_own_send=is_own)
        ctx.metrics.in_flight_changed(1)
        held_bytes = 0
        admission = None
        key = ""
        try:
            if not ctx.lifecycle.accepting:
                raise ShuttingDown
            policy = ctx.authenticate(scope).policy
            key = policy.name
            client.check_media()
            once.check()
            body = client.body_now(max_bytes=ctx.settings.server.max_body_bytes, budget=ctx.buffers)
            if body is None:
                body = await Upload(ctx, client).read()
            held_bytes = len(body)
            if await once.answered(body, key, client, ctx.settings.targets):
                return
            prepared = await prepare(body, client, policy, ctx)
            if once.is_unguarded:
                prepared.recall = replace(prepared.recall, anomaly=UNAVAILABLE)
            admission = await admit(ctx, prepared, policy, own_id, started_at, body)
            del body
            option = await prepared.options.peek()
            assert option is not None, "prepare has looked at it"
            row = _row(own_id, started_at, prepared, policy)
            if admission is not None and admission.limits.has_budget:
                row.reserved_nano = admission.claim.nano
            account = Account(ctx, prepared, option, row, began, admission)
            once.ends_whole(lambda: account.row.status == "ok")
            await _serve(ctx, prepared, option, account, client)
        except GatewayError as error:
            ctx.metrics.refused(key)
            ctx.books.refused(key, error.code or error.type)
            await _refuse(client, error, own_id)
        except (ClientGone, ClientStalled):
            return
        finally:
            if admission is not None:
                await admission.abandon()
            ctx.buffers.give_back(held_bytes)
            ctx.metrics.in_flight_changed(-1)
            await once.close()


async def _serve(ctx: Context, prepared: Prepared, option: Option, account: Account, client: Client) -> None:
    """Books the request as open and runs it to its end; what it held of its key's limits is given back."""
    try:
        account.open()
        await _exchange(ctx, prepared, option, account, client).run()
    finally:
        await account.give_back()


async def _refuse(client: Client, error: GatewayError, own_id: str) -> None:
    try:
        await client.refuse(error, {"x-kimi-request-id": own_id, "x-request-id": own_id})
    except ClientStalled:
        return


def _row(own_id: str, started_at: float, prepared: Prepared, policy: KeyPolicy) -> LedgerRow:
    return LedgerRow(
        request_id=own_id,
        started_at=started_at,
        key=policy.name,
        tags=prepared.tags,
        route=prepared.route,
        model=prepared.model,
        tier=prepared.tier,
        effort=prepared.effort,
        ttl=prepared.ttl,
        stream=prepared.stream,
    )


def _exchange(ctx: Context, prepared: Prepared, option: Option, account: Account, client: Client) -> Exchange:
    row = account.row
    defaults: JsonObject = {
        "id": f"chatcmpl-{row.request_id}",
        "object": "chat.completion",
        "created": int(row.started_at),
    }
    sink: StreamSink | FoldSink
    if prepared.stream:
        shaper = Shaper(
            n=prepared.n,
            wants_usage=prepared.wants_usage,
            wants_meta=prepared.wants_meta,
            model=prepared.model,
            created=int(row.started_at),
            answer_id=f"chatcmpl-{row.request_id}",
            service_tier=prepared.tier if prepared.named_tier else None,
        )
        keepalive = ctx.settings.server.keepalive
        sink = StreamSink(
            client,
            shaper,
            lambda: head_headers(account),
            keepalive=keepalive,
        )
    else:
        sink = FoldSink(
            client,
            prepared.n,
            lambda: head_headers(account),
            defaults=defaults,
            says_tier=prepared.named_tier,
        )
        sink.answers_as(prepared.model)
    return Exchange(ctx, prepared, option, account, client, sink)


def head_headers(account: Account) -> Mapping[str, str]:
    """The response headers as known when the head leaves; a folded answer adds its cost."""
    row = account.row
    headers = {
        "x-kimi-request-id": row.request_id,
        "x-request-id": row.request_id,
        "x-kimi-target": row.target,
        "x-kimi-model": row.model,
        "x-kimi-effort": row.effort,
        "x-kimi-tier": row.tier,
        "x-kimi-attempts": str(account.attempts),
    }
    if row.adjusted:
        headers["x-kimi-adjusted"] = adjusted_header(row.adjusted)
    if row.thinking:
        headers["x-kimi-thinking"] = row.thinking
    headers.update(account.limit_headers)
    if account.plan:
        headers["x-kimi-plan"] = account.plan
    if account.cache_loss:
        headers["x-kimi-cache-loss"] = account.cache_loss
    return headers


def adjusted_header(paths: list[str]) -> str:
    """At most 20 paths, then how many more."""
    shown = ",".join(paths[:_ADJUSTED_SHOWN])
    more = len(paths) - _ADJUSTED_SHOWN
    return f"{shown},+{more}" if more > 0 else shown
