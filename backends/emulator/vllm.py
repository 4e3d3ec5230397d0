"""vLLM with its kimi_k3 parsers: recorded with 0.32.0, read in 0.33.0."""

from decimal import Decimal
from typing import Final

from typing_extensions import override

from backends.emulator.calls import MadeCall
from backends.emulator.compose import Answer
from backends.emulator.engine_words import (
    OWN_MODELS,
    bad_request,
    dotted,
    location,
    trouble_text,
    trouble_type,
    type_of,
)
from backends.emulator.errors import Refusal
from backends.emulator.invoice import PromptSplit
from backends.emulator.prices import sheet
from backends.emulator.profile import MetricWords, Model, Profile, Trouble, Words
from backends.emulator.request import ChatRequest, Media
from backends.emulator.shape import Counts, Envelope, Part, Reports, Shape, called, totals
from backends.emulator.thinking import vllm_thinking
from backends.json import Json, JsonObject

_VERSION: Final = "0.32.0"
_FINGERPRINT: Final = f"vllm-{_VERSION}-emulated"
_FREE: Final = sheet(input="0", cache_read="0", write_5m="0", write_1h="0", output="0")
_STARTED_S: Final = 1_796_040_000


class VllmShape(Shape):
    """`reasoning`, never `reasoning_content`; a call in one delta; many fields that are null."""

    thought_out = ("reasoning",)
    ends_with_last_piece = True
    logprobs_of_thought = True
    json_type = b"application/json"
    stream_type = b"text/event-stream; charset=utf-8"

    @override
    def answer_id(self, digest: bytes, created_s: int) -> str:
        return f"chatcmpl-{digest[:8].hex()}"

    @override
    def call_id(self, name: str, number: int, digest: bytes) -> str:
        return f"chatcmpl-tool-{digest[:8].hex()}"

    @override
    def call_deltas(self, call: MadeCall, number: int, chunk_tokens: int) -> list[tuple[JsonObject, int]]:
        return [({"content": None, "tool_calls": [{**called(call), "index": number}]}, call.tokens)]

    @override
    def choice_fields(
        self, part: Part, finish: str | None, answer: Answer, logprobs: JsonObject | None
    ) -> JsonObject:
        fields: JsonObject = {"logprobs": logprobs, "finish_reason": finish}
        if part == "role":
            return fields
        if part == "finish":
            fields["stop_reason"] = answer.matched or None
        return {**fields, "token_ids": None}

    @override
    def chunk_fields(self, envelope: Envelope, part: Part, *, last: bool, usage: JsonObject | None) -> JsonObject:
        fields: JsonObject = {} if usage is None else {"usage": usage}
        if part == "role":
            return {**fields, "prompt_token_ids": None, "prompt_text": None}
        return {**fields, "system_fingerprint": _FINGERPRINT} if last else fields

    @override
    def message(self, envelope: Envelope, answer: Answer) -> JsonObject:
        nothing = "" if envelope.forced_call else None
        message: JsonObject = {"role": "assistant", "content": answer.text or nothing}
        message |= {"refusal": None, "annotations": None, "audio": None, "function_call": None}
        if answer.calls:
            message["tool_calls"] = [called(call) for call in answer.calls]
        message["reasoning"] = (answer.thought or None) if envelope.shows_thought else None
        return message

    @override
    def choice(self, envelope: Envelope, index: int, answer: Answer, logprobs: JsonObject | None) -> JsonObject:
        return {
            "index": index,
            "message": self.message(envelope, answer),
            "logprobs": logprobs,
            "finish_reason": answer.finish,
            "stop_reason": answer.matched or None,
            "token_ids": None,
            "routed_experts": None,
        }

    @override
    def body(self, envelope: Envelope, choices: list[Json], counts: Counts) -> JsonObject:
        body: JsonObject = {**self.head(envelope, "chat.completion"), "choices": choices}
        body |= {"service_tier": None, "system_fingerprint": _FINGERPRINT}
        body["usage"] = self.usage(counts, envelope.reports, streamed=False)
        for name in ("prompt_logprobs", "prompt_token_ids", "prompt_text"):
            body[name] = None
        for name in ("kv_transfer_params", "ec_transfer_params", "metrics"):
            body[name] = None
        return body

    @override
    def usage(self, counts: Counts, reports: Reports, *, streamed: bool) -> JsonObject:
        details: JsonObject | None = None
        if reports.cached:  # --enable-prompt-tokens-details
            details = {
                "cached_tokens": counts.prompt.cache_read,
                "created_cache_tokens": counts.prompt.written,
            }
            if not streamed:
                details["multimodal_tokens"] = None
        thought: JsonObject | None = {"reasoning_tokens": counts.thought} if reports.reasoning else None
        usage = totals(counts.prompt.total, counts.output)
        usage |= {"prompt_tokens_details": details, "completion_tokens_details": thought}
        # Bodies carry what is not there as null, chunks leave it out.
        return {name: value for name, value in usage.items() if value is not None or not streamed}

    @override
    def running_usage(self, counts: Counts, reports: Reports) -> JsonObject:
        return self.usage(counts, Reports(cached=False, reasoning=reports.reasoning), streamed=True)

    @override
    def reported(self, split: PromptSplit, *, thinks: bool) -> PromptSplit:
        """What is written to an engine's cache has no price and no lifetime: it is fresh input."""
        return PromptSplit(input=split.input + split.written, cache_read=split.cache_read)


