"""What one dialect's service is like: facts and words as one value, so that no code branches on a dialect's name.

A dialect is a file with one `Profile`; `profiles` lists them. `relaxed` turns one into a bare engine that enforces
nothing of the contract.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Literal

from backends.emulator.errors import Refusal
from backends.emulator.player import Headers
from backends.emulator.prices import Sheet
from backends.emulator.request import ChatRequest
from backends.emulator.shape import Shape, UsagePlace
from backends.emulator.thinking import EFFORTS, Thinking
from backends.json import Json, JsonObject

Tier = Literal["standard", "highspeed"]
Facility = Literal[
    "estimate", "balance", "credits", "tokenize", "version", "server_info", "banner", "load", "loads"
]
LimitName = Literal["concurrency", "rpm", "tpm", "tpd"]
TroubleKind = Literal["overloaded", "rate", "quota", "forbidden", "filter", "full", "server", "crash"]


@dataclass(frozen=True, slots=True)
class Model:
    """A model on offer."""

    id: str
    tier: Tier
    created_s: int
    prices: Sheet


@dataclass(frozen=True, slots=True)
class Host:
    """A provider behind a reseller."""

    name: str
    prices: Sheet


@dataclass(frozen=True, slots=True)
class MetricWords:
    """The names of an engine's metrics, and their labels, in which MODEL stands for the model."""

    running: str
    waiting: str
    cache_used: str
    labels: str


@dataclass(frozen=True, slots=True)
class Trouble:
    """A refusal that is no fault of the request, before the dialect has put it into words.

    `status` 0 is the dialect's own. `limit`, `most`, `current` (in the limit's unit) and `wait_s` tell which limit
    of the account was reached; `account` and `key` are its ids, which the service puts into its message.
    """

    kind: TroubleKind
    status: int = 0
    limit: LimitName = "rpm"
    most: int = 0
    current: int = 0
    wait_s: int = 1
    account: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class Words:
    """What the service says when it refuses, and the shape of its errors, as a body and as an event of a stream
    (which gets the first fields of the stream's chunks)."""

    error_body: Callable[[Refusal], Json]
    error_event: Callable[[Refusal, JsonObject], JsonObject]
    unknown_path: Callable[[str, str], JsonObject]  # method, path
    wrong_key: Callable[[str], Refusal]  # the key that came, empty where none did
    too_large: Callable[[], Refusal]
    unknown_model: Callable[[str, tuple[str, ...]], Refusal]  # the name, those on offer
    too_long: Callable[[int, int, int], Refusal]  # prompt tokens, limit tokens (0: the prompt alone), window
    trouble: Callable[[Trouble], Refusal]
    no_messages: Callable[[bool], Refusal]  # whether the field was there
    logprobs_too_many: Callable[[int, int], Refusal]  # asked for, most
    wrong_method: Callable[[], JsonObject] | None = None  # None: a path is unknown with any other method
    limit_too_large: Callable[[str, int, int], Refusal] | None = None  # field, limit, window


@dataclass(frozen=True, slots=True)
class Profile:
    """Facts of one kind of service. Fields that hold tokens or bytes say so."""

    name: str
    models: tuple[Model, ...]
    words: Words
    shape: Shape
    list_entry: Callable[[Model, int], JsonObject]  # a model, its window: the entry of /v1/models
    checks: tuple[Callable[[ChatRequest, "Profile"], None], ...]
    check_text_only: Callable[[ChatRequest, "Profile"], None] | None = None  # for models without pictures

    # --- sizes ------------------------------------------------------------------------------------------------
    context_tokens: int = 1_048_576
    block_tokens: int = 256
    default_limit_tokens: int = 0  # 0 = whatever the window leaves
    least_limit_tokens: int = 1
    clamps_limit: bool = False  # a limit that the window does not leave is lowered, not refused
    image_tokens: int = 1_024  # said of older vision models; unknown for K3.1

    # --- requests ---------------------------------------------------------------------------------------------
    read_thinking: Callable[[JsonObject], Thinking] = lambda body: Thinking()
    efforts: tuple[str, ...] = EFFORTS
    default_effort: str = "max"
    thought_in: tuple[str, ...] = ("reasoning_content",)
    thought_details_in: str = ""  # a list of pieces that goes before `thought_in`
    partial_by_message: bool = True  # `partial` in a message, else `continue_final_message`
    unnamed_model: str = ""  # what a request without a model is answered as; "" = refused
    json_only: bool = False  # a body that does not say that it is JSON is refused
    takes_any_model: bool = False  # a name that is not on offer is served, and echoed
    fixed: Mapping[str, Decimal] = field(default_factory=dict)
    roles: tuple[str, ...] = ("system", "user", "assistant", "tool")
    tool_name_pattern: str = ""
    tool_kinds: tuple[str, ...] = ("function",)
    max_stops: int = 0  # 0 = no limit
    max_stop_bytes: int = 0
    max_top_logprobs: int = 20
    media_types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    file_scheme: str = ""

    # --- answers ----------------------------------------------------------------------------------------------
    usage_places: tuple[UsagePlace, ...] = ("extra",)
    ttl_headers: bool = False
    answer_headers: Callable[[str], Headers] = lambda id: ()
    forced_finish: str = "tool_calls"  # the finish reason where tool_choice named the function
    one_call: bool = False  # parallel_tool_calls is heeded
    leaks_calls: bool = False  # with tool_choice none the call's marks get into the text
    comment: bytes = b": keep-alive\n\n"
    comment_interval_s: float = 0.0
    comments_at_once: bool = False  # a stream begins with a comment, an unstreamed body with white space

    # --- cache and money --------------------------------------------------------------------------------------
    shared_cache: bool = False  # one cache for all callers, parted by `cache_salt` alone
    cache_expires: bool = True
    allowed_hosts: Callable[[JsonObject], tuple[Host, ...]] = lambda body: ()  # behind a reseller, best first
    byok_share: float = 0.0

    # --- trouble ----------------------------------------------------------------------------------------------
    done_after_error: bool = False  # [DONE] follows the error event of a stream
    full_is_queue: bool = False  # too many requests at once are a full queue, not a limit of the account
    full_in_stream: bool = False  # and a stream is told so inside a 200
    crash_says: bool = False  # a stream is told that the engine died, else the connection just closes
    bad_finish: str = "error"  # the finish reason of an answer that went wrong

    # --- paths ------------------------------------------------------------------------------------------------
    facilities: frozenset[Facility] = frozenset()
    version: str = ""  # of the engine, where a facility tells it
    metrics: MetricWords | None = None  # None: it shows none
    open_paths: frozenset[str] = frozenset()  # asked for without a key
    prefix: str = ""  # before /v1, taken with and without
    bare_health: bool = False  # /health is a status without a body
    token_strings: bool = False  # /tokenize has a field for the tokens' text

    def model(self, id: str) -> Model | None:
        """The model on offer under that name."""
        found = next((model for model in self.models if model.id == id), None)
        return replace(self.models[0], id=id) if found is None and self.takes_any_model else found

    def effort_of(self, request: ChatRequest) -> str:
        """The effort a request runs at, empty where thinking is off."""
        return (request.effort or self.default_effort) if request.thinks else ""


def relaxed(profile: Profile) -> Profile:
    """The same service as a bare engine would be: whatever can be read is answered, within the window."""
    return replace(profile, checks=(), clamps_limit=True)
