"""A gateway before several scripted targets, with the breaker and all outs as they ship; and crowds of clients.

`fleet` starts the gateway and one scripted upstream for each target. A `Crowd` is a script that counts how many
requests are with it at once; `Talk` is a client that hears an answer piece by piece.
"""

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from pricing.ledger.row import LedgerRow
from pricing.ledger.store import Store
from support.exchange import Exchange
from support.lab import Heard, heal, heard, ledger_url, post
from support.pids import becomes_true
from support.processes import Gateway, gateway_process
from support.scripted import Answer, ScriptedUpstream, play

PRO = "kimi-k3.1-pro"
FAST = "kimi-k3.1-pro-highspeed"
USAGE = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
OK: Mapping[str, Any] = {"status": 200, "json_usage": USAGE}
CHEAP = {"input": "1.00", "cache_read": "0.10", "output": "5.00"}
DEAR = {"input": "2.00", "cache_read": "0.20", "output": "10.00"}
_ROWS_WAIT_S = 15.0
_T = TypeVar("_T")
_R = TypeVar("_R")


def toml(value: object) -> str:
    """A value as TOML."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(name)} = {toml(item)}" for name, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def table(heading: str, settings: Mapping[str, object]) -> str:
    """A table of the configuration."""
    lines = [f"{name} = {toml(value)}" for name, value in settings.items()]
    return "\n".join([heading, *lines, ""])


def target(name: str, base_url: str, settings: Mapping[str, object] | None = None) -> str:
    """One `[[targets]]`; Moonshot's dialect with the model PRO, unless the settings say otherwise."""
    usual = {"name": name, "dialect": "moonshot", "base_url": base_url, "api_key_env": "FLEET_KEY"}
    return table("[[targets]]", {**usual, "models": {PRO: PRO}, **(settings or {})})


def route(model: str, targets: Sequence[str], **settings: object) -> str:
    """One `[[routes]]`, in order unless the settings say otherwise."""
    return table("[[routes]]", {"model": model, "policy": "order", "targets": list(targets), **settings})


def key(name: str, **settings: object) -> str:
    """One `[[keys]]`; its secret is `secret(name)`."""
    return table("[[keys]]", {"name": name, "key_env": f"KEY_{name.upper().replace('-', '_')}", **settings})


def secret(name: str) -> str:
    """The secret of that key."""
    return f"kg-fleet-{name}"


def bearer(name: str) -> dict[str, str]:
    """The headers of a client with that key."""
    return {"authorization": f"Bearer {secret(name)}"}


def hi(text: str = "hi", model: str = PRO, **fields: Any) -> dict[str, Any]:
    """A small request."""
    return {"model": model, "messages": [{"role": "user", "content": text}], **fields}


