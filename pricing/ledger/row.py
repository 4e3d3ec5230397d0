"""The ledger row: one per request that was authenticated and planned, with everything `show` needs later.

Its field names are an interface (`show --format json`, `report`, `export`). Money is integer nano-dollars in
here and in SQL; the outside form is made by `pricing.ledger.shown`.
"""

from typing import Any, Final, Literal, TypeAlias, final

import msgspec

Status = Literal[
    "ok",
    "error",
    "incomplete",
    "client_disconnected",
    "client_stalled",
    "shutting_down",
    "open",
    "unsettled",
]
STATUSES: Final[tuple[Status, ...]] = (
    "ok",
    "error",
    "incomplete",
    "client_disconnected",
    "client_stalled",
    "shutting_down",
    "open",
    "unsettled",
)

CostSource = Literal["card", "target", "upstream", "unpriced", "none"]
"""Where the cost comes from: a dated card, the target's own prices, the upstream's report; `unpriced` where no
rate is known; `none` where nothing was used (no tokens, so nothing to price)."""


class AttemptRecord(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One attempt on one target. Times are milliseconds since the request began."""

    target: str
    dialect: str
    model: str  # the upstream's name that was asked for
    start_ms: int
    end_ms: int | None = None
    first_byte_ms: int | None = None
    upstream_id: str | None = None  # the `id` of the answer
    upstream_request_id: str | None = None  # x-trace-id, x-request-id, x-generation-id: to dispute a bill with
    status: int | None = None
    fault: str | None = None  # backends.faults.FaultKind
    message: str | None = None
    maybe_billed: bool = False  # failed after the request was sent


class LineRecord(msgspec.Struct, frozen=True, gc=False):
    """One meter of the cost. `rate` is nano-dollars per unit, None where the meter has no price."""

    meter: str
    count: int
    rate: int | None
    nano: int


class RowColumns(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """What of a request the ledger has columns for, and its tags: enough to book it.

    Tokens are counts; None means unknown, never zero. `started_at` is Unix seconds, UTC. `cost_nano` is None for
    an unpriced row. `prompt_tokens = input + cached + write_5m + write_1h`.
    """

    request_id: str
    started_at: float
    key: str = "open"  # the key's name; open mode is one caller
    tags: dict[str, str] = {}
    route: str = ""  # the public model that was asked for
    target: str = ""
    model: str = ""  # the public name of what answered
    tier: str = "standard"
    effort: str = "unset"
    ttl: str = ""  # requested; "" where none was
    status: Status = "open"
    owner: str = ""  # process that holds the open row
    lease_until: float = 0.0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    write_5m_tokens: int | None = None
    write_1h_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost_nano: int | None = None
    cost_source: CostSource = "none"
    estimated: bool = False
    assumed: bool = False  # the TTL split was taken from the request
    prefix: str = ""  # the conversation's id: the same for all of its requests
    cache_loss: str = ""  # why cached tokens were lost, one word of few; "" where none were


class LedgerRow(RowColumns, kw_only=True, omit_defaults=True, gc=False):
    """One request, with everything that is known of it."""

    upstream_model: str = ""  # the upstream's own name of what answered
    stream: bool = False
    outcome: str = ""  # "" or thinking_exhausted
    http_status: int = 0
    attempts: list[AttemptRecord] = []
    search_calls: int = 0
    table_cost_nano: int | None = None  # the card's value where the upstream reported its own
    reserved_nano: int | None = None  # what was held of a budget for it; None without one
    allocated_nano: int | None = None  # its share of the GPUs' time; None where nobody said what they cost
    lines: list[LineRecord] = []
    card: str = ""  # id of the card used, with its date and the write rule
    estimate_bound_nano: int | None = None  # the true cost is within cost ± this
    anomaly: str = ""  # comma-separated names, "" where all is well
    adjusted: list[str] = []
    thinking: str = ""
    cache_lost_tokens: int | None = None  # how many would have been read
    cache_lost_nano: int | None = None  # what that cost; None where no price is known
    raw_usage: dict[str, Any] | None = None  # the upstream's own object, for audit
    error_type: str = ""
    error_code: str = ""
    message: str = ""  # the error's message as the client saw it
    wait_ms: int = 0
    ttft_ms: int | None = None
    total_ms: int | None = None


@final
class StoredRow(RowColumns, kw_only=True, omit_defaults=True, gc=False):
    """A row read for its columns only; `data` is the JSON of the whole `LedgerRow`, as it was written."""

    data: str = ""


Bookable: TypeAlias = LedgerRow | StoredRow
