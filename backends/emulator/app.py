"""The emulator as an ASGI 3 application: paths, keys, bodies. No framework; any ASGI server can serve it."""

from urllib.parse import parse_qsl

from backends.emulator.chat import Reply, answer_chat, refused
from backends.emulator.config import EmulatorConfig
from backends.emulator.control import PATHS as CONTROL_PATHS
from backends.emulator.control import control
from backends.emulator.errors import Refusal
from backends.emulator.player import Departure, Receive, Scope, Script, Send, play
from backends.emulator.seen import Seen
from backends.emulator.service import balance, estimate, model_list, one_model
from backends.emulator.state import State
from backends.emulator.wire import json_script
from backends.json import JsonObject, encode

__all__ = ["Emulator", "EmulatorConfig"]

_MODEL_PREFIX = "/v1/models/"


class _ClientLeft(Exception):
    """The client went away while its body was still coming."""


class Emulator:
    """An emulated service. One instance holds one service's memory: cache, invoice, requests."""

    def __init__(self, config: EmulatorConfig | None = None) -> None:
        self._state = State(config or EmulatorConfig())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry: http and lifespan; a websocket is closed at once."""
        match scope["type"]:
            case "lifespan":
                await _lifespan(receive, send)
            case "http":
                try:
                    await self._http(scope, receive, send)
                except _ClientLeft:
                    return
            case _:
                await send({"type": "websocket.close"})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in CONTROL_PATHS:
            await self._control(scope, receive, send)
            return
        state = self._state
        key = _bearer(scope)
        seen = state.seen.open(
            at_s=state.clock.now_s(),
            method=scope["method"],
            path=scope["path"],
            http_version=scope["http_version"],
            headers=scope["headers"],
            key=key,
        )
        try:
            state.seen.received(seen, await _read_body(scope, receive, state))
            self._admit(key)
            reply = self._service(seen, key)
        except Refusal as refusal:
            reply = refused(state, refusal)
        await _play(reply, seen, receive, send)

    def _admit(self, key: str) -> None:
        """Raises `Refusal` (401) for a key that is missing or not one of those configured."""
        accepted = self._state.config.api_keys
        if accepted and key not in accepted:
            raise self._state.profile.words.wrong_key(key)

    def _service(self, seen: Seen, key: str) -> Reply:
        """The reply of the service's own endpoints. Raises `Refusal`."""
        state = self._state
        match seen.method, seen.path:
            case ("POST", "/v1/chat/completions"):
                return answer_chat(state, seen, key)
            case ("GET", "/v1/models"):
                return _plain(model_list(state))
            case ("GET", path) if path.startswith(_MODEL_PREFIX):
                return _plain(one_model(state, path.removeprefix(_MODEL_PREFIX)))
            case ("POST", "/v1/tokenizers/estimate-token-count"):
                return _plain(estimate(state, seen.body))
            case ("GET", "/v1/users/me/balance"):
                return _plain(balance(state))
            case (method, path):
                return _plain(state.profile.words.unknown_path(method, path), status=404)

    async def _control(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = self._state
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        status = 200
        try:
            body = await _read_body(scope, receive, state)
            shown = control(state, scope["method"], scope["path"], query, body)
        except Refusal as refusal:
            status, shown = refusal.status, {"error": {"message": refusal.message, "type": refusal.type}}
        data = encode(shown)
        headers = ((b"content-type", b"application/json"), (b"content-length", str(len(data)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": data})


async def _play(reply: Reply, seen: Seen, receive: Receive, send: Send) -> None:
    seen.status = reply.script.status
    departure = Departure(receive)
    try:
        await play(reply.script, send=send, departure=departure, settle=reply.settle)
    finally:
        seen.finished = True
        await departure.stop()


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _read_body(scope: Scope, receive: Receive, state: State) -> bytes:
    """The whole body. Raises `Refusal` (413) as soon as it is known to be too large."""
    most = state.config.max_body_bytes
    length = _header(scope, b"content-length")
    if length.isdigit() and int(length) > most:
        raise state.profile.words.too_large()
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _ClientLeft
        part = message.get("body", b"")
        size += len(part)
        if size > most:
            raise state.profile.words.too_large()
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _bearer(scope: Scope) -> str:
    scheme, _, key = _header(scope, b"authorization").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _header(scope: Scope, name: bytes) -> str:
    return next((str(value, "latin-1") for held, value in scope["headers"] if held == name), "")


def _plain(body: JsonObject, *, status: int = 200) -> Reply:
    script: Script = json_script(status, body)
    return Reply(script, lambda *_: None)
