"""One chat completion: from the body to the script of its answer, and what it is charged."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from backends.emulator.compose import Answer, Manner, compose, unparsed
from backends.emulator.errors import Refusal, invalid
from backends.emulator.exchange import Exchange, full_script, refusal_script
from backends.emulator.invoice import PromptSplit
from backends.emulator.limits import Account, Reached, Usage
from backends.emulator.parse import parse_request
from backends.emulator.player import Headers, Script, joined
from backends.emulator.profile import Host, Model, Trouble
from backends.emulator.prompt import Prompt, encode_prompt
from backends.emulator.request import ChatRequest
from backends.emulator.seen import Seen
from backends.emulator.shape import Counts, Envelope, UsagePlace
from backends.emulator.state import State
from backends.emulator.wire import Pace, folded_script, streamed_script, ttl_headers
from backends.json import JsonError, JsonObject, as_object, as_str, decode

PATH = "/v1/chat/completions"
_MAX_N = 128
_BYOK_SIDES = 10_000
_DOCUMENTED_PLACES: tuple[tuple[UsagePlace, ...], ...] = (
    ("choice",),
    ("finish",),
    ("choice", "extra"),
    ("finish", "extra"),
)


def nothing(*_: object) -> None:
    """Does nothing."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a request is answered with. `settle(tokens, left)` books the generated tokens, once; `keep` writes
    its prompt to the cache; `ended` frees its place under the account's limits, when nothing more is sent."""

    script: Script
    settle: Callable[[int, bool], None]
    keep: Callable[[], None] = nothing
    ended: Callable[[], None] = nothing


def answer_chat(state: State, seen: Seen, key: str) -> Reply:
    """The answer to one request, refusals included; faults, if set, have changed it already. What is not billed
    leaves no trace in the cache either."""
    state.requests[PATH] += 1
    exchange = exchange_of(state, PATH, key)
    try:
        _check_content_type(state, seen)
        exchange = replace(exchange, body=read_object(seen.body))
        exchange = replace(exchange, stream=exchange.body.get("stream") is True)
        reply, exchange = _completion(state, seen, exchange, key)
    except RecursionError:
        reply = refused(state, invalid("the body is nested too deeply"))
    except Refusal as refusal:
        reply = refused(state, refusal)
    reply = with_fault(state, seen, reply, exchange)
    if not reply.script.billed:
        return replace(reply, settle=lambda tokens, left: _note(seen, 0, left))
    reply.keep()
    return reply


def exchange_of(state: State, path: str, key: str) -> Exchange:
    """What is known of a request before it is read."""
    account, key_id = state.ids(key)
    return Exchange(
        number=state.requests[path],
        path=path,
        body={},
        profile=state.profile,
        seed=state.config.seed,
        now_s=state.clock.now_s(),
        window_tokens=state.window_tokens,
        account=account,
        key=key_id,
    )


def with_fault(state: State, seen: Seen, reply: Reply, exchange: Exchange) -> Reply:
    """The reply as the faults leave it, in as few writes as it allows."""
    script = reply.script if state.faults is None else state.faults(exchange, reply.script)
    seen.fault = script.fault
    return replace(reply, script=joined(script, state.config.events_per_write))


def refused(state: State, refusal: Refusal) -> Reply:
    """The reply to a request that is refused: an error body in the dialect's shape, not billed."""
    return Reply(refusal_script(state.profile, refusal), nothing)


def read_object(data: bytes) -> JsonObject:
    """The JSON object of a request body. Raises `Refusal`."""
    try:
        body = decode(data)
    except JsonError as err:
        raise invalid(f"the request body is not JSON: {err}") from err
    if not isinstance(body, dict):
        raise invalid("the request body must be a JSON object")
    return body


def _check_content_type(state: State, seen: Seen) -> None:
    kind = seen.headers.get("content-type", "")
    if state.profile.json_only and kind and "json" not in kind:
        raise Refusal("", reason="Unsupported Media Type: Only 'application/json' is allowed")


def wanted_model(state: State, body: JsonObject) -> Model:
    """The model a request names. Raises `Refusal` (404) where it is not on offer."""
    profile = state.profile
    name = body.get("model") or profile.unnamed_model
    if not isinstance(name, str) or not name:
        raise invalid("model is missing", param="model")
    model = profile.model(name)
    if model is None:
        raise profile.words.unknown_model(name, tuple(model.id for model in profile.models))
    return model


