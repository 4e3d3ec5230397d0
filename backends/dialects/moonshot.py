"""api.moonshot.ai: the dialect the gateway itself speaks to clients."""

from backends.contract import Contract
from backends.dialect import Dialect

DIALECT = Dialect(
    name="moonshot",
    base_url="https://api.moonshot.ai/v1",
    key_variable="MOONSHOT_API_KEY",
    models={
        "kimi-k3.1-pro": "kimi-k3.1-pro",
        "kimi-k3.1-pro-highspeed": "kimi-k3.1-pro-highspeed",
    },
    # "invalid temperature: only 1 is allowed for this model"; some relays refuse even the value allowed, so
    # the fields are always left out (platform.kimi.ai/docs/api/chat, and the public reports in case par-01).
    fixed={"temperature": 1, "top_p": 0.95, "presence_penalty": 0, "frequency_penalty": 0, "n": 1},
    max_n=1,
    own_fields=frozenset({"prompt_cache_options"}),
    named_tool_choice=False,
    remote_images=False,
    file_urls=True,
    # What the AI SDK's provider sends there (3.0.60, src): everything else was seen refused.
    media_types=frozenset(
        {f"image/{kind}" for kind in ("jpeg", "jpg", "png", "gif", "webp", "bmp", "heic", "heif")}
        | {
            f"video/{kind}"
            for kind in ("mp4", "mpeg", "mov", "quicktime", "avi", "x-flv", "mpg", "webm", "wmv", "3gpp")
        }
    ),
    schema_flavour="moonshot",
    # platform.kimi.ai/docs/api/chat: roles, kinds of parts (audio and PDF parts were seen refused), stop,
    # top_logprobs, response_format, tools in system messages. Public reports: blank parts and empty messages,
    # calls without a result, `prompt_cache_breakpoint`. Of the two published rules for names the later one
    # (September 2026, 1 to 128 characters), because the earlier one (3 to 64) refuses names that are in use.
    contract=Contract(
        roles=frozenset({"system", "user", "assistant", "tool"}),
        part_types=frozenset({"text", "image_url", "video_url"}),
        refuses_empty=True,
        pairs_calls=True,
        breakpoints=False,
        declared_tools=True,
        tool_kinds=frozenset({"function", "builtin_function"}),
        tool_name=r"[a-zA-Z_][a-zA-Z0-9_-]{0,127}",
        choices_with_tools=frozenset({"required"}),
        formats=frozenset({"text", "json_object", "json_schema"}),
        max_stops=5,
        max_stop_bytes=32,
        max_top_logprobs=20,
    ),
    default_output_known=True,
    cache_options=True,
    # usage.cached_tokens is documented; where it is missing nothing was cached (case use-02).
    absent_cached_is_zero=True,
    seller="moonshot",
    # api.moonshot.cn bills in CNY (platform.kimi.com).
    other_currency_suffixes=(".cn",),
)
