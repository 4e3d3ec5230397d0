"""A chat request as Kimi K3's encoder frames it (XTML): what each message costs besides its text.

Every tag is a control token, a name and `<|sep|>`; text of users and tools is encoded as ordinary text, piece by
piece, so it can neither form control tokens nor merge with the frame. The frame is therefore a sum of constants
and needs no vocabulary. Names and values are checked against the real one by `tests/pricing/test_xtml.py`; of the
encoder's fixed sentences only the length is here, measured once.

Source: `kimi-api-facts.md` 6.3, read in the encoder of K3. For K3.1 it is inferred. K2.x frames differently.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Request = Mapping[str, object]

TAG_TOKENS: Final = 3  # <|open|> or <|close|>, the name, <|sep|>
ATTRIBUTE_TOKENS: Final = 3  # its name, `="`, `"`; the value comes on top
MESSAGE_END_TOKENS: Final = TAG_TOKENS + 1  # </message> and <|end_of_msg|>

VALUE_TOKENS: Final[Mapping[str, int]] = {
    "array": 1,
    "assistant": 1,
    "boolean": 1,
    "null": 1,
    "number": 1,
    "object": 1,
    "response-format": 2,
    "string": 1,
    "system": 1,
    "thinking-effort": 3,
    "tool": 1,
    "tool-choice": 2,
    "tool-declare": 3,
    "user": 1,
}
"""Attribute values of the encoder's own."""

# Tokens of the sentences in the encoder's own system messages; those with JSON after them end in a line break.
EFFORT_TOKENS: Final[Mapping[str, int]] = {"low": 51, "medium": 51, "high": 51, "max": 50}
CHOICE_TOKENS: Final[Mapping[str, int]] = {"required": 20, "none": 22}
DECLARE_TOKENS: Final = 17
EXTEND_TOKENS: Final = 38
JSON_OBJECT_TOKENS: Final = 31
JSON_SCHEMA_TOKENS: Final = 43
_JSON_TAIL: Final = "\n```"  # encoded together with the JSON before it: `}` and the line break merge

_DIGITS_PER_TOKEN: Final = 3
_PLAIN_ROLES: Final = ("user", "system", "developer")
_DETAIL_TEXTS: Final = ("text", "summary")


class ChatError(ValueError):
    """The request has not the shape of a chat; `path` is such as `messages[3].content`."""

    def __init__(self, path: str, wanted: str) -> None:
        super().__init__(f"{path} must be {wanted}")
        self.path = path


@dataclass(frozen=True, slots=True)
class Prompt:
    """A framed chat. Its tokens are `frame_tokens` plus those of each text, encoded alone as ordinary text.

    `unsent_tokens`: the effort message that some servers add where the request names no effort; not in
    `frame_tokens`. `media_parts`: images, video and the like, whose tokens are not published; nothing of them is
    in the texts. `doubts`: what the model's encoder would refuse or what is not known of it.
    """

    frame_tokens: int
    texts: Sequence[str]
    media_parts: int = 0
    unsent_tokens: int = 0
    doubts: tuple[str, ...] = ()


def frame_chat(request: Request) -> Prompt:
    """The body of a chat completions request, framed. Raises `ChatError` where it has not the shape of one.

    Numbers with a fraction may be `Decimal` or `float`. Never raises for what only the encoder would refuse: such
    a message is counted as it stands and named in `doubts`.
    """
    writer = _Writer()
    thinks = not _thinking_off(request)
    tools = _list(request.get("tools"), "tools")
    if tools:
        writer.system("tool-declare", DECLARE_TOKENS, _sorted_json(tools, "tools") + _JSON_TAIL)
    unsent = _write_effort(writer, request) if thinks else 0
    messages = [_object(entry, f"messages[{at}]") for at, entry in _numbered(request.get("messages"), "messages")]
    turns = _Turns(writer, thinks=thinks)
    for at, message in enumerate(messages):
        turns.write(message, f"messages[{at}]", is_last=at == len(messages) - 1)
    _write_choice(writer, request.get("tool_choice"))
    _write_format(writer, request.get("response_format"))
    if not turns.continues:
        writer.open("assistant")
        writer.open()
    return Prompt(writer.frame_tokens, writer.texts, writer.media_parts, unsent, tuple(writer.doubts))


