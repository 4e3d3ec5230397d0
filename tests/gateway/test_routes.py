"""The application's small routes and errors over real sockets, with a chat endpoint of the test's own."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kimi_gateway import __version__
from kimi_gateway.app import AsgiApp, Receive, Scope, Send, create_admin_app, create_app
from kimi_gateway.settings import load
from support.idle import context
from support.serving import Served, served

TARGETS = """
[[targets]]
name = "engine"
dialect = "vllm"
base_url = "http://127.0.0.1:1/v1"
context_window = 262144
[[targets]]
name = "service"
dialect = "moonshot"
base_url = "http://127.0.0.1:2/v1"
"""
KEYS = """
[[keys]]
name = "team-a"
key_env = "TEAM_A"
[[keys]]
name = "team-b"
key_env = "TEAM_B"
tiers = ["standard"]
"""
ENVIRON = {"TEAM_A": "kg-team-a-secret", "TEAM_B": "kg-team-b-secret", "KIMI_ADMIN_KEY": "adm-secret"}


async def chat(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"chat", "more_body": False})


class Made:
    """An application with its parts, and one client at a time."""

    def __init__(self, tmp_path: Path, text: str, *, chat: AsgiApp = chat, metrics_here: bool = True) -> None:
        path = tmp_path / "kimi-gateway.toml"
        path.write_text(text)
        self.problem = ""
        self.ctx = context(path)
        self.app = create_app(self.ctx, chat, chat, ledger_problem=lambda: self.problem, metrics_here=metrics_here)

    def run(self, test: Callable[["Client"], Awaitable[None]], app: AsgiApp | None = None) -> None:
        async def main() -> None:
            async with served(app or self.app) as made:
                await test(Client(made))

        asyncio.run(main())


class Client:
    """Asks as a program on this machine does."""

    def __init__(self, made: Served) -> None:
        self._made = made

    async def ask(
        self, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, str], Any]:
        lines = {"Host": "127.0.0.1", "Content-Length": "0", **(headers or {})}
        raw = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        status, found, body = await self._made.ask(f"{raw}\r\n".encode())
        return status, found, json.loads(body) if body[:1] == b"{" else body


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_models_show_the_fields_of_openai_and_moonshot(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        status, _, body = await client.ask("/v1/models")
        assert (status, body["object"]) == (200, "list")
        assert [(model["id"], model["context_length"]) for model in body["data"]] == [
            ("kimi-k3.1-pro", 1_048_576),
            ("kimi-k3.1-pro-highspeed", 1_048_576),
        ]
        assert body["data"][0] == {
            "id": "kimi-k3.1-pro",
            "object": "model",
            "created": 1792800000,
            "owned_by": "moonshot",
            "context_length": 1_048_576,
            "supports_image_in": True,
            "supports_video_in": True,
            "supports_reasoning": True,
        }

    Made(tmp_path, TARGETS).run(test)


def test_a_models_window_is_that_of_the_targets_of_its_route(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        _, _, body = await client.ask("/v1/models/kimi-k3.1-pro")
        assert body["context_length"] == 262_144

    Made(tmp_path, TARGETS + '[[routes]]\nmodel = "kimi-k3.1-pro"\ntargets = ["engine"]\n').run(test)


def test_one_model_is_shown_by_name_and_by_alias(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        for name in ("kimi-k3.1-pro", "moonshotai/kimi-k3.1-pro", "moonshotai/Kimi-K3.1-Pro"):
            status, _, body = await client.ask(f"/v1/models/{name}")
            assert (status, body["id"]) == (200, "kimi-k3.1-pro")
        status, _, body = await client.ask("/v1/models/gpt-5")
        assert (status, body["error"]["code"], body["error"]["param"]) == (404, "model_not_found", "model")
        assert "kimi-k3.1-pro-highspeed" in body["error"]["message"]
        _, _, body = await client.ask("/v1/models/kimi-k3.1-pr")
        assert "did you mean kimi-k3.1-pro?" in body["error"]["message"]

    Made(tmp_path, TARGETS).run(test)


def test_a_key_sees_the_models_of_its_tiers(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        _, _, all_models = await client.ask("/v1/models", headers=bearer("kg-team-a-secret"))
        _, _, standard = await client.ask("/v1/models", headers=bearer("kg-team-b-secret"))
        assert len(all_models["data"]) == 2
        assert [model["id"] for model in standard["data"]] == ["kimi-k3.1-pro"]
        path = "/v1/models/kimi-k3.1-pro-highspeed"
        assert (await client.ask(path, headers=bearer("kg-team-b-secret")))[0] == 404

    Made(tmp_path, TARGETS + KEYS).run(test)


def test_health_and_readiness_are_open_and_say_how_things_stand(tmp_path: Path) -> None:
    made = Made(tmp_path, TARGETS + KEYS)

    async def test(client: Client) -> None:
        health = {"status": "ok", "service": "kimi-gateway", "version": __version__}
        assert (await client.ask("/health"))[2] == health
        status, _, body = await client.ask("/ready", headers={"Host": "10.0.0.9"})
        assert (status, body["status"]) == (200, "ready")
        assert [target["name"] for target in body["targets"]] == ["engine", "service"]
        assert "127.0.0.1" not in json.dumps(body)
        made.problem = "the journal is full"
        status, _, body = await client.ask("/ready")
        assert (status, body["status"]) == (503, "ledger_unavailable")
        made.ctx.lifecycle.begin_drain()
        assert (await client.ask("/ready"))[2]["status"] == "draining"
        assert (await client.ask("/health"))[0] == 200

    made.run(test)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/x", "/nowhere", "/v1/chat/completions"])
def test_everything_else_needs_a_key(tmp_path: Path, path: str) -> None:
    async def test(client: Client) -> None:
        for headers in ({}, bearer("kg-wrong-secret"), {"x-api-key": "kg-team-a-secret"}):
            status, found, body = await client.ask(path, headers=headers)
            assert (status, body["error"]["type"]) == (401, "authentication_error")
            assert "Authorization: Bearer" in body["error"]["message"]
            assert found["www-authenticate"] == "Bearer"

    Made(tmp_path, TARGETS + KEYS).run(test)


def test_an_unknown_path_is_a_404_that_helps(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        for path in ("/", "/chat/completions", "/v1/models/", "/v1", "/docs", "/openapi.json", "/V1/models"):
            status, _, body = await client.ask(path, method="POST" if "chat" in path else "GET")
            assert status == 404, path
            assert body["error"]["code"] in ("not_found", "model_not_found")
        status, _, body = await client.ask("/chat/completions", method="POST")
        assert "did you mean /v1/chat/completions?" in body["error"]["message"]

    Made(tmp_path, TARGETS).run(test)


def test_a_path_that_is_announced_is_a_404_that_says_so(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        for path in ("/v1/responses", "/v1/messages", "/v1/files/abc", "/v1/batches", "/dashboard"):
            status, _, body = await client.ask(path, method="POST", headers=bearer("kg-team-a-secret"))
            assert (status, body["error"]["code"]) == (404, "not_built")
            assert "is not built yet" in body["error"]["message"]
        assert (await client.ask("/v1/responses", method="POST"))[0] == 401

    Made(tmp_path, TARGETS + KEYS).run(test)


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("PUT", "/v1/chat/completions", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("DELETE", "/health", "GET, HEAD"),
        ("OPTIONS", "/v1/models", "GET, HEAD"),
    ],
)
def test_a_wrong_method_is_a_405_that_names_the_right_one(
    tmp_path: Path, method: str, path: str, allow: str
) -> None:
    async def test(client: Client) -> None:
        status, headers, body = await client.ask(path, method=method)
        assert (status, headers["allow"]) == (405, allow)
        assert (body["error"]["type"], body["error"]["code"]) == ("invalid_request_error", "method_not_allowed")

    Made(tmp_path, TARGETS).run(test)


def test_open_mode_refuses_pages_and_proxies_everywhere(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        for path in ("/v1/models", "/nowhere"):
            for headers in ({"Origin": "http://x"}, {"X-Forwarded-For": "1.2.3.4"}, {"Host": "evil.example"}):
                status, _, body = await client.ask(path, headers=headers)
                assert (status, body["error"]["code"]) == (403, "open_mode")

    Made(tmp_path, TARGETS).run(test)


def test_chat_is_served_by_the_plain_endpoint(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        assert await client.ask("/v1/chat/completions", method="POST") == (200, await date_of(client), b"chat")

    async def date_of(client: Client) -> dict[str, str]:
        return (await client.ask("/v1/chat/completions", method="POST"))[1]

    Made(tmp_path, TARGETS).run(test)


async def broken(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["query_string"]:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
    raise ValueError("the prompt")


def test_what_escapes_the_chat_endpoint_is_a_500_in_our_shape(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        status, _, body = await client.ask("/v1/chat/completions", method="POST")
        assert (status, body["error"]["type"]) == (500, "server_error")
        assert "prompt" not in body["error"]["message"]

    Made(tmp_path, TARGETS, chat=broken).run(test)


def test_what_escapes_after_the_head_never_ends_cleanly(tmp_path: Path) -> None:
    made = Made(tmp_path, TARGETS, chat=broken)

    async def main() -> bytes:
        async with served(made.app) as server:
            reader, writer = await server.connect()
            writer.write(b"POST /v1/chat/completions?x=1 HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n")
            got = await asyncio.wait_for(reader.read(), 5)
            writer.close()
            return got

    got = asyncio.run(main())
    assert b"part" in got
    assert not got.endswith(b"0\r\n\r\n")
    assert got.count(b"HTTP/1.1") == 1


def test_metrics_need_the_admin_key_unless_on_loopback(tmp_path: Path) -> None:
    loopback = Made(tmp_path, TARGETS)

    async def local(client: Client) -> None:
        status, headers, body = await client.ask("/metrics")
        assert (status, headers["content-type"].partition(";")[0]) == (200, "text/plain")
        assert b"kimi_in_flight" in body
        assert (await client.ask("/metrics", headers={"X-Forwarded-For": "1.2.3.4"}))[0] == 401
        through = {"X-Forwarded-For": "1.2.3.4", **bearer("adm-secret")}
        assert (await client.ask("/metrics", headers=through))[0] == 200

    loopback.run(local)
    public = Made(tmp_path, '[server]\nhost = "0.0.0.0"\n' + TARGETS + KEYS)

    async def remote(client: Client) -> None:
        assert (await client.ask("/metrics"))[0] == 401
        assert (await client.ask("/metrics", headers=bearer("kg-team-a-secret")))[0] == 401
        assert (await client.ask("/metrics", headers=bearer("adm-secret")))[0] == 200

    public.run(remote)


def test_without_an_admin_key_nobody_outside_sees_metrics(tmp_path: Path) -> None:
    made = Made(tmp_path, '[server]\nhost = "0.0.0.0"\n[admin]\nkey_env = "UNSET"\n' + TARGETS + KEYS)

    async def test(client: Client) -> None:
        status, _, body = await client.ask("/metrics", headers=bearer("adm-secret"))
        assert (status, body["error"]["code"]) == (403, "no_admin_key")

    made.run(test)


def test_the_admin_listener_has_metrics_and_health_and_nothing_else(tmp_path: Path) -> None:
    made = Made(tmp_path, TARGETS, metrics_here=False)
    admin = create_admin_app(made.ctx, "127.0.0.1", ledger_problem=lambda: "")

    async def here(client: Client) -> None:
        assert (await client.ask("/metrics"))[0] == 404

    async def there(client: Client) -> None:
        assert (await client.ask("/metrics"))[0] == 200
        assert (await client.ask("/health"))[0] == 200
        for path, method in (("/v1/models", "GET"), ("/v1/chat/completions", "POST")):
            status, _, body = await client.ask(path, method=method)
            assert (status, body["error"]["code"]) == (404, "not_found")

    made.run(here)
    made.run(there, admin)


def test_a_swap_of_the_settings_is_seen_at_once(tmp_path: Path) -> None:
    made = Made(tmp_path, TARGETS)

    async def test(client: Client) -> None:
        assert len((await client.ask("/v1/models"))[2]["data"]) == 2
        path = tmp_path / "other.toml"
        path.write_text(TARGETS.partition('[[targets]]\nname = "service"')[0])
        made.ctx.settings = load(path, ENVIRON)
        assert [model["id"] for model in (await client.ask("/v1/models"))[2]["data"]] == ["kimi-k3.1-pro"]

    made.run(test)
