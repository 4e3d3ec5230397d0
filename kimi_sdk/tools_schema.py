"""The parameters of a function: their schema for the model, and the model's arguments read back as values."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, cast, get_args, get_origin, get_type_hints

from typing_extensions import override

from backends.json import JsonObject
from kimi_sdk.errors import InvalidInput
from kimi_sdk.tools_docs import Doc
from kimi_sdk.tools_flavour import in_flavour

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

_GIVEN_MAX: Final = 60  # characters of a wrong value that are shown
_PROBLEMS_MAX: Final = 10

Named = Callable[..., object]


class BadArguments(ValueError):
    """The arguments do not fit; one line for each problem."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of one function: `schema` for the model, `read` for what it sends."""

    schema: JsonObject
    _model: "type[BaseModel]"
    _names: Mapping[str, str]  # field of the model -> parameter
    _positional: tuple[str, ...]  # parameters that have no name in a call

    def read(self, arguments: str) -> tuple[list[Any], dict[str, Any]]:
        """Positional and named arguments as the types say. Left-out ones stay out, so the function's own defaults
        hold. Raises `BadArguments`. Blank text means no arguments, as models write for functions without any."""
        from pydantic import ValidationError

        try:
            held = self._model.model_validate_json(arguments.strip() or "{}")
        except ValidationError as err:
            raise BadArguments(problems_of(err)) from err
        values = {
            name: getattr(held, field) for field, name in self._names.items() if field in held.model_fields_set
        }
        return [values.pop(name) for name in self._positional if name in values], values


def problems_of(err: "ValidationError") -> tuple[str, ...]:
    """What is wrong, a line each: the place, the rule, the value that was given."""
    found = []
    for error in err.errors(include_url=False, include_context=False)[:_PROBLEMS_MAX]:
        place = ".".join(str(step) for step in error["loc"])
        given = repr(error["input"])
        if len(given) > _GIVEN_MAX:
            given = given[:_GIVEN_MAX] + "…"
        shown = "" if error["type"] == "missing" else f" (given: {given})"
        found.append(f"{place or 'the whole'}: {error['msg']}{shown}")
    more = err.error_count() - len(found)
    return (*found, f"and {more} more") if more > 0 else tuple(found)


def parameters_of(function: Named, name: str, doc: Doc) -> Parameters:
    """The parameters of a typed function. Raises `InvalidInput` naming what keeps it from being a tool."""
    from pydantic import ConfigDict, Field, PydanticUserError, create_model
    from pydantic_core import PydanticUndefined

    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    positional = []
    for number, (parameter, kind) in enumerate(_typed(function, name)):
        default = PydanticUndefined if parameter.default is inspect.Parameter.empty else parameter.default
        text = _said(kind) or doc.parameters.get(parameter.name)
        # A field of pydantic's may not be called _x or copy, a parameter may: so the name is only an alias.
        field = f"p{number}"
        names[field] = parameter.name
        told: Any = Field(default, alias=parameter.name, description=text)
        fields[field] = (kind, told)
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            positional.append(parameter.name)
    try:
        model = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
        schema = plain_schema(model)
    except (PydanticUserError, TypeError) as err:
        raise InvalidInput(f"the tool {name} has a parameter that JSON cannot hold: {_first_line(err)}") from err
    schema = {key: value for key, value in schema.items() if key not in ("title", "description")}
    return Parameters(in_flavour(schema, what=f"the tool {name}"), model, names, tuple(positional))


def plain_schema(model: Any) -> JsonObject:
    """The schema of a type as pydantic writes it, by alias, without the titles it derives from names.

    Raises pydantic's `PydanticUserError` for a type that JSON cannot hold.
    """
    from pydantic import TypeAdapter
    from pydantic.json_schema import GenerateJsonSchema

    class Untitled(GenerateJsonSchema):
        # A default that JSON cannot hold is the function's own business.
        ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012  # pydantic's own name

        @override
        def field_title_should_be_set(self, schema: Any) -> bool:
            return False  # titles cost tokens and repeat the names

    adapter = model if isinstance(model, TypeAdapter) else TypeAdapter(model)
    return cast(JsonObject, adapter.json_schema(by_alias=True, schema_generator=Untitled))


def _typed(function: Named, name: str) -> list[tuple[inspect.Parameter, Any]]:
    """The parameters with their types."""
    hints = _hints(function, name)
    found = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is inspect.Parameter.VAR_POSITIONAL else "**"
            told = f"{stars}{parameter.name}, which tells the model nothing"
            raise InvalidInput(f"the tool {name} takes {told}; name its parameters")
        if parameter.name not in hints:
            remedy = (
                "give the bound method as tool, such as tools=[it.method]"
                if parameter.name in ("self", "cls")
                else f"write it, such as {parameter.name}: str"
            )
            raise InvalidInput(f"the parameter {parameter.name} of the tool {name} has no type; {remedy}")
        found.append((parameter, hints[parameter.name]))
    return found


def _hints(function: Named, name: str) -> dict[str, Any]:
    target = inspect.unwrap(function)
    while isinstance(target, partial):
        target = target.func
    if not (inspect.isfunction(target) or inspect.ismethod(target) or inspect.isbuiltin(target)):
        target = type(target).__call__  # an object that is called
    try:
        return get_type_hints(target, include_extras=True)
    except (NameError, TypeError) as err:
        raise InvalidInput(
            f"the types of the tool {name} cannot be read: {err}. Define them at the level of the module"
        ) from err


def _said(kind: Any) -> str | None:
    """The description in an annotation: a plain text, or the documentation of a `Doc` or `Field`."""
    if get_origin(kind) is not Annotated:
        return None
    for extra in get_args(kind)[1:]:
        text = (
            extra
            if isinstance(extra, str)
            else getattr(extra, "documentation", getattr(extra, "description", None))
        )
        if isinstance(text, str) and text.strip():
            return text.strip()
    return None


def _first_line(err: Exception) -> str:
    return str(err).strip().partition("\n")[0]
