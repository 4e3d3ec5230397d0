"""SGLang with its kimi_k3 parsers, recorded and read in 0.5.23."""

from typing import Final

from typing_extensions import override

from backends.emulator.calls import MadeCall
from backends.emulator.compose import Answer
from backends.emulator.engine_words import OWN_MODELS, location, trouble_text, trouble_type, type_of
from backends.emulator.errors import Refusal
from backends.emulator.invoice import PromptSplit
from backends.emulator.prices import sheet
from backends.emulator.profile import MetricWords, Model, Profile, Trouble, Words
from backends.emulator.request import ChatRequest, Media
from backends.emulator.shape import Counts, Envelope, Part, Reports, Shape, called, totals
from backends.emulator.thinking import sglang_thinking
from backends.json import Json, JsonObject

_FREE: Final = sheet(input="0", cache_read="0", write_5m="0", write_1h="0", output="0")
_STARTED_S: Final = 1_796_040_000
_STOP_TOKEN: Final = 6  # of the recorded model's vocabulary
_CALLS_END: Final = "<|close|>tools<|sep|>"
_OPENING_TOKENS: Final = 3
"""The opening of the thought: part of the prompt, and missing from its count."""
_MARK_TOKENS: Final = 5
"""The marks around the thought: not thought, and part of its count (42 where vLLM says 37)."""
_ROLES: Final = ("system", "assistant", "tool", "function", "developer", "latest_reminder", "root")


class SglangShape(Shape):
    """`reasoning_content`, null beside content; calls in one delta; usage with quirks of its own."""

    logprobs_of_thought = True
    json_type = b"application/json"
    stream_type = b"text/event-stream; charset=utf-8"

    @override
    def answer_id(self, digest: bytes, created_s: int) -> str:
        return digest.hex()

    @override
    def role_delta(self) -> JsonObject:
        return {"reasoning_content": None, "role": "assistant", "content": ""}

    @override
    def text_delta(self, text: str) -> JsonObject:
        return {"reasoning_content": None, "content": text}

    @override
    def finish_delta(self) -> JsonObject:
        return {"reasoning_content": None}

    @override
    def call_deltas(self, call: MadeCall, number: int, chunk_tokens: int) -> list[tuple[JsonObject, int]]:
        delta: JsonObject = {"role": None, "content": None, "reasoning_content": None}
        delta["tool_calls"] = [{**called(call), "index": number}]
        return [(delta, call.tokens)]

    @override
    def choice_fields(
        self, part: Part, finish: str | None, answer: Answer, logprobs: JsonObject | None
    ) -> JsonObject:
        matched = _matched(answer, _CALLS_END) if part == "finish" else None
        return {"logprobs": logprobs, "finish_reason": finish, "matched_stop": matched}

    @override
    def chunk_fields(self, envelope: Envelope, part: Part, *, last: bool, usage: JsonObject | None) -> JsonObject:
        if usage is not None and part != "role":
            return {"usage": usage}
        return {"usage": None} if part == "call" else {}

    @override
    def message(self, envelope: Envelope, answer: Answer) -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": answer.text}
        message["reasoning_content"] = answer.thought or None
        if answer.calls:
            message["tool_calls"] = [{**called(call), "index": index} for index, call in enumerate(answer.calls)]
        return message

    @override
    def choice(self, envelope: Envelope, index: int, answer: Answer, logprobs: JsonObject | None) -> JsonObject:
        return {
            "index": index,
            "message": self.message(envelope, answer),
            "logprobs": logprobs,
            "finish_reason": answer.finish,
            "matched_stop": _matched(answer, None),
        }

    @override
    def body(self, envelope: Envelope, choices: list[Json], counts: Counts) -> JsonObject:
        weights: JsonObject = {"version": "default", "start": 0, "end": counts.output}
        return {
            **super().body(envelope, choices, counts),
            "metadata": {"weight_version": "default", "weight_versions": [weights]},
        }

    @override
    def usage(self, counts: Counts, reports: Reports, *, streamed: bool) -> JsonObject:
        prompt = _counted(counts.prompt, thinks=counts.thinks)
        thinks = counts.thinks and reports.reasoning
        # One where nothing was generated at all, as recorded with max_tokens 0.
        thought = max(1, min(counts.output, counts.thought + _MARK_TOKENS)) if thinks else 0
        cached: JsonObject | None = {"cached_tokens": counts.prompt.cache_read} if reports.cached else None
        return {
            **totals(prompt, counts.output),
            "prompt_tokens_details": cached,  # null without --enable-cache-report
            "reasoning_tokens": thought,
            "completion_tokens_details": {"reasoning_tokens": thought} if thinks else None,
        }

    @override
    def reported(self, split: PromptSplit, *, thinks: bool) -> PromptSplit:
        """Without the tokens that it leaves out; no more cached than there are."""
        prompt = _counted(split, thinks=thinks)
        cached = min(split.cache_read, prompt)
        return PromptSplit(input=prompt - cached, cache_read=cached)


