"""GET /v1/models and /v1/models/{id}: the public models, in OpenAI's fields and Moonshot's."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Path

from kimi_gateway.core.callers import Caller
from kimi_gateway.core.keys import KeyPolicy
from kimi_gateway.core.near import meant, quoted
from kimi_gateway.core.plan import find_route, tier_of
from kimi_gateway.errors import NotFound
from kimi_gateway.routes.answers import json_answer
from kimi_gateway.settings import Route, Settings

Authenticate = Callable[[Any], Caller]

_RELEASE_DAY: Final = int(datetime(2026, 10, 24, tzinfo=UTC).timestamp())
_RELEASED: Final = {"kimi-k3.1-pro": _RELEASE_DAY, "kimi-k3.1-pro-highspeed": _RELEASE_DAY}
"""Both have been served since 2026-10-24 (the vendor's model page); of other models we know no date."""


def model_paths(settings: Callable[[], Settings], authenticate: Authenticate) -> list[Path]:
    """The two routes; `settings` gives the ones in force."""

    async def list_models(request: Request) -> Response:
        policy = authenticate(request.scope).policy
        return json_answer({"object": "list", "data": listing(settings(), policy)})

    async def show_model(request: Request) -> Response:
        policy = authenticate(request.scope).policy
        wanted = request.path_params["id"]
        now = settings()
        route = find_route(wanted, now.routes)
        name = wanted if route is None else route.model
        models = listing(now, policy)
        for model in models:
            if model["id"] == name:
                return json_answer(model)
        known = [str(model["id"]) for model in models]
        raise NotFound(
            f"the model {quoted(wanted)} is not served here;{meant(wanted, known)} "
            f"GET /v1/models lists {', '.join(known) or 'none'}",
            code="model_not_found",
            param="model",
        )

    return [
        Path("/v1/models", list_models, methods=["GET"]),
        Path("/v1/models/{id:path}", show_model, methods=["GET"]),
    ]


def listing(settings: Settings, policy: KeyPolicy) -> list[dict[str, object]]:
    """The models this caller may use, in the order of the routes; a tier without a target is left out."""
    out: list[dict[str, object]] = []
    for route in settings.routes:
        window = _window(settings, route)
        if window and tier_of(route.model) in policy.tiers:
            out.append(_model(route.model, window))
    return out


def _window(settings: Settings, route: Route) -> int:
    """The largest window among the route's targets that map the model, 0 where none does."""
    by_name = {target.name: target for target in settings.targets}
    found = [by_name[name] for name in route.targets if name in by_name]
    return max((target.window for target in found if route.model in target.models), default=0)


def _model(name: str, window: int) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": _RELEASED.get(name, 0),
        "owned_by": "moonshot",
        "context_length": window,
        # K3.1 thinks always and sees images and video frames (the vendor's release article).
        "supports_image_in": True,
        "supports_video_in": True,
        "supports_reasoning": True,
    }
