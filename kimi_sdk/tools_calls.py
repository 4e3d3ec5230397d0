"""Tool calls and their results as values, and how they stand in messages. Pure."""

from dataclasses import dataclass, field
from typing import Final

from backends.json import Json, JsonError, JsonObject, as_list, as_object, as_str, decode, encode

_BLANK_ID: Final = "call"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The model's wish to have a function called. `arguments` is its JSON as the model wrote it, valid or not.

    `id` joins call and result; it is unique within one turn only.
    """

    id: str
    name: str
    arguments: str

    @property
    def parsed(self) -> Json:
        """The arguments as JSON, numbers with a fraction as `Decimal`; None where they are none."""
        try:
            return decode(self.arguments.encode("utf-8", "surrogatepass"))
        except JsonError:
            return None

    def as_json(self) -> JsonObject:
        """The call as it stands in an assistant's message."""
        function: JsonObject = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call came to: `content` is what the model reads.

    `is_error` where the function was not called or failed; `error` is then its exception, where there is one.
    """

    call: ToolCall
    content: str
    is_error: bool = False
    error: BaseException | None = field(default=None, repr=False, compare=False)

    def as_message(self) -> JsonObject:
        """The turn that answers the call."""
        return {"role": "tool", "tool_call_id": self.call.id, "content": self.content}


def read_calls(message: JsonObject) -> tuple[ToolCall, ...]:
    """The calls of an assistant's message in their order. Fields that are missing count as empty."""
    return tuple(_read(as_object(value) or {}) for value in as_list(message.get("tool_calls")))


def _read(call: JsonObject) -> ToolCall:
    function = as_object(call.get("function")) or {}
    arguments = function.get("arguments")
    # Engines were seen to give arguments as an object; the text is what the history keeps.
    text = arguments if isinstance(arguments, str) else "" if arguments is None else encode(arguments).decode()
    return ToolCall(as_str(call.get("id")) or "", as_str(function.get("name")) or "", text)


def with_distinct_ids(message: JsonObject) -> JsonObject:
    """The message with an id of its own for each call; the very same object where that is so already.

    A blank id, or one that stands twice in a turn, would give a result to the wrong call. The first of several
    keeps it. Ids of other turns do not matter: each server reads them turn by turn.
    """
    calls = [as_object(value) or {} for value in as_list(message.get("tool_calls"))]
    ids = [as_str(call.get("id")) or "" for call in calls]
    if all(id.strip() for id in ids) and len(set(ids)) == len(ids):
        return message
    taken = {id for id in ids if id.strip()}
    given: set[str] = set()
    made: list[Json] = []
    for call, id in zip(calls, ids, strict=True):
        own = id if id.strip() and id not in given else _free(id.strip() or _BLANK_ID, taken)
        taken.add(own)
        given.add(own)
        made.append(call if own == id else {**call, "id": own})
    return {**message, "tool_calls": made}


def _free(stem: str, taken: set[str]) -> str:
    number = 2 if stem in taken else 1
    while f"{stem}_{number}" in taken:
        number += 1
    return f"{stem}_{number}"
