"""GET /v1/users/me/balance in Moonshot's shape: what the caller's key may spend, never the operator's account."""

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Path

from kimi_gateway.core.callers import Caller
from kimi_gateway.routes.answers import json_answer


def balance_path(authenticate: Callable[[Any], Caller]) -> Path:
    """The route. Without a budget nothing is counted down, and null says so: any number would be a claim."""

    async def show_balance(request: Request) -> Response:
        authenticate(request.scope)
        data = {"available_balance": None, "voucher_balance": None, "cash_balance": None, "has_budget": False}
        return json_answer({"code": 0, "data": data, "scode": "0x0", "status": True})

    return Path("/v1/users/me/balance", show_balance, methods=["GET"])
