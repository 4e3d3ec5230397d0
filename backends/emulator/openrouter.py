"""OpenRouter by its documentation, the schema in its Python package openrouter 1.3.84 and public reports."""

from collections.abc import Callable
from decimal import Decimal
from typing import Final

from typing_extensions import override

from backends.emulator import contract
from backends.emulator.compose import Answer
from backends.emulator.errors import Refusal
from backends.emulator.invoice import charge_nano, fee_nano
from backends.emulator.prices import Sheet, sheet, usd_text
from backends.emulator.profile import Host, Model, Profile, Trouble, Words
from backends.emulator.request import ChatRequest
from backends.emulator.shape import Counts, Envelope, Part, Reports, Shape, called, totals
from backends.emulator.thinking import openrouter_thinking
from backends.json import Json, JsonObject, as_list, as_object, as_str, encode

_LISTED_S: Final = 1_792_800_000
_SLUG: Final = "moonshotai/kimi-k3.1-pro"
_NANO_DIGITS: Final = 9
# Input, cached read and output: the official page. A write has no price of its own there, so it is fresh input.
_PRICES: Final = sheet(input="2.00", cache_read="0.20", write_5m="2.00", write_1h="2.00", output="10.00")
_OTHER_PRICES: Final = sheet(input="1.80", cache_read="0.18", write_5m="1.80", write_1h="1.80", output="9.00")
_HOSTS: Final = (Host("Moonshot AI", _PRICES), Host("Synthetic Host", _OTHER_PRICES))
"""The second one is made up: a host with other prices, so that a bill by the list price is found out."""
_MAX_SESSION_CHARACTERS: Final = 256


class OpenrouterShape(Shape):
    """The thought as `reasoning` and again in `reasoning_details`; usage with its cost in every answer."""

    always_reports = True
    json_type = b"application/json"

    @override
    def answer_id(self, digest: bytes, created_s: int) -> str:
        return f"gen-{created_s}-{digest[:10].hex()}"

    @override
    def call_id(self, name: str, number: int, digest: bytes) -> str:
        return f"functions.{name}:{number}"

    @override
    def head(self, envelope: Envelope, kind: str) -> JsonObject:
        return {**super().head(envelope, kind), "provider": envelope.host}

    @override
    def thought_delta(self, text: str) -> JsonObject:
        return {"role": "assistant", "content": "", **_thought(text)}

    @override
    def text_delta(self, text: str) -> JsonObject:
        return {"role": "assistant", "content": text}

    @override
    def finish_delta(self) -> JsonObject:
        return {"role": "assistant", "content": ""}

    @override
    def choice_fields(
        self, part: Part, finish: str | None, answer: Answer, logprobs: JsonObject | None
    ) -> JsonObject:
        return {"finish_reason": finish, "native_finish_reason": finish, "logprobs": logprobs}

    @override
    def chunk_fields(self, envelope: Envelope, part: Part, *, last: bool, usage: JsonObject | None) -> JsonObject:
        return {}

    @override
    def message(self, envelope: Envelope, answer: Answer) -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": answer.text, "refusal": None, "reasoning": None}
        if answer.thought and envelope.shows_thought:
            message |= _thought(answer.thought)
        if answer.calls:
            message["tool_calls"] = [called(call) for call in answer.calls]
        return message

    @override
    def choice(self, envelope: Envelope, index: int, answer: Answer, logprobs: JsonObject | None) -> JsonObject:
        fields = self.choice_fields("body", answer.finish, answer, logprobs)
        return {**fields, "index": index, "message": self.message(envelope, answer)}

    @override
    def usage(self, counts: Counts, reports: Reports, *, streamed: bool) -> JsonObject:
        prompt, prices = counts.prompt, counts.prices
        whole = charge_nano(prompt, counts.output, prices)
        for_prompt = charge_nano(prompt, 0, prices)
        return {
            **totals(prompt.total, counts.output),
            # With a key of the operator's own the provider bills that key, and this is the fee.
            "cost": _usd(fee_nano(whole) if counts.byok else whole),
            "is_byok": counts.byok,
            "prompt_tokens_details": {
                "cached_tokens": prompt.cache_read,
                "cache_write_tokens": prompt.written,
                "audio_tokens": 0,
                "video_tokens": 0,
            },
            "cost_details": {
                "upstream_inference_cost": _usd(whole),
                "upstream_inference_prompt_cost": _usd(for_prompt),
                "upstream_inference_completions_cost": _usd(whole - for_prompt),
            },
            "completion_tokens_details": {"reasoning_tokens": counts.thought, "image_tokens": 0},
        }


