"""A gateway process with one scripted upstream behind each dialect: what most wire tests talk to.

One lab serves many tests: `answer` scripts what the upstream of a target does next, `ask` sends a request pinned
to that target, `row` waits for its ledger row.
"""

import http.client
import json
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from pricing.ledger.address import sqlite_path
from pricing.ledger.row import LedgerRow
from pricing.ledger.shown import shown
from pricing.ledger.store import Store
from support.processes import Gateway, gateway_process
from support.scripted import Answer, ScriptedUpstream

DIALECTS = ("moonshot", "openrouter", "vllm", "sglang")
_MODELS = {
    "moonshot": {"kimi-k3.1-pro": "kimi-k3.1-pro", "kimi-k3.1-pro-highspeed": "kimi-k3.1-pro-highspeed"},
    "openrouter": {"kimi-k3.1-pro": "moonshotai/kimi-k3.1-pro"},
    "vllm": {"kimi-k3.1-pro": "moonshotai/Kimi-K3.1-Pro"},
    "sglang": {"kimi-k3.1-pro": "moonshotai/Kimi-K3.1-Pro"},
}
_ENGINE_PRICES = '\nprices = { input = "2.00", cache_read = "0.20", output = "10.00" }'
_ROW_WAIT_S = 10.0
_ROW_POLL_S = 0.03
_MOST_OPEN = 4
_REMEMBERED = (401, 403, 429, 503, 529)
"""Answers after which a target may be left alone for a while."""
_RELOADED = re.compile('"message":"reloaded"')
_CLIENT_TIMEOUT_S = 30.0


@dataclass(slots=True)
class Heard:
    """What a client heard: the status, headers (lower-case names), and the body or the stream's events."""

    status: int
    headers: dict[str, str]
    raw: bytes
    events: list[Any] = field(default_factory=list)  # parsed data events, "[DONE]" as itself
    comments: int = 0

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.raw)

    @property
    def chunks(self) -> list[Any]:
        """The data events that are chunks: neither errors nor the end mark."""
        return [event for event in self.events if event != "[DONE]" and "error" not in event]

    @property
    def error(self) -> Any:
        """The error object of the answer or of the stream's last event, None without one."""
        if self.events:
            return next((event["error"] for event in self.events if event != "[DONE]" and "error" in event), None)
        return self.json.get("error") if self.raw else None

    @property
    def done(self) -> bool:
        """The stream ended with its end mark."""
        return bool(self.events) and self.events[-1] == "[DONE]"

    def joined(self, name: str, index: int = 0) -> str:
        """All deltas of one field of one choice, joined."""
        return "".join(delta.get(name) or "" for delta in self.deltas(index))

    def deltas(self, index: int = 0) -> list[Any]:
        """The deltas of one choice."""
        return [
            choice["delta"] for chunk in self.chunks for choice in chunk["choices"] if choice["index"] == index
        ]

    def finish_reason(self, index: int = 0) -> str | None:
        """The finish reason of one choice."""
        found = [
            choice["finish_reason"]
            for chunk in self.chunks
            for choice in chunk["choices"]
            if choice["index"] == index and choice.get("finish_reason")
        ]
        return found[-1] if found else None

    def tool_calls(self, index: int = 0) -> list[Any]:
        """The tool calls of one choice, assembled by index as an OpenAI client does."""
        calls: dict[int, Any] = {}
        for delta in self.deltas(index):
            for piece in delta.get("tool_calls") or []:
                blank = {"id": None, "type": "function", "function": {"name": "", "arguments": ""}}
                call = calls.setdefault(piece["index"], blank)
                call["id"] = piece.get("id") or call["id"]
                function = piece.get("function") or {}
                call["function"]["name"] += function.get("name") or ""
                call["function"]["arguments"] += function.get("arguments") or ""
        return [calls[position] for position in sorted(calls)]


@dataclass(slots=True)
class Lab:
    """The gateway and its scripted upstreams by target name."""

    gateway: Gateway
    upstreams: Mapping[str, ScriptedUpstream]
    forgives: bool = True  # no target stays out for what one test let it do

    def ask(
        self,
        request: Mapping[str, Any] | bytes,
        *answers: Answer,
        target: str = "moonshot",
        headers: Mapping[str, str] | None = None,
    ) -> Heard:
        """Scripts the target's next answers, sends the request pinned to it and hears the answer out."""
        self.upstreams[target].add(*answers)
        found = post(self.gateway.base_url, request, {"x-kimi-target": target, **(headers or {})})
        if self.forgives and any(isinstance(one, Mapping) and one.get("status") in _REMEMBERED for one in answers):
            self.heal()
        return found

    def heal(self) -> None:
        """See `heal`."""
        heal(self.gateway)

    def sent(self, target: str = "moonshot") -> Any:
        """The body of the last request that the target received."""
        return self.upstreams[target].requests[-1].json

    def row(self, heard: Heard) -> Any:
        """The settled ledger row of an answer, as `show` gives it."""
        return shown(wait_for_row(ledger_url(self.gateway), heard.headers["x-kimi-request-id"]))


