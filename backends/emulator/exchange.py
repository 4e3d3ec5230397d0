"""A request with the answer it would get: what a fault looks at before it changes the answer."""

from dataclasses import dataclass
from typing import Protocol

from backends.emulator.errors import Refusal
from backends.emulator.player import Script, Step
from backends.emulator.profile import Profile, Trouble, TroubleKind
from backends.emulator.wire import done_step, event, json_script, stream_headers
from backends.json import JsonObject, encode


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request to the service. `number` counts the requests to its path from 1. `head` holds the first fields
    of its chunks. `account` and `key` are ids of whoever asks, as the service writes them into its messages."""

    number: int
    path: str
    body: JsonObject
    profile: Profile
    seed: int = 0
    now_s: float = 0.0
    stream: bool = False
    head: JsonObject | None = None
    prompt_tokens: int = 0
    limit_tokens: int = 0
    window_tokens: int = 0
    account: str = ""
    key: str = ""

    def trouble(self, kind: TroubleKind, *, status: int = 0) -> Trouble:
        """A trouble of this account, without numbers."""
        return Trouble(kind, status=status, account=self.account, key=self.key)


class FaultHook(Protocol):
    """Turns the right answer into what a faulty upstream sends."""

    def __call__(self, exchange: Exchange, script: Script) -> Script: ...


def refusal_script(profile: Profile, refusal: Refusal) -> Script:
    """An error answer in the dialect's shape; not billed."""
    return json_script(
        refusal.status,
        profile.words.error_body(refusal),
        headers=refusal.headers,
        json_type=profile.shape.json_type,
    )


def error_step(exchange: Exchange, refusal: Refusal, tokens: int = 0) -> Step:
    """An error as an event of a stream."""
    said = exchange.profile.words.error_event(refusal, exchange.head or {})
    return Step(event(encode(said)), 0.0, tokens, "error")


def full_script(exchange: Exchange, refusal: Refusal, *, role: bool, in_stream: bool, done: bool) -> Script:
    """The answer of a full queue: an error, or for a stream a 200 that says it in its first events, with or
    without a role chunk before it."""
    if not (exchange.stream and in_stream):
        return refusal_script(exchange.profile, refusal)
    shape = exchange.profile.shape
    choice: JsonObject = {"index": 0, "delta": shape.role_delta(), "finish_reason": None}
    opening = Step(event(encode({**(exchange.head or {}), "choices": [choice]})), part="role")
    steps = (*((opening,) if role else ()), error_step(exchange, refusal), *((done_step(0),) if done else ()))
    return Script(status=200, headers=stream_headers(shape), steps=steps)