def _thought(text: str) -> JsonObject:
    piece: JsonObject = {"type": "reasoning.text", "text": text, "format": "unknown", "index": 0}
    return {"reasoning": text, "reasoning_details": [piece]}


def _usd(nano: int) -> Decimal:
    return Decimal(nano).scaleb(-_NANO_DIGITS)


# --- words ----------------------------------------------------------------------------------------------------


def _error_body(refusal: Refusal) -> JsonObject:
    error: JsonObject = {"message": refusal.message, "code": refusal.status}
    if refusal.metadata is not None:
        error["metadata"] = refusal.metadata
    return {"error": error}


def _error_event(refusal: Refusal, head: JsonObject) -> JsonObject:
    choice: JsonObject = {"index": 0, "delta": {"content": ""}}
    choice |= {"finish_reason": "error", "native_finish_reason": "error"}
    return {**head, **_error_body(refusal), "choices": [choice]}


def _from_provider(refusal: Refusal) -> Refusal:
    """A refusal of the host, as OpenRouter passes it on."""
    raw = encode({"error": {"message": refusal.message, "type": refusal.type}}).decode()
    metadata: JsonObject = {"raw": raw, "provider_name": _HOSTS[0].name}
    return Refusal("Provider returned error", status=refusal.status, metadata=metadata)


def _too_long(prompt_tokens: int, limit_tokens: int, window_tokens: int) -> Refusal:
    # Its own check before any host is asked; a probe of it shows no error_type (public test fixtures).
    return Refusal(
        f"This endpoint's maximum context length is {window_tokens} tokens. However, you requested about "
        f"{prompt_tokens + limit_tokens} tokens ({prompt_tokens} of text input, {limit_tokens} in the output). "
        "Please reduce the length of either one, or use the context-compression plugin to compress your prompt "
        "automatically.",
        metadata={"provider_name": None},
    )


def _wrong_key(key: str) -> Refusal:
    return Refusal("User not found." if key else "No auth credentials found", status=401)


def _trouble(trouble: Trouble) -> Refusal:
    match trouble.kind:
        case "overloaded":
            raw = f"{_SLUG} is temporarily rate-limited upstream. Please retry shortly."
            metadata: JsonObject = {
                "raw": raw,
                "provider_name": _HOSTS[0].name,
                "error_type": "provider_overloaded",
            }
            return Refusal("Provider returned error", status=trouble.status or 429, metadata=metadata)
        case "rate":
            text = (
                f"Rate limit exceeded: {trouble.limit}. Limit {trouble.most}, retry in {trouble.wait_s} seconds."
            )
            return Refusal(text, status=429, metadata={"error_type": "rate_limit_exceeded"})
        case "quota":
            text = "Insufficient credits. Add more credits to go on."
            return Refusal(text, status=trouble.status or 402, metadata={"error_type": "payment_required"})
        case "forbidden":
            return Refusal("This API key is not allowed to use this model.", status=trouble.status or 403)
        case "filter":
            text = f"{_SLUG} requires moderation. Your input was flagged."
            metadata = {"reasons": ["synthetic"], "flagged_input": "synthetic", "provider_name": _HOSTS[0].name}
            return Refusal(text, status=trouble.status or 403, metadata=metadata)
        case "full":
            text = "There is no available model provider that meets your routing requirements."
            return Refusal(text, status=trouble.status or 503, metadata={"error_type": "provider_unavailable"})
        case "crash":
            text = "Provider disconnected unexpectedly"
            return Refusal(text, status=502, metadata={"error_type": "provider_unavailable"})
        case "server":
            status = trouble.status or 502
            metadata = {"error_type": "provider_unavailable"} if status >= 500 else {}
            return Refusal("Provider returned error", status=status, metadata=metadata)


# --- checks ---------------------------------------------------------------------------------------------------


def _by_host(check: Callable[[ChatRequest, Profile], None]) -> Callable[[ChatRequest, Profile], None]:
    """A rule of Moonshot's own endpoint, the host of this model."""

    def checked(request: ChatRequest, profile: Profile) -> None:
        try:
            check(request, profile)
        except Refusal as refusal:
            raise _from_provider(refusal) from refusal

    return checked


def check_session(request: ChatRequest, profile: Profile) -> None:
    """The sticky session's id, up to 256 characters."""
    session = request.raw.get("session_id")
    if session is not None and (not isinstance(session, str) or len(session) > _MAX_SESSION_CHARACTERS):
        raise Refusal(f"session_id must be a string of at most {_MAX_SESSION_CHARACTERS} characters")


