"""The stream as the client sees it: a pure state machine between upstream chunks and outgoing events.

Role-only chunks are held back until the first content; the finishing chunk is held until the usage is known, so
that usage stands in `choices[0].usage` where Moonshot's own clients read it. The extra chunk with `choices: []`
is sent only where the client asked for usage.
"""

from dataclasses import dataclass, field

from backends.json import Json, JsonObject, as_object, encode

DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"


def event(data: JsonObject) -> bytes:
    """One server-sent event."""
    return b"data: " + encode(data) + b"\n\n"


@dataclass(slots=True)
class Shaper:
    """Shapes one stream. `n` is the number of choices asked for; `wants_usage` is include_usage; `wants_meta` is
    x-kimi-meta. `model` is the public name of what answers."""

    n: int
    wants_usage: bool
    wants_meta: bool
    model: str
    created: int
    answer_id: str
    service_tier: str | None = None  # the tier that serves, for a client that named one
    held_role: list[JsonObject] = field(default_factory=list)
    held_finish: JsonObject | None = None
    finished: set[int] = field(default_factory=set)
    committed: bool = False
    identity: JsonObject = field(default_factory=dict)
    _swap: tuple[str, bytes, bytes] | None = None

    @property
    def complete(self) -> bool:
        """Every choice asked for has its finish reason: only usage and the end mark may follow."""
        return len(self.finished) >= self.n

    def add(self, data: JsonObject, *, commits: bool, finished: tuple[int, ...], delivers: bool) -> list[bytes]:
        """The events to send for one chunk of the upstream; none while it has to be held.

        `delivers` says that the chunk carries text, thought or a tool call, not a mere finish reason.
        """
        if self.complete and not delivers:
            return []  # some upstreams repeat the finish reason beside the usage
        self._identify(data)
        if not commits and not self.committed:
            self.held_role.append(data)
            return []
        self.committed = True
        out = [event(held) for held in self.held_role]
        self.held_role = []
        if self.held_finish is not None and data.get("choices"):
            out.append(event(self.held_finish))
            self.held_finish = None
        self.finished.update(finished)
        if finished:
            self.held_finish = data
        elif data.get("choices"):
            out.append(event(data))
        return out

    def plain(self, raw: bytes, model: str) -> bytes | None:
        """The event of a chunk that passes as it came but for its model's name; None where it cannot: nothing was
        sent yet, something is held, or the client wants a field that it does not have."""
        if not self.committed or self.finished or self.held_finish is not None or self.service_tier is not None:
            return None
        if model != self.model:
            old, new = self._names(model)
            if raw.count(old) != 1:  # outside of a text there is no such sequence but the name, whatever is said
                return None
            raw = raw.replace(old, new)
        return b"data: %b\n\n" % raw

    def _names(self, model: str) -> tuple[bytes, bytes]:
        """How an upstream writes its model's name in a chunk, and how it is written here."""
        if self._swap is None or self._swap[0] != model:
            self._swap = model, b'"model":' + encode(model), b'"model":' + encode(self.model)
        return self._swap[1:]

    def restart(self) -> None:
        """Drops what a failed attempt left held; nothing of it has content."""
        self.held_role, self.held_finish, self.identity = [], None, {}
        self.finished.clear()

    def end(self, usage: JsonObject | None, meta: JsonObject) -> list[bytes]:
        """The last events of a clean end: the finishing chunk with its usage, the usage chunk, `[DONE]`."""
        out = []
        if self.held_finish is not None:
            self._put_usage(self.held_finish, usage)
            if self.wants_meta and not self.wants_usage:
                self.held_finish["kimi"] = meta
            out.append(event(self.held_finish))
            self.held_finish = None
        if self.wants_usage:
            out.append(event({**self.identity, "choices": [], "usage": usage, "kimi": meta}))
        out.append(DONE)
        return out

    def flush(self) -> list[bytes]:
        """What is still held when the stream does not end cleanly: a finishing chunk that did arrive."""
        if self.held_finish is None:
            return []
        held, self.held_finish = self.held_finish, None
        return [event(held)]

    def keepalive_chunk(self) -> bytes:
        """An empty delta, for clients whose idle timer a comment does not reset."""
        if not self.identity:
            self._identify({})
        choice: JsonObject = {"index": 0, "delta": {}, "finish_reason": None}
        return event({**self.identity, "choices": [choice]})

    def _identify(self, data: JsonObject) -> None:
        """Gives a chunk the fields typed clients need, and the public model name."""
        data.setdefault("id", self.answer_id)
        data.setdefault("object", "chat.completion.chunk")
        data.setdefault("created", self.created)
        data["model"] = self.model
        if self.service_tier is not None:
            data["service_tier"] = self.service_tier
        if not self.identity:
            self.identity = {name: data[name] for name in ("id", "object", "created", "model")}

    @staticmethod
    def _put_usage(chunk: JsonObject, usage: JsonObject | None) -> None:
        choices: Json = chunk.get("choices")
        if usage is None or not isinstance(choices, list) or not choices:
            return
        first = as_object(choices[0])
        if first is not None:
            first["usage"] = usage