def _counted(split: PromptSplit, *, thinks: bool) -> int:
    return max(0, split.total - _OPENING_TOKENS) if thinks else split.total


def _matched(answer: Answer, after_calls: str | None) -> Json:
    """What ended the answer: the id of the end token, a stop sequence, or the end of the calls."""
    match answer.finish:
        case "tool_calls":
            return after_calls
        case "stop":
            return answer.matched or _STOP_TOKEN
        case _:
            return None


# --- words ----------------------------------------------------------------------------------------------------


def _error(refusal: Refusal) -> JsonObject:
    """Flat; the words of its validation library come with the file and line of the server, as recorded."""
    message = refusal.message
    if refusal.reason:
        finding = f"{{'type': 'value_error', 'loc': {location(refusal.param)}, 'msg': {refusal.reason!r}}}"
        message = (
            f'1 validation error:\n  {finding}\n\n  File "/sgl-workspace/sglang/python/sglang/srt/entrypoints/'
            f'http_server.py", line 1870, in openai_v1_chat_completions\n    POST /v1/chat/completions [{finding}]'
        )
    return {
        "object": "error",
        "message": message,
        "type": type_of(refusal),
        "param": None,
        "code": refusal.status,
    }


def _error_body(refusal: Refusal) -> JsonObject:
    return {"error": "Unauthorized"} if refusal.status == 401 else _error(refusal)


def _too_long(prompt_tokens: int, limit_tokens: int, window_tokens: int) -> Refusal:
    if limit_tokens == 0:
        return Refusal(
            f"The input ({prompt_tokens} tokens) is longer than the model's context length "
            f"({window_tokens} tokens)."
        )
    return Refusal(
        f"Requested token count exceeds the model's maximum context length of {window_tokens} tokens. You "
        f"requested a total of {prompt_tokens + limit_tokens} tokens: {prompt_tokens} tokens from the input "
        f"messages and {limit_tokens} tokens for the completion. Please reduce the number of tokens in the input "
        "messages or the completion to fit within the limit."
    )


def _limit_too_large(field: str, limit_tokens: int, window_tokens: int) -> Refusal:
    # Whichever field it was, and without a space after the full stop.
    return Refusal(
        f"max_completion_tokens is too large: {limit_tokens}.This model supports at most {window_tokens} "
        "completion tokens."
    )


def _no_messages(given: bool) -> Refusal:
    if not given:
        return Refusal("", param="messages", reason="Field required")
    return Refusal("Messages cannot be empty.")


def _trouble(trouble: Trouble) -> Refusal:
    if trouble.kind == "full":
        return Refusal("The request queue is full.", status=trouble.status or 503, type="503")
    status, text = trouble_text(trouble)
    return Refusal(text, status=status, type=trouble_type(trouble, status))


def _error_event(refusal: Refusal, head: JsonObject) -> JsonObject:
    error = _error(refusal)
    if refusal.type == "503":
        error["type"] = "SERVICE_UNAVAILABLE"  # the same refusal has this other name in a stream
    return {"error": error}


# --- checks ---------------------------------------------------------------------------------------------------


