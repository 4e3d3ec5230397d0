"""All that is wrong with a configuration, a line each: where, what, and how to set it right."""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, Final, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

T = TypeVar("T")

_STAND_IN: Final = "x"
_KINDS: Final = {
    "int_type": "a whole number",
    "number": "a number",
    "string_type": "text in quotes",
    "bool_type": "true or false",
    "tuple_type": "an array",
    "dict_type": "a table",
    "mapping_type": "a table",
    "dataclass_type": "a table",
}
_BOUNDS: Final = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


class SettingsError(Exception):
    """The configuration cannot be used. `mistakes` has a line for each thing that is wrong."""

    def __init__(self, mistakes: Iterable[str], source: str = "") -> None:
        self.mistakes = tuple(mistakes)
        self.source = source
        count = len(self.mistakes)
        title = f"{count} mistake{'' if count == 1 else 's'} in the configuration"
        super().__init__(
            "\n".join([f"{title}{f' ({source})' if source else ''}:", *(f"  {m}" for m in self.mistakes)])
        )


class Mistakes:
    """Collects mistakes; `origins` says which flag or variable a setting came from, where it was not the file."""

    def __init__(self, origins: Mapping[str, str] | None = None) -> None:
        self.lines: list[str] = []
        self.origins = origins or {}

    def add(self, path: str, text: str) -> None:
        """Adds one, once."""
        origin = self.origins.get(path)
        line = f"{path}{f' (from {origin})' if origin else ''}: {text}"
        if not line.isprintable():  # names in quotes may hold anything
            line = "".join(char if char.isprintable() else " " for char in line)
        if line not in self.lines:
            self.lines.append(line)


def read_table(kind: type[T], raw: object, path: str, mistakes: Mistakes) -> tuple[T | None, frozenset[str]]:
    """The table of that kind, and the names of its settings that are wrong; each mistake is added with its dotted
    path.

    A wrong setting is replaced by its default, or by a stand-in where it has none, so that the rest can be checked
    further. None where it is no table.
    """
    adapter = TypeAdapter(kind)
    try:
        return adapter.validate_python(raw), frozenset()
    except ValidationError as err:
        wrong: set[str] = set()
        for detail in err.errors(include_url=False):
            place = _dotted(path, detail["loc"])
            mistakes.add(place, _described(detail, [item.name for item in fields(cast(Any, kind))]))
            wrong.update(map(str, detail["loc"][:1]))
    if not isinstance(raw, dict):
        return None, frozenset(wrong)
    right = {name: value for name, value in raw.items() if name not in wrong}
    needed = {item.name for item in fields(cast(Any, kind)) if _is_needed(item)}
    try:
        return adapter.validate_python(right | dict.fromkeys(needed - set(right), _STAND_IN)), frozenset(wrong)
    except ValidationError:
        return None, frozenset(wrong)


def _is_needed(item: Field[Any]) -> bool:
    """Whether a setting has no default, by the rules of dataclasses or of pydantic."""
    return item.default is MISSING and item.default_factory is MISSING


def suggestion(word: str, known: Iterable[str]) -> str:
    """`; did you mean "x"?` for a near miss, else the list of what is known."""
    options = sorted(known)
    near = difflib.get_close_matches(word, options, n=1, cutoff=0.6)
    if near:
        return f'; did you mean "{near[0]}"?'
    return f"; known here: {', '.join(options)}" if options else ""


def _dotted(path: str, loc: tuple[int | str, ...]) -> str:
    out = path
    for part in loc:
        out += f"[{part}]" if isinstance(part, int) else f".{part}"
    return out


def _described(detail: ErrorDetails, known: list[str]) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "unexpected_keyword_argument":
        return "is not a setting" + suggestion(str(detail["loc"][-1]), known)
    if kind in ("missing", "missing_argument"):
        return "is missing; every entry needs it"
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"must be {words} {context[name]}, not {_shown(detail['input'])}"
    if kind in _KINDS:
        return f"must be {_KINDS[kind]}, not {_shown(detail['input'])}" + _quoted(kind, detail["input"])
    if kind == "literal_error":
        expected = str(context["expected"]).replace("'", '"').removeprefix('"", ')  # "" is unset
        return f"must be {expected}, not {_shown(detail['input'])}"
    if kind == "string_pattern_mismatch":
        return f"must be letters, digits, '.', '_' and '-', 64 at most, not {_shown(detail['input'])}"
    if kind in ("string_too_short", "too_short"):
        return "must not be empty; leave it out for the default"
    return f"{detail['msg']}, not {_shown(detail['input'])}"


def _quoted(kind: str, value: object) -> str:
    """The commonest slip: a number or a switch in quotes."""
    if not isinstance(value, str):
        return ""
    bare = re.fullmatch(r"true|false" if kind == "bool_type" else r"-?\d+(?:\.\d+)?", value.strip())
    return "; write it without quotes" if bare and kind in ("int_type", "number", "bool_type") else ""


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"' if len(value) <= 60 else "a long text"
    if isinstance(value, dict):
        return "a table"
    return "an array" if isinstance(value, list | tuple) else str(value)
