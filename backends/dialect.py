"""A dialect is a value that states the facts of one kind of upstream; nobody branches on its name.

The defaults describe a plain OpenAI-compatible server. A file in `backends.dialects` states only what differs,
each fact with its source. Functions that differ are fields as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from backends.contract import NO_RULES, Contract

EFFORTS = ("low", "high", "max")
"""What the K3 family knows (platform.kimi.ai/docs/api/chat); absent means max upstream."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The flags of an engine by what they bring; "" where no flag is known."""

    cached_counts: str = ""
    thoughts: str = ""
    tools: str = ""
    request_ids: str = ""  # where set, answers without a request id lack it


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Where an engine says how busy it is and whether it is well, from the server's root on, and in which words.

    `paths` are tried in order; the first that says it counts. Metrics are text in Prometheus' form; a number has
    the first of its names that is there; any other answer is JSON.
    """

    paths: tuple[str, ...] = ("/metrics",)
    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    cache_used: tuple[str, ...] = ()
    """The part of the KV cache in use, 0 to 1."""
    copy_labels: frozenset[str] = frozenset()
    """Labels that tell copies of one number apart: the largest counts. By any other label the numbers add up."""
    health_path: str = "/health"
    health_is_cheap: bool = True  # asked each time; else only where no path says how busy it is


@dataclass(frozen=True, slots=True)
class Dialect:
    """Facts of one kind of upstream, used to encode requests for it and to read its answers."""

    name: str
    base_url: str = ""  # the public service's, "" for self-hosted
    key_variable: str = ""  # the environment variable that adds a target of this kind
    url_variable: str = ""
    models: Mapping[str, str] = field(default_factory=dict)  # public name -> its name, for targets from variables

    # --- requests -------------------------------------------------------------------------------------------
    thought_in: tuple[str, ...] = ("reasoning_content",)
    """Names under which a history thought is sent; every name listed carries the same text."""
    keeps_thought_details: bool = False
    """`reasoning_details` of history messages are sent back whole; elsewhere they are left out."""
    effort_path: tuple[str, ...] = ("reasoning_effort",)
    thinking_off: Mapping[str, object] | None = None
    """Fields that switch thinking off; None where it cannot be switched off."""
    fixed: Mapping[str, object] = field(default_factory=dict)
    """Sampling fields with the only value accepted; any other is a 400 there, so it is left out."""
    max_n: int | None = None  # largest n, None = no limit known
    own_fields: frozenset[str] = frozenset()
    """Body fields that only this kind understands; to another kind they are left out and disclosed."""
    conversation_field: str = ""  # body field for the conversation key
    conversation_header: str = ""  # header for the conversation key
    named_tool_choice: bool = True  # a tool_choice that names one function is accepted
    remote_images: bool = True  # fetches http(s) image URLs
    file_urls: bool = False  # takes ms:// ids
    media_types: frozenset[str] = frozenset()  # types of data URLs it takes; empty = whatever it is sent
    partial: Literal["partial", "continue_final_message"] = "partial"
    schema_flavour: Literal["", "moonshot"] = ""
    tool_id_pattern: str = ""
    """A regular expression that the ids of tool calls must match as a whole, "" = any."""
    contract: Contract = NO_RULES  # what it refuses besides
    default_output_known: bool = False
    """Without an output limit it stops at 131,072 tokens, as documented for K3.1; elsewhere nobody says where."""
    cache_options: bool = False  # takes prompt_cache_options (Moonshot's meaning)
    extra_headers: Mapping[str, str] = field(default_factory=dict)

    # --- answers --------------------------------------------------------------------------------------------
    absent_cached_is_zero: bool = False
    """No cached count in a usage report means none was cached; elsewhere it means that nobody counted."""
    reports_cost: bool = False  # usage.cost is what is charged, in USD
    created_is_write: bool = False  # prompt_tokens_details.created_cache_tokens has a price
    marks_named_call_stop: bool = False  # finish_reason stop after a named tool choice although a call was made
    leaked_call_opening: str = ""
    """How a call begins that leaks into the content of an answer to a request that wants none; "" where that is
    not known to happen."""

    # --- money ----------------------------------------------------------------------------------------------
    seller: str = ""  # whose card prices it; "" = nobody's: unpriced unless the target states prices
    other_currency_suffixes: tuple[str, ...] = ()  # hosts of the same seller that bill in another currency

    # --- operations -----------------------------------------------------------------------------------------
    models_window_field: tuple[str, ...] = ("context_length", "max_model_len")
    key_required: bool = True
    launch: Launch = Launch()  # what a self-hosted engine has to be started with
    version_paths: tuple[str, ...] = ()
    """Where an engine tells its version, from the server's root on; the first path that does counts."""
    version_field: str = "version"  # the member of the JSON object there
    load: LoadReport | None = None  # None: it says nothing of its load
