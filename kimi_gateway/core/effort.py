"""Reasoning effort: one wish out of the spellings clients use, and what may be sent for it.

The K3 family knows `low`, `high` and `max`; an absent effort runs as `max` upstream, so nothing here ever makes
a request dearer than it was asked for, and every change is disclosed by the name of the field it touched.
"""

from dataclasses import dataclass
from typing import Final

from kimi_gateway.errors import Forbidden, InvalidRequest

_RANK: Final = {"low": 0, "high": 1, "max": 2}
_WORDS: Final = {
    "low": "low",
    "high": "high",
    "max": "max",
    # Rounded up, as two public clients do; platform.kimi.ai ignores unknown words and so runs them at max.
    "minimal": "low",
    "medium": "high",
    "xhigh": "max",
}

_LEAST_OUTPUT: Final = {"unset": 16_000, "max": 16_000, "high": 8_000, "low": 2_000}


@dataclass(frozen=True, slots=True)
class EffortWish:
    """What the request says, each None where it does not. `thinking_type` is `thinking.type`."""

    reasoning_effort: str | None = None  # the field of that name
    thinking_effort: str | None = None  # thinking.effort, all that Kimi Code sends
    nested_effort: str | None = None  # reasoning.effort, OpenRouter's spelling
    thinking_type: str | None = None


@dataclass(frozen=True, slots=True)
class EffortPolicy:
    """What applies where the request is silent (`default`) and the dearest that is allowed (`ceiling`)."""

    default: str | None = None
    ceiling: str = "max"
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Effort:
    """What to send: `value` None sends nothing, `off` asks for no thinking at all (a capability of engines)."""

    value: str | None = None
    off: bool = False
    adjusted: tuple[str, ...] = ()


def resolve(wish: EffortWish, policy: EffortPolicy) -> Effort:
    """The effort to send. Raises `InvalidRequest` for an unknown word and `Forbidden` above a strict ceiling."""
    said = [
        ("thinking.effort", _word("thinking.effort", wish.thinking_effort)),
        ("reasoning_effort", _word("reasoning_effort", wish.reasoning_effort)),
        ("reasoning.effort", _word("reasoning.effort", wish.nested_effort)),
    ]
    present = [(field, word) for field, word in said if word is not None]
    adjusted: list[str] = []
    if wish.thinking_type not in (None, "enabled", "disabled", "adaptive"):
        raise InvalidRequest(
            f"thinking.type must be enabled or disabled, not {wish.thinking_type!r}; Kimi K3.1 always thinks, "
            "so the field can be left out",
            code="invalid_value",
            param="thinking.type",
        )
    if wish.thinking_type == "disabled" or any(word == "none" for _, word in present):
        return Effort(off=True)
    chosen: str | None = None
    for index, (field, word) in enumerate(present):
        mapped = _WORDS[word]
        if index == 0:
            chosen = mapped
            if mapped != word:
                adjusted.append(field)
        elif mapped != chosen:
            adjusted.append(field)
    value = chosen if chosen is not None else policy.default
    return _under_ceiling(value, policy, adjusted, present[0][0] if present else "reasoning_effort")


def as_stated(wish: EffortWish) -> Effort:
    """What the request says, where it passes as it came: nothing is refused, mapped or lowered. A word that no
    upstream is known to take counts as none, because nobody knows what it will do."""
    said = (wish.thinking_effort, wish.reasoning_effort, wish.nested_effort)
    if wish.thinking_type == "disabled" or "none" in said:
        return Effort(off=True)
    return Effort(next((word for word in said if word in _WORDS), None))


def is_small(limit: int, effort: str) -> bool:
    """The output limit likely ends inside the thought, which shares it with the answer. `effort` is as sent:
    `unset` runs as max, `none` does not think.

    platform.kimi.ai recommends at least 16,000 tokens; the figures for less effort are ours, by its share.
    """
    return limit < _LEAST_OUTPUT.get(effort, 0)


def _under_ceiling(value: str | None, policy: EffortPolicy, adjusted: list[str], field: str) -> Effort:
    """Lowers an effort above the ceiling; an absent one counts as max, because upstream it is."""
    if _RANK[value or "max"] <= _RANK[policy.ceiling]:
        return Effort(value, adjusted=tuple(adjusted))
    if policy.strict:
        raise Forbidden(
            f"{field} {value or 'is absent (runs as max) and'} is above the ceiling of {policy.ceiling}; "
            f"send reasoning_effort {policy.ceiling} or lower",
            code="effort_not_allowed",
            param=field,
        )
    if field not in adjusted:
        adjusted.append(field)
    return Effort(policy.ceiling, adjusted=tuple(adjusted))


def _word(field: str, value: str | None) -> str | None:
    if value is None or value in _WORDS or value == "none":
        return value
    raise InvalidRequest(
        f"{field} must be low, high or max (minimal, medium and xhigh are rounded to them), not {value!r}",
        code="invalid_value",
        param=field,
    )
