"""What one answer has shown so far: usage reports, the answering model, delivered bytes, the upstream's ids."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from backends.json import JsonObject
from backends.reader import Chunk

_ID_HEADERS = ("x-trace-id", "x-generation-id", "x-request-id", "msh-request-id")


@dataclass(slots=True)
class Tally:
    """Counts over the chunks of one answer. The last usage that was not null wins, wherever it stood; sums would
    multiply cumulative reports."""

    usage: JsonObject | None = None
    model: str | None = None
    upstream_id: str | None = None
    upstream_request_id: str | None = None
    text_bytes: int = 0
    thought_bytes: int = 0
    finish_reasons: dict[int, str] = field(default_factory=dict)
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Notes the upstream's status line and headers."""
        self.status, self.headers = status, headers
        self.upstream_request_id = next((headers[name] for name in _ID_HEADERS if name in headers), None)

    def add(self, chunk: Chunk) -> None:
        """Notes one chunk."""
        self.model = self.model or chunk.model
        self.upstream_id = self.upstream_id or chunk.id
        self.text_bytes += chunk.text_bytes
        self.thought_bytes += chunk.thought_bytes
        if chunk.usage is not None:
            self.usage = chunk.usage
        for index in chunk.finished:
            self.finish_reasons[index] = _finish_reason(chunk.data, index)

    def whole(self, body: JsonObject, usage: JsonObject | None) -> None:
        """Notes an answer that came as one body."""
        model, answer_id = body.get("model"), body.get("id")
        self.model = model if isinstance(model, str) else None
        self.upstream_id = answer_id if isinstance(answer_id, str) else None
        self.usage = usage

    @property
    def delivered_bytes(self) -> int:
        """Text, thought and arguments, in bytes of UTF-8."""
        return self.text_bytes + self.thought_bytes

    @property
    def ran_out_thinking(self) -> bool:
        """The output limit was used up by the thought: `length` without any text."""
        return "length" in self.finish_reasons.values() and self.text_bytes == 0


def _finish_reason(data: JsonObject, index: int) -> str:
    choices = data.get("choices")
    for choice in choices if isinstance(choices, list) else []:
        if isinstance(choice, dict) and choice.get("index", 0) == index:
            return str(choice.get("finish_reason"))
    return ""
