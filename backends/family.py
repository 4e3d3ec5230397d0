"""What hangs on the family of a model, whoever serves it: one table, by the name that a model has at its target.

K3 is what everything else here is about. The K2 series retires at the end of December 2026 (kimi-api-facts.md
1.1), so it gets one row: what a client says to it passes as it came, and no rule of K3's is applied.
"""

from dataclasses import dataclass, replace
from typing import Final

from backends.contract import Contract
from backends.dialect import Dialect


@dataclass(frozen=True, slots=True)
class Family:
    """A family of models. `prefix` begins the names of its models, in small letters and without their owner.

    `placeholder` is the JSON text that stands for a lost thought of a tool-call turn. `passes_through`: the wishes
    of a request, such as `thinking`, efforts and sampling, go to the upstream as the client wrote them, and what
    they come to there is the client's affair.
    """

    prefix: str
    placeholder: bytes
    passes_through: bool


K3: Final = Family("", b'""', passes_through=False)
"""What every model belongs to that no row below claims: K3 checks nothing, and "" says what is."""

_FAMILIES: Final = (
    # Its tool-call turns are a 400 where the thought is absent or "" while it thinks; a space is the least that it
    # takes (2.2). It has `thinking`, which K3 has not, and a 400 for `thinking` and `reasoning_effort` together
    # (1.3) that is the client's own to see.
    Family("kimi-k2", b'" "', passes_through=True),
)


def family_of(model: str) -> Family:
    """The family of a model, by its name at a target: `moonshotai/Kimi-K2.6` is one of `kimi-k2`."""
    name = model.rpartition("/")[2].lower()
    return next((family for family in _FAMILIES if name.startswith(family.prefix)), K3)


def dialect_for(family: Family, dialect: Dialect) -> Dialect:
    """The dialect as it is for a family's models: for one that passes through, without the rules that are K3's.

    What stays belongs to the service and not to the model: how a thought is spelled, the flavour of schemas, which
    pictures it fetches, and that a history has no empty messages and no calls without a result.
    """
    if not family.passes_through:
        return dialect
    stated = dialect.contract
    return replace(
        dialect,
        fixed={},
        max_n=None,
        named_tool_choice=True,
        contract=Contract(refuses_empty=stated.refuses_empty, pairs_calls=stated.pairs_calls),
    )
