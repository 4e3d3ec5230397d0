"""Answers as values of a type: the schema that is sent for it, the answer read back, and the one repair round.

Whatever pydantic knows is a type here: models, dataclasses, `TypedDict`, `list[...]`, unions. A root that is no
object is sent within one, under `value`, because servers take objects only, and taken out again when it is read.
"""

import logging
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

import msgspec

from backends.json import JsonObject, as_object, as_str
from kimi_sdk.errors import InvalidInput
from kimi_sdk.tools_flavour import in_flavour
from kimi_sdk.tools_result import said_by
from kimi_sdk.tools_schema import plain_schema, problems_of

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")

_log: Final = logging.getLogger("kimi_sdk.structured")
_VALUE: Final = "value"
_FENCED: Final = re.compile(r"```(?:json)?[ \t]*\n(?P<inside>.*)\n[ \t]*```", re.DOTALL)
_NAME_MAX: Final = 64
_KINDS_KEPT: Final = 128


class Misfit(ValueError):
    """The answer does not fit; `problems` holds a line for each place, `text` is the answer."""

    def __init__(self, problems: tuple[str, ...], text: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems
        self.text = text


class Output(Generic[T]):
    """One type that answers are to have. `response_format` is what a request says of it."""

    def __init__(self, kind: type[T], *, name: str = "") -> None:
        """`name` defaults to that of the type. Raises `InvalidInput` for a type that has no schema, or one whose
        schema Kimi would refuse; the error names the place. Sends nothing."""
        self.name = re.sub(r"[^a-zA-Z0-9_-]", "_", name or getattr(kind, "__name__", "") or "answer")[:_NAME_MAX]
        self._adapter: TypeAdapter[T] = _adapter(kind, self.name)
        schema, self._is_wrapped = _as_object_schema(_schema(self._adapter, self.name))
        made = in_flavour(schema, what=f"the output {self.name}")
        self.response_format: JsonObject = {
            "type": "json_schema",
            "json_schema": {"name": self.name, "schema": made},
        }

    def read(self, text: str) -> T:
        """The value that an answer is. Raises `Misfit`. Code fences around the JSON do not count."""
        from pydantic import ValidationError

        fenced = _FENCED.fullmatch(text.strip())
        held = fenced["inside"] if fenced else text
        try:
            return self._adapter.validate_json(_unwrapped(held) if self._is_wrapped else held)
        except ValidationError as err:
            raise Misfit(problems_of(err), text) from err
        except Exception as err:  # a validator of the application's own type
            _log.warning("a validator of the output %s failed", self.name, exc_info=err)
            raise Misfit(
                (f"the whole: its check failed with {type(err).__name__}: {said_by(err)}",), text
            ) from err

    def repair(self, misfit: Misfit) -> str:
        """The user's turn that asks for a better answer."""
        problems = "\n".join(f"- {problem}" for problem in misfit.problems)
        return (
            f"Your answer does not fit the JSON schema {self.name}:\n{problems}\n"
            "Answer again with the corrected JSON and nothing else."
        )


def output_of(kind: type[T]) -> Output[T]:
    """The output for a type, made once for each."""
    held: Any = kind
    try:
        return cast(Output[T], _made(held))
    except TypeError:  # a type that cannot be hashed, such as one annotated with a list
        return Output(kind)


@lru_cache(maxsize=_KINDS_KEPT)
def _made(kind: Any) -> Output[Any]:
    return Output(kind)


def _adapter(kind: Any, name: str) -> Any:
    from pydantic import PydanticUserError, TypeAdapter

    try:
        return TypeAdapter(kind)
    except (PydanticUserError, NameError) as err:
        raise InvalidInput(f"the output {name} has no schema: {_first_line(err)}") from err


def _schema(adapter: "TypeAdapter[T]", name: str) -> JsonObject:
    from pydantic import PydanticUserError

    try:
        return plain_schema(adapter)
    except PydanticUserError as err:
        raise InvalidInput(f"the output {name} has no JSON schema: {_first_line(err)}") from err


def _as_object_schema(schema: JsonObject) -> tuple[JsonObject, bool]:
    """The schema, within an object where its root is none, and whether it had to be put there."""
    root, seen = schema, 0
    definitions = as_object(schema.get("$defs")) or {}
    while "$ref" in root and seen <= len(definitions):
        reference = as_str(root["$ref"]) or ""
        root = as_object(definitions.get(reference.removeprefix("#/$defs/"))) or {}
        seen += 1
    if root.get("type") == "object":
        return schema, False
    inner: JsonObject = {key: value for key, value in schema.items() if key != "$defs"}
    made: JsonObject = {"type": "object", "properties": {_VALUE: inner}, "required": [_VALUE]}
    made["additionalProperties"] = False
    return ({**made, "$defs": definitions} if definitions else made), True


def _unwrapped(text: str) -> str | bytes:
    """What stands under `value`; the text itself where nothing does, for a model that answers without it."""
    try:
        held = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeError):
        return text
    return bytes(held[_VALUE]) if held.keys() == {_VALUE} else text


def _first_line(err: Exception) -> str:
    return str(err).strip().partition("\n")[0]
