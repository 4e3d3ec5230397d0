"""Answers as bytes: the JSON body, or the events of a stream with their pace."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from backends.emulator.compose import Answer, MadeCall
from backends.emulator.invoice import PromptSplit
from backends.emulator.player import Headers, Script, Step
from backends.emulator.profile import Profile, UsagePlace
from backends.emulator.tokens import count, pieces
from backends.json import Json, JsonObject, encode

DONE: Final = b"data: [DONE]\n\n"
_JSON_TYPE: Final = (b"content-type", b"application/json; charset=utf-8")


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast an answer comes. Seconds are real ones: what pace 0 has made of them. `events_per_write` joins
    stream events where nothing is waited for."""

    first_s: float
    token_s: float
    least_s: float
    events_per_write: int


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every chunk and body of one answer says besides its content."""

    id: str
    model: str
    created_s: int
    profile: Profile
    usage_places: Sequence[UsagePlace]
    include_usage: bool
    chunk_tokens: int
    top_logprobs: int | None


def usage_object(prompt: PromptSplit, output: int, profile: Profile) -> JsonObject:
    """The usage as the service spells it: cached tokens twice, writes only in the details."""
    details: JsonObject = {"cached_tokens": prompt.cache_read}
    if profile.reports_writes:
        details["cache_write_tokens"] = prompt.written
    return {
        "prompt_tokens": prompt.total,
        "completion_tokens": output,
        "total_tokens": prompt.total + output,
        "cached_tokens": prompt.cache_read,
        "prompt_tokens_details": details,
    }


def ttl_headers(prompt: PromptSplit) -> Headers:
    """Written tokens by lifetime: the only place where the service tells them apart."""
    return (
        (b"msh-usage-cache-write-tokens-5m", str(prompt.write_5m).encode()),
        (b"msh-usage-cache-write-tokens-1h", str(prompt.write_1h).encode()),
    )


def json_script(
    status: int, body: JsonObject, *, headers: Headers = (), delay_s: float = 0.0, tokens: int = 0
) -> Script:
    """An answer in one piece; nothing goes out before it is complete, not even the status."""
    data = encode(body)
    return Script(
        status=status,
        headers=(_JSON_TYPE, (b"content-length", str(len(data)).encode()), *headers),
        steps=(Step(data, delay_s, tokens),),
        billed=tokens > 0,
    )


def folded_script(
    envelope: Envelope, answers: Sequence[Answer], usage: JsonObject, *, headers: Headers, pace: Pace
) -> Script:
    """The unstreamed answer."""
    tokens = sum(answer.tokens for answer in answers)
    body: JsonObject = {
        "id": envelope.id,
        "object": "chat.completion",
        "created": envelope.created_s,
        "model": envelope.model,
        "choices": [_choice(envelope, index, answer) for index, answer in enumerate(answers)],
        "usage": usage,
    }
    delay_s = max(pace.least_s, pace.first_s + pace.token_s * tokens)
    return json_script(200, body, headers=headers, delay_s=delay_s, tokens=tokens)


def streamed_script(
    envelope: Envelope, answers: Sequence[Answer], usage: JsonObject, *, headers: Headers, pace: Pace
) -> Script:
    """The streamed answer: role, thought, then text or calls, the finishing chunk, usage, `[DONE]`."""
    events: list[tuple[bytes, int]] = []
    before = 0
    for index, answer in enumerate(answers):
        final = index == len(answers) - 1
        events += _choice_events(envelope, index, answer, before, usage if final else None)
        before += answer.tokens
    if envelope.include_usage and "extra" in envelope.usage_places:
        events.append((_event(_chunk_head(envelope) + b"[]" + b',"usage":' + encode(usage) + b"}"), before))
    data, tokens = events[-1]
    events[-1] = (data + DONE, tokens)
    return Script(
        status=200,
        headers=((b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache"), *headers),
        steps=_paced(events, pace),
        billed=True,
    )


def _paced(events: Sequence[tuple[bytes, int]], pace: Pace) -> tuple[Step, ...]:
    """Steps with pauses in proportion to their tokens, stretched where the answer has a least duration."""
    whole_s = pace.first_s + pace.token_s * events[-1][1]
    stretch_s = max(0.0, pace.least_s - whole_s) / len(events)
    if whole_s == 0 and stretch_s == 0:
        size = pace.events_per_write
        groups = (events[at : at + size] for at in range(0, len(events), size))
        return tuple(Step(b"".join(data for data, _ in group), 0.0, group[-1][1]) for group in groups)
    steps: list[Step] = []
    before = 0
    for data, tokens in events:
        first_s = 0.0 if steps else pace.first_s
        steps.append(Step(data, first_s + stretch_s + pace.token_s * (tokens - before), tokens))
        before = tokens
    return tuple(steps)


def _choice_events(
    envelope: Envelope, index: int, answer: Answer, before: int, usage: JsonObject | None
) -> list[tuple[bytes, int]]:
    """Events of one choice, each with the tokens generated once it is out; `before` counts earlier choices."""
    head = _event_head(envelope, index)
    plain = b',"finish_reason":null}]' + (b',"usage":null' if envelope.include_usage else b"") + b"}\n\n"
    events = [(head + b'{"role":"assistant","content":""}' + plain, before)]
    at = before
    for text, tokens in pieces(answer.thought, envelope.chunk_tokens):
        events.append((head + _thought_delta(envelope.profile, text) + plain, before + tokens))
        at = before + tokens
    for text, tokens in pieces(answer.text, envelope.chunk_tokens):
        logprobs = b"" if envelope.top_logprobs is None else b',"logprobs":' + encode(_logprobs(envelope, text))
        events.append((head + b'{"content":' + encode(text) + b"}" + logprobs + plain, at + tokens))
    at += count(answer.text)
    for number, call in enumerate(answer.calls):
        events += _call_events(call, number, at, envelope.chunk_tokens, lambda delta: head + delta + plain)
        at = events[-1][1]
    events.append((_finish_event(envelope, head, answer, usage), before + answer.tokens))
    return events


def _thought_delta(profile: Profile, text: str) -> bytes:
    said = encode(text)
    members = [b'"' + name.encode() + b'":' + said for name in profile.thought_out]
    return b"{" + b",".join(members) + b"}"


def _call_events(
    call: MadeCall, number: int, before: int, chunk_tokens: int, event: Callable[[bytes], bytes]
) -> list[tuple[bytes, int]]:
    """The call's id and name first, then its arguments in pieces."""
    opening: JsonObject = {
        "index": number,
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": ""},
    }
    at = before + call.frame_tokens
    events = [(event(encode({"tool_calls": [opening]})), at)]
    for text, tokens in pieces(call.arguments, chunk_tokens):
        piece: JsonObject = {"index": number, "function": {"arguments": text}}
        events.append((event(encode({"tool_calls": [piece]})), at + tokens))
    return events