def heal(gateway: Gateway) -> None:
    """Reads the configuration again, so that no target is out for what an earlier test let it do."""
    done = len(_RELOADED.findall(gateway.program.stderr()))
    gateway.program.signal(signal.SIGHUP)
    deadline = time.monotonic() + _ROW_WAIT_S
    while len(_RELOADED.findall(gateway.program.stderr())) == done:
        assert time.monotonic() < deadline, "the gateway did not reload"
        time.sleep(0.005)


def post(
    base_url: str,
    request: Mapping[str, Any] | bytes,
    headers: Mapping[str, str],
    *,
    path: str = "/chat/completions",
) -> Heard:
    """One POST, heard to its end; `base_url` ends in /v1."""
    host, _, prefix = base_url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(host, timeout=_CLIENT_TIMEOUT_S)
    try:
        body = request if isinstance(request, bytes) else json.dumps(request).encode()
        connection.request("POST", f"/{prefix}{path}", body, {"content-type": "application/json", **headers})
        reply = connection.getresponse()
        return heard(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())
    finally:
        connection.close()


def heard(status: int, headers: dict[str, str], raw: bytes) -> Heard:
    """What a whole answer says; an event stream is taken apart."""
    found = Heard(status, headers, raw)
    if headers.get("content-type", "").startswith("text/event-stream"):
        for line in raw.decode().split("\n"):
            if line.startswith(":"):
                found.comments += 1
            elif line.startswith("data: "):
                data = line.removeprefix("data: ")
                found.events.append(data if data == "[DONE]" else json.loads(data))
    return found


def ledger_url(gateway: Gateway) -> str:
    """The URL of a gateway's ledger."""
    return f"sqlite:///{gateway.ledger}"


def wait_for_row(url: str, request_id: str) -> LedgerRow:
    """The ledger's row once it is settled. Raises `AssertionError` where that does not come."""
    deadline = time.monotonic() + _ROW_WAIT_S
    with _reading(url) as store:
        while time.monotonic() < deadline:
            row = store.get(request_id)
            if row is not None and row.status not in ("open",):
                return row
            time.sleep(_ROW_POLL_S)
    raise AssertionError(f"no settled row for {request_id} within {_ROW_WAIT_S} s")


_Ledger: TypeAlias = tuple[str, int]  # its URL and its file, which may be deleted and made anew
_open: Final[dict[_Ledger, Store]] = {}
_opening: Final = threading.Lock()


@contextmanager
def _reading(url: str) -> Iterator[Store]:
    """A ledger; those used last stay open, because opening one takes ten times as long as reading a row."""
    path = sqlite_path(url)
    if path is None or not path.exists():
        with closing(Store(url)) as store:
            yield store
        return
    ledger = (url, path.stat().st_ino)
    with _opening:
        if ledger not in _open:
            while len(_open) >= _MOST_OPEN:
                _open.pop(next(iter(_open))).close()
            _open[ledger] = Store(url)
        store = _open[ledger]
    yield store


@contextmanager
def lab(
    extra: str = "",
    *,
    server: str = "drain_grace_s = 0",
    time_factor: float = 1.0,
    idle_timeout_s: float = 300,
    first: Mapping[str, Sequence[Answer]] | None = None,
    env: Mapping[str, str] | None = None,
    forgives: bool = True,
) -> Iterator[Lab]:
    """A lab; `extra` is TOML for the end of its configuration, `server` for the [server] section; `first` are
    answers by target that are scripted before the gateway starts and looks at its targets; one that `forgives` has
    no breaker, and no target of it stays out for long."""
    with ExitStack() as stack:
        upstreams = {
            name: stack.enter_context(ScriptedUpstream((first or {}).get(name, ()), time_factor=time_factor))
            for name in DIALECTS
        }
        retry = "" if "[retry]" in extra else "[retry]\n"
        patient = "breaker_failures = 1000000" if forgives else ""
        extra = extra.replace("[retry]\n", f"[retry]\n{patient}\n") if "[retry]" in extra else extra
        config = [
            f"[server]\n{server}\n{retry}{patient if retry else ''}\n"
            f"[timing]\nusage_grace_s = 0.5\n{'quota_out_s = 0' if forgives else ''}\n{extra}"
        ]
        for name, upstream in upstreams.items():
            models = ", ".join(f'"{public}" = "{theirs}"' for public, theirs in _MODELS[name].items())
            prices = _ENGINE_PRICES if name in ("vllm", "sglang") else ""
            config.append(
                f'[[targets]]\nname = "{name}"\ndialect = "{name}"\nbase_url = "{upstream.base_url}"\n'
                f'api_key_env = "LAB_KEY"\nmodels = {{ {models} }}{prices}\n'
                f"idle_timeout_s = {idle_timeout_s}"
            )
        gateway = stack.enter_context(
            gateway_process("\n".join(config), {"LAB_KEY": "sk-lab-upstream", **(env or {})})
        )
        yield Lab(gateway, upstreams, forgives)
