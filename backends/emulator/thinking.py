"""How much a request wants thought, read from the fields of its dialect."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from backends.emulator.errors import Refusal, invalid
from backends.emulator.request import flag_field, object_field, text_field
from backends.json import Json, JsonObject

EFFORTS: Final = ("low", "high", "max")
"""What the K3 encoder knows and the platform documents."""

_ROUTED: Final[Mapping[str, str]] = {
    "max": "max",
    "xhigh": "max",
    "high": "high",
    "medium": "high",
    "low": "low",
    "minimal": "low",
}
"""OpenRouter's words as its endpoint for this model takes them (the mapping that two relays report)."""

_VLLM_WORDS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_SGLANG_WORDS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max")


@dataclass(frozen=True, slots=True)
class Thinking:
    """`effort` is what the prompt names: None where it names none and the model thinks as it usually does. `on` is
    False where thinking is off, `shown` False where the thought is made and billed but not sent."""

    effort: str | None = None
    on: bool = True
    shown: bool = True


def moonshot_thinking(body: JsonObject) -> Thinking:
    """Always on. `thinking.effort` goes before `reasoning_effort` (the vendor's own verifier); a word that the
    platform does not know is ignored."""
    word = body.get("reasoning_effort")
    if word is not None and not isinstance(word, str):
        raise invalid(f"reasoning_effort must be a string: {', '.join(EFFORTS)}", param="reasoning_effort")
    thinking = body.get("thinking")
    if isinstance(thinking, dict) and thinking.get("effort") in EFFORTS:
        word = str(thinking["effort"])
    return Thinking(word if word in EFFORTS else None)


def openrouter_thinking(body: JsonObject) -> Thinking:
    """`reasoning.effort`, or `reasoning_effort` for short; an error where the two differ. `reasoning.exclude`
    hides the thought. Switching it off is refused: the endpoint always thinks (public reports on K3)."""
    held = object_field(body, "reasoning", "reasoning") or {}
    long = text_field(held, "effort", "reasoning.effort")
    short = text_field(body, "reasoning_effort", "reasoning_effort")
    if long and short and long != short:
        raise Refusal('Only one of "reasoning" and "reasoning_effort" may name an effort')
    word = long or short
    if word == "none" or held.get("enabled") is False:
        raise Refusal("Reasoning is mandatory for this endpoint and cannot be disabled.")
    if word is not None and word not in _ROUTED:
        raise invalid(f"reasoning.effort must be one of {', '.join(_ROUTED)}, none", param="reasoning.effort")
    hidden = flag_field(held, "exclude", "reasoning.exclude") or body.get("include_reasoning") is False
    return Thinking(None if word is None else _ROUTED[word], shown=not hidden)


def vllm_thinking(body: JsonObject) -> Thinking:
    """`reasoning_effort`, or `chat_template_kwargs`; `none` is off, `thinking: {…}` is not looked at. Of the other
    words the K3 renderer takes three; `vllm.check_effort` refuses the rest, so they get here without one."""
    word = _known_word(body.get("reasoning_effort"), _VLLM_WORDS)
    return _template_thinking(body, word, shown=body.get("include_reasoning") is not False)


def sglang_thinking(body: JsonObject) -> Thinking:
    """As vLLM's, but a word that the encoder does not know is logged and dropped, so it runs as max; a number
    between 0 and 1 is taken as well, and so is `reasoning: {effort, enabled}`."""
    held = object_field(body, "reasoning", "reasoning") or {}
    value = body.get("reasoning_effort")
    if value is None:
        value = held.get("effort")
    word = _known_word(value, _SGLANG_WORDS) if isinstance(value, str | None) else None
    if held.get("enabled") is False:
        word = "none"
    return _template_thinking(body, word, shown=True)


def _known_word(word: Json, known: tuple[str, ...]) -> str | None:
    if word is not None and word not in known:
        expected = ", ".join(f"'{name}'" for name in known[:-1]) + f" or '{known[-1]}'"
        raise invalid(f"Input should be {expected}", param="reasoning_effort")
    return None if word is None else str(word)


def _template_thinking(body: JsonObject, word: str | None, *, shown: bool) -> Thinking:
    kwargs = object_field(body, "chat_template_kwargs", "chat_template_kwargs") or {}
    named = kwargs.get("thinking_effort", word)
    if word == "none" or kwargs.get("thinking") is False or kwargs.get("enable_thinking") is False:
        return Thinking(on=False, shown=shown)
    return Thinking(str(named) if named in EFFORTS else None, shown=shown)