def _finish_event(envelope: Envelope, head: bytes, answer: Answer, usage: JsonObject | None) -> bytes:
    said = b"" if usage is None else b',"usage":' + encode(usage)
    in_choice = said if "choice" in envelope.usage_places else b""
    on_top = said if "finish" in envelope.usage_places else b""
    if envelope.include_usage and not on_top:
        on_top = b',"usage":null'
    return head + b'{},"finish_reason":"' + answer.finish.encode() + b'"' + in_choice + b"}]" + on_top + b"}\n\n"


def _chunk_head(envelope: Envelope) -> bytes:
    said: JsonObject = {
        "id": envelope.id,
        "object": "chat.completion.chunk",
        "created": envelope.created_s,
        "model": envelope.model,
    }
    return encode(said)[:-1] + b',"choices":'


def _event_head(envelope: Envelope, index: int) -> bytes:
    return b"data: " + _chunk_head(envelope) + b'[{"index":' + str(index).encode() + b',"delta":'


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def _choice(envelope: Envelope, index: int, answer: Answer) -> JsonObject:
    message: JsonObject = {"role": "assistant", "content": answer.text}
    message.update({name: answer.thought for name in envelope.profile.thought_out})
    if answer.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.calls
        ]
    choice: JsonObject = {"index": index, "message": message, "finish_reason": answer.finish}
    if envelope.top_logprobs is not None:
        choice["logprobs"] = _logprobs(envelope, answer.text)
    return choice


def _logprobs(envelope: Envelope, text: str) -> JsonObject:
    """Made-up log probabilities with exact digits, one a token of the text."""
    content: list[Json] = []
    for token, _ in pieces(text, 1):
        data = list(token.encode("utf-8", "surrogatepass"))
        chance = -Decimal(1 + sum(data) % 997).scaleb(-4)
        likely: list[Json] = [
            {"token": token, "logprob": chance - rank, "bytes": [*data]}
            for rank in range(envelope.top_logprobs or 0)
        ]
        content.append({"token": token, "logprob": chance, "bytes": [*data], "top_logprobs": likely})
    return {"content": content}
