"""What Moonshot's platform refuses although it can be read. One check a rule; a profile lists those it enforces.

Sources: platform.kimi.ai/docs/api/chat, guide/… and public reports of the answers; where only the rule is known
and not the text, the text is ours.
"""

import re
from decimal import Decimal

from backends.emulator.errors import Refusal, invalid
from backends.emulator.profile import Profile
from backends.emulator.request import ChatRequest, Media, Message
from backends.json import JsonError, decode


def check_sampling(request: ChatRequest, profile: Profile) -> None:
    """Fixed sampling: the one allowed value or nothing."""
    for name, allowed in profile.fixed.items():
        given = request.sampling.get(name)
        if given is not None and given != allowed:
            raise Refusal(f"invalid {name}: only {_plain(allowed)} is allowed for this model", param=name)


def check_stop(request: ChatRequest, profile: Profile) -> None:
    """At most five stop sequences of at most 32 bytes."""
    if len(request.stop) > profile.max_stops:
        raise invalid(f"stop must hold at most {profile.max_stops} strings", param="stop")
    if any(len(word.encode("utf-8", "surrogatepass")) > profile.max_stop_bytes for word in request.stop):
        raise invalid(f"each stop string must be at most {profile.max_stop_bytes} bytes", param="stop")


def check_breakpoints(request: ChatRequest, profile: Profile) -> None:
    """Explicit cache breakpoints do not exist: caching is implicit."""
    if request.breakpoint or any(message.breakpoint for message in request.messages):
        raise invalid(
            "prompt_cache_breakpoint is not supported: only the implicit mode of prompt_cache_options is",
            param="prompt_cache_breakpoint",
        )


def check_roles(request: ChatRequest, profile: Profile) -> None:
    """system, user, assistant and tool; developer is not known."""
    for at, message in enumerate(request.messages):
        if message.role not in profile.roles:
            raise invalid(
                f"messages[{at}].role {message.role!r} is not supported: use {', '.join(profile.roles)}",
                param=f"messages[{at}].role",
            )


def check_contents(request: ChatRequest, profile: Profile) -> None:
    """No empty system, user or assistant message and no blank text part."""
    for at, message in enumerate(request.messages):
        where = f"messages[{at}]"
        if message.blank_part:
            raise invalid(f"{where}: text content is empty", param=where)
        if message.parts or message.role == "tool" or message.tools or message.calls or message.partial:
            continue
        raise invalid(f"the message at position {at} with role '{message.role}' must not be empty", param=where)


def check_media(request: ChatRequest, profile: Profile) -> None:
    """Data URLs of a known type and file ids; addresses are not fetched."""
    for at, message in enumerate(request.messages):
        for number, part in enumerate(message.parts):
            if isinstance(part, Media):
                _check_one_media(part, f"messages[{at}].content[{number}]", profile)


def check_partial(request: ChatRequest, profile: Profile) -> None:
    """Only the last message, only the assistant's, and not with json_object."""
    for at, message in enumerate(request.messages):
        if not message.partial:
            continue
        if at != len(request.messages) - 1 or message.role != "assistant":
            raise invalid(
                "partial is only allowed on the last message, with role assistant", param=f"messages[{at}]"
            )
        if request.format.kind == "json_object":
            raise invalid("partial cannot be used with response_format json_object", param=f"messages[{at}]")


def check_tools(request: ChatRequest, profile: Profile) -> None:
    """Tool names, kinds, root types and duplicates, over the request and its system messages."""
    seen: set[str] = set()
    for tool in request.all_tools:
        if tool.kind not in profile.tool_kinds:
            raise invalid(f"{tool.where}: unsupported tool type {tool.kind!r}", param=tool.where)
        builtin = tool.kind != "function" and tool.name.startswith("$")
        if not builtin and not re.fullmatch(profile.tool_name_pattern, tool.name):
            raise invalid(
                f"{tool.where}: function name is invalid, must start with a letter and can contain letters, "
                "numbers, underscores, and dashes",
                param=tool.where,
            )
        if tool.name in seen:
            raise invalid(f"function name {tool.name} is duplicated", param=tool.where)
        seen.add(tool.name)
        root = (tool.parameters or {}).get("type", "object")
        if root not in ("object", ["object"]):
            raise invalid(f"{tool.where}: the root type of parameters must be object", param=tool.where)


def check_tool_choice(request: ChatRequest, profile: Profile) -> None:
    """No named function while thinking, which is always; required needs tools."""
    if request.tool_choice == "specified":
        raise Refusal("tool_choice 'specified' is incompatible with thinking enabled", param="tool_choice")
    if request.tool_choice == "required" and not request.all_tools:
        raise invalid("tool_choice required needs tools", param="tool_choice")


def check_dynamic_tools(request: ChatRequest, profile: Profile) -> None:
    """Tools inside a message: only a system message, and then without content."""
    for at, message in enumerate(request.messages):
        if not message.tools:
            continue
        if message.role != "system":
            raise invalid(f"messages[{at}]: tools are only allowed in a system message", param=f"messages[{at}]")
        if message.parts:
            raise invalid(f"messages[{at}]: a message with tools must not have content", param=f"messages[{at}]")


def check_tool_history(request: ChatRequest, profile: Profile) -> None:
    """Each call has its result before the next turn, and each result its call. Ids are unique per turn only."""
    open_ids: list[str] = []
    known: set[str] = set()
    for at, message in enumerate(request.messages):
        where = f"messages[{at}]"
        if message.role == "tool":
            if not message.call_id or message.call_id not in known:
                raise invalid(f"tool_call_id {message.call_id or ''} not found", param=where)
            open_ids = [id for id in open_ids if id != message.call_id]
            continue
        if message.role == "system":
            continue
        _refuse_unanswered(open_ids)
        _check_arguments(message, where)
        if message.role == "assistant":
            open_ids = [call.id for call in message.calls]
            known = set(open_ids)
    _refuse_unanswered(open_ids)


def _refuse_unanswered(open_ids: list[str]) -> None:
    if open_ids:
        raise invalid(
            "an assistant message with tool_calls must be followed by a tool message for each tool_call_id; "
            f"missing: {', '.join(open_ids)}",
            param="messages",
        )


def _check_arguments(message: Message, where: str) -> None:
    """Text that is no JSON is kept as it is by the model's encoder; JSON other than an object is refused."""
    for call in message.calls:
        try:
            value = decode(call.arguments.encode("utf-8", "surrogatepass"))
        except JsonError:
            continue
        if not isinstance(value, dict):
            raise invalid(f"{where}: the arguments of {call.name} must be a JSON object", param=where)


def _check_one_media(part: Media, where: str, profile: Profile) -> None:
    if part.url.startswith(profile.file_scheme):
        return
    head, comma, _data = part.url.partition(",")
    if not part.url.startswith("data:") or not comma:
        raise invalid(
            f"{where}: unsupported {part.kind}: only base64 data URLs and {profile.file_scheme} ids are taken",
            param=where,
        )
    media_type, _, encoding = head.removeprefix("data:").partition(";")
    if encoding != "base64" or media_type not in profile.media_types[part.kind]:
        raise invalid(f"{where}: unsupported media type {media_type or 'none'} in {part.kind}", param=where)


def _plain(value: Decimal) -> str:
    return f"{value.normalize():f}"