def _completion(state: State, seen: Seen, exchange: Exchange, key: str) -> tuple[Reply, Exchange]:
    profile = state.profile
    body = exchange.body
    model = wanted_model(state, body)
    request = parse_request(body, profile)
    for check in profile.checks:
        check(request, profile)
    if not 1 <= request.n <= _MAX_N:
        raise invalid(f"n must be from 1 to {_MAX_N}", param="n")
    prompt = encode_prompt(request, profile)
    limit_tokens = _limit(state, request, prompt.tokens)
    answers = _answers(state, request, prompt, limit_tokens)
    host = next(iter(profile.allowed_hosts(body)), Host("", model.prices))
    chain = prompt.chain(_cache_owner(state, request, model, host, key), state.block_tokens)
    split = state.cache.look(chain, prompt_tokens=prompt.tokens, ttl=request.ttl, now_s=exchange.now_s)
    seen.id = profile.shape.answer_id(_digest(state, prompt), int(exchange.now_s))
    counts = Counts(
        prompt=split,
        output=sum(answer.tokens for answer in answers),
        thought=sum(answer.thought_tokens for answer in answers),
        thinks=request.thinks,
        prices=host.prices,
        byok=_byok(state, seen.id),
    )
    reported = profile.shape.reported(split, thinks=request.thinks)
    seen.effort = profile.effort_of(request) or "none"
    seen.usage = {"prompt_tokens": reported.total, "cache_read": reported.cache_read}
    seen.usage["cache_write"] = reported.written
    envelope = _envelope(state, request, model, host, seen.id, int(exchange.now_s))
    exchange = replace(
        exchange,
        head=profile.shape.head(envelope, "chat.completion.chunk"),
        prompt_tokens=prompt.tokens,
        limit_tokens=limit_tokens,
    )
    admitted = _admit(state, key, exchange)
    if isinstance(admitted, Script):
        return Reply(admitted, nothing), exchange
    script = _script(state, request, envelope, answers, counts, model)
    used: list[int] = []
    reply = Reply(
        replace(script, headers=(*script.headers, *_limit_headers(state, key, exchange.now_s))),
        settle=_booking(state, seen, model, counts, reported, used),
        keep=lambda: state.cache.keep(chain, split, now_s=exchange.now_s),
        ended=_entered(state, state.account(key), admitted, used),
    )
    return reply, exchange


def _limit(state: State, request: ChatRequest, prompt_tokens: int) -> int:
    """Tokens the answer may have. Raises `Refusal` where prompt or limit do not fit into the window."""
    profile, window = state.profile, state.window_tokens
    limit = request.limit_tokens
    left = window - prompt_tokens
    too_large = profile.words.limit_too_large
    if limit is not None and limit > window and too_large is not None and profile.checks:
        raise too_large(request.limit_field, limit, window)
    if left <= 0:
        raise profile.words.too_long(prompt_tokens, 0, window)
    if limit is None:
        return min(profile.default_limit_tokens or left, left)
    if limit > left and not profile.clamps_limit:
        raise profile.words.too_long(prompt_tokens, limit, window)
    return min(limit, left)


def _answers(state: State, request: ChatRequest, prompt: Prompt, limit_tokens: int) -> list[Answer]:
    config, profile = state.config, state.profile
    seed = hashlib.blake2b(str(config.seed).encode() + b"\n" + prompt.digest(), digest_size=16).digest()
    manner = Manner(
        thought_tokens=config.thought_tokens,
        text_tokens=config.text_tokens,
        call_id=profile.shape.call_id,
        forced_finish=profile.forced_finish,
        one_call=profile.one_call,
        leaks_calls=profile.leaks_calls,
    )
    effort = profile.effort_of(request)
    answers = [
        compose(request, effort=effort, seed=seed + bytes([index]), limit_tokens=limit_tokens, manner=manner)
        for index in range(request.n)
    ]
    return [
        unparsed(answer, thinks=request.thinks, limit_tokens=limit_tokens)
        if not config.reasoning_parser or (answer.calls and not config.tool_parser)
        else answer
        for answer in answers
    ]


def _cache_owner(state: State, request: ChatRequest, model: Model, host: Host, key: str) -> str:
    """Who a cached prefix belongs to: an organisation, model and host, or whoever has the same salt."""
    if state.profile.shared_cache:
        return f"salt:{as_str(request.raw.get('cache_salt')) or ''}"
    return f"{state.organisation(key)}\n{model.id}\n{host.name}"


def _envelope(state: State, request: ChatRequest, model: Model, host: Host, id: str, created_s: int) -> Envelope:
    options = as_object(request.raw.get("stream_options")) or {}
    return Envelope(
        id=id,
        model=model.id,
        created_s=created_s,
        usage_places=_usage_places(state, id),
        include_usage=request.include_usage,
        chunk_tokens=state.config.chunk_tokens,
        top_logprobs=request.top_logprobs,
        reports=state.config.reports,
        continuous_usage=request.include_usage and options.get("continuous_usage_stats") is True,
        shows_thought=request.shows_thought,
        forced_call=request.tool_choice in ("required", "specified"),
        host=host.name,
    )


