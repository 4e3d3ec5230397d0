"""The targets of the routing simulation: an emulator's cache, invoice and limits, driven in virtual time.

What is read, written and charged is the emulator's own doing (`backends.emulator`): `PrefixCache.look` when a
target begins with a prompt, `keep` when it has read it, a line on its `Invoice` when the answer ends. How long it
takes is a simple model: the first token comes after `first_s` and `1 / prefill_per_s` for each prompt token that
was not in the cache, every further one after `1 / decode_per_s`; so many requests run at a time as `concurrency`
says.
"""

from collections.abc import Callable
from dataclasses import dataclass

from routing_fleet import Talk, Turn

from backends.emulator.config import EmulatorConfig
from backends.emulator.invoice import PromptSplit
from backends.emulator.limits import Limits, Reached, Usage
from backends.emulator.prices import Sheet, sheet
from backends.emulator.state import State


@dataclass(frozen=True, slots=True)
class Offer:
    """One target. USD per 1M tokens; `usd` None: the emulator's own prices of that service. `cache_tokens` is how
    much its cache holds, 0: as much as the emulator's usual."""

    name: str
    dialect: str
    concurrency: int
    first_s: float
    prefill_per_s: float
    decode_per_s: float
    window_tokens: int = 1_048_576
    usd: tuple[str, str, str] | None = None  # input, cache read, output
    cache_tokens: int = 0

    @property
    def sheet(self) -> Sheet | None:
        """Its prices where they are not the service's."""
        if self.usd is None:
            return None
        fresh, read, output = self.usd
        return sheet(input=fresh, cache_read=read, write_5m=fresh, write_1h=fresh, output=output)


@dataclass(slots=True)
class Running:
    """A request that a target works on."""

    talk: Talk
    turn: Turn
    split: PromptSplit
    usage: Usage
    begun_s: float
    first_s: float  # when its first token comes
    ends_s: float


class Engine:
    """One target at work."""

    def __init__(self, offer: Offer, clock: Callable[[], float]) -> None:
        self.offer = offer
        limits = Limits(concurrency=offer.concurrency)
        config = EmulatorConfig(dialect=offer.dialect, clock=clock, limits=limits)
        self.state = State(config)
        if offer.cache_tokens:
            blocks = offer.cache_tokens // self.state.block_tokens
            self.state = State(EmulatorConfig(offer.dialect, clock=clock, limits=limits, max_cache_blocks=blocks))
        self.block_tokens = self.state.block_tokens
        model = self.state.profile.models[0]
        host = next(iter(self.state.profile.allowed_hosts({})), None)
        self.model = model.id
        self.prices = offer.sheet or (host.prices if host is not None else model.prices)
        self.running = 0

    def begin(self, talk: Talk, turn: Turn) -> Running:
        """Begins with a prompt. Raises `RuntimeError` where the service would refuse it: nobody may send more
        than it takes."""
        state, now_s = self.state, self.state.clock.now_s()
        usage = state.account("").admit(turn.prompt_tokens + turn.output_tokens, now_s)
        if isinstance(usage, Reached) or turn.prompt_tokens >= self.offer.window_tokens:
            raise RuntimeError(f"{self.offer.name} would have refused a request of {turn.prompt_tokens} tokens")
        chain = talk.chain(turn, self.block_tokens)
        split = state.cache.look(chain, prompt_tokens=turn.prompt_tokens, ttl="5m", now_s=now_s)
        fresh = split.total - split.cache_read
        first_s = now_s + self.offer.first_s * turn.luck + fresh / self.offer.prefill_per_s
        self.running += 1
        ends_s = first_s + turn.output_tokens / self.offer.decode_per_s
        return Running(talk, turn, split, usage, now_s, first_s, ends_s)

    def read(self, one: Running) -> None:
        """The prompt has been read: what it has is in the cache from now on."""
        chain = one.talk.chain(one.turn, self.block_tokens)
        self.state.cache.keep(chain, one.split, now_s=self.state.clock.now_s())

    def end(self, one: Running) -> PromptSplit:
        """The answer has ended and is charged; what the service says of its prompt."""
        state = self.state
        self.running -= 1
        state.account("").ended(one.usage, one.split.total + one.turn.output_tokens)
        reported = state.profile.shape.reported(one.split, thinks=True)
        state.invoice.add(
            id=f"{one.talk.name}/{one.turn.number}",
            model=self.model,
            prompt=reported,
            output=one.turn.output_tokens,
            prices=self.prices,
            disconnected=False,
        )
        return reported


# --- the two sets of targets ------------------------------------------------------------------------------------

MIX = (
    Offer("moonshot-a", "moonshot", 20, first_s=0.6, prefill_per_s=12_000, decode_per_s=55),
    Offer("moonshot-b", "moonshot", 20, first_s=0.6, prefill_per_s=12_000, decode_per_s=55),
    Offer("openrouter", "openrouter", 20, first_s=0.9, prefill_per_s=12_000, decode_per_s=50),
    Offer(
        "vllm",
        "vllm",
        10,
        first_s=0.3,
        prefill_per_s=7_000,
        decode_per_s=35,
        window_tokens=262_144,
        usd=("0.80", "0.08", "4.00"),
        cache_tokens=3_000_000,
    ),
)
"""Two accounts at Moonshot, OpenRouter at the same prices, and one machine of eight GPUs."""

REPLICAS = tuple(
    Offer(
        f"replica-{letter}",
        "vllm",
        14,
        first_s=0.3,
        prefill_per_s=7_000,
        decode_per_s=35,
        usd=("0.80", "0.08", "4.00"),
        cache_tokens=3_000_000,
    )
    for letter in "abcd"
)
"""Four such machines behind one name."""
