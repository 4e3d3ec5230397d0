"""The fake upstream of `bench/speed.py`: the least that an engine can do, in a process of its own.

    python bench/speed_upstream.py

Prints its port. What the last user message says decides the answer, a stream of 2.2 KB with a thought and a text,
or a paced one:

  @bench one       all of its events in one write
  @bench events    a write for each event
  @bench pace N S  N further chunks of content, S seconds apart, after a first one at once
  q TALK TURN      the answer of `bench/stall.py` to that question, with its thought

It also answers what routers ask an engine before they trust it. Chunks are written as an engine writes them.
"""

import asyncio
import json
import random
import re
import socket
import time
from collections.abc import Callable
from typing import Any, Final, cast

import uvloop
from stall import Shape, thought
from typing_extensions import override

MODEL: Final = "kimi-k3.1-pro"
WORDS: Final = "Some words of usual size "
"""The content of every chunk of content; who reads streams counts them by its last but one word."""
MARK: Final = b"@bench "
THOUGHT_CHUNKS: Final = 4
CONTENT_CHUNKS: Final = 4
BACKLOG: Final = 4096
_TAIL_BYTES: Final = 4096
_SMALL_BYTES: Final = 65_536
_QUESTION: Final = re.compile(rb'"q (\d+) (\d+): ')
_JSON: Final = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_END: Final = b"0\r\n\r\n"


def acknowledge(transport: asyncio.Transport) -> None:
    """Says at once that data came. Who sends in pieces without TCP_NODELAY (sglang-router 0.3.2) waits 40 ms for
    it otherwise, and 64 connections measure the kernel's patience. Linux forgets the option: each time anew.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None and hasattr(socket, "TCP_QUICKACK"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def event(delta: dict[str, Any], finish: str | None = None, usage: dict[str, int] | None = None) -> bytes:
    """One event of a stream; with usage, the one without choices."""
    choices = [] if usage else [{"index": 0, "delta": delta, "finish_reason": finish}]
    about = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1_793_491_200, "model": MODEL}
    data = json.dumps({**about, "choices": choices, **({"usage": usage} if usage else {})}, separators=(",", ":"))
    return f"data: {data}\n\n".encode()


def part(data: bytes) -> bytes:
    """Bytes as one part of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


USAGE: Final = {"prompt_tokens": 200, "completion_tokens": 60, "total_tokens": 260, "cached_tokens": 0}
ROLE: Final = event({"role": "assistant", "content": ""})
CONTENT: Final = event({"content": WORDS})
DONE: Final = b"data: [DONE]\n\n"


def closing(finish: str) -> list[bytes]:
    """The events at the end of a stream."""
    return [event({}, finish), event({}, usage=USAGE), DONE]


THOUGHT: Final = event({"reasoning_content": WORDS})
EVENTS: Final = [ROLE, *[THOUGHT] * THOUGHT_CHUNKS, *[CONTENT] * CONTENT_CHUNKS, *closing("stop")]
ONE: Final = _HEAD + part(b"".join(EVENTS)) + _END
_PARTS: Final = [part(one) for one in EVENTS]
_CONTENT_PART: Final = part(CONTENT)
_FIRST_PARTS: Final = part(ROLE) + _CONTENT_PART
_LAST_PARTS: Final = part(b"".join(closing("stop"))) + _END
ANSWER_BYTES: Final = sum(map(len, EVENTS))


def told(path: str) -> object | None:
    """What the engine says of itself under a path; None where there is nothing."""
    if path in ("/health", "/health_generate", "/get_health", "/ping"):
        return {"status": "ok"}
    if path == "/v1/models":
        return {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "bench"}]}
    if path in ("/get_server_info", "/server_info", "/get_model_info", "/model_info"):
        about = {"model_path": MODEL, "served_model_name": MODEL, "tp_size": 1, "dp_size": 1, "version": "0"}
        return {**about, "is_generation": True}
    return None


class Upstream(asyncio.Protocol):
    """One connection; its requests are answered one after the other."""

    def __init__(self, shapes: Callable[[int], Shape]) -> None:
        self._shapes = shapes
        self._data = bytearray()
        self._size_bytes = -1
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()

    @override
    def data_received(self, data: bytes) -> None:
        self._data += data
        while self._data:
            if self._size_bytes < 0 and not self._read_head():
                return
            if len(self._data) < self._size_bytes:
                acknowledge(self._transport)
                return
            body = bytes(self._data[: self._size_bytes])
            del self._data[: self._size_bytes]
            self._size_bytes = -1
            if body:
                self._answer(body)

    def _read_head(self) -> bool:
        """Takes the head of the next request off what came, and answers one without a body."""
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = bytes(self._data[:end]).lower()
        del self._data[: end + 4]
        at = head.find(b"content-length:")
        self._size_bytes = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if b" http/1." not in head.split(b"\r\n", 1)[0]:  # routers try HTTP/2 first, to see whether it is gRPC
            self._data.clear()
            self._transport.close()
            return False
        if b"transfer-encoding: chunked" in head:
            self._transport.write(_JSON % (b"411 Length Required", 2, b"{}"))
            self._transport.close()
        elif head.startswith(b"get") or not self._size_bytes:
            said = told(head.split(b" ", 2)[1].decode("latin-1").partition("?")[0])
            text = json.dumps(said or {}).encode()
            self._transport.write(_JSON % (b"200 OK" if said else b"404 Not Found", len(text), text))
        return True

    def _answer(self, body: bytes) -> None:
        at = body.rfind(MARK, max(0, len(body) - _TAIL_BYTES))
        if at < 0:
            asked = _QUESTION.search(body) if len(body) < _SMALL_BYTES else None
            if asked is not None:
                self._transport.write(self._remembered(int(asked[1]), int(asked[2])))
                return
            at = body.rfind(MARK)
        words = body[at + len(MARK) : at + 40].split(b'"', 1)[0].split() if at >= 0 else []
        if words[:1] == [b"pace"]:
            self._task = asyncio.get_running_loop().create_task(self._pace(int(words[1]), float(words[2])))
        elif words[:1] == [b"events"]:
            self._transport.write(_HEAD)
            for one in _PARTS:
                self._transport.write(one)
            self._transport.write(_END)
        else:
            self._transport.write(ONE)

    def _remembered(self, talk: int, turn: int) -> bytes:
        answer = self._shapes(talk).answer(talk, turn)
        events = [event({"reasoning_content": thought(talk, turn)}), event({"content": answer["content"]})]
        events.append(event({"tool_calls": [{"index": 0, **answer["tool_calls"][0]}]}))
        return _HEAD + part(b"".join([*events, *closing("tool_calls")])) + _END

    async def _pace(self, chunks: int, every_s: float) -> None:
        self._transport.write(_HEAD + _FIRST_PARTS)
        due = time.monotonic() + random.random() * every_s  # streams do not beat in time with each other
        for _ in range(chunks):
            due += every_s
            await asyncio.sleep(due - time.monotonic())
            self._transport.write(_CONTENT_PART)
        self._transport.write(_LAST_PARTS)


LARGE: Final = Shape(900, 4_150_000)
MIDDLE: Final = Shape(30, 97_000)
FIRST_MIDDLE: Final = 1_000_000
"""Conversations from this number on are of the middle size, the others large: the number alone tells."""


def shape_of(talk: int) -> Shape:
    """What a conversation of this number looks like."""
    return MIDDLE if talk >= FIRST_MIDDLE else LARGE


async def serve() -> None:
    """Serves until it is ended; prints its port first."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Upstream(shape_of), "127.0.0.1", 0, backlog=BACKLOG)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve())
