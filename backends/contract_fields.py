"""Top-level fields that a target refuses: set right, said by their path, or made a reason to go elsewhere.

Nothing that would change the answer unasked is dropped: fewer stop strings, fewer alternatives or another format
are not what the client asked for, so they make a target incapable. What cannot be read is left to the upstream.
"""

from collections.abc import Callable, Mapping, MutableMapping
from typing import Final, TypeAlias

import msgspec

from backends.contract import Contract, Incapable
from backends.json import Json, as_count, as_str, decode, encode

Raw = msgspec.Raw
Unset = msgspec.UnsetType
UNSET = msgspec.UNSET

SCHEMA_NAME: Final = "answer"
"""The name of an answer's schema where the client gave none."""

Fields: TypeAlias = MutableMapping[str, object]


def hold_fields(out: Fields, contract: Contract, *, tools: int, adjusted: list[str]) -> None:
    """Changes the fields of a request in place; `tools` is how many tools it has, in messages too.

    Raises `Incapable`.
    """
    for name, rule in _RULES.items():
        raw = out.get(name)
        if isinstance(raw, Raw):
            rule(out, raw, contract, adjusted)
    _choice_needs_tools(out, contract, tools)


def _breakpoint(out: Fields, raw: Raw, contract: Contract, adjusted: list[str]) -> None:
    if not contract.breakpoints:
        del out["prompt_cache_breakpoint"]
        adjusted.append("prompt_cache_breakpoint")


def _stop(out: Fields, raw: Raw, contract: Contract, adjusted: list[str]) -> None:
    if not contract.max_stops:
        return
    stated = decode(bytes(raw))
    words = [stated] if isinstance(stated, str) else stated
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return
    kept: list[Json] = [word for word in words if word]
    problem = stop_problem(kept, contract)
    if problem:
        raise Incapable("stop", f"stop {problem}")
    if len(kept) < len(words):
        out["stop"] = Raw(encode(kept))
        if not kept:
            del out["stop"]
        adjusted.append("stop")


def stop_problem(words: list[Json], contract: Contract) -> str:
    """What is wrong with the number and size of stop strings, "" where nothing is."""
    if contract.max_stops and len(words) > contract.max_stops:
        return f"has {len(words)} strings, at most {contract.max_stops} are taken here; leave some out"
    most = contract.max_stop_bytes
    longest = max((len(str(word).encode("utf-8", "surrogatepass")) for word in words), default=0)
    if most and longest > most:
        return f"has a string of {longest} bytes, at most {most} are taken here; shorten it"
    return ""


def _top_logprobs(out: Fields, raw: Raw, contract: Contract, adjusted: list[str]) -> None:
    most, count = contract.max_top_logprobs, as_count(decode(bytes(raw)))
    if most and count is not None and count > most:
        raise Incapable("top_logprobs", f"top_logprobs must be at most {most} here, not {count}; ask for fewer")


class _Held(msgspec.Struct):
    name: Raw | Unset = UNSET
    schema: Raw | Unset = UNSET


class _Format(msgspec.Struct):
    type: str
    json_schema: Raw | Unset = UNSET


_format = msgspec.json.Decoder(_Format)
_held = msgspec.json.Decoder(_Held)
_members = msgspec.json.Decoder(dict[str, Raw])


def _response_format(out: Fields, raw: Raw, contract: Contract, adjusted: list[str]) -> None:
    if not contract.formats:
        return
    try:
        wanted = _format.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    if wanted.type not in contract.formats:
        known = ", ".join(sorted(contract.formats))
        path = "response_format.type"
        raise Incapable(path, f"{path} must be one of {known} here, not {wanted.type[:40]!r}")
    if wanted.type == "json_schema" and not _is_named(wanted.json_schema):
        members = _members.decode(raw)
        schema = _members.decode(members["json_schema"])
        named = Raw(encode({**schema, "name": SCHEMA_NAME}))
        out["response_format"] = Raw(encode({**members, "json_schema": named}))
        adjusted.append("response_format.json_schema.name")


def _is_named(held: Raw | Unset) -> bool:
    """The schema has a name. Raises `Incapable` where there is no schema."""
    try:
        stated = _held.decode(held) if isinstance(held, Raw) else _Held()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return True  # what it is, the target may say
    path = "response_format.json_schema.schema"
    if isinstance(stated.schema, Unset) or bytes(stated.schema) == b"null":
        raise Incapable(path, f"{path} is missing; write the schema of the answer, or ask for json_object")
    return isinstance(stated.name, Raw) and bytes(stated.name) not in (b"null", b'""')


def choice_in_words(choice: Raw) -> str | None:
    """A choice given as an object that says no more than a word, as the word; None where it is one already.

    Raises `Incapable` for an object that no word stands for.
    """
    stated = decode(bytes(choice))
    if not isinstance(stated, dict):
        return None
    word = as_str(stated.get("type"))
    if word in ("auto", "none", "required"):
        return word
    raise Incapable("tool_choice", "tool_choice must be auto, none, required or name one function of tools")


def _choice_needs_tools(out: Fields, contract: Contract, tools: int) -> None:
    """A choice where there is nothing to choose from: auto says nothing then, and required cannot be met."""
    choice = out.get("tool_choice")
    word = as_str(decode(bytes(choice))) if isinstance(choice, Raw) else choice
    if tools or word not in contract.choices_with_tools:
        return
    if word != "auto":
        raise Incapable("tool_choice", f"tool_choice {word} needs tools; send some, or leave it out")
    del out["tool_choice"]


_RULES: Final[Mapping[str, Callable[[Fields, Raw, Contract, list[str]], None]]] = {
    "prompt_cache_breakpoint": _breakpoint,
    "stop": _stop,
    "top_logprobs": _top_logprobs,
    "response_format": _response_format,
}
