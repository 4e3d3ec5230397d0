"""GET /v1/users/me/balance in Moonshot's shape: what the caller's key may spend, never the operator's account."""

from collections.abc import Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Path

from kimi_gateway.core.callers import Caller
from kimi_gateway.core.limit_answers import balance
from kimi_gateway.errors import StateOut
from kimi_gateway.ports import Limiter, StateUnavailable
from kimi_gateway.routes.answers import json_answer

_NO_BUDGET: Final = {"available_balance": None, "voucher_balance": None, "cash_balance": None, "has_budget": False}
"""Nothing is counted down, and null says so: any number would be a claim."""


def balance_path(authenticate: Callable[[Any], Caller], limiter: Limiter) -> Path:
    """The route."""

    async def show_balance(request: Request) -> Response:
        policy = authenticate(request.scope).policy
        data: dict[str, object] = dict(_NO_BUDGET)
        if policy.limits.has_budget:
            try:
                data = balance(await limiter.standing(policy.name, policy.limits))
            except StateUnavailable as err:
                raise StateOut(str(err)) from err
        return json_answer({"code": 0, "data": data, "scode": "0x0", "status": True})

    return Path("/v1/users/me/balance", show_balance, methods=["GET"])
