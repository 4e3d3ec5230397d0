"""What a kind of upstream refuses although it can be read, as facts, and how a refusal is told.

    Contract     the facts, one value in each dialect; the defaults refuse only what poisons every engine
    Finding      one place in a request that a target refuses, with what to do about it
    Incapable    what cannot be repaired for a target: another one may serve it

Two modes read the same findings: *adjust* repairs them for one attempt or raises `Incapable`, *strict* lists them
all. Nothing is here that no source states: an unknown value passes and the upstream judges it.
"""

from dataclasses import dataclass
from typing import Final


class Incapable(ValueError):
    """The target lacks what the request needs; `param` names the field."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class Finding:
    """A place in a request, such as `messages[3].content[1]`, the rule broken there, what is wrong, what to do.

    `index` is the message's; `at` the position of a part or a call in it, -1 where the message itself is meant.
    `repair` is what puts it right where that takes more than leaving something out: the id that a result should
    have. `is_fatal`: it cannot be repaired.
    """

    rule: str
    path: str
    what: str
    remedy: str
    index: int = -1
    at: int = -1
    repair: str = ""
    is_fatal: bool = False


@dataclass(frozen=True, slots=True)
class Contract:
    """The rules of one kind of upstream; an empty set, "" or 0 is no rule."""

    # --- messages -------------------------------------------------------------------------------------------
    roles: frozenset[str] = frozenset()
    part_types: frozenset[str] = frozenset()
    refuses_empty: bool = False
    """A system, user or assistant message that says nothing, and a blank text part in any."""
    pairs_calls: bool = False
    """Each call of a turn needs its result before the next turn, and each result its call."""
    decodes_arguments: bool = True
    """The arguments of past calls must hold a JSON object: a chat template decodes them."""
    breakpoints: bool = True
    """`prompt_cache_breakpoint` is taken, or at least not refused."""
    declared_tools: bool = False
    """Knows tools declared in a system message (`tools` in it, and then no content)."""

    # --- tools ----------------------------------------------------------------------------------------------
    tool_kinds: frozenset[str] = frozenset()
    tool_name: str = ""
    """A pattern that every name has to match as a whole. With it go: no name twice, no name with $ in front but
    for built-in functions, an object as the root of the parameters, and no empty list."""
    choices_with_tools: frozenset[str] = frozenset()
    """Words of `tool_choice` that are refused where there are no tools."""

    # --- fields ---------------------------------------------------------------------------------------------
    formats: frozenset[str] = frozenset()
    """Types of `response_format`; with it goes: a JSON schema has a name and a schema."""
    max_stops: int = 0
    max_stop_bytes: int = 0
    max_top_logprobs: int = 0


NO_RULES: Final = Contract()
