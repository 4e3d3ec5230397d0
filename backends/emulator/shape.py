"""What a dialect's answers look like: ids, fields, deltas and usage.

`Shape` is Moonshot's, the plainest; a dialect's file overrides what differs. Nothing here knows of bytes or pace.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from backends.emulator.calls import MadeCall
from backends.emulator.compose import Answer
from backends.emulator.invoice import PromptSplit
from backends.emulator.prices import Sheet
from backends.emulator.tokens import pieces
from backends.json import Json, JsonObject

Part = Literal["head", "role", "thought", "text", "call", "finish", "usage", "done", "comment", "error", "body"]
"""What a step of an answer carries; `body` is an unstreamed answer, `head` nothing but status and headers."""
UsagePlace = Literal["choice", "finish", "extra"]
"""Where a stream's usage stands: in the finishing chunk's choice, at that chunk's top level, or in one more chunk
without choices (where `stream_options.include_usage` asks for it, or the dialect always sends it)."""


@dataclass(frozen=True, slots=True)
class Reports:
    """Which counts a deployment reports; an engine leaves them out where its flag is not set."""

    cached: bool = True
    reasoning: bool = True


@dataclass(frozen=True, slots=True)
class Counts:
    """What an answer took, in tokens. `thought` is the part of `output` that is thought; `prices` are those it is
    charged with, `byok` says that the operator's own key at the provider paid for it."""

    prompt: PromptSplit
    output: int
    thought: int
    thinks: bool
    prices: Sheet
    byok: bool = False


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every chunk and body of one answer says besides its content, and how the request wants it sent.

    `forced_call`: a tool choice forced the call. `host` is the provider behind a reseller.
    """

    id: str
    model: str
    created_s: int
    usage_places: Sequence[UsagePlace]
    include_usage: bool
    chunk_tokens: int
    top_logprobs: int | None
    reports: Reports = Reports()
    continuous_usage: bool = False
    shows_thought: bool = True
    forced_call: bool = False
    host: str = ""


class Shape:
    """Moonshot's answers; the class attributes state facts, the methods make JSON objects."""

    thought_out: tuple[str, ...] = ("reasoning_content",)
    ends_with_last_piece = False
    """At the output limit the finish reason stands on the last piece of text, not on a chunk of its own."""
    always_reports = False
    """Streams end with a usage chunk whatever the request says."""
    logprobs_of_thought = False
    json_type = b"application/json; charset=utf-8"
    stream_type = b"text/event-stream"

    def answer_id(self, digest: bytes, created_s: int) -> str:
        """The id of an answer, from 16 bytes that are its own."""
        return f"chatcmpl-{digest[:12].hex()}"

    def call_id(self, name: str, number: int, digest: bytes) -> str:
        """The id of a tool call; K3's are unique within the turn only."""
        return f"{name}:{number}"

    def head(self, envelope: Envelope, kind: str) -> JsonObject:
        """The first fields of a body (`chat.completion`) or chunk (`chat.completion.chunk`)."""
        return {"id": envelope.id, "object": kind, "created": envelope.created_s, "model": envelope.model}

    # --- streams ----------------------------------------------------------------------------------------------

    def role_delta(self) -> JsonObject:
        """The first delta, without any content."""
        return {"role": "assistant", "content": ""}

    def thought_delta(self, text: str) -> JsonObject:
        """A piece of thought."""
        return {name: text for name in self.thought_out}

    def text_delta(self, text: str) -> JsonObject:
        """A piece of text."""
        return {"content": text}

    def finish_delta(self) -> JsonObject:
        """The delta beside the finish reason."""
        return {}

    def call_deltas(self, call: MadeCall, number: int, chunk_tokens: int) -> list[tuple[JsonObject, int]]:
        """The deltas of one call, each with the call's tokens once it is out: id and name, then arguments."""
        opening = {"index": number, **called(call, arguments="")}
        deltas: list[tuple[JsonObject, int]] = [({"tool_calls": [opening]}, call.frame_tokens)]
        for text, tokens in pieces(call.arguments, chunk_tokens):
            piece: JsonObject = {"index": number, "function": {"arguments": text}}
            deltas.append(({"tool_calls": [piece]}, call.frame_tokens + tokens))
        return deltas

    def choice_fields(
        self, part: Part, finish: str | None, answer: Answer, logprobs: JsonObject | None
    ) -> JsonObject:
        """What stands beside a delta in its choice."""
        held: JsonObject = {} if logprobs is None else {"logprobs": logprobs}
        return {**held, "finish_reason": finish}

    def chunk_fields(self, envelope: Envelope, part: Part, *, last: bool, usage: JsonObject | None) -> JsonObject:
        """What follows the choices of a chunk. `last`: only `[DONE]` comes after it; `usage`: so far."""
        return {"usage": None} if envelope.include_usage else {}

    # --- whole answers ----------------------------------------------------------------------------------------

    def message(self, envelope: Envelope, answer: Answer) -> JsonObject:
        """The message of a whole answer."""
        message: JsonObject = {"role": "assistant", "content": answer.text}
        message.update(self.thought_delta(answer.thought))
        if answer.calls:
            message["tool_calls"] = [called(call) for call in answer.calls]
        return message

    def choice(self, envelope: Envelope, index: int, answer: Answer, logprobs: JsonObject | None) -> JsonObject:
        """A choice of a whole answer."""
        choice: JsonObject = {"index": index, "message": self.message(envelope, answer)}
        choice["finish_reason"] = answer.finish
        if logprobs is not None:
            choice["logprobs"] = logprobs
        return choice

    def body(self, envelope: Envelope, choices: list[Json], counts: Counts) -> JsonObject:
        """A whole answer."""
        head = self.head(envelope, "chat.completion")
        return {**head, "choices": choices, "usage": self.usage(counts, envelope.reports, streamed=False)}

    # --- usage ------------------------------------------------------------------------------------------------

    def usage(self, counts: Counts, reports: Reports, *, streamed: bool) -> JsonObject:
        """The usage as the service spells it: cached tokens twice, writes only in the details."""
        prompt = counts.prompt
        return {
            **totals(prompt.total, counts.output),
            "cached_tokens": prompt.cache_read,
            "prompt_tokens_details": {
                "cached_tokens": prompt.cache_read,
                "cache_write_tokens": prompt.written,
            },
        }

    def running_usage(self, counts: Counts, reports: Reports) -> JsonObject:
        """The usage so far, for streams that report it on every chunk."""
        return self.usage(counts, reports, streamed=True)

    def reported(self, split: PromptSplit, *, thinks: bool) -> PromptSplit:
        """The split as the usage counts it, clamped to what can be: what the invoice and the log show."""
        return split


def called(call: MadeCall, *, arguments: str | None = None) -> JsonObject:
    """A tool call as an object; its own arguments unless others are given."""
    given = call.arguments if arguments is None else arguments
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": given}}


def totals(prompt: int, output: int) -> JsonObject:
    """The three counts that every dialect has."""
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
