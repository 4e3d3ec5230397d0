"""The work of the routing simulation: the conversations of a fleet of agents, the same for every policy.

Agents of one kind share their tools and system prompt. A conversation begins with a question, some of which are
asked again and again (jobs that run by the clock), and grows with each answer and tool result. Every draw comes
from the seed; nothing here depends on time or on where a request goes, so all policies have the same tokens to
process. The clock does depend on it: a turn is sent so long after the last answer ended.

Prompts are bytes of four to a token, as the emulator counts, and their blocks are the emulator's own.
"""

import hashlib
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from backends.emulator.prompt import Prompt
from backends.emulator.tokens import BYTES_PER_TOKEN


@dataclass(frozen=True, slots=True)
class Sizes:
    """A log-normal size: its median, the spread of its logarithm, and where it is cut off."""

    median: float
    sigma: float
    least: int
    most: int

    def draw(self, dice: random.Random) -> float:
        """One size."""
        return min(max(self.least, self.median * math.exp(dice.gauss(0.0, self.sigma))), self.most)


@dataclass(frozen=True, slots=True)
class Fleet:
    """What the fleet is like. Tokens, seconds, and shares of 1."""

    conversations: int = 400
    arrive_s: float = 2_400.0
    """Conversations begin within this time."""
    kinds: int = 8
    """Kinds of agents; the second is half as frequent as the first, the third a third."""
    tools_tokens: Sizes = Sizes(7_000, 0.5, 1_500, 25_000)
    system_tokens: Sizes = Sizes(3_000, 0.6, 500, 12_000)
    first_tokens: Sizes = Sizes(900, 1.0, 60, 20_000)
    """The first question, with what is pasted into it."""
    repeated_share: float = 0.2
    """Of conversations that begin with one of the kind's four stock questions."""
    burst_share: float = 0.35
    """Of conversations that an orchestrator starts at once, all of one kind."""
    burst_size: tuple[int, int] = (4, 14)
    mean_turns: float = 14.0
    most_turns: int = 80
    result_tokens: Sizes = Sizes(900, 1.3, 20, 30_000)
    """A tool's result, or what a person says next: mean 2,000."""
    output_tokens: Sizes = Sizes(350, 0.8, 20, 8_000)
    """Thought, text and calls of an answer: mean 480."""
    long_share: float = 0.05
    """Of conversations that read a whole repository first and go on for long."""
    long_first_tokens: Sizes = Sizes(120_000, 0.5, 50_000, 350_000)
    long_mean_turns: float = 40.0
    tool_gap_s: Sizes = Sizes(4.0, 1.0, 0, 60)
    slow_gap_s: Sizes = Sizes(50.0, 0.8, 0, 280)
    """A build, a test run."""
    person_gap_s: Sizes = Sizes(330.0, 0.9, 20, 3_000)
    """Somebody has to look at it: in half of the cases longer than the caches' five minutes."""
    slow_share: float = 0.15
    person_share: float = 0.04


