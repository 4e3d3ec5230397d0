"""One chat completion: from the body to the script of its answer, and what it is charged."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from backends.emulator.compose import Answer, compose
from backends.emulator.errors import Refusal, invalid
from backends.emulator.invoice import PromptSplit
from backends.emulator.parse import parse_request
from backends.emulator.player import Headers, Script
from backends.emulator.profile import Model, UsagePlace
from backends.emulator.prompt import Prompt, encode_prompt
from backends.emulator.request import ChatRequest
from backends.emulator.seen import Seen
from backends.emulator.state import State
from backends.emulator.wire import (
    Envelope,
    Pace,
    folded_script,
    json_script,
    streamed_script,
    ttl_headers,
    usage_object,
)
from backends.json import JsonError, JsonObject, decode

_MAX_N = 128
_DOCUMENTED_PLACES: tuple[tuple[UsagePlace, ...], ...] = (
    ("choice",),
    ("finish",),
    ("choice", "extra"),
    ("finish", "extra"),
)


def _nothing(*_: object) -> None:
    """Does nothing."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a request is answered with. `settle(tokens, left)` books the generated tokens, once; `keep` writes
    its prompt to the cache."""

    script: Script
    settle: Callable[[int, bool], None]
    keep: Callable[[], None] = _nothing


def answer_chat(state: State, seen: Seen, key: str) -> Reply:
    """The answer to one request, refusals included; faults, if set, have changed it already. What is not billed
    leaves no trace in the cache either."""
    state.chats += 1
    body: JsonObject = {}
    try:
        body = read_object(seen.body)
        reply = _completion(state, seen, body, key)
    except RecursionError:
        reply = refused(state, invalid("the body is nested too deeply"))
    except Refusal as refusal:
        reply = refused(state, refusal)
    if state.config.faults is not None:
        reply = replace(reply, script=state.config.faults(state.chats, body, reply.script))
    if not reply.script.billed:
        return Reply(reply.script, lambda tokens, left: _note(seen, 0, left))
    reply.keep()
    return reply


def refused(state: State, refusal: Refusal) -> Reply:
    """The reply to a request that is refused: an error body in the dialect's shape, not billed."""
    return Reply(json_script(refusal.status, state.profile.words.error_body(refusal)), _nothing)


def read_object(data: bytes) -> JsonObject:
    """The JSON object of a request body. Raises `Refusal`."""
    try:
        body = decode(data)
    except JsonError as err:
        raise invalid(f"the request body is not JSON: {err}") from err
    if not isinstance(body, dict):
        raise invalid("the request body must be a JSON object")
    return body


def wanted_model(state: State, body: JsonObject) -> Model:
    """The model a request names. Raises `Refusal` (404) where it is not on offer."""
    name = body.get("model")
    if not isinstance(name, str) or not name:
        raise invalid("model is missing", param="model")
    model = state.profile.model(name)
    if model is None:
        raise state.profile.words.unknown_model(name)
    return model


def _completion(state: State, seen: Seen, body: JsonObject, key: str) -> Reply:
    profile = state.profile
    model = wanted_model(state, body)
    request = parse_request(body, thought_fields=profile.thought_in, efforts=profile.efforts)
    for check in profile.checks:
        check(request, profile)
    if not 1 <= request.n <= _MAX_N:
        raise invalid(f"n must be from 1 to {_MAX_N}", param="n")
    prompt = encode_prompt(request, profile)
    limit_tokens = _limit(state, request, prompt.tokens)
    answers = _answers(state, request, prompt, limit_tokens)
    chain = prompt.chain(f"{state.organisation(key)}\n{model.id}", state.block_tokens)
    now_s = state.clock.now_s()
    split = state.cache.look(chain, prompt_tokens=prompt.tokens, ttl=request.ttl, now_s=now_s)
    seen.id = _answer_id(state, prompt)
    seen.effort = profile.effort_of(request)
    seen.usage = {"prompt_tokens": split.total, "cache_read": split.cache_read, "cache_write": split.written}
    script = _script(state, request, answers, split, model, seen.id)
    return Reply(
        script,
        settle=_booking(state, seen, model, split),
        keep=lambda: state.cache.keep(chain, split, now_s=now_s),
    )