# --- words ----------------------------------------------------------------------------------------------------


def _error(refusal: Refusal) -> JsonObject:
    message, param = refusal.message, refusal.param
    if refusal.reason:
        loc = dotted(location(param))
        message = f"1 validation error:\n  {{'type': 'value_error', 'loc': '{loc}', 'msg': {refusal.reason!r}}}"
        param = loc
    return {"message": message, "type": type_of(refusal), "param": param, "code": refusal.status}


def _error_body(refusal: Refusal) -> JsonObject:
    return {"error": "Unauthorized"} if refusal.status == 401 else {"error": _error(refusal)}


def _too_long(prompt_tokens: int, limit_tokens: int, window_tokens: int) -> Refusal:
    return bad_request(
        f"This model's maximum context length is {window_tokens} tokens. However, your prompt contains "
        f"{prompt_tokens} input tokens, which exceeds this limit even without any output tokens. Please reduce "
        "the length of the input prompt.",
        param="input_tokens",
        value=prompt_tokens,
    )


def _limit_too_large(field: str, limit_tokens: int, window_tokens: int) -> Refusal:
    return bad_request(
        f"{field}={limit_tokens} cannot be greater than max_model_len={window_tokens}. Please request fewer "
        "output tokens.",
        param=field,
        value=limit_tokens,
    )


def _unknown_model(model: str, known: tuple[str, ...]) -> Refusal:
    text = f"The model `{model}` does not exist. Valid aliases: {', '.join(known)}."
    return Refusal(text, status=404, param="model")


def _no_messages(given: bool) -> Refusal:
    if not given:
        return Refusal("", param="messages", reason="Field required")
    return Refusal("Cannot apply chat template to an empty conversation. Provide at least one message.")


def _trouble(trouble: Trouble) -> Refusal:
    if trouble.kind == "crash":
        # Recorded when the engine process was killed.
        return Refusal("EngineCore encountered an issue. See stack trace (above) for the root cause.", status=500)
    if trouble.kind == "full":
        return Refusal("The request queue is full.", status=trouble.status or 503)
    status, text = trouble_text(trouble)
    return Refusal(text, status=status, type=trouble_type(trouble, status))


# --- checks ---------------------------------------------------------------------------------------------------


def check_effort(request: ChatRequest, profile: Profile) -> None:
    """Three efforts and `none`; the other words of OpenAI's list pass its schema and fail in the renderer."""
    word = request.raw.get("reasoning_effort")
    if word is not None and word != "none" and word not in profile.efforts:
        raise bad_request(
            f"Kimi K3 supports thinking_effort values: {', '.join(profile.efforts)}",
            param="thinking_effort",
            value=word,
        )


def check_sampling(request: ChatRequest, profile: Profile) -> None:
    """Free within the ranges; several answers only where they can differ."""
    temperature = request.sampling.get("temperature")
    if temperature is not None and temperature < 0:
        value = float(temperature)
        raise bad_request(f"temperature must be non-negative, got {value}.", param="temperature", value=value)
    top_p = request.sampling.get("top_p", Decimal(1))
    if not 0 < top_p <= 1:
        raise bad_request(f"top_p must be in (0, 1], got {float(top_p)}.", param="top_p", value=float(top_p))
    if request.n < 1:
        raise Refusal(f"n must be at least 1, got {request.n}.")
    if request.n > 1 and temperature == 0:
        raise Refusal(f"n must be 1 when using greedy sampling, got {request.n}.")


def check_limit(request: ChatRequest, profile: Profile) -> None:
    """At least one token."""
    if request.limit_tokens == 0:
        field = request.limit_field
        raise bad_request(f"{field} must be at least 1, got 0.", param=field, value=0)