class _Writer:
    """Sums up the frame and collects the texts in it."""

    def __init__(self) -> None:
        self.frame_tokens = 0
        self.texts: list[str] = []
        self.media_parts = 0
        self.doubts: list[str] = []

    def open(self, *values: str | int) -> None:
        """An opening tag with one attribute per value."""
        self.frame_tokens += TAG_TOKENS + ATTRIBUTE_TOKENS * len(values)
        for value in values:
            if isinstance(value, int):
                self.frame_tokens += -(-len(str(value)) // _DIGITS_PER_TOKEN)
            elif value in VALUE_TOKENS:
                self.frame_tokens += VALUE_TOKENS[value]
            else:
                self.text(value.replace("&", "&amp;").replace('"', "&quot;"))

    def text(self, text: str) -> None:
        """Ordinary text."""
        if text:
            self.texts.append(text)

    def close(self) -> None:
        """A closing tag."""
        self.frame_tokens += TAG_TOKENS

    def end_message(self) -> None:
        """The closing tag of a message and the mark that ends it."""
        self.frame_tokens += MESSAGE_END_TOKENS

    def element(self, text: str, *values: str | int) -> None:
        """An element with nothing but text in it."""
        self.open(*values)
        self.text(text)
        self.close()

    def system(self, kind: str, sentence_tokens: int, text: str = "") -> None:
        """One of the encoder's own system messages."""
        self.open("system", kind)
        self.frame_tokens += sentence_tokens
        self.text(text)
        self.end_message()

    def content(self, content: object, path: str) -> None:
        """The content of a message: a string, or parts of which only the texts are counted."""
        if content is None:
            return
        if isinstance(content, str):
            self.text(content)
            return
        for at, part in _numbered(content, path, wanted="a string or an array of parts"):
            fields = _object(part, f"{path}[{at}]")
            text = fields.get("text")
            if isinstance(text, str):
                self.text(text)
            else:
                self.media_parts += 1


class _Turns:
    """Writes the conversation. Tool results take their names from the calls of the turn before them."""

    def __init__(self, writer: _Writer, *, thinks: bool) -> None:
        self._writer = writer
        self._thinks = thinks
        self._calls: list[tuple[object, str]] = []  # id and name
        self._results = 0
        self.continues = False  # the last message is the beginning of the answer

    def write(self, message: Request, path: str, *, is_last: bool) -> None:
        """One message. Raises `ChatError`."""
        role = message.get("role")
        if role == "assistant":
            self.continues = is_last and message.get("partial") is True
            self._assistant(message, path)
        elif role == "tool":
            self._result(message, path)
        elif isinstance(role, str):
            self._plain(message, path, role)
        else:
            raise ChatError(f"{path}.role", "a string such as user")

    def _plain(self, message: Request, path: str, role: str) -> None:
        tools = _list(message.get("tools"), f"{path}.tools") if role == "system" else []
        if tools:
            text = _sorted_json(tools, f"{path}.tools") + _JSON_TAIL
            self._writer.system("tool-declare", EXTEND_TOKENS, text)
            if not message.get("content"):
                return
        if role not in _PLAIN_ROLES:
            self._writer.doubts.append(f"{path}.role is unknown to the encoder")
        # A developer message reaches the model as a system message.
        self._writer.open("system" if role == "developer" else role, *_name(message))
        self._writer.content(message.get("content"), f"{path}.content")
        self._writer.end_message()

    def _assistant(self, message: Request, path: str) -> None:
        writer = self._writer
        writer.open("assistant", *_name(message))
        if self._thinks:
            writer.element(_thought(message))
        writer.open()
        writer.content(message.get("content"), f"{path}.content")
        if self.continues:
            return
        writer.close()
        self._calls, self._results = [], 0
        calls = _list(message.get("tool_calls"), f"{path}.tool_calls")
        if calls:
            writer.open()
            for at, call in enumerate(calls):
                self._call(_object(call, f"{path}.tool_calls[{at}]"), f"{path}.tool_calls[{at}]", at + 1)
            writer.close()
        writer.end_message()

    def _call(self, call: Request, path: str, number: int) -> None:
        function = _object(call.get("function", call), f"{path}.function")
        name = function.get("name")
        if not isinstance(name, str):
            raise ChatError(f"{path}.function.name", "a string")
        self._calls.append((call.get("id"), name))
        self._writer.open(name, number)
        self._arguments(function.get("arguments"), f"{path}.function.arguments")
        self._writer.close()

    def _arguments(self, arguments: object, path: str) -> None:
        values = arguments
        if isinstance(arguments, str) and arguments.strip():
            try:
                values = json.loads(arguments)
            except (ValueError, RecursionError):
                # The encoder keeps what is not JSON as it stands.
                self._writer.element(arguments, "object")
                return
        if isinstance(values, Mapping):
            for key, value in values.items():
                self._writer.element(_plain_json(value, path), str(key), _type(value))
        elif values is not None and values != "":
            self._writer.doubts.append(f"{path} is JSON but not an object, which the encoder refuses")
            self._writer.element(_plain_json(arguments, path), "object")

    def _result(self, message: Request, path: str) -> None:
        self._results += 1
        name = self._result_name(message)
        if name is None:
            self._writer.doubts.append(f"{path} is the result of no known tool call, which the encoder refuses")
        self._writer.open("tool", name or "", self._results)
        self._writer.content(message.get("content"), f"{path}.content")
        self._writer.end_message()

    def _result_name(self, message: Request) -> str | None:
        """By id, else as the message says, else by position; of two calls with one id the first."""
        wanted = message.get("tool_call_id")
        for call_id, name in self._calls:
            if wanted is not None and call_id == wanted:
                return name
        for field in ("tool", "name"):
            stated = message.get(field)
            if isinstance(stated, str) and stated:
                return stated
        return self._calls[self._results - 1][1] if self._results <= len(self._calls) else None


def _write_effort(writer: _Writer, request: Request) -> int:
    """Writes the effort message; without an effort gives the tokens it could have."""
    effort = _stated_effort(request)
    if effort is None:
        unsent = _Writer()
        unsent.system("thinking-effort", max(EFFORT_TOKENS.values()))
        return unsent.frame_tokens
    if effort not in EFFORT_TOKENS:
        writer.doubts.append(f"the effort is none of {', '.join(EFFORT_TOKENS)}")
    writer.system("thinking-effort", EFFORT_TOKENS.get(effort, max(EFFORT_TOKENS.values())))
    return 0


def _write_choice(writer: _Writer, choice: object) -> None:
    """Required or none; a named function is sent as required, which is all that Moonshot takes."""
    known = "required" if isinstance(choice, Mapping) else choice
    if isinstance(known, str) and known in CHOICE_TOKENS:
        writer.system("tool-choice", CHOICE_TOKENS[known])


def _write_format(writer: _Writer, response_format: object) -> None:
    wanted = response_format if isinstance(response_format, Mapping) else {"type": response_format}
    if wanted.get("type") == "json_object":
        writer.system("response-format", JSON_OBJECT_TOKENS)
    elif wanted.get("type") == "json_schema":
        schema: object = wanted.get("json_schema")
        if isinstance(schema, Mapping):
            schema = schema.get("schema", schema.get("json_schema", schema))
        text = _sorted_json(schema, "response_format.json_schema") + _JSON_TAIL
        writer.system("response-format", JSON_SCHEMA_TOKENS, text)


def _thinking_off(request: Request) -> bool:
    thinking = request.get("thinking")
    disabled = isinstance(thinking, Mapping) and thinking.get("type") == "disabled"
    return disabled or _stated_effort(request) == "none"


def _stated_effort(request: Request) -> str | None:
    """The effort under whichever of its names the request uses."""
    effort = request.get("reasoning_effort")
    for field in ("thinking", "reasoning"):
        nested = request.get(field)
        if effort is None and isinstance(nested, Mapping):
            effort = nested.get("effort")
    return effort if isinstance(effort, str) else None


def _thought(message: Request) -> str:
    """The thought under whichever name it came; one of white space only is rendered as none."""
    for field in ("reasoning_content", "reasoning"):
        thought = message.get(field)
        if isinstance(thought, str) and thought.strip():
            return thought
    details = message.get("reasoning_details")
    texts: list[str] = []
    for detail in details if isinstance(details, list) else []:
        if isinstance(detail, Mapping):
            texts += [text for field in _DETAIL_TEXTS if isinstance(text := detail.get(field), str)]
    joined = "".join(texts)
    return joined if joined.strip() else ""


def _name(message: Request) -> tuple[str, ...]:
    name = message.get("name")
    return (name,) if isinstance(name, str) and name else ()


def _type(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case Mapping():
            return "object"
        case list():
            return "array"
        case _:
            return "number"


def _plain_json(value: object, path: str) -> str:
    """An argument's value: a string as it is, anything else as JSON with the encoder's spaces."""
    return value if isinstance(value, str) else _json(value, path)


def _json(value: object, path: str) -> str:
    # The standard library's JSON here and below: its spaces and its form of numbers are the encoder's.
    try:
        return json.dumps(value, ensure_ascii=False, default=float)
    except RecursionError as err:
        raise ChatError(path, "nested less deeply") from err


def _sorted_json(value: object, path: str) -> str:
    """Compact JSON with sorted keys, as tools and schemas are rendered."""
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=float)
    except RecursionError as err:
        raise ChatError(path, "nested less deeply") from err


def _list(value: object, path: str) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ChatError(path, "an array")
    return value


def _numbered(value: object, path: str, *, wanted: str = "an array") -> Iterator[tuple[int, object]]:
    if not isinstance(value, list):
        raise ChatError(path, wanted)
    return enumerate(value)


def _object(value: object, path: str) -> Request:
    if not isinstance(value, Mapping):
        raise ChatError(path, "an object")
    return value
