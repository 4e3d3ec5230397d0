"""What Moonshot's service refuses in tools' schemas although JSON Schema allows it: a property without a type.

Seen live in several public reports, with this text (MoonshotAI/kimi-cli#2030, earendil-works/pi#5822). Its other
rules are not enforced here: reports on the newest models contradict each other about them.
"""

from collections.abc import Iterator
from typing import Final

from backends.emulator.errors import Refusal
from backends.emulator.profile import Profile
from backends.emulator.request import ChatRequest
from backends.json import Json

_SAY_THE_TYPE: Final = ("type", "$ref", "anyOf", "oneOf", "allOf")


def check_schemas(request: ChatRequest, profile: Profile) -> None:
    """Every property in the parameters of a tool says its type, itself or through what it refers to."""
    for tool in request.all_tools:
        path = next(_untyped(tool.parameters or {}), None)
        if path is not None:
            raise Refusal(
                "tools.function.parameters is not a valid moonshot flavored json schema, details: "
                f"<At path '{path}': type is not defined>",
                param=tool.where,
            )


def _untyped(root: Json) -> Iterator[str]:
    """The paths of properties without a type, as far as properties and items lead."""
    waiting: list[tuple[str, Json]] = [("", root)]
    while waiting:
        path, node = waiting.pop()
        if not isinstance(node, dict):
            continue
        properties = node.get("properties")
        for name, held in properties.items() if isinstance(properties, dict) else ():
            where = f"{path}properties.{name}"
            if isinstance(held, dict) and not any(word in held for word in _SAY_THE_TYPE):
                yield where
            waiting.append((f"{where}.", held))
        waiting.append((f"{path}items.", node.get("items")))
