"""GET /health: this process runs. GET /ready: it can answer. Both are open to everyone and name no secret."""

from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Path

from kimi_gateway import __version__
from kimi_gateway.core.standing import Standings, State
from kimi_gateway.lifecycle import Lifecycle
from kimi_gateway.routes.answers import json_answer
from kimi_gateway.settings import Settings, Target
from pricing.ledger.shown import instant_text

SERVICE: Final = "kimi-gateway"
"""What /health calls this program, so that others on the machine can tell it from theirs."""

_ALL_DOWN: Final = "no target could be reached when it was last asked"


def health_paths(
    settings: Callable[[], Settings],
    lifecycle: Lifecycle,
    ledger_problem: Callable[[], str],
    standings: Standings | None = None,
) -> list[Path]:
    """The two routes. `ledger_problem` says why nothing could be booked, "" where all is well; `standings` what is
    known of the targets, which is shown and decides nothing: a target that is down may be up again by now."""

    async def health(request: Request) -> Response:
        return json_answer({"status": "ok", "service": SERVICE, "version": __version__})

    async def ready(request: Request) -> Response:
        problem = ledger_problem()
        status = "draining" if lifecycle.draining else "ledger_unavailable" if problem else "ready"
        targets = settings().targets
        body: dict[str, object] = {
            "status": status,
            "open_answers": lifecycle.open_count,
            "targets": [_shown(target, standings) for target in targets],
        }
        if standings is not None and targets and all(_is_down(target, standings) for target in targets):
            body["warning"] = _ALL_DOWN
        return json_answer(body, 200 if status == "ready" else 503)

    return [Path("/health", health, methods=["GET"]), Path("/ready", ready, methods=["GET"])]


def _is_down(target: Target, standings: Standings) -> bool:
    return standings.of(target.name, target.base_url).state is State.UNREACHABLE


def _shown(target: Target, standings: Standings | None) -> dict[str, object]:
    shown: dict[str, object] = {"name": target.name, "dialect": target.dialect, "models": list(target.models)}
    if standings is not None:
        standing = standings.of(target.name, target.base_url)
        shown["state"] = standing.state.value
        shown["since"] = None if standing.since_s is None else instant_text(standing.since_s)
    return shown
