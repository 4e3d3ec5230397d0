"""The emulator as an ASGI 3 application: paths, keys, bodies. No framework; any ASGI server can serve it."""

from urllib.parse import parse_qsl

from backends.emulator.chat import PATH as CHAT_PATH
from backends.emulator.chat import Reply, answer_chat, exchange_of, nothing, refused, with_fault
from backends.emulator.config import EmulatorConfig
from backends.emulator.control import PATHS as CONTROL_PATHS
from backends.emulator.control import control
from backends.emulator.errors import Refusal
from backends.emulator.player import (
    CONNECTION_EXTENSION,
    Connection,
    Departure,
    NoConnectionError,
    Receive,
    Scope,
    Send,
    play,
)
from backends.emulator.seen import Seen
from backends.emulator.service import endpoint
from backends.emulator.state import State
from backends.emulator.wire import json_script, text_script
from backends.json import Json, encode

__all__ = ["Emulator", "EmulatorConfig"]


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
        path = scope["path"]
        if state.profile.prefix and path.startswith(state.profile.prefix + "/"):
            path = path.removeprefix(state.profile.prefix)
        seen = state.seen.open(
            at_s=state.clock.now_s(),
            method=scope["method"],
            path=path,
            http_version=scope["http_version"],
            headers=scope["headers"],
            key=key,
        )
        try:
            state.seen.received(seen, await _read_body(scope, receive, state))
            reply = self._service(seen, key)
        except Refusal as refusal:
            reply = refused(state, refusal)
        connection = (scope.get("extensions") or {}).get(CONNECTION_EXTENSION)
        await _play(reply, seen, receive, send, connection)

    def _admit(self, key: str, path: str) -> None:
        """Raises `Refusal` (401) for a key that is missing or not one of those configured."""
        accepted = self._state.config.api_keys
        if accepted and key not in accepted and path not in self._state.profile.open_paths:
            raise self._state.profile.words.wrong_key(key)

    def _service(self, seen: Seen, key: str) -> Reply:
        """The reply of the service's own endpoints. Raises `Refusal`."""
        state = self._state
        self._admit(key, seen.path)
        if (seen.method, seen.path) == ("POST", CHAT_PATH):
            return answer_chat(state, seen, key)
        state.requests[seen.path] += 1
        return with_fault(state, seen, self._small(seen), exchange_of(state, seen.path, key))

    def _small(self, seen: Seen) -> Reply:
        """The reply of an endpoint other than chat, refusals included."""
        state, words = self._state, self._state.profile.words
        found = endpoint(state, seen.path)
        known = found is not None or seen.path == CHAT_PATH
        if found is not None and found.method == seen.method:
            try:
                return _plain(found.answer(state, seen.body))
            except Refusal as refusal:
                return refused(state, refusal)
        if known and words.wrong_method is not None:
            allow = (b"allow", (found.method if found is not None else "POST").encode())
            return Reply(json_script(405, words.wrong_method(), headers=(allow,)), nothing)
        return _plain(words.unknown_path(seen.method, seen.path), status=404)

    async def _control(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = self._state
        if scope["path"] == "/health" and state.profile.bare_health:
            await send({"type": "http.response.start", "status": 200, "headers": ((b"content-length", b"0"),)})
            await send({"type": "http.response.body", "body": b""})
            return
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


async def _play(reply: Reply, seen: Seen, receive: Receive, send: Send, connection: Connection | None) -> None:
    script = reply.script
    # What never had a status line has no status.
    seen.status = script.status if script.steps else 0
    departure = Departure(receive)
    try:
        await play(script, send=send, departure=departure, settle=reply.settle, connection=connection)
    except NoConnectionError as err:
        body = encode({"error": {"message": str(err), "type": "emulator_error"}})
        headers = ((b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": 501, "headers": headers})
        await send({"type": "http.response.body", "body": body})
    finally:
        seen.finished = True
        reply.ended()
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


def _plain(body: Json | bytes, *, status: int = 200) -> Reply:
    return Reply(text_script(body) if isinstance(body, bytes) else json_script(status, body), nothing)
