"""What /ready says of targets: shown, and deciding nothing."""

import asyncio
import json
from typing import Any

from kimi_gateway.core.standing import Standing, Standings, State
from kimi_gateway.lifecycle import Lifecycle
from kimi_gateway.routes.health import SERVICE, health_paths
from kimi_gateway.settings import Flags, Settings
from kimi_gateway.settings.load import settings_of

NOON_S = 1_796_040_000.0
SINCE = "2026-11-30T12:00:00.000Z"


def configured() -> Settings:
    """Two engines at two ports."""
    targets = [
        {"name": name, "dialect": "vllm", "base_url": f"http://127.0.0.1:{port}/v1"}
        for name, port in (("a", 1), ("b", 2))
    ]
    return settings_of({"targets": targets}, {}, Flags(), source="")


def asked(path: str, standings: Standings | None) -> tuple[int, Any]:
    """Status and body of one of the two paths."""
    (route,) = [
        route for route in health_paths(configured, Lifecycle(), lambda: "", standings) if route.path == path
    ]
    sent: list[Any] = []

    async def main() -> None:
        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        await route.app({"type": "http", "method": "GET", "path": path, "headers": []}, receive, send)

    asyncio.run(main())
    return sent[0]["status"], json.loads(sent[1]["body"])


def test_health_says_which_program_it_is() -> None:
    assert asked("/health", None)[1]["service"] == SERVICE == "kimi-gateway"


def test_a_target_that_was_not_asked_is_said_not_to_be() -> None:
    status, body = asked("/ready", Standings())
    assert (status, body["status"]) == (200, "ready")
    assert [(target["state"], target["since"]) for target in body["targets"]] == [("not_asked", None)] * 2
    assert "warning" not in body


def test_targets_that_are_down_are_shown_and_ready_stays_ready() -> None:
    standings = Standings()
    standings.seen("a", "http://127.0.0.1:1/v1", State.UNREACHABLE, NOON_S)
    assert "warning" not in asked("/ready", standings)[1]
    standings.seen("b", "http://127.0.0.1:2/v1", State.UNREACHABLE, NOON_S + 5)
    status, body = asked("/ready", standings)
    assert (status, body["status"]) == (200, "ready")
    assert (body["targets"][0]["state"], body["targets"][0]["since"]) == ("unreachable", SINCE)
    assert body["warning"] == "no target could be reached when it was last asked"
    assert "127.0.0.1" not in json.dumps(body)


def test_a_state_that_lasts_keeps_its_beginning_and_another_address_is_another_target() -> None:
    standings = Standings()
    for at_s in (1.0, 2.0):
        standings.seen("a", "http://x/v1", State.UNREACHABLE, at_s)
    assert standings.of("a", "http://x/v1") == Standing(State.UNREACHABLE, 1.0)
    standings.seen("a", "http://x/v1", State.ANSWERED, 3.0)
    assert standings.of("a", "http://x/v1") == Standing(State.ANSWERED, 3.0)
    assert standings.of("a", "http://y/v1") == Standing()