def check_stream_options(request: ChatRequest, profile: Profile) -> None:
    """Only for streams."""
    if request.raw.get("stream_options") is not None and not request.stream:
        raise bad_request("Stream options can only be defined when `stream=True`.", param="stream_options")


def check_tool_choice(request: ChatRequest, profile: Profile) -> None:
    """Any choice but none needs tools, and a named one must be among them."""
    if request.raw.get("tool_choice") in (None, "none"):
        return
    if not request.tools:
        raise bad_request("When using `tool_choice`, `tools` must be set.", param="tool_choice")
    if request.tool_choice == "specified" and request.chosen_tool not in {tool.name for tool in request.tools}:
        raise bad_request(
            "The tool specified in `tool_choice` does not match any of the specified `tools`", param="tool_choice"
        )


def check_continuation(request: ChatRequest, profile: Profile) -> None:
    """A message is continued instead of a new one begun, and the request must say both."""
    if request.raw.get("continue_final_message") and request.raw.get("add_generation_prompt", True):
        raise Refusal("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")


def check_text_only(request: ChatRequest, profile: Profile) -> None:
    """For a model that takes no pictures (see `EmulatorConfig.text_only`)."""
    if any(isinstance(part, Media) for message in request.messages for part in message.parts):
        raise Refusal(f"{request.model or profile.unnamed_model} is not a multimodal model")


def _list_entry(model: Model, window_tokens: int) -> JsonObject:
    permission: JsonObject = {
        "id": f"modelperm-{'0' * 16}",
        "object": "model_permission",
        "created": model.created_s,
        "organization": "*",
        "group": None,
    }
    allowed = {"sampling": True, "logprobs": True, "view": True}
    for name in ("create_engine", "sampling", "logprobs", "search_indices", "view", "fine_tuning"):
        permission[f"allow_{name}"] = allowed.get(name, False)
    return {
        "id": model.id,
        "object": "model",
        "created": model.created_s,
        "owned_by": "vllm",
        "root": "/models/Kimi-K3.1-Pro",
        "parent": None,
        "max_model_len": window_tokens,
        "permission": [{**permission, "is_blocking": False}],
    }


VLLM = Profile(
    name="vllm",
    models=tuple(Model(name, "standard", _STARTED_S, _FREE) for name in OWN_MODELS),
    words=Words(
        error_body=_error_body,
        error_event=lambda refusal, head: {"error": _error(refusal)},
        unknown_path=lambda method, path: {"detail": "Not Found"},
        wrong_method=lambda: {"detail": "Method Not Allowed"},
        wrong_key=lambda key: Refusal("Unauthorized", status=401),
        too_large=lambda: Refusal("Request Entity Too Large", status=413),
        unknown_model=_unknown_model,
        too_long=_too_long,
        limit_too_large=_limit_too_large,
        trouble=_trouble,
        no_messages=_no_messages,
        logprobs_too_many=lambda top, most: bad_request(
            f"Requested sample logprobs of {top}, which is greater than max allowed: {most}",
            param="logprobs",
            value=top,
        ),
    ),
    shape=VllmShape(),
    list_entry=_list_entry,
    checks=(
        check_stream_options,
        check_tool_choice,
        check_continuation,
        check_effort,
        check_sampling,
        check_limit,
    ),
    check_text_only=check_text_only,
    block_tokens=1_536,
    least_limit_tokens=0,
    clamps_limit=True,
    read_thinking=vllm_thinking,
    thought_in=(
        "reasoning",
        "reasoning_content",
    ),  # an incoming reasoning_content is taken where reasoning is not there
    partial_by_message=False,
    unnamed_model=OWN_MODELS[0],
    json_only=True,
    answer_headers=lambda id: ((b"x-request-id", id.removeprefix("chatcmpl-").encode()),),
    forced_finish="stop",
    one_call=True,
    shared_cache=True,
    cache_expires=False,
    done_after_error=True,
    full_is_queue=True,
    crash_says=True,
    bad_finish="abort",
    facilities=frozenset({"tokenize", "version", "load"}),
    version=_VERSION,
    metrics=MetricWords(
        running="vllm:num_requests_running",
        waiting="vllm:num_requests_waiting",
        cache_used="vllm:kv_cache_usage_perc",
        labels='engine="0",model_name="MODEL"',
    ),
    open_paths=frozenset({"/tokenize", "/version", "/metrics", "/load"}),
    bare_health=True,
    token_strings=True,
)