def check_roles(request: ChatRequest, profile: Profile) -> None:
    """A list of its own."""
    for at, message in enumerate(request.messages):
        if message.role.lower() not in profile.roles:
            known = ", ".join(f"'{role}'" for role in _ROLES)
            reason = f"Value error, 'role' must be one of {known} (case-insensitive)."
            raise Refusal("", param=f"messages[{at}].role", reason=reason)


def check_sampling(request: ChatRequest, profile: Profile) -> None:
    """Free within the ranges."""
    temperature = request.sampling.get("temperature")
    if temperature is not None and temperature < 0:
        raise Refusal(f"temperature must be a non-negative finite number, got {float(temperature)}.")
    top_p = request.sampling.get("top_p")
    if top_p is not None and not 0 < top_p <= 1:
        raise Refusal(f"top_p must be in (0, 1], got {float(top_p)}.")
    if request.n < 1:
        raise Refusal("range() arg 3 must not be zero", type="BadRequest")


def check_tool_choice(request: ChatRequest, profile: Profile) -> None:
    """`required` needs tools, and a named one must be among them."""
    if request.tool_choice == "required" and not request.tools:
        raise Refusal("Tools cannot be empty if tool choice is set to required.")
    if request.tool_choice == "specified" and request.chosen_tool not in {tool.name for tool in request.tools}:
        raise Refusal(f"Tool '{request.chosen_tool}' not found in tools list.")


def check_text_only(request: ChatRequest, profile: Profile) -> None:
    """For a model that takes no pictures (see `EmulatorConfig.text_only`)."""
    for message in request.messages:
        for part in message.parts:
            if isinstance(part, Media):
                raise Refusal(f"Model only supports text input; received unsupported content type '{part.kind}'.")


def _list_entry(model: Model, window_tokens: int) -> JsonObject:
    return {
        "id": model.id,
        "object": "model",
        "created": model.created_s,
        "owned_by": "sglang",
        "root": model.id,
        "parent": None,
        "max_model_len": window_tokens,
    }


SGLANG = Profile(
    name="sglang",
    # It has one name and answers to any.
    models=(Model(OWN_MODELS[1], "standard", _STARTED_S, _FREE),),
    words=Words(
        error_body=_error_body,
        error_event=_error_event,
        unknown_path=lambda method, path: {"detail": "Not Found"},
        wrong_method=lambda: {"detail": "Method Not Allowed"},
        wrong_key=lambda key: Refusal("Unauthorized", status=401),
        too_large=lambda: Refusal("Request Entity Too Large", status=413),
        unknown_model=lambda model, known: Refusal(f"The model `{model}` does not exist.", status=404),
        too_long=_too_long,
        limit_too_large=_limit_too_large,
        trouble=_trouble,
        no_messages=_no_messages,
        logprobs_too_many=lambda top, most: Refusal(f"top_logprobs must be {most} or less"),
    ),
    shape=SglangShape(),
    list_entry=_list_entry,
    checks=(check_roles, check_sampling, check_tool_choice),
    check_text_only=check_text_only,
    least_limit_tokens=0,
    read_thinking=sglang_thinking,
    # `reasoning` is dropped without a word.
    partial_by_message=False,
    roles=(*_ROLES, "user"),
    unnamed_model="default",
    takes_any_model=True,
    max_top_logprobs=1_000,
    json_only=True,
    one_call=True,
    leaks_calls=True,
    shared_cache=True,
    cache_expires=False,
    done_after_error=True,
    full_is_queue=True,
    full_in_stream=True,
    bad_finish="abort",
    facilities=frozenset({"tokenize", "server_info", "banner", "loads"}),
    metrics=MetricWords(
        running="sglang:num_running_reqs",
        waiting="sglang:num_queue_reqs",
        cache_used="sglang:token_usage",
        labels='engine_type="unified",model_name="MODEL",moe_ep_rank="0",pp_rank="0",tp_rank="0"',
    ),
    open_paths=frozenset({"/metrics"}),
    version="0.5.23",
    bare_health=True,
)
