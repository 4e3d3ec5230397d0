"""What the model reads of a tool's value."""

from typing import Any


class Unwritable(ValueError):
    """The value has no form in JSON."""


def result_text(value: Any) -> str:
    """A text as it is, anything else as JSON: models, dataclasses, dates, exact numbers as texts, sets as lists.

    Raises `Unwritable`. NaN and the infinities, which JSON lacks, become texts.
    """
    if isinstance(value, str):
        return str(value)
    from pydantic_core import PydanticSerializationError, to_json

    try:
        return to_json(value, inf_nan_mode="strings").decode()
    except (PydanticSerializationError, ValueError, RecursionError) as err:
        raise Unwritable(str(err).partition("\n")[0]) from err


def said_by(err: BaseException) -> str:
    """What an exception says of itself; its own code runs for that, and may fail."""
    try:
        return str(err)
    except Exception as failure:
        return f"(its text cannot be had: {type(failure).__name__})"
