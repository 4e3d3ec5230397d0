"""A gateway with vLLM as its one target, and requests that keep the engine busy."""

import http.client
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from support.lab import Heard, heard, post
from support.processes import Gateway, gateway_process
from support.vllm_engine import KEY, MODEL, VllmEngine

LONG = {  # about 7,000 tokens: half a minute and more
    "model": MODEL,
    "messages": [{"role": "user", "content": "Tell a long story."}],
    "stream": True,
    "ignore_eos": True,
    "max_tokens": 7_000,
    "temperature": 0,
}


def target_text(engine: VllmEngine, extra: str = "") -> str:
    """The engine as `[[targets]]`."""
    return (
        f'[[targets]]\nname = "vllm"\ndialect = "vllm"\nbase_url = "{engine.base_url}"\n'
        f'api_key_env = "ENGINE_KEY"\nmodels = {{ "{MODEL}" = "{MODEL}" }}\n'
        f'prices = {{ input = "2.00", cache_read = "0.20", output = "10.00" }}\n{extra}\n'
    )


@contextmanager
def gateway_of(engine: VllmEngine, extra: str = "") -> Iterator[Gateway]:
    """A gateway in front of it; `extra` belongs to the target."""
    config = f"[server]\ndrain_grace_s = 0\n{target_text(engine, extra)}"
    with gateway_process(config, {"ENGINE_KEY": KEY}) as gateway:
        yield gateway


def ask(gateway: Gateway, **fields: Any) -> Heard:
    """One request, heard to its end."""
    messages = fields.pop("messages", [{"role": "user", "content": "Say hello."}])
    return post(gateway.base_url, {"model": MODEL, "messages": messages, "temperature": 0, **fields}, {})


@dataclass
class Open:
    """An answer that is under way."""

    connection: http.client.HTTPConnection
    reply: http.client.HTTPResponse
    begun: bytes

    @property
    def request_id(self) -> str:
        """The gateway's name for it."""
        return self.reply.headers["x-kimi-request-id"]

    def leave(self) -> None:
        """The client closes its connection."""
        assert self.connection.sock is not None
        self.connection.sock.close()
        self.reply.close()

    def rest(self) -> Heard:
        """All that came, once it has ended."""
        return heard(self.reply.status, dict(self.reply.getheaders()) | _STREAM, self.begun + self.reply.read())


_STREAM = {"content-type": "text/event-stream"}


@contextmanager
def long_stream(gateway: Gateway, *, wait: bool = True, **fields: Any) -> Iterator[Open]:
    """A stream that takes long; its first bytes are there, unless nobody should wait for them."""
    connection = http.client.HTTPConnection(gateway.root_url.removeprefix("http://"), timeout=120)
    try:
        body = json.dumps({**LONG, **fields})
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        reply = connection.getresponse()
        assert reply.status == 200, reply.read()
        yield Open(connection, reply, reply.read(300) if wait else b"")
    finally:
        connection.close()


@contextmanager
def sent(gateway: Gateway, count: int) -> Iterator[None]:
    """So many long requests are on their way; nobody reads their answers."""
    with ExitStack() as stack:
        for number in range(count):
            connection = http.client.HTTPConnection(gateway.root_url.removeprefix("http://"), timeout=120)
            stack.callback(connection.close)
            messages = [{"role": "user", "content": f"Tell a long story. {number}"}]
            body = json.dumps({**LONG, "messages": messages})
            connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        yield
