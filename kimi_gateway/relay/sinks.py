"""Where an answer goes: straight on as a stream, or folded into one body. Both see the same chunks."""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from backends.fold import Fold
from backends.json import Json, JsonObject, as_list, as_object, encode
from backends.plain import PlainChunk
from backends.reader import Chunk
from kimi_gateway.core.plan import tier_of
from kimi_gateway.core.shaping import COMMENT, Shaper
from kimi_gateway.errors import GatewayError
from kimi_gateway.relay.client import Client, encoded

_STREAM_HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}

Headers = Callable[[], Mapping[str, str]]
"""The response headers as known at the moment of the call."""


class Sink(Protocol):
    """One client's answer under way."""

    @property
    def streams(self) -> bool:
        """What it takes is sent as it comes."""
        ...

    @property
    def complete(self) -> bool:
        """Every choice has its finish reason."""
        ...

    def add(self, chunk: Chunk) -> None:
        """Takes one chunk. Raises `backends.json.JsonError` for what cannot be written."""
        ...

    def add_plain(self, chunk: PlainChunk) -> bool:
        """Takes a chunk that needs no change; false, and nothing taken, where it cannot pass like that."""
        ...

    async def flush(self) -> bool:
        """Sends what was taken, as far as it is for the client now; true where something was sent."""
        ...

    def flush_now(self) -> bool:
        """The same where nothing has to be waited for; false, and nothing sent, elsewhere."""
        ...

    def pass_plain(self, chunk: PlainChunk) -> bool:
        """`add_plain` and `flush_now` in one; false, and nothing taken or sent, where both are to be tried."""
        ...

    def restart(self) -> None:
        """Forgets what a failed attempt left behind; only before content was forwarded."""
        ...

    async def keepalive(self) -> None:
        """Tells a waiting client that the answer is still coming."""
        ...

    def messages(self) -> list[JsonObject]:
        """The assistant's messages as far as they came, for what remembers them; none where nothing does."""
        ...

    def closing(self, usage: JsonObject | None, meta: JsonObject) -> bytes:
        """The last bytes of a clean end. Raises `backends.json.JsonError` for what cannot be written."""
        ...

    async def end(self, data: bytes) -> None:
        """Sends them."""
        ...

    async def fail(self, error: GatewayError) -> None:
        """The end by an error: an HTTP answer where nothing was sent yet, else an event; never `[DONE]`."""
        ...


class StreamSink:
    """Server-sent events as they come. The head leaves with the first content or the first keep-alive."""

    streams = True

    def __init__(self, client: Client, shaper: Shaper, headers: Headers, *, keepalive: str) -> None:
        self._client = client
        self._shaper = shaper
        self._headers = headers
        self._keepalive = keepalive
        self._fold = Fold()  # the answer is remembered: its thoughts, and what its turn is known by
        self._out: list[bytes] = []  # events that the next flush sends

    @property
    def complete(self) -> bool:
        return self._shaper.complete

    def answers_as(self, model: str) -> None:
        """The public name of the model that answers, as soon as it is known."""
        self._shaper.model = model
        if self._shaper.service_tier is not None:
            self._shaper.service_tier = tier_of(model)

    def messages(self) -> list[JsonObject]:
        return messages_of(self._fold.body())

    def add(self, chunk: Chunk) -> None:
        self._fold.add(chunk.data)
        self._out += self._shaper.add(
            chunk.data,
            commits=chunk.commits,
            finished=chunk.finished,
            delivers=bool(chunk.text_bytes or chunk.thought_bytes) or not chunk.finished,
        )

    def add_plain(self, chunk: PlainChunk) -> bool:
        event = self._shaper.plain(chunk.raw, chunk.model)
        if event is None:
            return False
        self._fold.add_plain(chunk.content, chunk.thought)
        self._out.append(event)
        return True

    async def flush(self) -> bool:
        out = self._out
        if not out:
            return False
        self._out = []
        await self._write(out[0] if len(out) == 1 else b"".join(out))
        return True

    def flush_now(self) -> bool:
        out = self._out
        if out and not self._client.pass_now(out[0] if len(out) == 1 else b"".join(out)):
            return False
        self._out = []
        return True

    def pass_plain(self, chunk: PlainChunk) -> bool:
        if self._out:
            return False
        event = self._shaper.plain(chunk.raw, chunk.model)
        if event is None or not self._client.pass_now(event):
            return False
        self._fold.add_plain(chunk.content, chunk.thought)
        return True

    def restart(self) -> None:
        self._shaper.restart()
        self._fold = Fold()
        self._out = []

    async def keepalive(self) -> None:
        await self._write(COMMENT if self._keepalive == "comment" else self._shaper.keepalive_chunk())

    def closing(self, usage: JsonObject | None, meta: JsonObject) -> bytes:
        out, self._out = self._out, []
        return b"".join(out + self._shaper.end(usage, meta))

    async def end(self, data: bytes) -> None:
        await self._head()
        await self._client.finish(data)

    async def fail(self, error: GatewayError) -> None:
        if not self._client.head_sent:
            await self._client.refuse(error, self._headers())
            return
        tail = [*self._out, *self._shaper.flush(), b"data: " + error.body(with_status=True) + b"\n\n"]
        await self._client.finish(b"".join(tail))

    async def _write(self, data: bytes) -> None:
        await self._head()
        await self._client.write(data)

    async def _head(self) -> None:
        if self._client.head_sent:
            return
        await self._client.start_stream({**_STREAM_HEADERS, **self._headers()})


