"""Tool and answer schemas in Moonshot's flavour of JSON Schema, with every change named.

One loose schema from a tool server makes api.moonshot.ai refuse every request of a session, so what it would
refuse is written in the form it takes and everything else is left as it is: a schema that obeys the rules comes
back as the same object, and doing it twice is doing it once. Keywords that are taken but not enforced (`format`,
`const`, …) stay, because the model reads them.

Rules: platform.kimi.ai/docs/api/chat and the public validator MoonshotAI/walle (docs/walle.md, v0.1.10). What each
repair does to the set of valid values is said where it is made: `schema_nodes`, `schema_unions`, `schema_root`.
"""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import msgspec

from backends.json import JsonError, JsonObject, as_object, decode, encode
from backends.schema_parts import DEPTH_MAX, SIZE_MAX_BYTES, Root, is_deeper
from backends.schema_walk import Pass, TooLarge

Raw = msgspec.Raw

_PASSES_MAX: Final = 8
_MEMO_ENTRIES: Final = 64
_MEMO_BYTES_MAX: Final = 256 * 1024  # a longer list of tools is not remembered


@dataclass(frozen=True, slots=True)
class Normalised:
    """A schema for Moonshot and where it differs: paths such as `properties.mode`, "" for the root."""

    schema: JsonObject
    changed: tuple[str, ...]


def normalise_schema(schema: JsonObject, *, root: Root = "object", path: str = "") -> Normalised:
    """The schema in Moonshot's flavour; the very same object where nothing had to change.

    `path` is put before each changed path. A schema too deep or too large to be worked on comes back as it is.
    """
    if is_deeper(schema, DEPTH_MAX):
        return Normalised(schema, ())
    made = schema
    changed: tuple[str, ...] = ()
    for _ in range(_PASSES_MAX):
        before = made
        made, paths, again = _pass(before, root, path)
        changed = changed or paths
        if made is before or not again:
            return Normalised(made, changed)
    return Normalised(schema, ())


def _pass(schema: JsonObject, root: Root, path: str) -> tuple[JsonObject, tuple[str, ...], bool]:
    """The schema after one pass of repairs, the changed paths, and whether another pass may find more."""
    for joins in (True, False):
        work = Pass(schema, root, joins)
        try:
            made = work.repaired()
        except (TooLarge, JsonError, RecursionError):
            continue
        if not joins or made is schema or len(encode(made)) <= max(SIZE_MAX_BYTES, len(encode(schema))):
            return made, work.changed(path), work.again
    return schema, (), False


def normalise_tools(tools: Raw, *, path: str = "tools") -> tuple[Raw, tuple[str, ...]]:
    """A request's tool list for Moonshot and the changed paths, such as
    `tools[0].function.parameters.properties.mode`. Tools that need no change keep the client's own bytes.

    The same list always gives the same bytes. What is no list of tools comes back as it is.
    """
    return _remembered("tools", tools, path)


def normalise_response_format(
    response_format: Raw, *, path: str = "response_format"
) -> tuple[Raw, tuple[str, ...]]:
    """A request's response format for Moonshot, and the changed paths."""
    return _remembered("format", response_format, path)


def is_remembered(kind: "Kind", raw: Raw) -> bool:
    """What `normalise_tools` ("tools") or `normalise_response_format` ("format") makes of these bytes is known
    already, so that it costs next to nothing; otherwise it takes about 0.1 ms for each KiB."""
    return (kind, bytes(raw)) in _memo


# --- bytes ----------------------------------------------------------------------------------------------------

Kind: TypeAlias = Literal["tools", "format"]

_memo: Final[dict[tuple[Kind, bytes], tuple[bytes, tuple[str, ...]]]] = {}
"""What was made of bytes that came lately, the newest last: a client sends its tools with every turn. Threads may
share it: an entry that is lost between two steps is made again."""


def _remembered(kind: Kind, raw: Raw, path: str) -> tuple[Raw, tuple[str, ...]]:
    data = bytes(raw)
    key = (kind, data)
    known = _memo.pop(key, None)
    made, changed = known or _normalised(kind, data)
    if len(data) <= _MEMO_BYTES_MAX:
        _memo[key] = (made, changed)
        for oldest in list(_memo)[:-_MEMO_ENTRIES]:
            _memo.pop(oldest, None)
    return (Raw(made) if changed else raw), tuple(path + inner for inner in changed)


def _normalised(kind: Kind, data: bytes) -> tuple[bytes, tuple[str, ...]]:
    """The bytes and the changed paths below the list or object."""
    if kind == "tools":
        return _normalised_tools(data, "")
    return _with_schema(Raw(data), ("json_schema", "schema"), "any", "")


def _normalised_tools(tools: bytes, path: str) -> tuple[bytes, tuple[str, ...]]:
    try:
        held = msgspec.json.decode(tools, type=list[Raw])
    except msgspec.DecodeError:
        return tools, ()
    out: list[bytes] = []
    changed: list[str] = []
    for index, tool in enumerate(held):
        made, paths = _with_schema(tool, ("function", "parameters"), "object", f"{path}[{index}]")
        out.append(made)
        changed += paths
    return (b"[" + b",".join(out) + b"]" if changed else tools), tuple(changed)


def _with_schema(raw: Raw, steps: tuple[str, ...], root: Root, path: str) -> tuple[bytes, tuple[str, ...]]:
    """An object with the schema at these steps normalised; all its other members keep their own bytes."""
    if not steps:
        return _schema_bytes(raw, root, path)
    try:
        members = msgspec.json.decode(raw, type=dict[str, Raw])
    except msgspec.DecodeError:
        return bytes(raw), ()
    name, *rest = steps
    if name not in members:
        return bytes(raw), ()
    made, changed = _with_schema(members[name], tuple(rest), root, f"{path}.{name}")
    return (encode({**members, name: Raw(made)}) if changed else bytes(raw)), changed


def _schema_bytes(raw: Raw, root: Root, path: str) -> tuple[bytes, tuple[str, ...]]:
    try:
        schema = decode(bytes(raw))
    except JsonError:
        return bytes(raw), ()
    if schema is True and root == "object":
        return b'{"type":"object"}', (path,)
    held = as_object(schema)
    if held is None:
        return bytes(raw), ()
    normalised = normalise_schema(held, root=root, path=path)
    return (encode(normalised.schema) if normalised.changed else bytes(raw)), normalised.changed
