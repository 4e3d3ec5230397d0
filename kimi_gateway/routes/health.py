"""GET /health: this process runs. GET /ready: it can answer. Both are open to everyone and name no secret."""

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Path

from kimi_gateway import __version__
from kimi_gateway.lifecycle import Lifecycle
from kimi_gateway.routes.answers import json_answer
from kimi_gateway.settings import Settings


def health_paths(
    settings: Callable[[], Settings], lifecycle: Lifecycle, ledger_problem: Callable[[], str]
) -> list[Path]:
    """The two routes. `ledger_problem` says why nothing could be booked, "" where all is well."""

    async def health(request: Request) -> Response:
        return json_answer({"status": "ok", "version": __version__})

    async def ready(request: Request) -> Response:
        problem = ledger_problem()
        status = "draining" if lifecycle.draining else "ledger_unavailable" if problem else "ready"
        body: dict[str, object] = {
            "status": status,
            "open_answers": lifecycle.open_count,
            "targets": [
                {"name": target.name, "dialect": target.dialect, "models": list(target.models)}
                for target in settings().targets
            ],
        }
        return json_answer(body, 200 if status == "ready" else 503)

    return [Path("/health", health, methods=["GET"]), Path("/ready", ready, methods=["GET"])]