def check_provider(request: ChatRequest, profile: Profile) -> None:
    """At least one host must be left after `provider.only`, `ignore` and a strict `order`."""
    if not allowed_hosts(request.raw):
        raise Refusal("No allowed providers are available for the selected model.", status=404)


def allowed_hosts(body: JsonObject) -> tuple[Host, ...]:
    """The hosts that a request may go to, the wished ones first; by default Moonshot's own endpoint alone."""
    wish = as_object(body.get("provider")) or {}
    order = [_slug(name) for name in as_list(wish.get("order"))]
    only = {_slug(name) for name in as_list(wish.get("only"))}
    ignored = {_slug(name) for name in as_list(wish.get("ignore"))}
    if order and wish.get("allow_fallbacks") is False:
        only = (only & set(order)) if only else set(order)
    found = [host for host in _HOSTS if _slug(host.name) not in ignored]
    if only:
        found = [host for host in found if _slug(host.name) in only]
    ranked = {name: rank for rank, name in enumerate(order)}
    return tuple(sorted(found, key=lambda host: ranked.get(_slug(host.name), len(ranked))))


def _slug(name: Json) -> str:
    """A host's name as it is written in requests: `moonshotai` for `Moonshot AI`."""
    return (as_str(name) or "").lower().replace(" ", "").replace("-", "")


def _list_entry(model: Model, window_tokens: int) -> JsonObject:
    return {
        "id": model.id,
        "canonical_slug": model.id,
        "name": "MoonshotAI: Kimi K3.1 Pro",
        "created": model.created_s,
        "description": "Emulated.",
        "context_length": window_tokens,
        "architecture": {
            "modality": "text+image->text",
            "input_modalities": ["text", "image"],
            "output_modalities": ["text"],
            "tokenizer": "Other",
            "instruct_type": None,
        },
        "pricing": _pricing(model.prices),
        "top_provider": {"context_length": window_tokens, "max_completion_tokens": None, "is_moderated": False},
        "per_request_limits": None,
        "supported_parameters": ["include_reasoning", "max_tokens", "reasoning", "stop", "tool_choice", "tools"],
        "reasoning": {
            "mandatory": True,
            "default_effort": "max",
            "default_enabled": True,
            "supported_efforts": ["low", "high", "max"],
            "supports_max_tokens": False,
        },
    }


def _pricing(prices: Sheet) -> JsonObject:
    """USD per token as decimal strings."""
    named = {"prompt": prices.input, "completion": prices.output, "input_cache_read": prices.cache_read}
    return {name: usd_text(nano) for name, nano in named.items()}


OPENROUTER = Profile(
    name="openrouter",
    models=(Model(_SLUG, "standard", _LISTED_S, _PRICES),),
    words=Words(
        error_body=_error_body,
        error_event=_error_event,
        unknown_path=lambda method, path: {"error": {"message": "Not Found", "code": 404}},
        wrong_key=_wrong_key,
        too_large=lambda: Refusal("Request Entity Too Large", status=413),
        unknown_model=lambda model, known: Refusal(f"{model} is not a valid model ID"),
        too_long=_too_long,
        trouble=_trouble,
        no_messages=lambda given: Refusal('Input required: specify "prompt" or "messages"'),
        logprobs_too_many=lambda top, most: Refusal(f"top_logprobs must be {most} or less"),
    ),
    shape=OpenrouterShape(),
    list_entry=_list_entry,
    checks=(
        check_session,
        check_provider,
        contract.check_stop,
        _by_host(contract.check_contents),
        _by_host(contract.check_tools),
        _by_host(contract.check_tool_choice),
        _by_host(contract.check_tool_history),
    ),
    default_limit_tokens=131_072,
    read_thinking=openrouter_thinking,
    thought_in=("reasoning", "reasoning_content"),
    thought_details_in="reasoning_details",
    tool_name_pattern=r"[a-zA-Z_][a-zA-Z0-9_-]{0,127}",
    max_stops=4,
    max_stop_bytes=1_024,
    answer_headers=lambda id: ((b"x-generation-id", id.encode()),),
    comment=b": OPENROUTER PROCESSING\n\n",
    comment_interval_s=1.0,
    comments_at_once=True,
    allowed_hosts=allowed_hosts,
    byok_share=0.125,
    facilities=frozenset({"credits"}),
    prefix="/api",
)