class FoldSink:
    """One JSON body at the end; before it nothing but white space, and that only to a client short of patience."""

    streams = False

    def __init__(self, client: Client, n: int, headers: Headers, *, defaults: JsonObject, says_tier: bool) -> None:
        self._client = client
        self._headers = headers
        self._n = n
        self._defaults = defaults
        self._says_tier = says_tier
        self._finished: set[int] = set()
        self._fold = Fold()
        self._model = ""
        self._body: JsonObject | None = None
        self._cost: Json = None

    @property
    def complete(self) -> bool:
        return len(self._finished) >= self._n

    def answers_as(self, model: str) -> None:
        """The public name of the model that answers, as soon as it is known."""
        self._model = model

    def take_whole(self, body: JsonObject) -> None:
        """An answer that came as one JSON body is complete as it is."""
        self._body = body

    def add(self, chunk: Chunk) -> None:
        self._fold.add(chunk.data)
        self._finished.update(chunk.finished)

    def add_plain(self, chunk: PlainChunk) -> bool:
        self._fold.add_plain(chunk.content, chunk.thought)
        return True

    async def flush(self) -> bool:
        return False

    def flush_now(self) -> bool:
        return True

    def pass_plain(self, chunk: PlainChunk) -> bool:
        self._fold.add_plain(chunk.content, chunk.thought)
        return True

    def messages(self) -> list[JsonObject]:
        return messages_of(self._body if self._body is not None else self._fold.body())

    def restart(self) -> None:
        self._fold, self._finished = Fold(), set()

    async def keepalive(self) -> None:
        """Starts the answer, or goes on with it, by white space: for a client that would not wait longer."""
        if not self._client.head_sent:
            await self._client.start(200, encoded({"content-type": "application/json", **self._headers()}))
        await self._client.write(b" ")

    def closing(self, usage: JsonObject | None, meta: JsonObject) -> bytes:
        body = self._body if self._body is not None else self._fold.body()
        for name, value in self._defaults.items():
            if body.get(name) is None:
                body[name] = value
        body["model"] = self._model or body.get("model")
        if self._says_tier:
            body["service_tier"] = tier_of(self._model)
        if usage is not None:
            body["usage"] = usage
        body["kimi"] = meta
        self._cost = meta.get("cost_usd")
        return encode(body)

    async def end(self, data: bytes) -> None:
        if self._client.head_sent:
            await self._client.finish_slowly(data)
            return
        cost = {"x-kimi-cost-usd": self._cost} if isinstance(self._cost, str) else {}
        await self._client.respond(200, {**self._headers(), **cost}, data)

    async def fail(self, error: GatewayError) -> None:
        if self._client.head_sent:
            await self._client.finish(error.body(with_status=True))
        else:
            await self._client.refuse(error, self._headers())


def messages_of(body: JsonObject) -> list[JsonObject]:
    """The message of each choice of an answer."""
    found = ((as_object(choice) or {}).get("message") for choice in as_list(body.get("choices")))
    return [message for message in map(as_object, found) if message is not None]
