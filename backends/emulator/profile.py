"""What one dialect's service is like: facts and words as one value, so that no code branches on a dialect's name.

A dialect is a file with one `Profile`; `profiles` lists them. `relaxed` turns one into a bare engine that enforces
nothing of the contract.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Literal

from backends.emulator.errors import Refusal
from backends.emulator.prices import Sheet
from backends.emulator.request import ChatRequest
from backends.json import JsonObject

Tier = Literal["standard", "highspeed"]
UsagePlace = Literal["choice", "finish", "extra"]
"""Where a stream's usage stands: in the finishing chunk's choice, at that chunk's top level, or in one more chunk
without choices (only where `stream_options.include_usage` asks for it)."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model on offer."""

    id: str
    tier: Tier
    created_s: int
    prices: Sheet


@dataclass(frozen=True, slots=True)
class Words:
    """What the service says when it refuses, and the shape of an error body."""

    error_body: Callable[[Refusal], JsonObject]
    unknown_path: Callable[[str, str], JsonObject]  # method, path
    wrong_key: Callable[[str], Refusal]  # the key that came, empty where none did
    too_large: Callable[[], Refusal]
    unknown_model: Callable[[str], Refusal]
    too_long: Callable[[int, int, int], Refusal]  # prompt tokens, limit tokens (0: the prompt alone), window


@dataclass(frozen=True, slots=True)
class Profile:
    """Facts of one kind of service. Fields that hold tokens or bytes say so."""

    name: str
    models: tuple[Model, ...]
    words: Words
    owned_by: str
    context_tokens: int
    default_limit_tokens: int
    block_tokens: int
    image_tokens: int
    efforts: tuple[str, ...]
    default_effort: str
    thought_in: tuple[str, ...]
    thought_out: tuple[str, ...]
    checks: tuple[Callable[[ChatRequest, "Profile"], None], ...]
    fixed: Mapping[str, Decimal] = field(default_factory=dict)
    roles: tuple[str, ...] = ("system", "user", "assistant", "tool")
    tool_name_pattern: str = ""
    tool_kinds: tuple[str, ...] = ("function",)
    max_stops: int = 0  # 0 = no limit
    max_stop_bytes: int = 0
    media_types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    file_scheme: str = ""
    usage_places: tuple[UsagePlace, ...] = ("extra",)
    reports_writes: bool = False
    ttl_headers: bool = False

    def model(self, id: str) -> Model | None:
        """The model on offer under that name."""
        return next((model for model in self.models if model.id == id), None)

    def effort_of(self, request: ChatRequest) -> str:
        """The effort a request runs at: a word the service does not know is ignored, not refused."""
        return request.effort if request.effort in self.efforts else self.default_effort


def relaxed(profile: Profile) -> Profile:
    """The same service as a bare engine would be: whatever can be read is answered."""
    return replace(profile, checks=())