def _script(
    state: State, request: ChatRequest, envelope: Envelope, answers: Sequence[Answer], counts: Counts, model: Model
) -> Script:
    profile = state.profile
    headers = profile.answer_headers(envelope.id)
    if profile.ttl_headers and (state.config.stream_ttl_headers or not request.stream):
        headers = (*headers, *ttl_headers(counts.prompt))
    made = streamed_script if request.stream else folded_script
    pace = _pace(state, model, counts.prompt)
    return made(profile.shape, envelope, answers, counts, headers=headers, pace=pace)


def _pace(state: State, model: Model, split: PromptSplit) -> Pace:
    config, profile = state.config, state.profile
    rate = config.tokens_per_s * (config.highspeed_factor if model.tier == "highspeed" else 1.0)
    reading_s = (split.total - split.cache_read) / config.prefill_tokens_per_s
    return Pace(
        first_s=config.pace * (config.first_token_s + reading_s),
        token_s=config.pace / rate,
        least_s=config.min_duration_s,
        comment=profile.comment,
        comment_s=profile.comment_interval_s,
        comments_at_once=profile.comments_at_once,
    )


def _usage_places(state: State, id: str) -> Sequence[UsagePlace]:
    if state.config.vary_usage_places:
        return _DOCUMENTED_PLACES[id.encode()[-1] % len(_DOCUMENTED_PLACES)]
    if state.config.usage_places is not None:
        return state.config.usage_places
    return state.profile.usage_places


def _digest(state: State, prompt: Prompt) -> bytes:
    """16 bytes of its own for each answer, also for repeated requests."""
    source = b"%d\n%d\n" % (state.config.seed, state.requests[PATH]) + prompt.digest()
    return hashlib.blake2b(source, digest_size=16).digest()


def _byok(state: State, id: str) -> bool:
    roll = int.from_bytes(hashlib.blake2b(b"byok" + id.encode(), digest_size=4).digest(), "big") % _BYOK_SIDES
    return roll < state.profile.byok_share * _BYOK_SIDES


def _admit(state: State, key: str, exchange: Exchange) -> Usage | Script:
    """The place under the account's limits, or the answer of an account without money or with a limit reached."""
    profile = state.profile
    if state.config.enforce_balance and state.balance <= 0:
        return refusal_script(profile, profile.words.trouble(exchange.trouble("quota")))
    admitted = state.account(key).admit(exchange.prompt_tokens + exchange.limit_tokens, exchange.now_s)
    if not isinstance(admitted, Reached):
        return admitted
    if admitted.limit == "concurrency" and profile.full_is_queue:
        refusal = profile.words.trouble(exchange.trouble("full"))
        return full_script(
            exchange, refusal, role=False, in_stream=profile.full_in_stream, done=profile.done_after_error
        )
    trouble = Trouble(
        "rate",
        limit=admitted.limit,
        most=admitted.most,
        current=admitted.current,
        wait_s=admitted.wait_s,
        account=exchange.account,
        key=exchange.key,
    )
    script = refusal_script(profile, profile.words.trouble(trouble))
    return replace(script, headers=(*script.headers, *_limit_headers(state, key, exchange.now_s)))


def _limit_headers(state: State, key: str, now_s: float) -> Headers:
    """The documented headers of the request limit, where there is one."""
    most = state.config.limits.rpm
    if not most:
        return ()
    left, reset_s = state.account(key).remaining(now_s)
    return (
        (b"x-ratelimit-limit", str(most).encode()),
        (b"x-ratelimit-remaining", str(left).encode()),
        (b"x-ratelimit-reset", str(reset_s).encode()),
    )


def _booking(
    state: State, seen: Seen, model: Model, counts: Counts, reported: PromptSplit, used: list[int]
) -> Callable[[int, bool], None]:
    def book(tokens: int, left: bool) -> None:
        _note(seen, tokens, left)
        used.append(counts.prompt.total + tokens)
        state.invoice.add(
            id=seen.id,
            model=model.id,
            prompt=reported,
            output=tokens,
            prices=counts.prices,
            disconnected=left,
            byok=counts.byok,
        )

    return book


def _entered(state: State, account: Account, admitted: Usage, used: list[int]) -> Callable[[], None]:
    """The request runs from now on; what is given back ends that."""
    state.running += 1

    def leave() -> None:
        state.running -= 1
        account.ended(admitted, sum(used))

    return leave


def _note(seen: Seen, tokens: int, left: bool) -> None:
    seen.output_tokens = tokens
    seen.disconnected = left
    seen.finished = True
