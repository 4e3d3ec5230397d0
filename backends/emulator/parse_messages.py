"""Messages and tool declarations: from JSON to values, in any dialect's spelling of the thought."""

from dataclasses import replace

from backends.emulator.errors import invalid
from backends.emulator.profile import Profile
from backends.emulator.request import (
    Call,
    Media,
    Message,
    Part,
    Tool,
    flag_field,
    list_field,
    object_field,
    text_field,
)
from backends.json import Json, JsonObject, as_list


def parse_messages(body: JsonObject, profile: Profile) -> tuple[Message, ...]:
    """All messages in order. Raises `Refusal` naming the first one that cannot be read."""
    values = list_field(body, "messages", "messages")
    if not values:
        raise profile.words.no_messages("messages" in body)
    messages = [_message(value, f"messages[{at}]", profile) for at, value in enumerate(values)]
    if not profile.partial_by_message:
        # Engines know no such field; they continue the last message where the request says so.
        messages = [replace(message, partial=False) for message in messages]
        if flag_field(body, "continue_final_message", "continue_final_message"):
            messages[-1] = replace(messages[-1], partial=True)
    return tuple(messages)


def parse_tools(owner: JsonObject, where: str) -> tuple[Tool, ...]:
    """The declarations under `tools` of a request or of a system message. Raises `Refusal`."""
    return tuple(_tool(value, f"{where}[{at}]") for at, value in enumerate(list_field(owner, "tools", where)))


def _message(value: Json, where: str, profile: Profile) -> Message:
    if not isinstance(value, dict):
        raise invalid(f"{where} must be an object", param=where)
    role = text_field(value, "role", f"{where}.role")
    if not role:
        raise invalid(f"{where}.role is missing", param=f"{where}.role")
    parts = _parts(value, where)
    return Message(
        role=role,
        parts=parts,
        name=text_field(value, "name", f"{where}.name") or "",
        thought=_thought(value, where, profile),
        calls=tuple(
            _call(item, f"{where}.tool_calls[{at}]")
            for at, item in enumerate(list_field(value, "tool_calls", f"{where}.tool_calls"))
        ),
        tools=parse_tools(value, f"{where}.tools"),
        call_id=text_field(value, "tool_call_id", f"{where}.tool_call_id"),
        partial=flag_field(value, "partial", f"{where}.partial"),
        blank_part=isinstance(value.get("content"), list) and any(map(_is_blank, parts)),
        breakpoint=_has_breakpoint(value),
    )


def _thought(value: JsonObject, where: str, profile: Profile) -> str | None:
    """The thought of a history message, by the first name that has one; the pieces of a list go before names."""
    if profile.thought_details_in:
        pieces = list_field(value, profile.thought_details_in, f"{where}.{profile.thought_details_in}")
        said = [str(piece.get("text") or "") for piece in pieces if isinstance(piece, dict)]
        if any(said):
            return "".join(said)
    for field in profile.thought_in:
        thought = text_field(value, field, f"{where}.{field}")
        if thought is not None:
            return thought
    return None


def _parts(value: JsonObject, where: str) -> tuple[Part, ...]:
    content = value.get("content")
    if content is None or content == "":
        return ()
    if isinstance(content, str):
        return (content,)
    if not isinstance(content, list):
        raise invalid(f"{where}.content must be a string or an array of parts", param=f"{where}.content")
    return tuple(_part(item, f"{where}.content[{at}]") for at, item in enumerate(content))


def _is_blank(part: Part) -> bool:
    return isinstance(part, str) and not part.strip()


def _has_breakpoint(value: JsonObject) -> bool:
    holders = [value, *(item for item in as_list(value.get("content")) if isinstance(item, dict))]
    return any(holder.get("prompt_cache_breakpoint") is not None for holder in holders)


def _part(item: Json, where: str) -> Part:
    if not isinstance(item, dict):
        raise invalid(f"{where} must be an object", param=where)
    kind = item.get("type")
    if kind == "text":
        text = text_field(item, "text", f"{where}.text")
        if text is None:
            raise invalid(f"{where}.text is missing", param=where)
        return text
    if kind == "image_url":
        return Media("image_url", _url(item, "image_url", where))
    if kind == "video_url":
        return Media("video_url", _url(item, "video_url", where))
    raise invalid(f"{where}: unsupported content part type {kind!r}", param=where)


def _url(item: JsonObject, kind: str, where: str) -> str:
    held = item.get(kind)
    url = held.get("url") if isinstance(held, dict) else held  # an object or a bare string
    if not isinstance(url, str):
        raise invalid(f"{where}.{kind} must hold a url", param=where)
    return url


def _call(value: Json, where: str) -> Call:
    if not isinstance(value, dict):
        raise invalid(f"{where} must be an object", param=where)
    function = object_field(value, "function", f"{where}.function") or {}
    name = text_field(function, "name", f"{where}.function.name")
    if not name:
        raise invalid(f"{where}.function.name is missing", param=where)
    return Call(
        id=text_field(value, "id", f"{where}.id") or "",
        name=name,
        arguments=text_field(function, "arguments", f"{where}.function.arguments") or "",
    )


def _tool(value: Json, where: str) -> Tool:
    if not isinstance(value, dict):
        raise invalid(f"{where} must be an object", param=where)
    kind = text_field(value, "type", f"{where}.type")
    function = object_field(value, "function", f"{where}.function")
    if not kind or function is None:
        raise invalid(f"{where} must have a type and a function", param=where)
    return Tool(
        name=text_field(function, "name", f"{where}.function.name") or "",
        kind=kind,
        description=text_field(function, "description", f"{where}.function.description") or "",
        parameters=object_field(function, "parameters", f"{where}.function.parameters"),
        declared=value,
        where=where,
    )