def _limit(state: State, request: ChatRequest, prompt_tokens: int) -> int:
    """Tokens the answer may have. Raises `Refusal` where prompt or limit do not fit into the window."""
    window = state.window_tokens
    if prompt_tokens >= window:
        raise state.profile.words.too_long(prompt_tokens, 0, window)
    if request.limit_tokens is None:
        return min(state.profile.default_limit_tokens, window - prompt_tokens)
    if prompt_tokens + request.limit_tokens > window:
        raise state.profile.words.too_long(prompt_tokens, request.limit_tokens, window)
    return request.limit_tokens


def _answers(state: State, request: ChatRequest, prompt: Prompt, limit_tokens: int) -> list[Answer]:
    config = state.config
    seed = hashlib.blake2b(str(config.seed).encode() + b"\n" + prompt.digest(), digest_size=16).digest()
    return [
        compose(
            request,
            effort=state.profile.effort_of(request),
            seed=seed + bytes([index]),
            limit_tokens=limit_tokens,
            thought_tokens=config.thought_tokens,
            text_tokens=config.text_tokens,
        )
        for index in range(request.n)
    ]


def _script(
    state: State, request: ChatRequest, answers: Sequence[Answer], split: PromptSplit, model: Model, id: str
) -> Script:
    profile = state.profile
    usage = usage_object(split, sum(answer.tokens for answer in answers), profile)
    pace = _pace(state, model, split)
    envelope = Envelope(
        id=id,
        model=model.id,
        created_s=int(state.clock.now_s()),
        profile=profile,
        usage_places=_usage_places(state, id),
        include_usage=request.include_usage,
        chunk_tokens=state.config.chunk_tokens,
        top_logprobs=request.top_logprobs,
    )
    trace: Headers = ((b"x-trace-id", id.encode()),)
    split_headers = ttl_headers(split) if profile.ttl_headers else ()
    if not request.stream:
        return folded_script(envelope, answers, usage, headers=(*trace, *split_headers), pace=pace)
    if not state.config.stream_ttl_headers:
        split_headers = ()
    return streamed_script(envelope, answers, usage, headers=(*trace, *split_headers), pace=pace)


def _pace(state: State, model: Model, split: PromptSplit) -> Pace:
    config = state.config
    rate = config.tokens_per_s * (config.highspeed_factor if model.tier == "highspeed" else 1.0)
    reading_s = (split.total - split.cache_read) / config.prefill_tokens_per_s
    return Pace(
        first_s=config.pace * (config.first_token_s + reading_s),
        token_s=config.pace / rate,
        least_s=config.min_duration_s,
        events_per_write=config.events_per_write,
    )


def _usage_places(state: State, id: str) -> Sequence[UsagePlace]:
    if state.config.vary_usage_places:
        return _DOCUMENTED_PLACES[id.encode()[-1] % len(_DOCUMENTED_PLACES)]
    if state.config.usage_places is not None:
        return state.config.usage_places
    return state.profile.usage_places


def _answer_id(state: State, prompt: Prompt) -> str:
    """An id of its own for each answer, also for repeated requests."""
    source = b"%d\n%d\n" % (state.config.seed, state.chats) + prompt.digest()
    return "chatcmpl-" + hashlib.blake2b(source, digest_size=12).hexdigest()


def _booking(state: State, seen: Seen, model: Model, split: PromptSplit) -> Callable[[int, bool], None]:
    def book(tokens: int, left: bool) -> None:
        _note(seen, tokens, left)
        state.invoice.add(
            id=seen.id, model=model.id, prompt=split, output=tokens, prices=model.prices, disconnected=left
        )

    return book


def _note(seen: Seen, tokens: int, left: bool) -> None:
    seen.output_tokens = tokens
    seen.disconnected = left
    seen.finished = True