def chunk(delta: Mapping[str, object], finish: str | None = None, **more: object) -> str:
    """One event of a stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return "data: " + json.dumps({"id": "c", "model": PRO, "choices": [choice], **more}) + "\n\n"


ROLE = chunk({"role": "assistant", "content": ""})
DONE = "data: [DONE]\n\n"


def said(text: str) -> str:
    """A whole stream that says this, with its usage."""
    return ROLE + chunk({"content": text}) + chunk({}, "stop", usage=USAGE) + DONE


@dataclass(slots=True)
class Fleet:
    """The gateway and its scripted upstreams by target name."""

    gateway: Gateway
    upstreams: Mapping[str, ScriptedUpstream]

    def ask(self, request: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Heard:
        """Sends a request and hears the answer out."""
        return post(self.gateway.base_url, request, headers or {})

    def calls(self, name: str) -> int:
        """How many requests a target has had."""
        return len(self.upstreams[name].requests)

    def rows(self, *answers: Heard) -> list[LedgerRow]:
        """The settled rows of these answers, in their order."""
        return rows_of(ledger_url(self.gateway), [one.headers["x-kimi-request-id"] for one in answers])

    def row(self, answer: Heard) -> LedgerRow:
        """The settled row of an answer."""
        return self.rows(answer)[0]

    def heal(self) -> None:
        """Reads the configuration again: no target is out."""
        heal(self.gateway)

    def metric(self, name: str) -> float:
        """The value of a metric, its labels as they are written; 0 where there is none."""
        return metric(self.gateway.root_url, name)


def metric(root_url: str, name: str) -> float:
    """See `Fleet.metric`."""
    line = http.client.HTTPConnection(root_url.removeprefix("http://"), timeout=10)
    line.request("GET", "/metrics")
    text = line.getresponse().read().decode()
    line.close()
    found = [row.rpartition(" ") for row in text.splitlines() if row.rpartition(" ")[0] == name]
    return float(found[0][2]) if found else 0.0


def rows_of(url: str, ids: Sequence[str]) -> list[LedgerRow]:
    """The settled rows of these requests. Raises `AssertionError` where they do not come."""
    until_s = time.monotonic() + _ROWS_WAIT_S
    store = Store(url)
    try:
        found: dict[str, LedgerRow] = {}
        while missing := [one for one in ids if one not in found]:
            assert time.monotonic() < until_s, f"no settled rows for {missing}"
            for one in missing:
                row = store.get(one)
                if row is not None and row.status != "open":
                    found[one] = row
            time.sleep(0.02)
    finally:
        store.close()
    return [found[one] for one in ids]


@contextmanager
def fleet(
    targets: Mapping[str, Mapping[str, object]],
    rest: str = "",
    *,
    head: str = "",
    server: str = "",
    timing: str = "",
    env: Mapping[str, str] | None = None,
    keys: Sequence[str] = (),
    scripts: Mapping[str, Answer] | None = None,
) -> Iterator[Fleet]:
    """A fleet. `targets` are settings by name; `rest` is TOML for the end of the configuration, `head` for its
    sections, `server` and `timing` for those two; `keys` have their secrets set; `scripts` are answers by target
    that are given again and again."""
    with ExitStack() as stack:
        again = {name: [script] for name, script in (scripts or {}).items()}
        upstreams = {
            name: stack.enter_context(ScriptedUpstream(again.get(name, ()), repeat_last=name in again))
            for name in targets
        }
        config = [f"[server]\ndrain_grace_s = 0\n{server}\n[timing]\nusage_grace_s = 0.3\n{timing}\n{head}\n"]
        config += [target(name, upstreams[name].base_url, one) for name, one in targets.items()]
        secrets = {f"KEY_{name.upper().replace('-', '_')}": secret(name) for name in keys}
        everything = {"FLEET_KEY": "sk-fleet-upstream", **secrets, **(env or {})}
        gateway = stack.enter_context(gateway_process("\n".join([*config, rest]), everything))
        yield Fleet(gateway, upstreams)


# --- many at once -----------------------------------------------------------------------------------------------


def together(work: Callable[[_T], _R], items: Iterable[_T], *, most: int = 1000) -> list[_R]:
    """What the work gives for each of the items, all at the same time, or so many."""
    found = list(items)
    with ThreadPoolExecutor(max(1, min(most, len(found)))) as pool:
        return list(pool.map(work, found))


@dataclass
class Crowd:
    """A script: each answer takes `hold_s`. It counts how many requests are with it at once, and who came when.

    `gate`, where there is one, holds all answers until it is opened.
    """

    hold_s: float = 0.0
    answer: Mapping[str, Any] = field(default_factory=lambda: OK)
    gate: threading.Event | None = None
    now: int = 0
    most: int = 0
    texts: list[str] = field(default_factory=list)

    async def __call__(self, exchange: Exchange) -> None:
        """Serves one request."""
        messages: Any = exchange.received.json["messages"]
        self.texts.append(str(messages[-1]["content"]))
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await exchange.pause(self.hold_s)
            while self.gate is not None and not self.gate.is_set():
                await exchange.pause(0.005)
        finally:
            self.now -= 1
        await play(self.answer, exchange)


class Scene:
    """Clients of one target, whose answers are held back until `open`; a context manager that ends with that."""

    def __init__(self, fleet: Fleet, name: str, *, answer: Mapping[str, Any] = OK, shared: str = "") -> None:
        self.fleet = fleet
        self.name = name
        self.crowd = Crowd(answer=answer, gate=threading.Event())
        self._names = [name, shared] if shared else [name]
        for one in self._names:
            fleet.upstreams[one].add(*[self.crowd] * 40)
        self._pool = ThreadPoolExecutor(40)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()
        self._pool.shutdown()
        for one in self._names:
            self.fleet.upstreams[one].forget()

    def open(self) -> None:
        """Everybody may be answered."""
        assert self.crowd.gate is not None
        self.crowd.gate.set()

    def ask(self, text: str = "hi", by: str = "key0", model: str = "", **fields: Any) -> Future[Heard]:
        """One more client."""
        return self._pool.submit(self.fleet.ask, hi(text, model or self.name, **fields), bearer(by))

    def runs(self, count: int) -> None:
        """Waits until so many are with the upstream."""
        assert becomes_true(lambda: self.crowd.now == count), self.crowd.now


async def nothing(exchange: Exchange) -> None:
    """A script that reads a request and never answers."""
    await exchange.hold()


def after(seconds: float, answer: Mapping[str, Any], begin: str = "") -> Callable[[Exchange], Any]:
    """A script: the answer comes after that time; with a `begin` its stream begins with that at once, and the
    answer says only how it goes on: `text`, then `close`, `reset`, `hold`, or a clean end."""

    async def script(exchange: Exchange) -> None:
        if not begin:
            await exchange.pause(seconds)
            await play(answer, exchange)
            return
        await exchange.head(200, [("content-type", "text/event-stream"), ("transfer-encoding", "chunked")])
        await exchange.chunk(begin.encode())
        await exchange.pause(seconds)
        await exchange.chunk(str(answer.get("text", "")).encode())
        match answer.get("then"):
            case "reset":
                await exchange.pause(0.02)
                exchange.reset()
            case "close":
                exchange.close()
            case "hold":
                await exchange.hold()
            case _:
                await exchange.end_chunks()
                exchange.keep = True

    return script


class Talk:
    """One request under way, heard piece by piece; a context manager that hangs up."""

    def __init__(
        self, base_url: str, request: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> None:
        host, _, prefix = base_url.removeprefix("http://").partition("/")
        self._line = http.client.HTTPConnection(host, timeout=30)
        body = json.dumps(request).encode()
        told = {"content-type": "application/json", **(headers or {})}
        self._line.request("POST", f"/{prefix}/chat/completions", body, told)
        self._reply: http.client.HTTPResponse | None = None
        self._raw = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer, once its head is there."""
        return {name.lower(): value for name, value in self._begun().getheaders()}

    def until(self, mark: bytes) -> bytes:
        """All that was heard, once the mark is in it. Raises `AssertionError` where the answer ends before."""
        while mark not in self._raw:
            data = self._begun().read1(65536)
            assert data, self._raw
            self._raw += data
        return self._raw

    def rest(self) -> Heard:
        """The answer, heard to its end."""
        reply = self._begun()
        raw = self._raw + reply.read()
        return heard(reply.status, self.headers, raw)

    def hang_up(self) -> None:
        """Closes the connection."""
        self._line.close()
        if self._reply is not None:
            self._reply.close()

    def _begun(self) -> http.client.HTTPResponse:
        if self._reply is None:
            self._reply = self._line.getresponse()
        return self._reply