@dataclass(frozen=True, slots=True)
class Kind:
    """Agents of one kind. `data` is what their prompts begin with."""

    name: str
    tools_tokens: int
    system_tokens: int
    data: bytes
    stock: tuple[tuple[str, int], ...]  # questions that are asked again: name and tokens

    @property
    def tokens(self) -> int:
        """Of tools and system prompt."""
        return self.tools_tokens + self.system_tokens


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: so many tokens in its prompt, so many in its answer; sent `gap_s` after the last answer ended.
    `luck` is a factor on what its target takes before it begins to read."""

    number: int
    prompt_tokens: int
    new_tokens: int  # of the prompt, since the last answer
    output_tokens: int
    gap_s: float
    luck: float


@dataclass(slots=True)
class Talk:
    """One conversation. `blocks` are the digests of the blocks of its longest prompt, by tokens a block."""

    name: str
    kind: Kind
    question: str  # of two conversations with the same one the prompts begin alike
    begins_s: float
    turns: tuple[Turn, ...]
    blocks: dict[int, list[bytes]] = field(default_factory=dict, repr=False)

    def chain(self, turn: Turn, block_tokens: int) -> Sequence[bytes]:
        """The digests of the full blocks of a turn's prompt."""
        return self.blocks[block_tokens][: turn.prompt_tokens // block_tokens]


def talks_of(fleet: Fleet, seed: int, block_tokens: Sequence[int]) -> list[Talk]:
    """The conversations, in the order in which they begin."""
    dice = random.Random(seed)
    kinds = [_kind(fleet, dice, f"{seed}/kind{number}") for number in range(fleet.kinds)]
    talks = []
    for number, (begins_s, kind) in enumerate(_beginnings(fleet, kinds, dice)):
        talk, first = _talk(fleet, dice, f"{seed}/talk{number}", kind, begins_s)
        data = kind.data + _bytes(f"{kind.name}/{talk.question}", first)
        last = talk.turns[-1].prompt_tokens
        prompt = Prompt(data + _bytes(talk.name, last - len(data) // BYTES_PER_TOKEN))
        talk.blocks = {tokens: prompt.chain("fleet", tokens) for tokens in block_tokens}
        talks.append(talk)
    return talks


def _kind(fleet: Fleet, dice: random.Random, name: str) -> Kind:
    tools, system = int(fleet.tools_tokens.draw(dice)), int(fleet.system_tokens.draw(dice))
    stock = tuple((f"stock{number}", int(fleet.first_tokens.draw(dice))) for number in range(4))
    return Kind(name, tools, system, _bytes(name, tools + system), stock)


def _beginnings(fleet: Fleet, kinds: Sequence[Kind], dice: random.Random) -> Iterator[tuple[float, Kind]]:
    """When conversations begin and of which kind they are: alone, or several at once."""
    weights = [1 / (number + 1) for number in range(len(kinds))]
    found: list[tuple[float, Kind]] = []
    low, high = fleet.burst_size
    mean_size = (low + high) / 2
    bursts = fleet.burst_share / mean_size / (1 - fleet.burst_share + fleet.burst_share / mean_size)
    while len(found) < fleet.conversations:
        begins_s, kind = dice.uniform(0, fleet.arrive_s), dice.choices(kinds, weights)[0]
        size = dice.randint(low, high) if dice.random() < bursts else 1
        found += [(begins_s + dice.uniform(0, 2.0) * (size > 1), kind) for _ in range(size)]
    yield from sorted(found[: fleet.conversations], key=lambda one: one[0])


def _talk(fleet: Fleet, dice: random.Random, name: str, kind: Kind, begins_s: float) -> tuple[Talk, int]:
    """A conversation without its blocks, and the tokens of its first question."""
    is_long = dice.random() < fleet.long_share
    if is_long:
        question, first = name, int(fleet.long_first_tokens.draw(dice))
    elif dice.random() < fleet.repeated_share:
        question, first = dice.choice(kind.stock)
    else:
        question, first = name, int(fleet.first_tokens.draw(dice))
    mean = fleet.long_mean_turns if is_long else fleet.mean_turns
    count = min(1 + int(dice.expovariate(1 / max(0.01, mean - 0.5))), fleet.most_turns)
    turns, tokens, new = [], kind.tokens + first, kind.tokens + first
    for number in range(count):
        output = int(fleet.output_tokens.draw(dice))
        gap_s = _gap_s(fleet, dice) if number else 0.0
        turns.append(Turn(number, tokens, new, output, gap_s, math.exp(dice.gauss(0.0, 0.3))))
        result = int(fleet.result_tokens.draw(dice))
        tokens, new = tokens + output + result, result
    return Talk(name, kind, question, begins_s, tuple(turns)), first


def _gap_s(fleet: Fleet, dice: random.Random) -> float:
    """How long a tool, or a person, takes."""
    chance = dice.random()
    if chance < fleet.person_share:
        return fleet.person_gap_s.draw(dice)
    slow = chance < fleet.person_share + fleet.slow_share
    return (fleet.slow_gap_s if slow else fleet.tool_gap_s).draw(dice)


def _bytes(name: str, tokens: int) -> bytes:
    """Bytes of so many tokens that nothing of another name begins with."""
    return hashlib.shake_128(name.encode()).digest(tokens * BYTES_PER_TOKEN)
